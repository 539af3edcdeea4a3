"""OPTIONS of a backend of Tasks: what may be said, what it means, and its mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.conf import settings

from commandbus.errors import CommandBusError
from commandbus.retry import RetryPolicy

#: The domain of the queue `default`; others have their name after it.
DOMAIN = "tasks"


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What OPTIONS says, and the defaults of the rest."""

    #: How often tasks are tried; None: as the bus says.
    retry_policy: RetryPolicy | None = None
    #: Whether a task runs inside `atomic()`.
    transactional: bool = False
    domain: str = DOMAIN
    #: The alias in DATABASES; None: that of the bus.
    database: str | None = None
    #: Modules, beside the installed apps, that a worker may import because a task is in them.
    modules: tuple[str, ...] = ()


_KNOWN = tuple(sorted(each.name for each in fields(TaskOptions)))


def read_options(given: Any) -> tuple[TaskOptions, list[str]]:
    """The options, and what is wrong with them: what is wrong is left at its default."""
    if not isinstance(given, Mapping):
        return TaskOptions(), [f"has OPTIONS that are a {type(given).__name__}; use a dictionary"]
    found = [
        f"has the unknown option {key!r}; use {', '.join(_KNOWN)}"
        for key in given
        if key not in _KNOWN
    ]
    values: dict[str, Any] = {}
    for key in _KNOWN:
        if key in given:
            value, problem = _READERS[key](given[key])
            if problem:
                found.append(problem)
            else:
                values[key] = value
    return TaskOptions(**values), found


_Read = tuple[Any, str | None]


def _policy(given: Any) -> _Read:
    if given is None or isinstance(given, RetryPolicy):
        return given, None
    if not isinstance(given, Mapping):
        return None, "has a retry_policy that is neither a RetryPolicy nor a dictionary"
    known = {each.name for each in fields(RetryPolicy)}
    if unknown := [key for key in given if key not in known]:
        names = ", ".join(sorted(known))
        return None, f"has a retry_policy with the unknown field {unknown[0]!r}; use {names}"
    try:
        return RetryPolicy(**given), None
    except (CommandBusError, TypeError) as error:
        return None, f"has a retry_policy that cannot be: {error}"


def _flag(given: Any) -> _Read:
    if isinstance(given, bool):
        return given, None
    return None, f"has transactional {given!r}; use True or False"


def _domain(given: Any) -> _Read:
    if isinstance(given, str):
        return given, None  # its form is looked at with the names of the queues
    return None, f"has the domain {given!r}; use text"


def _database(given: Any) -> _Read:
    if isinstance(given, str) and given in settings.DATABASES:
        return given, None
    return None, f"has the database {given!r}; DATABASES has {', '.join(settings.DATABASES)}"


def _modules(given: Any) -> _Read:
    if isinstance(given, (list, tuple)) and all(isinstance(each, str) for each in given):
        return tuple(given), None
    return None, f"has modules {given!r}; use a list of names"


_READERS = {
    "retry_policy": _policy, "transactional": _flag, "domain": _domain, "database": _database,
    "modules": _modules,
}  # fmt: skip
