"""Stories of two domains that have the same ids, keys and types: what one has come to changes
nothing in the other. Each test tells a story alone, then beside a domain that stopped on its way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import Held, Session

OURS, OTHER, ALONE = "payments", "orders", "alone"
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.+Z]*")
#: What tables have of a domain; each %s is its name.
TABLES = {
    "commands": "select c.command_id, c.status, c.leased_by is not null as leased, c.lease_epoch,"
    " c.attempts, rank() over (order by c.key_seq) as place, c.cancel_reason, c.priority,"
    " c.deliver_at is not null as has_time, c.cancel_requested_at is not null as asked"
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
    " f.has_rules, f.has_keys, f.has_levels, f.level_seconds"
    " from commandbus.command_bus_flow f where f.domain = %s",
    "rules": "select r.command_type, r.by_key, r.max_running, r.rate, r.paused_at is not null"
    " as paused, r.paused_by from commandbus.command_bus_flow_rule r where r.domain = %s"
    " order by 1, 2",
    "expiry": "select e.command_id, e.look_at <= clock_timestamp() as is_due, e.look_at >"
    " clock_timestamp() + interval '5 minutes' as is_late from commandbus.command_bus_expiry e"
    " where e.domain = %s order by 1",
    "unique": "select u.unique_key, u.command_id, u.holds_while, u.look_at <= clock_timestamp() as"
    " is_due from commandbus.command_bus_unique u where u.domain = %s order by 1",
    "progress": "select p.command_id, p.lease_epoch, p.fraction, p.message"
    " from commandbus.command_bus_progress p where p.domain = %s order by 1",
    "schedules": "select s.name, s.version, s.data, s.paused_by, s.pause_reason, s.last_error,"
    " s.next_tick_at > clock_timestamp() as is_later, s.look_at > clock_timestamp() as waits,"
    " s.last_command_id, s.last_trigger_id"
    " from commandbus.command_bus_schedule s where s.domain = %s order by 1",
    "audit": "select a.event_type, a.actor, count(*) from commandbus.command_bus_audit a"
    " where a.domain = %s group by 1, 2 order by 1, 2",
}  # fmt: skip
#: What the reads say of it.
READS = {
    "list_limits": "select l.command_type, l.by_key, l.max_running, l.rate, l.paused_by, l.running,"
    " floor(l.tokens + 0.001) as tokens, l.waiting, l.oldest is not null as since"
    " from commandbus.list_limits(%s) l",
    "list_limit_keys": "select k.limit_key, k.running, k.waiting"
    " from commandbus.list_limit_keys(%s, 'Pay') k",
    "limit_activity": "select l.command_type, l.by_key, l.is_paused, l.running, l.waiting"
    " from commandbus.limit_activity(%s) l order by 1, 2",
    "domain_activity": "select a.ready, a.delayed, a.parked, a.workers, a.is_paused"
    " from commandbus.domain_activity(%s) a",
    "worker_activity": "select w.worker_id, w.in_flight from commandbus.worker_activity(%s) w",
    "list_keys": "select k.ordering_key, k.head, k.head_type, k.head_status, k.is_blocked,"
    " k.waiting from commandbus.list_keys(%s) k",
    "blocked": "select k.ordering_key, k.head_status, k.waiting"
    " from commandbus.list_keys(%s, true) k",
    "show_key": "select n.key, k.place, k.command_id, k.status, k.is_blocking"
    " from (values ('a'), ('b')) n(key), commandbus.show_key(%s, n.key) k order by 1, 2",
    "key_figures": "select f.open_keys, f.blocked_keys, f.blocked_seconds > 0 as since"
    " from commandbus.key_figures(%s) f",
    "key_policy": "select commandbus.key_policy(%s)::text as policy",
    "waiting_text": "select c.command_id, commandbus.waiting_text(c.domain, c.command_id) as says"
    " from commandbus.command_bus_command c where c.domain = %s order by 1",
    "scheduled": "select (s.command).command_id, s.place is not null as at"
    " from commandbus.scheduled_commands(%s, null, null, null, 100) s order by 1",
    "waiting_commands": "select w.gate, (w.command).command_id, (w.command).domain"
    " from commandbus.waiting_commands(%s, null, null, null, null, 100) w order by w.gate, w.seq",
    "paused_domains": "select p.domain, p.paused_by, p.pause_reason"
    " from commandbus.paused_domains(array[%s]) p",
    "paused_types": "select p.domain, p.command_type, p.paused_by"
    " from commandbus.paused_types(array[%s]) p",
    "due_in": "select d.seconds = 0 as now from commandbus.due_in(array[%s]) d",
    "left": "select commandbus.what_is_left(%s, d.also) as what from (values (true), (false))"
    " d(also)",
    "progress_of": "select p.command_id, p.fraction, p.message"
    " from commandbus.progress_of(%s, array(select c.command_id"
    " from commandbus.command_bus_command c)) p order by 1",
    "cancel_requests": "select r as command_id from commandbus.cancel_requests(%s, (select"
    " jsonb_agg(jsonb_build_object('command_id', c.command_id, 'lease_epoch', c.lease_epoch))"
    " from commandbus.command_bus_command c where c.domain = %s)) r order by 1",
    "cancel_request": "select c.command_id, r.* from commandbus.command_bus_command c,"
    " commandbus.cancel_request(%s, c.command_id) r where c.domain = %s order by 1",
    "schedule_data": "select d.name, d.data from commandbus.schedule_data(%s, '{x,y}') d"
    " order by 1",
    "check_schedules": "select f.code, f.subject from commandbus.check_schedules(%s) f order by 1",
    "check_gates": "select f.code, f.subject from commandbus.check_gates(%s) f order by 1, 2",
    "check_keys": "select f.code, f.subject from commandbus.check_keys(%s) f order by 1, 2",
}  # fmt: skip


async def shown(db: Session) -> str:
    """All that a domain has, without its name, its numbers and its times."""
    found: dict[str, Any] = {}
    for name, query in {**TABLES, **READS}.items():
        found[name] = await db.rows(query, *[db.domain] * query.count("%s"))
    found["queue"] = await db.rows(
        "select message ->> 'command_id' as id, vt = 'infinity' as aside, vt <= clock_timestamp()"
        f" as due, headers, message -> 'data' as data from pgmq.q_{db.domain}__commands order by 1"
    )
    text = json.dumps(found, default=str, indent=1)
    return TIME.sub("(time)", re.sub(rf"\b{db.domain}\b", "(domain)", text))


class Story:
    """What happens in a domain, step by step; each step may use what those before have leased."""

    def __init__(self, db: Session, ids: list[UUID]) -> None:
        self.db = db
        self.ids = ids
        self.held: dict[UUID, Held] = {}

    async def call(self, query: str, *params: Any) -> Any:
        return await self.db.value(f"select commandbus.{query}", self.db.domain, *params)

    async def send(self, first: int, count: int, **more: Any) -> None:
        documents = [
            {"command_id": str(self.ids[n]), "type": "Debit", "data": {}} | more
            for n in range(first, first + count)
        ]
        await self.call("send_commands(%s, %s)", Jsonb(documents))

    async def receive(self, quantity: int = 10) -> None:
        for held in await self.db.receive(quantity, worker="w1"):
            self.held[held.command_id] = held

    async def settle(self, verb: str, n: int, **more: Any) -> None:
        held = self.held.pop(self.ids[n])
        assert await self.db.settle(verb, held.item(**more)) == []

    def holds(self) -> list[int]:
        return sorted(self.ids.index(i) for i in self.held)


S = TypeVar("S", bound=Story)


def stops(usual: Sequence[int], others: Sequence[int]) -> list[Any]:
    """After which steps the other domain stops; only the usual ones in each test run."""
    return [*usual, *(pytest.param(n, marks=pytest.mark.long) for n in others)]


async def tell(
    db: Session,
    story: Callable[[Session, list[UUID]], S],
    steps: Sequence[Callable[[S], Awaitable[None]]],
    stops_after: int,
    elsewhere: Sequence[Callable[[S], Awaitable[None]]] = (),
) -> None:
    """Our story goes on as it would alone, and the other, which has stopped, stays as it is.

    `elsewhere`: another story is told there, to its end.
    """
    ids = sorted(uuid4() for _ in range(20))
    alone = story(Session(db.conn, ALONE), ids)
    expected = []
    for step in steps:
        await step(alone)
        expected.append(await shown(alone.db))
    other = story(Session(db.conn, OTHER), ids)
    for step in elsewhere or steps[:stops_after]:
        await step(other)
    left = await shown(other.db)
    assert elsewhere or left == expected[stops_after - 1]

    ours = story(Session(db.conn, OURS), ids)
    for step, wanted in zip(steps, expected, strict=True):
        await step(ours)
        assert await shown(ours.db) == wanted, step.__name__
        assert await shown(other.db) == left, step.__name__
