"""The setting COMMANDBUS of a Django project: its keys, their defaults, its mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from django.conf import settings as django_settings

from commandbus.errors import CommandBusError, InvalidSettingError
from commandbus.settings import Settings, check_worker_settings

NAME = "COMMANDBUS"


@dataclass(frozen=True)
class Configuration:
    """What the project says of its bus."""

    #: The alias in DATABASES of the database that the bus is on.
    database: str = "default"
    #: The module of each app that has its handlers.
    handlers_module: str = "handlers"
    #: Where replies go unless a command says so: "none", "domain" or the name of a queue.
    replies: str = "none"
    #: Around all handlers of the project: dotted paths, or objects.
    middleware: tuple[Any, ...] = ()
    #: Arguments of run_worker, for `manage.py commandbus worker`.
    worker: Mapping[str, Any] = field(default_factory=dict)
    #: Fields of commandbus.Settings.
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def bus_settings(self) -> Settings:
        """The settings of the bus: those of the project win over the environment, which is read
        once.
        """
        return Settings.from_env(**{"replies": self.replies, **self.settings})


#: What WORKER may say.
WORKER_KEYS = {"concurrency", "vt_seconds", "use_notify"}
_KEYS = {each.name.upper(): each.name for each in fields(Configuration)}


#: The setting as it was when it was read last, and what it says.
_last: tuple[Mapping[str, Any], Configuration] | None = None


def configuration() -> Configuration:
    """The setting, looked at each time: tests override it. Raises the first problem.

    The same object as long as the setting says the same.
    """
    global _last  # noqa: PLW0603  (two threads that read it at once read the same)
    given = getattr(django_settings, NAME, {})
    last = _last
    if last is not None and last[0] == given and last[1].database in django_settings.DATABASES:
        return last[1]
    for problem in problems(given):
        raise InvalidSettingError(problem)
    found = _built(given)
    _last = ({key: copy(value) for key, value in given.items()}, found)
    return found


def _built(given: Mapping[str, Any]) -> Configuration:
    values = {_KEYS[key]: value for key, value in given.items()}
    if "middleware" in values:
        values["middleware"] = tuple(values["middleware"])
    return Configuration(**values)


def given_problems() -> list[str]:
    """What is wrong with the setting of this project."""
    return problems(getattr(django_settings, NAME, {}))


def problems(given: object) -> list[str]:
    """What is wrong with the setting, each in one sentence that says what to do."""
    if not isinstance(given, Mapping):
        return [f"{NAME} is a {type(given).__name__}; use a dictionary"]
    found = [
        f"{NAME} has the unknown key {key!r}; use {', '.join(sorted(_KEYS))}"
        for key in given
        if key not in _KEYS
    ]
    kinds: dict[str, tuple[type, ...]] = {
        "DATABASE": (str,), "HANDLERS_MODULE": (str,), "REPLIES": (str,),
        "MIDDLEWARE": (list, tuple), "WORKER": (Mapping,), "SETTINGS": (Mapping,),
    }  # fmt: skip
    found += [
        f"{NAME}[{key!r}] is {given[key]!r}; use a {kind[0].__name__.lower()}"
        for key, kind in kinds.items()
        if key in given and not isinstance(given[key], kind)
    ]
    return found or _deeper_problems(_built(given))


def _deeper_problems(found: Configuration) -> list[str]:
    result = []
    if unknown := sorted(set(found.worker) - WORKER_KEYS):
        known = ", ".join(sorted(WORKER_KEYS))
        result.append(f"{NAME}['WORKER'] has the unknown key {unknown[0]!r}; use {known}")
    else:
        options = {"concurrency": 10, "vt_seconds": 30, **found.worker}
        try:
            check_worker_settings(options["concurrency"], options["vt_seconds"])
        except CommandBusError as error:
            result.append(f"{NAME}['WORKER']: {error}")
    known_settings = sorted(each.name for each in fields(Settings))
    try:
        if strange := sorted(set(map(str, found.settings)) - set(known_settings)):
            near = get_close_matches(strange[0], known_settings, 1)
            hint = f"did you mean {near[0]!r}?" if near else "use fields of commandbus.Settings"
            result.append(f"{NAME}['SETTINGS'] has the unknown key {strange[0]!r}; {hint}")
        else:
            _ = found.bus_settings
    except CommandBusError as error:
        result.append(f"{NAME}['SETTINGS'] or ['REPLIES']: {error}")
    if found.database not in django_settings.DATABASES:
        known = ", ".join(sorted(django_settings.DATABASES)) or "nothing"
        result.append(f"{NAME}['DATABASE'] is {found.database!r}; DATABASES has {known}")
    return result


def table(name: str) -> str:
    """One of our tables, as a name that Django quotes once: schema and table.

    Asked while models are made, before any check could tell of a wrong setting: then it does not
    matter which schema this says.
    """
    try:
        schema = configuration().bus_settings.schema
    except CommandBusError:
        schema = Settings().schema
    return f'{schema}"."{name}'
