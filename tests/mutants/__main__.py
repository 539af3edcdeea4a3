"""`make mutants`: takes the guards out of the SQL functions one by one; some test must notice.
`make mutants-python` changes the Python core in the same way.

    python -m tests.mutants --list
    python -m tests.mutants --files outcomes,commands
    python -m tests.mutants --only outcomes:110
    python -m tests.mutants --sample 20 --seed 1
    python -m tests.mutants --python --files worker/lease,policies

Results are kept in `.mutants/`; `--resume` leaves alone what was killed before,
and what the same tests have not killed.
"""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--python", action="store_true", help="mutants of the Python core")
    parser.add_argument("--files", help="only these files, separated by commas")
    parser.add_argument("--only", help="only this place, file:line")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--sample", type=int, help="only so many, drawn by chance")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--seconds", type=float, default=120.0, help="for one mutant at most")
    parser.add_argument("--tests", type=int, default=80, help="so many at most, the likely ones")
    parser.add_argument("--near", action="store_true", help="only the tests of their subjects")
    parser.add_argument("--minutes", type=float, help="begin no mutant after so many")
    parser.add_argument("--resume", action="store_true", help="skip what was killed before")
    options = parser.parse_args(arguments)
    # Not both: a fork that tries a Python mutant may not have commandbus yet.
    if options.python:
        from tests.mutants import python_run as runner
    else:
        from tests.mutants import sql_run as runner  # type: ignore[no-redef]
    return runner.run(options)


if __name__ == "__main__":
    sys.exit(main())
