"""Retention: remove what is finished and old, in chunks, by rules that the database holds."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from commandbus.errors import InvalidSettingError
from commandbus.names import check_domain, check_operator
from commandbus.store.upkeep import RetentionRule, UpkeepStore
from commandbus.upkeep.doctor import upkeep_of

#: Kind -> the SQL functions that remove it, in the order of a run: what one kind looks at must
#: still be there, so the commands go last.
PRUNERS: dict[str, tuple[str, ...]] = {
    "audit": ("prune_audit",),
    "archives": ("prune_archives",),
    "replies": ("prune_replies",),
    "commands": ("prune_commands", "prune_batches"),
}
#: Rows that one transaction looks at.
CHUNK = 1_000

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def parse_age(text: str) -> timedelta:
    """`30d`, `12h`, `90m`, `2w`; raises if it is none of these."""
    match = re.fullmatch(r"(\d{1,6})([smhdw])", text.strip().lower())
    if match is None:
        raise InvalidSettingError(f"{text!r} is no age; write 30d, 12h, 90m or 2w")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What was removed of one kind in one domain; in a dry run, what would be."""

    domain: str
    kind: str
    before: datetime
    pruned: dict[str, int] = field(default_factory=dict)
    #: False: time was up, and the next run goes on.
    is_done: bool = True


class Retention:
    """The rules, and the runs."""

    def __init__(self, store: object) -> None:
        self._plain_store = store

    @property
    def _store(self) -> UpkeepStore:
        return upkeep_of(self._plain_store, "retention")

    async def rules(self) -> list[RetentionRule]:
        """What was set; without a rule nothing is removed."""
        return await self._store.list_retention()

    async def set(
        self, kind: str, keep: timedelta | None, *, domain: str | None, operator: str | None
    ) -> None:
        """Keep a kind so long; None: for ever."""
        if domain is not None:
            check_domain(domain)
        await self._store.set_retention(
            domain, _check_kind(kind), keep, actor=check_operator(operator)
        )

    async def clear(self, kind: str, *, domain: str | None) -> bool:
        """Take a rule back."""
        if domain is not None:
            check_domain(domain)
        return await self._store.clear_retention(domain, _check_kind(kind))

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
        """Remove what the rules say, or what is older than `older_than`.

        With `seconds`, stop after the chunk in which that time is up.
        """
        store = self._store
        if domain is not None:
            check_domain(domain)
        wanted = [_check_kind(kind) for kind in kinds or PRUNERS]
        if older_than is not None and older_than < timedelta(0):
            raise InvalidSettingError("an age is not negative")
        actor = check_operator(operator)
        due = await _due(store, domain, older_than)
        deadline = None if seconds is None else time.monotonic() + seconds
        results = []
        for where, kind, before in due:
            if kind not in wanted:
                continue
            if dry_run:
                counts = await store.count_prunable(where, kind, before)
                results.append(PruneResult(where, kind, before, counts))
                continue
            result = PruneResult(where, kind, before)
            for verb in PRUNERS[kind]:
                result = await _run(store, verb, result, actor, progress, deadline)
            results.append(result)
        return results


async def _due(
    store: UpkeepStore, domain: str | None, older_than: timedelta | None
) -> list[tuple[str, str, datetime]]:
    if older_than is None:
        return await store.retention_due(domain)
    before = await store.now() - older_than
    return [(d, kind, before) for d in await store.domains(domain) for kind in PRUNERS]


async def _run(
    store: UpkeepStore,
    verb: str,
    result: PruneResult,
    actor: str | None,
    progress: Callable[[PruneResult], None] | None,
    deadline: float | None,
) -> PruneResult:
    after: str | None = None
    pruned = Counter(result.pruned)
    while True:
        step = await store.prune(
            verb, result.domain, result.before, limit=CHUNK, after=after, actor=actor
        )
        pruned.update(step.pruned)
        after = step.after
        is_late = deadline is not None and time.monotonic() >= deadline
        result = PruneResult(
            result.domain, result.kind, result.before, dict(pruned),
            result.is_done and (step.is_done or not is_late),
        )  # fmt: skip
        if progress is not None:
            progress(result)
        if step.is_done or is_late:
            return result
        await asyncio.sleep(0)  # others may have their turn, and a cancel its effect


def _check_kind(kind: str) -> str:
    if kind not in PRUNERS:
        raise InvalidSettingError(f"no kind {kind!r}; use one of {', '.join(PRUNERS)}")
    return kind
