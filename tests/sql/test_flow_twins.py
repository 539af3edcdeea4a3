"""Limits, keys and pauses of two domains that have the same ids, keys and types: the state of the
one changes nothing in the other, wherever it stands."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import FAILURE, Held, Session

OURS, OTHER, ALONE = "payments", "orders", "alone"
SHOWN = {
    "commands": "select c.command_id, c.status, c.leased_by is not null as leased, c.lease_epoch,"
    " c.attempts, rank() over (order by c.key_seq) as place, c.cancel_reason"
    " from commandbus.command_bus_command c where c.domain = %s order by 1",
    "waiting": "select w.command_id, w.gate from commandbus.command_bus_waiting w"
    " where w.domain = %s order by w.gate, w.seq",
    "places": "select s.gate, s.command_id from commandbus.command_bus_slot s where s.domain = %s"
    " order by 1, 2",
    "gates": "select g.gate, floor(g.tokens + 0.001) as tokens, g.ready_at is not null as ready"
    " from commandbus.command_bus_gate g where g.domain = %s order by 1",
    "keys": "select k.ordering_key, k.head, k.blocked_by, k.blocked_at is not null as since"
    " from commandbus.command_bus_key k where k.domain = %s order by 1",
    "looks": "select d.ordering_key from commandbus.command_bus_key_due d where d.domain = %s"
    " order by 1",
    "flow": "select f.paused_at is not null as paused, f.paused_by, f.pause_reason, f.on_park,"
    " f.has_rules, f.has_keys, f.has_levels from commandbus.command_bus_flow f where f.domain = %s",
    "rules": "select r.command_type, r.by_key, r.max_running, r.rate, r.paused_at is not null"
    " as paused, r.paused_by from commandbus.command_bus_flow_rule r where r.domain = %s"
    " order by 1, 2",
}  # fmt: skip


async def shown(db: Session) -> str:
    """All that a domain has, without its name and its numbers."""
    found: dict[str, Any] = {name: await db.rows(query, db.domain) for name, query in SHOWN.items()}
    found["queue"] = await db.rows(
        "select message ->> 'command_id' as id, vt = 'infinity' as aside, vt <= clock_timestamp()"
        f" as due, headers from pgmq.q_{db.domain}__commands order by 1"
    )
    return json.dumps(found, default=str, indent=1)


class Story:
    """What happens in a domain, step by step; each step may use what those before have leased."""

    def __init__(self, db: Session, ids: list[UUID]) -> None:
        self.db = db
        self.ids = ids
        self.held: dict[UUID, Held] = {}

    async def _call(self, query: str, *params: Any) -> Any:
        return await self.db.value(f"select commandbus.{query}", self.db.domain, *params)

    async def _send(self, first: int, count: int, **more: Any) -> None:
        documents = [
            {"command_id": str(self.ids[n]), "type": "Debit", "data": {}} | more
            for n in range(first, first + count)
        ]
        await self._call("send_commands(%s, %s)", Jsonb(documents))

    async def _receive(self, quantity: int = 10) -> None:
        for held in await self.db.receive(quantity, worker="w1"):
            self.held[held.command_id] = held

    async def _settle(self, verb: str, n: int, **more: Any) -> None:
        held = self.held.pop(self.ids[n])
        assert await self.db.settle(verb, held.item(**more)) == []

    def _held(self) -> list[int]:
        return sorted(self.ids.index(i) for i in self.held)

    async def sends_by_key(self) -> None:
        await self._send(0, 3, ordering_key="a")
        await self._send(3, 2, ordering_key="b")

    async def leases_the_heads(self) -> None:
        await self._receive()
        assert self._held() == [0, 3]

    async def ends_one_and_parks_the_other(self) -> None:
        await self._settle("complete", 0, data=None)
        await self._settle("park", 3, reason="PERMANENT", **FAILURE)
        await self._receive()
        assert self._held() == [1]

    async def retries_the_blocker(self) -> None:
        await self._call("operator_retry(%s, %s, 'ann', true)", [self.ids[3]])
        await self._receive()
        assert self._held() == [1, 3]

    async def steps_over_what_is_parked(self) -> None:
        await self._call("set_key_policy(%s, 'skip', 'ann', 'why')")
        await self._settle("park", 3, reason="PERMANENT", **FAILURE)
        await self._call("cancel_commands(%s, %s, 'why')", [self.ids[2]])
        await self._receive()
        assert self._held() == [1, 4]
        await self._call("operator_retry(%s, %s, 'ann', true)", [self.ids[3]])

    async def limits_come(self) -> None:
        await self._call("set_limit(%s, p_type => 'Pay', p_max_running => 2)")
        await self._call("set_limit(%s, p_type => 'Pay', p_by_key => true, p_max_running => 1)")
        await self._call("set_limit(%s, p_max_running => 5)")
        await self._send(5, 4, type="Pay", limit_key="x")
        await self._receive()
        assert self._held() == [1, 4, 5]

    async def others_wait_at_the_limit(self) -> None:
        await self._send(9, 3, type="Pay")
        await self._receive()
        assert self._held() == [1, 4, 5, 9]
        await self._settle("retry", 5, delay_seconds=0, **FAILURE)
        await self._call("cancel_commands(%s, %s, 'why')", [self.ids[10]])

    async def a_rate_comes(self) -> None:
        await self._call(
            "set_limit(%s, p_type => 'Rate', p_rate => 1, p_per => 3600, p_burst => 2)"
        )
        await self._send(12, 3, type="Rate")
        await self._settle("complete", 1, data=None)
        await self._settle("complete", 4, data=None)
        await self._receive()
        assert {12, 13} <= set(self._held())
        assert 14 not in self._held()

    async def a_lease_lapses(self) -> None:
        await self.db.lapse(self.held[self.ids[9]])
        await self._receive()

    async def a_request_to_cancel(self) -> None:
        await self._call("request_cancel(%s, %s, 'stop', 'ann')", [self.ids[12], self.ids[14]])
        await self._settle("retry", 12, delay_seconds=0, **FAILURE)

    async def is_paused(self) -> None:
        await self._call("pause_domain(%s, 'why', null, 'ann')")
        await self._send(15, 1)
        await self._receive()
        assert 15 not in self._held()

    async def is_resumed(self) -> None:
        assert await self._call("resume_domain(%s, 'bob')")
        assert not await self._call("resume_domain(%s, 'bob')")
        await self._receive()
        assert 15 in self._held()

    async def loses_its_limits(self) -> None:
        for way in ("p_type => 'Pay'", "p_type => 'Pay', p_by_key => true"):
            await self._call(f"clear_limit(%s, {way})")
        while await self._call("tend_gates(%s)"):
            pass
        await self._receive()


STEPS: tuple[Callable[[Story], Awaitable[None]], ...] = (
    Story.sends_by_key, Story.leases_the_heads, Story.ends_one_and_parks_the_other,
    Story.retries_the_blocker, Story.steps_over_what_is_parked, Story.limits_come,
    Story.others_wait_at_the_limit, Story.a_rate_comes, Story.a_lease_lapses,
    Story.a_request_to_cancel, Story.is_paused, Story.is_resumed, Story.loses_its_limits,
)  # fmt: skip


@pytest.mark.parametrize("stops_after", [1, 2, 3, 4, 6, 7, 8, 10, 11])
async def test_a_domain_goes_its_way_whatever_another_with_the_same_ids_has_come_to(
    db: Session, stops_after: int
) -> None:
    ids = sorted(uuid4() for _ in range(16))
    alone = Story(Session(db.conn, ALONE), ids)
    expected = []
    for step in STEPS:
        await step(alone)
        expected.append(await shown(alone.db))
    other = Story(Session(db.conn, OTHER), ids)
    for step in STEPS[:stops_after]:
        await step(other)
    left = await shown(other.db)
    assert left == expected[stops_after - 1]

    ours = Story(Session(db.conn, OURS), ids)
    for step, wanted in zip(STEPS, expected, strict=True):
        await step(ours)
        assert await shown(ours.db) == wanted, step.__name__
        assert await shown(other.db) == left, step.__name__
