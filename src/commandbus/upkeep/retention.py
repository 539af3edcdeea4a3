"""Retention: remove what is finished and old, in chunks, by rules in the database."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import LiteralString

from commandbus.database.store import Store
from commandbus.errors import InvalidSettingError
from commandbus.names import check_names, check_operator

#: Kind -> the SQL functions that remove it, in the order of a run. The commands are removed last,
#: because the others look at them.
PRUNERS: dict[str, tuple[LiteralString, ...]] = {
    "audit": ("prune_audit",),
    "archives": ("prune_archives",),
    "replies": ("prune_replies",),
    "history": ("prune_history",),
    "commands": ("prune_commands", "prune_batches"),
}
#: By the rules, which the database reads itself: all that the database role of a worker may do.
_PRUNE_DUE: LiteralString = (
    "select o_pruned, o_after, o_is_done from {schema}.prune_due(%s, %s, %s, %s, %s, %s)"
)
#: One step of looking after the parts of the audit.
_TEND: LiteralString = "select o_did, o_events, o_before from {schema}.tend_audit(%s)"
#: The same for the archives: where it was, and what it did there.
_TEND_ARCHIVES: LiteralString = (
    "select o_did, o_archive, o_domain, o_kind, o_gone, o_before"
    " from {schema}.tend_archives(%s, %s, %s)"
)
#: Steps of one turn, each a transaction: an end, should the database never come to one.
TEND_STEPS = 1_000
#: The domain of what is about all domains at once.
ALL_DOMAINS = "*"
#: Rows that one transaction looks at.
CHUNK = 1_000
#: The longest age: a time that is further back has no date in Python, and later none anywhere.
LONGEST_AGE = timedelta(days=365_000)

_LIST_RETENTION: LiteralString = (
    "select nullif(r.domain, '*'), r.kind, r.keep, r.updated_by, r.updated_at"
    " from {schema}.command_bus_retention r order by r.domain, r.kind"
)
_SET_RETENTION: LiteralString = "select {schema}.set_retention(%s, %s, cast(%s as interval), %s)"
_CLEAR_RETENTION: LiteralString = "select {schema}.clear_retention(%s, %s)"
_RETENTION_DUE: LiteralString = "select domain, kind, before from {schema}.retention_due(%s)"
#: The same for one age that applies to everything.
_DOMAINS_BEFORE: LiteralString = (
    "select d, now() - cast(%s as interval) from {schema}.doctor_domains(%s) d"
)
_COUNT_PRUNABLE: LiteralString = "select what, prunable from {schema}.count_prunable(%s, %s, %s)"

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def parse_age(text: str) -> timedelta:
    """`30d`, `12h`, `90m`, `2w`; raises if it is none of these."""
    match = re.fullmatch(r"(\d{1,6})([smhdw])", text.strip().lower())
    if match is None:
        raise InvalidSettingError(f"{text!r} is no age; write 30d, 12h, 90m or 2w")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """How long a kind of rows is kept."""

    #: None: in every domain that has no rule of its own.
    domain: str | None
    kind: str
    #: None: without limit.
    keep: timedelta | None
    updated_by: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What was removed of one kind in one domain; in a dry run, what would be."""

    domain: str
    kind: str
    before: datetime
    pruned: dict[str, int] = field(default_factory=dict)
    #: False: the time was over; the next run continues.
    is_done: bool = True


class Retention:
    """The rules, and the runs that remove what the rules do not keep."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get_retention(self) -> list[RetentionRule]:
        """The rules that were set; without a rule nothing is removed."""
        return await self._store.gateway.rows(_LIST_RETENTION, into=RetentionRule)

    async def set_retention(
        self,
        kind: str,
        keep: timedelta | None,
        *,
        domain: str | None = None,
        operator: str | None = None,
    ) -> None:
        """Keep a kind of rows for this time; None: without limit.

        `audit`, `archives`, `replies`, `commands`, or `history`: with a rule for it, what is due by
        the rule for commands is not removed but moved there, where it is found.
        """
        check_names(domain)
        if keep is not None and keep > LONGEST_AGE:
            raise InvalidSettingError("a rule keeps things for a thousand years at most, or always")
        params = (domain, _check_kind(kind), keep, check_operator(operator))
        await self._store.gateway.rows(_SET_RETENTION, params, domain=domain or "")

    async def clear_retention(self, kind: str, *, domain: str | None = None) -> bool:
        """Remove a rule; returns whether there was one."""
        check_names(domain)
        return bool(await self._store.gateway.value(_CLEAR_RETENTION, (domain, _check_kind(kind))))

    async def prune(
        self,
        *,
        domain: str | None = None,
        older_than: timedelta | None = None,
        kinds: Sequence[str] | None = None,
        dry_run: bool = False,
        operator: str | None = None,
        progress: Callable[[PruneResult], None] | None = None,
        seconds: float | None = None,
    ) -> list[PruneResult]:
        """Remove what is finished and old: by the rules, or everything older than `older_than`.

        In chunks, each its own transaction; what is open or parked is never touched. With
        `seconds` it stops after the chunk in which that time is over.
        """
        check_names(domain)
        wanted = [_check_kind(kind) for kind in kinds or PRUNERS]
        if older_than is not None and older_than < timedelta(0):
            raise InvalidSettingError("an age is not negative")
        oldest = None if older_than is None else min(older_than, LONGEST_AGE)
        actor = check_operator(operator)
        deadline = None if seconds is None else time.monotonic() + seconds
        results = []
        if domain is None and older_than is None and "audit" in wanted and not dry_run:
            results += await self.tend_audit(operator=actor, seconds=seconds)
        in_archives = [kind for kind in wanted if kind in ("archives", "replies")]
        dropped = {}
        if older_than is None and in_archives and not dry_run:
            gone = await self.tend_archives(domain=domain, kinds=in_archives, seconds=seconds)
            dropped = {(each.domain, each.kind): each.pruned for each in gone}
        for due in await self._due(domain, oldest):
            if due.kind not in wanted:
                continue
            result = replace(due, pruned=dropped.get((due.domain, due.kind), {}))
            if dry_run:
                params = (due.domain, due.kind, due.before)
                counts = await self._store.gateway.patient.rows(
                    _COUNT_PRUNABLE, params, domain=due.domain
                )
                result = replace(due, pruned={what: int(n) for what, n in counts})
            for function in () if dry_run else PRUNERS[due.kind]:
                pruner = _pruner(function, is_by_rule=older_than is None)
                result = await self._run(pruner, result, actor, progress, deadline)
            results.append(result)
        return results

    async def tend_audit(
        self, *, operator: str | None = None, seconds: float | None = None
    ) -> list[PruneResult]:
        """Make parts of the audit ahead, and drop those of which all is old, by the rules.

        A part is a range of events, and goes at once however many there are. Returns what went.
        """
        actor = check_operator(operator)
        deadline = None if seconds is None else time.monotonic() + seconds
        dropped = []
        for _ in range(TEND_STEPS):
            ((did, events, before),) = await self._store.gateway.patient.rows(_TEND, (actor,))
            if events:
                pruned = {"audit events": int(events)}
                dropped.append(PruneResult(ALL_DOMAINS, "audit", before, pruned))
            if did is None or (deadline is not None and time.monotonic() >= deadline):
                break
        return dropped

    async def tend_archives(
        self,
        *,
        domain: str | None = None,
        kinds: Sequence[str] | None = None,
        seconds: float | None = None,
    ) -> list[PruneResult]:
        """Divide archives that have grown into parts, and drop those of which all is old.

        The same as `tend_audit`, for the messages of parked, canceled and failed commands, and
        those that readers of replies refused (kinds `archives` and `replies`). Returns what went.
        """
        check_names(domain)
        wanted = None if kinds is None else [_check_kind(kind) for kind in kinds]
        deadline = None if seconds is None else time.monotonic() + seconds
        dropped: dict[tuple[str, str], PruneResult] = {}
        after: str | None = None
        for _ in range(TEND_STEPS):
            ((did, after, name, kind, gone, before),) = await self._store.gateway.patient.rows(
                _TEND_ARCHIVES, (domain, after, wanted)
            )
            if gone:
                what = "archived messages" if kind == "archives" else "replies"
                so_far = dropped[name, kind].pruned[what] if (name, kind) in dropped else 0
                pruned = {what: so_far + int(gone)}
                dropped[name, kind] = PruneResult(name, kind, before, pruned)
            if did is None or (deadline is not None and time.monotonic() >= deadline):
                break
        return list(dropped.values())

    async def _due(self, domain: str | None, older_than: timedelta | None) -> list[PruneResult]:
        """What a run has to look at, with nothing removed yet."""
        if older_than is None:
            return await self._store.gateway.patient.rows(
                _RETENTION_DUE, (domain,), into=PruneResult
            )
        rows = await self._store.gateway.patient.rows(_DOMAINS_BEFORE, (older_than, domain))
        return [PruneResult(name, kind, before) for name, before in rows for kind in PRUNERS]

    async def _run(
        self,
        pruner: tuple[LiteralString, tuple[str, ...]],
        result: PruneResult,
        actor: str | None,
        progress: Callable[[PruneResult], None] | None,
        deadline: float | None,
    ) -> PruneResult:
        statement, what = pruner
        domain, after, pruned = result.domain, None, Counter(result.pruned)
        while True:
            params = (*what, domain, result.before, CHUNK, after, actor)
            ((removed, after, is_done),) = await self._store.gateway.patient.rows(
                statement, params, domain=domain
            )
            pruned.update(removed)
            is_late = deadline is not None and time.monotonic() >= deadline
            result = replace(
                result, pruned=dict(pruned), is_done=result.is_done and (is_done or not is_late)
            )
            if progress is not None:
                progress(result)
            if is_done or is_late:
                return result
            await asyncio.sleep(0)  # let other tasks run, and a cancellation take effect


def _pruner(function: LiteralString, *, is_by_rule: bool) -> tuple[LiteralString, tuple[str, ...]]:
    """The statement that runs a pruning function, and its first parameters."""
    if is_by_rule:
        return _PRUNE_DUE, (function.removeprefix("prune_"),)
    statement: LiteralString = (
        "select o_pruned, o_after, o_is_done"  # noqa: S608  (literals only)
        " from {schema}." + function + "(%s, %s, %s, %s, %s)"
    )
    return statement, ()


def _check_kind(kind: str) -> str:
    if kind not in PRUNERS:
        raise InvalidSettingError(f"no kind {kind!r}; use one of {', '.join(PRUNERS)}")
    return kind
