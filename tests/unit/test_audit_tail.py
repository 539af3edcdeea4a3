"""Following the audit: each event once, also one that is committed late."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from commandbus.commands import tail as tails
from commandbus.commands.search import Search
from commandbus.commands.tail import AuditTail
from commandbus.models import AuditEvent
from commandbus.paging import Page


def event(number: int) -> AuditEvent:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    return AuditEvent(number, "shop", UUID(int=number), "NOTE", when, None, None, None)


class Audit:
    """A search over numbers that the test commits."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.looked_from: list[int] = []

    def cursor_after(self, number: int) -> str:
        self.looked_from.append(number)
        return str(number)

    async def audit(
        self, *, newest_first: bool = True, limit: int, cursor: str | None = None, **_: Any
    ) -> Page[AuditEvent]:
        numbers = sorted(self.numbers, reverse=newest_first)
        after = [n for n in numbers if cursor is None or n > int(cursor)][:limit]
        more = None if len(after) < limit else str(after[-1])
        return Page([event(number) for number in after], more)


async def seen(tail: AuditTail) -> list[int]:
    return [found.audit_id for found in await tail.look()]


async def test_the_latest_events_come_first_and_then_each_new_one_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(tails, "OVERLAP", 10)
    monkeypatch.setattr(tails, "_PAGE", 2)
    audit = Audit()
    tail = AuditTail(cast("Search", audit), 2, {}, audit.cursor_after)

    assert await seen(tail) == []
    audit.numbers = {1, 2, 3}
    assert await seen(tail) == [1, 2, 3]
    audit.numbers |= {5, 6}
    assert await seen(tail) == [5, 6]
    assert await seen(tail) == []
    audit.numbers |= {4, 7}  # 4 was committed after 5 and 6
    assert await seen(tail) == [4, 7]


async def test_a_tail_begins_with_the_latest_and_does_not_read_from_the_beginning(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(tails, "OVERLAP", 10)
    audit = Audit()
    audit.numbers = set(range(1, 101))
    tail = AuditTail(cast("Search", audit), 2, {}, audit.cursor_after)

    assert await seen(tail) == [99, 100]
    audit.numbers |= {101}
    assert await seen(tail) == [101]
    assert audit.looked_from == [90, 90]
