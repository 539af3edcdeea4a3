"""States: how far the audit is sealed, when chores were done last, and which settings hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, LiteralString

from commandbus._version import __version__
from commandbus.database.store import Store
from commandbus.upkeep.checks import CheckRun, last_run

#: Events that are not sealed are counted up to here.
COUNTED = 10_000
#: Stands for a value that is never shown.
MASK = "(set, not shown)"

_SEAL_STATE: LiteralString = (
    "select s.seal_number, s.sealed_to, s.sealed_at, s.key_id, s.unsealed, s.oldest_unsealed_at"
    " from {schema}.seal_state(%s) s"
)
_CHORES: LiteralString = (
    "select c.name, c.started_at, cast(extract(epoch from c.every) as float8), c.ended_at,"
    " c.failed, c.told from {schema}.command_bus_chore c order by c.name limit 2000"
)
_SETTINGS: LiteralString = (
    "select s.name, s.value, s.updated_at from {schema}.command_bus_setting s"
    " where s.name not like 'audit_pruned_before.%%' order by s.name limit 200"
)
_SERVER: LiteralString = (
    "select current_setting('server_version'), current_database(),"
    " (select max(m.version) from {schema}.command_bus_migration m)"
)


@dataclass(frozen=True, slots=True)
class SealState:
    """How far the audit is sealed, and when it was verified last."""

    #: None: nothing was ever sealed.
    seal_number: int | None
    #: The last event that a seal covers.
    sealed_to: int | None
    sealed_at: datetime | None
    key_id: str | None
    #: Events since then: up to 10,000.
    unsealed: int
    #: There are more of them.
    has_more: bool
    oldest_unsealed_at: datetime | None
    #: The last verification; None: there was none.
    verified: CheckRun | None


@dataclass(frozen=True, slots=True)
class Chore:
    """A chore that one process does for all: when it was begun last, and what it did."""

    name: str
    started_at: datetime
    #: Seconds after which it is begun again; None: a worker of an earlier version does it.
    every_seconds: float | None
    #: When it was done last; None: its process does not tell.
    ended_at: datetime | None
    has_failed: bool
    #: What it did then, by domain; `*`: what is about all of them. Empty: there was nothing to do.
    told: dict[str, str]

    @property
    def next_at(self) -> datetime | None:
        """When it is due again: the first process that asks then gets it."""
        if self.every_seconds is None:
            return None
        return self.started_at + timedelta(seconds=self.every_seconds)

    @property
    def is_running(self) -> bool:
        """It was begun after it was last done: it goes on, or its process has ended."""
        return self.ended_at is not None and self.ended_at < self.started_at

    @property
    def domain(self) -> str | None:
        """The domain that it is about; None: about all."""
        name, _, domain = self.name.rpartition(" of ")
        return domain if name == "recover dispatch" else None


@dataclass(frozen=True, slots=True)
class DatabaseSetting:
    """A setting that holds for the whole database."""

    name: str
    value: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SettingsOverview:
    """Which settings hold, with nothing that is secret."""

    version: str
    schema_version: int
    server_version: str
    database: str
    of_database: list[DatabaseSetting]
    #: Of this process, by name; secrets are masked.
    of_process: dict[str, Any]


class States:
    """How things stand that nobody changes from here."""

    _store: Store

    async def seal_state(self) -> SealState:
        """How far the audit is sealed, and what its last verification found; reads little."""
        ((number, to, at, key, unsealed, oldest),) = await self._store.gateway.rows(
            _SEAL_STATE, (COUNTED,)
        )
        verified = await last_run(self._store, "audit")
        more = unsealed > COUNTED
        return SealState(number, to, at, key, min(unsealed, COUNTED), more, oldest, verified)

    async def chores(self, domains: Collection[str] | None = None) -> list[Chore]:
        """When each chore was begun last, and what it did; of single domains that of these."""
        found = await self._store.gateway.rows(_CHORES, into=Chore)
        if domains is None:
            return found
        return [
            replace(each, told={key: each.told[key] for key in each.told if key in {*domains, "*"}})
            for each in found
            if each.domain is None or each.domain in domains
        ]

    async def settings_overview(self) -> SettingsOverview:
        """The settings of the database and of this process, for people; secrets are masked."""
        gateway = self._store.gateway
        ((server, database, migration),) = await gateway.rows(_SERVER)
        of_database = await gateway.rows(_SETTINGS, into=DatabaseSetting)
        shown = shown_settings(gateway.settings)
        return SettingsOverview(__version__, migration, server, database, of_database, shown)


def shown_settings(settings: Any) -> dict[str, Any]:
    """The fields of settings by name; one that is left out of `repr` is a secret."""
    return {
        spec.name: _shown(getattr(settings, spec.name), is_secret=not spec.repr)
        for spec in fields(settings)
    }


def _shown(value: Any, *, is_secret: bool) -> Any:
    if not is_secret:
        return list(value) if isinstance(value, tuple | frozenset | set) else value
    return MASK if value else ""
