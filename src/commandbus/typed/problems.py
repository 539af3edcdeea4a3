"""What is wrong with data, by place. Never with a value of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from commandbus.privacy.redaction import redact_text

#: Problems of one payload that are looked for.
MAX_PROBLEMS = 100
#: Characters of the name of a field that nobody declared.
MAX_NAME = 60


class Problem(NamedTuple):
    """One place where data does not fit its type."""

    #: Names and numbers from the outside in, with dots between; empty: the whole.
    place: str
    #: What is wrong there, to be read after the place.
    message: str
    #: Both in one line.
    line: str


class MisfitError(Exception):
    """Data does not fit its type: where, and what is wrong there."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        super().__init__()
        self.problems = list(problems)[:MAX_PROBLEMS]

    def inside(self, name: str | int) -> Iterator[Problem]:
        """The same problems, seen from outside."""
        for place, message, _ in self.problems:
            yield problem(f"{name}.{place}" if place else str(name), message)


def problem(place: str, message: str) -> Problem:
    """A problem in our own words."""
    return Problem(place, message, f"{place} {message}" if place else message)


def misfit(message: str) -> MisfitError:
    """A value that is wrong as a whole."""
    return MisfitError([problem("", message)])


def shown(name: object) -> str:
    """The name of a key that came with the data: nobody promised that it is harmless."""
    return redact_text(str(name), MAX_NAME)
