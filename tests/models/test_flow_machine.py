"""M3 of flow: any sequence of sends with keys, levels and delays, receives under a limit, outcomes,
lapses, pauses, expiry, other times, other levels, policies and decisions of operators, on the real
database, step by step beside a model.

    MODEL_EXAMPLES=500 MODEL_STEPS=60 python -m pytest -m long tests/models/test_flow_machine.py --timeout=0
"""  # noqa: E501

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import Any, ClassVar
from uuid import UUID

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from psycopg.types.json import Jsonb

from tests.models.flow_expected import GATED, FlowExpected
from tests.models.kept import run_kept
from tests.models.test_state_machine import EXAMPLES, STEPS, Place, opened
from tests.sql.helpers import FAILURE, Held, Session

pytestmark = pytest.mark.long

COMMANDS = 7
LATER = 6_000  # seconds; less than what passes when time passes
MOST_LAPSES = 8  # after ten in a row a command is parked, which is not what is tried here
VERBS: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("complete", {"data": None}),
    "retry": ("retry", {"delay_seconds": 0, **FAILURE}),
    "retry later": ("retry", {"delay_seconds": LATER, **FAILURE}),
    "park": ("park", {"reason": "PERMANENT", **FAILURE}),
    "fail": ("fail", FAILURE),
    "discard": ("discard", {"reason": "why"}),
    "release": ("release", {}),
    "snooze": ("snooze", {"delay_seconds": 0, "reason": "why"}),
}
DECISIONS = {
    "retry": "operator_retry(%s, %s, 'ann', true)",
    "cancel": "cancel_commands(%s, %s, 'why', 'ann')",
    "operator cancel": "operator_cancel(%s, %s, 'why', 'ann')",
    "operator complete": "operator_complete(%s, %s, null, 'ann')",
    "request": "request_cancel(%s, %s, 'why', 'ann')",
}
LOOK = """
select c.command_id, c.status, c.leased_by is not null as leased, c.lease_epoch,
       c.cancel_requested_at is not null as marked,
       case when w.gate like 'k:%%' then 'key' when w.gate is not null then 'gate'
            else '' end as aside,
       q.vt <= clock_timestamp() as due,
       case when q.msg_id is not null then coalesce((q.headers ->> 'priority')::int, 0) end as level
  from commandbus.command_bus_command c
  left join commandbus.command_bus_waiting w using (domain, command_id)
  left join {queue} q on (q.message ->> 'command_id')::uuid = c.command_id
 where c.domain = %s
"""
HEADS = """
select ordering_key, head, blocked_by from commandbus.command_bus_key where domain = %s
"""
PLACES = "select command_id from commandbus.command_bus_slot where domain = %s"
name = st.integers(0, COMMANDS - 1)


class FlowMachine(RuleBasedStateMachine):
    """One domain, with a model beside it."""

    place: ClassVar[Place]

    def __init__(self) -> None:
        super().__init__()
        self.ids = sorted(UUID(int=secrets.randbits(120)) for _ in range(COMMANDS))
        self.db = Session(self.place.conn, f"f{secrets.token_hex(6)}")
        self.leases: list[Held] = []

    def run(self, action: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await action

        return self.place.runner.run(wait())

    def call(self, query: str, *params: Any) -> Any:
        return self.run(self.db.value(f"select commandbus.{query}", self.db.domain, *params))

    @initialize(on_park=st.sampled_from(["block", "skip"]), limit=st.sampled_from([None, 1, 2]))
    def open_domain(self, on_park: str, limit: int | None) -> None:
        self.model = FlowExpected(on_park)
        self.call("ensure_domain(%s)")
        self.call("set_key_policy(%s, %s, 'ann', 'why')", on_park)
        if limit is not None:
            self.set_limit(limit)

    # -- sending and working

    @rule(
        n=name, kind=st.sampled_from([GATED, GATED, "Debit"]),
        key=st.sampled_from([None, "a", "a", "b"]), level=st.sampled_from([0, 0, 0, -1, 2]),
        delay=st.sampled_from([0, 0, 0, LATER]),
    )  # fmt: skip
    def send(self, n: int, kind: str, key: str | None, level: int, delay: int) -> None:
        if n in self.model.commands:
            return
        self.model.send(n, kind, key, level, 0 if key else delay)
        document = {"command_id": str(self.ids[n]), "type": kind, "data": {}, "priority": level}
        document |= {"delay_seconds": delay} if key is None else {"ordering_key": key}
        self.call("send_commands(%s, %s)", Jsonb([{**document, "max_attempts": 1_000}]))

    @rule()
    def receive(self) -> None:
        wanted = self.model.receive()
        found = self.run(self.db.receive(100, vt=6_000))
        got = sorted((self.ids.index(held.command_id), held.lease_epoch) for held in found)
        assert got == sorted(wanted)
        self.leases += found

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 5), verb=st.sampled_from([*VERBS]))
    def settle(self, index: int, verb: str) -> None:
        held = self.leases[-1 - index % len(self.leases)]
        function, more = VERBS[verb]
        stale = self.run(self.db.settle(function, held.item(**more)))
        is_known = self.model.settle(self.ids.index(held.command_id), held.lease_epoch, verb)
        assert stale == ([] if is_known else [held.command_id])

    @precondition(lambda self: all(c.lapses < MOST_LAPSES for c in self.model.commands.values()))
    @rule()
    def time_passes(self) -> None:
        self.model.time_passes()
        queue = f"pgmq.q_{self.db.domain}__commands"
        self.run(self.db.rows(f"update {queue} set vt = vt - interval '1 day'"))

    @rule(n=name)
    def expire(self, n: int) -> None:
        """Its time is over, and nobody has looked yet."""
        if n not in self.model.commands or not self.model.commands[n].is_open:
            return
        self.model.commands[n].is_expired = True
        who = (self.db.domain, self.ids[n])
        self.run(self.db.rows(
            "update commandbus.command_bus_command set expires_at = now() - interval '1 second'"
            " where domain = %s and command_id = %s", *who,
        ))  # fmt: skip
        self.run(self.db.rows(
            "select commandbus.watch_expiry(%s, array[cast(%s as uuid)],"
            " array[now() - interval '1 s'])", *who,
        ))  # fmt: skip

    # -- operators and chores

    @precondition(lambda self: self.model.commands)
    @rule(verb=st.sampled_from([*DECISIONS]), n=name)
    def operate(self, verb: str, n: int) -> None:
        if self.model.may(verb, n):
            self.call(DECISIONS[verb], [self.ids[n]])
            self.model.operate(verb, n)
        else:
            with pytest.raises(psycopg.DatabaseError):
                self.call(DECISIONS[verb], [self.ids[n]])

    @rule(n=name, level=st.sampled_from([-2, 0, 1]))
    def set_priority(self, n: int, level: int) -> None:
        change = (f"set_priority(%s, %s, {level}, 'ann')", [self.ids[n]])
        if self.model.may("level", n):
            self.call(*change)
            self.model.set_level(n, level)
        else:
            with pytest.raises(psycopg.DatabaseError):
                self.call(*change)

    @rule(n=name, delay=st.sampled_from([0, LATER]))
    def reschedule(self, n: int, delay: int) -> None:
        change = (f"reschedule_commands(%s, %s, null, {delay}, 'ann')", [self.ids[n]])
        if self.model.may("move", n):
            self.call(*change)
            self.model.move(n, delay)
        else:
            with pytest.raises(psycopg.DatabaseError):
                self.call(*change)

    @rule(on_park=st.sampled_from(["block", "skip"]))
    def set_policy(self, on_park: str) -> None:
        self.call("set_key_policy(%s, %s, 'ann', 'why')", on_park)
        self.model.set_policy(on_park)

    @rule(key=st.sampled_from(["a", "b"]))
    def skip_key(self, key: str) -> None:
        if key in self.model.blocked:
            assert self.call("skip_key(%s, %s, 'ann')", key) == self.ids[self.model.blocked[key]]
            self.model.skip(key)
        else:
            with pytest.raises(psycopg.DatabaseError):
                self.call("skip_key(%s, %s, 'ann')", key)

    @rule(pauses=st.booleans())
    def pause_domain(self, pauses: bool) -> None:
        if pauses:
            self.call("pause_domain(%s, 'why', null, 'ann')")
        else:
            assert self.call("resume_domain(%s, 'ann')") is self.model.is_paused
        self.model.is_paused = pauses

    @rule(pauses=st.booleans())
    def pause_type(self, pauses: bool) -> None:
        if pauses:
            self.call("pause_type(%s, %s, 'why', null, 'ann')", GATED)
        else:
            assert self.call("resume_type(%s, %s, 'ann')", GATED) is self.model.is_type_paused
        self.model.is_type_paused = pauses

    @rule(limit=st.sampled_from([1, 2, 3]))
    def set_limit(self, limit: int) -> None:
        self.call("set_limit(%s, %s, p_max_running => %s)", GATED, limit)
        self.model.set_limit(limit)

    @precondition(lambda self: self.model.limit is not None)
    @rule()
    def clear_limit(self) -> None:
        assert self.call("clear_limit(%s, %s)", GATED)
        self.model.set_limit(None)

    @rule()
    def chores(self) -> None:
        # What is leased is looked at again after a while; here that while is over.
        now = (
            "update commandbus.command_bus_expiry set look_at = clock_timestamp() where domain = %s"
        )
        self.run(self.db.rows(f"{now} returning true", self.db.domain))
        self.run(self.db.rows("select commandbus.end_expired()"))
        self.model.end_expired()
        while self.call("tend_gates(%s)"):
            pass
        self.model.tend()

    # -- what must hold after every step

    @invariant()
    def is_as_expected(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.run(self._look()) == {n: c.shown() for n, c in self.model.commands.items()}
        rows = self.run(self.db.rows(HEADS, self.db.domain))
        heads = {row["ordering_key"]: self.ids.index(row["head"]) for row in rows}
        stopped = [row for row in rows if row["blocked_by"] is not None]
        blocked = {row["ordering_key"]: self.ids.index(row["blocked_by"]) for row in stopped}
        assert (heads, blocked) == (self.model.heads, self.model.blocked)
        if self.model.limit is not None:
            rows = self.run(self.db.rows(PLACES, self.db.domain))
            assert {self.ids.index(row["command_id"]) for row in rows} == self.model.places

    async def _look(self) -> dict[int, tuple[Any, ...]]:
        queue = f"pgmq.q_{self.db.domain}__commands"
        rows = await self.db.rows(LOOK.format(queue=queue), self.db.domain)
        return {self.ids.index(v[0]): v[1:] for v in (tuple(row.values()) for row in rows)}

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        self.chores()  # until then the gates of a limit that was removed are still there
        blocked = {f"{key} by {self.ids[n]}" for key, n in self.model.blocked.items()}
        for check in ("check_gates", "check_keys"):
            found = self.run(self.db.rows(f"select * from commandbus.{check}(%s)", self.db.domain))
            told = {row["subject"] for row in found if row["code"] == "KEY_BLOCKED"}
            assert told == (blocked if check == "check_keys" else set())
            left = [
                row for row in found if row["code"] not in {"PLACE_WITHOUT_LEASE", "KEY_BLOCKED"}
            ]
            assert left == [], check


@pytest.mark.timeout(900)
def test_any_sequence_of_sends_receives_and_decisions_does_what_the_model_says(dsn: str) -> None:
    with opened(dsn) as place:
        FlowMachine.place = place
        run_kept(FlowMachine, examples=3 * EXAMPLES, steps=STEPS)
