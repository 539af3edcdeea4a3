"""python -m benchmarks [--only drain] [--systems commandbus,pgqueuer] [--repeats 5] [--quick]"""

from __future__ import annotations

import argparse

from benchmarks.catalogue import WORKLOADS
from benchmarks.lab import Lab, Size
from benchmarks.runner import chosen, run
from benchmarks.server import Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--systems", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    workloads = chosen(WORKLOADS, [x for x in arguments.only.split(",") if x], [x for x in arguments.systems.split(",") if x], is_quick=arguments.quick)
    with Server.opened() as server:
        lab = Lab(server, Size(drain=arguments.commands))
        run(lab, workloads, arguments.repeats)
        lab.close()


if __name__ == "__main__":
    main()
