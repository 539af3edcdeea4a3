"""M3 of limits: any sequence of sends, receives, outcomes, lapses and changed limits under gates of the
domain, of a type and of its keys, one of them with a rate, on the real database.

Which of several commands a receive picks is its own affair; that none is above a limit, that each lease
has its places and its token, and that nobody waits for nothing, is looked at after every step.

    MODEL_EXAMPLES=500 MODEL_STEPS=60 python -m pytest -m long tests/models/test_gates_machine.py --timeout=0
"""  # noqa: E501

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

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

from tests.models.kept import run_kept
from tests.models.test_state_machine import EXAMPLES, STEPS, Place, opened
from tests.sql.helpers import FAILURE, Held, Session

pytestmark = pytest.mark.long

COMMANDS = 12
GATED = "Pay"
#: What a bucket holds; it fills when `refill` says so, and by itself once in a year.
BURST, YEAR = 3, 31_622_400
#: What a limit is about: the arguments that name it.
KINDS: dict[str, tuple[str | None, bool]] = {
    "domain": (None, False), "type": (GATED, False), "key": (GATED, True),
}  # fmt: skip
VERBS: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("complete", {"data": None}),
    "retry": ("retry", {"delay_seconds": 0, **FAILURE}),
    "park": ("park", {"reason": "PERMANENT", **FAILURE}),
    "release": ("release", {}),
    "snooze": ("snooze", {"delay_seconds": 0, "reason": "why"}),
}
LOOK = """
select c.command_id, c.command_type, coalesce(c.limit_key, c.ordering_key) as key, c.status,
       c.leased_by is not null as leased, c.lease_epoch, w.gate,
       coalesce(q.vt <= clock_timestamp(), false) as due
  from commandbus.command_bus_command c
  left join commandbus.command_bus_waiting w using (domain, command_id)
  left join {queue} q on q.msg_id = c.msg_id
 where c.domain = %s
"""
PLACES = "select gate, command_id from commandbus.command_bus_slot where domain = %s"
name = st.integers(0, COMMANDS - 1)


@dataclass(frozen=True)
class Row:
    """A command as it is."""

    command_type: str
    key: str | None
    status: str
    is_leased: bool
    epoch: int
    #: Where it stands aside.
    aside: str | None
    is_due: bool

    @property
    def holds(self) -> bool:
        """It is leased. One whose lease has lapsed, and that waits again, has nothing any more."""
        return self.is_leased and self.aside is None

    def gates(self) -> dict[str, str]:
        """What limits are about it, and its gates."""
        found = {"domain": "l:d"}
        if self.command_type == GATED:
            found["type"] = f"l:t:{GATED}"
            if self.key is not None:
                found["key"] = f"l:k:{GATED}/{self.key}"
        return found


class GatesMachine(RuleBasedStateMachine):
    """One domain with up to three limits."""

    place: ClassVar[Place]

    def __init__(self) -> None:
        super().__init__()
        self.ids = sorted(UUID(int=secrets.randbits(120)) for _ in range(COMMANDS))
        self.db = Session(self.place.conn, f"g{secrets.token_hex(6)}")
        self.leases: list[Held] = []
        self.sent = 0
        self.most: dict[str, int | None] = {}
        self.rated = ""
        #: Tokens that were taken since the buckets were full.
        self.taken: Counter[str] = Counter()

    def run(self, action: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await action

        return self.place.runner.run(wait())

    def call(self, query: str, *params: Any) -> Any:
        return self.run(self.db.value(f"select commandbus.{query}", self.db.domain, *params))

    @initialize(
        rated=st.sampled_from(["", *KINDS]),
        most=st.fixed_dictionaries({}, optional=dict.fromkeys(KINDS, st.integers(1, 3))),
    )
    def open_domain(self, rated: str, most: dict[str, int]) -> None:
        self.call("ensure_domain(%s)")
        self.rated = rated
        if rated:
            self.set_limit(rated, most.get(rated))
        for kind, number in most.items():
            self.set_limit(kind, number)

    # -- limits

    @precondition(lambda self: hasattr(self, "rated"))
    @rule(kind=st.sampled_from([*KINDS]), most=st.sampled_from([None, 1, 2, 3]))
    def set_limit(self, kind: str, most: int | None) -> None:
        if most is None and kind != self.rated:
            if kind in self.most:
                assert self.call("clear_limit(%s, %s, %s)", *KINDS[kind])
                del self.most[kind]
            return
        rate = (1, YEAR, BURST) if kind == self.rated else (None, None, None)
        self.call("set_limit(%s, %s, %s, %s, %s, %s, %s)", *KINDS[kind], most, *rate)
        self.most[kind] = most

    @rule()
    def refill(self) -> None:
        """So many years go by that each bucket is full."""
        self.run(self.db.rows(
            "update commandbus.command_bus_gate set refilled_at = refilled_at - interval '9 years',"
            " ready_at = ready_at - interval '9 years' where domain = %s", self.db.domain,
        ))  # fmt: skip
        self.taken.clear()

    @rule()
    def chores(self) -> None:
        while self.call("tend_gates(%s)"):
            pass

    # -- commands

    @rule(
        count=st.integers(1, 3), kind=st.sampled_from([GATED, GATED, GATED, "Debit"]),
        keys=st.sampled_from([
            {}, {"limit_key": "a"}, {"limit_key": "b"}, {"ordering_key": "a"},
            {"ordering_key": "c", "limit_key": "a"},
        ]),
        level=st.sampled_from([0, 0, 1]),
    )  # fmt: skip
    def send(self, count: int, kind: str, keys: dict[str, str], level: int) -> None:
        ids = self.ids[self.sent : self.sent + count]
        self.sent += len(ids)
        shared = {"type": kind, "data": {}, "priority": level, "max_attempts": 1_000, **keys}
        if ids:
            commands = [{"command_id": str(each), **shared} for each in ids]
            self.call("send_commands(%s, %s)", Jsonb(commands))

    @rule(number=st.sampled_from([1, 2, 100]))
    def receive(self, number: int) -> None:
        before = self.look()
        found = self.run(self.db.receive(number, vt=6_000))
        after, places = self.look(), self.places()
        for held in found:
            n = self.ids.index(held.command_id)
            assert after[n].holds
            assert held.lease_epoch == after[n].epoch > before[n].epoch
            for kind, gate in after[n].gates().items():
                if kind == self.rated:
                    self.taken[gate] += 1
                    assert self.taken[gate] <= BURST, gate
                most = self.most.get(kind)
                # A lower limit stops nothing that runs, and nobody else begins.
                if most is not None and not before[n].holds:
                    assert len(places[gate]) <= most, gate
        self.leases += found

    @rule()
    def receive_all(self) -> None:
        """When a receive brings and changes nothing, nobody waits who could run."""
        # One that only ends a cancelled command leaves its place to the next: it wakes the workers.
        before = None
        for _ in range(3 * COMMANDS):
            count = len(self.leases)
            self.receive(100)
            now = self.look()
            if len(self.leases) == count and now == before:
                break
            before = now
        places = self.places()
        for n, row in self.look().items():
            if row.aside is None:
                assert row.is_leased or not row.is_due, f"{n} was left out"
            elif row.aside.startswith("l:"):
                closed = [gate for kind, gate in row.gates().items() if self.is_closed(
                    kind, gate, places)]  # fmt: skip
                assert closed, f"{n} waits at {row.aside} for nothing"

    def is_closed(self, kind: str, gate: str, places: dict[str, set[int]]) -> bool:
        most = self.most.get(kind)
        is_full = most is not None and len(places.get(gate, ())) >= most
        return is_full or (kind == self.rated and self.taken[gate] >= BURST)

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 5), verb=st.sampled_from(["complete", *VERBS]))
    def settle(self, index: int, verb: str) -> None:
        held = self.leases.pop(-1 - index % len(self.leases))
        row = self.look()[self.ids.index(held.command_id)]
        function, more = VERBS[verb]
        stale = self.run(self.db.settle(function, held.item(**more)))
        is_mine = row.is_leased and row.epoch == held.lease_epoch
        assert stale == ([] if is_mine else [held.command_id])

    @precondition(lambda self: self.leases)
    @rule()
    def leases_lapse(self) -> None:
        queue = f"pgmq.q_{self.db.domain}__commands"
        self.run(self.db.rows(f"update {queue} set vt = vt - interval '1 day'"))

    @rule(n=name)
    def cancel(self, n: int) -> None:
        row = self.look().get(n)
        if row is not None and row.status in {"PENDING", "IN_PROGRESS"}:
            self.call("request_cancel(%s, %s, 'why', 'ann', false)", [self.ids[n]])

    # -- what must hold after every step

    @invariant()
    def each_lease_has_its_places(self) -> None:
        places = self.places()
        wanted: dict[str, set[int]] = {}
        for n, row in self.look().items():
            for kind, gate in row.gates().items():
                if row.holds and self.most.get(kind) is not None:
                    wanted.setdefault(gate, set()).add(n)
        limited = {gate: who for gate, who in places.items() if self._has_places(gate)}
        assert limited == wanted

    def _has_places(self, gate: str) -> bool:
        kind = {"d": "domain", "t": "type", "k": "key"}[gate[2]]
        return self.most.get(kind) is not None

    def look(self) -> dict[int, Row]:
        queue = f"pgmq.q_{self.db.domain}__commands"
        rows = self.run(self.db.rows(LOOK.format(queue=queue), self.db.domain))
        found: dict[int, Row] = {}
        for row in rows:
            told = tuple(row.values())
            found[self.ids.index(told[0])] = Row(*told[1:])
        return found

    def places(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for row in self.run(self.db.rows(PLACES, self.db.domain)):
            found.setdefault(row["gate"], set()).add(self.ids.index(row["command_id"]))
        return found

    def teardown(self) -> None:
        """Without limits all that is open can be worked off, and nothing is left of them."""
        for kind in [*self.most]:
            self.call("clear_limit(%s, %s, %s)", *KINDS[kind])
        self.most.clear()
        self.rated = ""
        self.chores()
        self.leases_lapse()
        for _ in range(COMMANDS + 1):
            for held in self.run(self.db.receive(100, vt=6_000)):
                self.run(self.db.settle("complete", held.item(data=None)))
        blocked = "IN_TROUBLESHOOTING_QUEUE"
        left = {row.status for row in self.look().values()} - {"COMPLETED", "CANCELED", blocked}
        assert left <= {"PENDING"}
        if blocked not in {row.status for row in self.look().values()}:
            assert not left
        self.chores()
        assert self.places() == {}
        check = "select * from commandbus.check_gates(%s)"
        assert self.run(self.db.rows(check, self.db.domain)) == []


@pytest.mark.timeout(900)
def test_any_sequence_under_limits_of_domain_type_and_key_keeps_all_of_them(dsn: str) -> None:
    with opened(dsn) as place:
        GatesMachine.place = place
        run_kept(GatesMachine, examples=3 * EXAMPLES, steps=STEPS)
