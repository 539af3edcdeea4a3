"""What the doctor and retention ask of a store. The in-memory store does not implement it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Symptom:
    """How often a check found the same fault, and some of the places; ids, never payloads."""

    code: str
    domain: str | None
    found: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Examination:
    """What one look at the database gave, all of it in one snapshot."""

    symptoms: tuple[Symptom, ...]
    #: Only what was touched since then was looked at; None: everything.
    since: datetime | None
    #: What the server says of itself: versions, sizes.
    facts: Mapping[str, Any]
    #: What cannot be known from here, and why.
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """How long a kind of rows is kept; `domain` None: where no other rule says otherwise."""

    domain: str | None
    kind: str
    #: None: for ever.
    keep: timedelta | None
    updated_by: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PruneStep:
    """What one transaction of pruning removed, and where the next goes on."""

    pruned: Mapping[str, int]
    after: str | None
    is_done: bool


@runtime_checkable
class UpkeepStore(Protocol):
    """The verbs of the doctor and of retention."""

    async def examine(
        self, domain: str | None, *, window: timedelta | None, is_full: bool
    ) -> Examination:
        """Run all checks in one read-only transaction.

        Without a window everything is looked at, unless there are very many commands.
        """

    async def repair(self, verb: str, domain: str, *, actor: str | None, limit: int) -> list[str]:
        """Mend some of what this verb is for; returns what was mended, nothing at the end."""

    async def domains(self, domain: str | None) -> list[str]:
        """All domains, or this one if it is known."""

    async def list_retention(self) -> list[RetentionRule]:
        """The rules that were set."""

    async def set_retention(
        self, domain: str | None, kind: str, keep: timedelta | None, *, actor: str | None
    ) -> None:
        """Keep a kind so long; None: for ever."""

    async def clear_retention(self, domain: str | None, kind: str) -> bool:
        """Take a rule back; returns whether there was one."""

    async def retention_due(self, domain: str | None) -> list[tuple[str, str, datetime]]:
        """(domain, kind, before) of what the rules want removed, in the order to do it."""

    async def now(self) -> datetime:
        """The time of the database."""

    async def count_prunable(self, domain: str, kind: str, before: datetime) -> dict[str, int]:
        """How many rows pruning would remove."""

    async def prune(
        self,
        verb: str,
        domain: str,
        before: datetime,
        *,
        limit: int,
        after: str | None,
        actor: str | None,
    ) -> PruneStep:
        """Remove one chunk."""
