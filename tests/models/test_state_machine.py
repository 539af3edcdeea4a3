"""M3: any sequence of public operations, on the real database, step by step beside a model.

After every step all of it is compared: rows, leases, counters of batches, messages, replies, the
list of what is parked, the events, and the state that follows from the events alone. After every
sequence the doctor looks at it too.

    MODEL_EXAMPLES=2000 MODEL_STEPS=60 python -m pytest tests/models --timeout=0
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import orjson
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
from psycopg_pool import AsyncConnectionPool

from commandbus.database import encoding
from commandbus.database.model import Edit, Outcome
from commandbus.database.model import Lease as RealLease
from commandbus.database.postgres import PostgresStore
from commandbus.errors import CommandBusError
from commandbus.models import NewCommand
from commandbus.troubleshooting.bulk import BulkOperations
from commandbus.troubleshooting.model import BulkFilter, BulkVerb
from tests.conformance.worlds import (
    discarded,
    done,
    failed,
    new,
    new_batch,
    parked,
    released,
    retried,
    snoozed,
)
from tests.models.expected import Expected, Lease, Refusal
from tests.models.kept import run_kept
from tests.models.observed import Observer
from tests.models.schedules import DOCTOR

pytestmark = pytest.mark.long

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "12"))
STEPS = int(os.environ.get("MODEL_STEPS", "30"))
COMMANDS = 6
BATCHES = 4
OUTCOMES: dict[str, Callable[[RealLease], Outcome]] = {
    "complete": done,
    "retry": lambda lease: retried(lease, 0),
    "retry later": lambda lease: retried(lease, 6_000),
    "park": parked,
    "fail": failed,
    "release": released,
    "snooze": lambda lease: snoozed(lease, 0),
    "snooze later": lambda lease: snoozed(lease, 6_000),
    "discard": discarded,
}
name = st.integers(0, COMMANDS - 1)
names = st.lists(name, min_size=1, max_size=3)
batch = st.integers(0, BATCHES - 1)
recent = st.integers(0, 5)  # which of the leases that were given out, from the last


class Place:
    """The database of the run, and the loop in which everything happens."""

    runner: asyncio.Runner
    pool: AsyncConnectionPool[Any]
    conn: psycopg.AsyncConnection[Any]


class Machine(RuleBasedStateMachine):
    """One domain, with a model beside it."""

    place: ClassVar[Place]

    def __init__(self) -> None:
        super().__init__()
        base = secrets.randbits(90) << 20
        self.domain = f"m{secrets.token_hex(6)}"
        self.ids = [UUID(int=base + n) for n in range(COMMANDS)]
        self.batch_ids = [UUID(int=base + 1_000 + n) for n in range(BATCHES)]
        self.model = Expected()
        self.store: Any = PostgresStore(self.place.pool)  # all of its protocols at once
        self.bulk = BulkOperations(self.store, max_result_bytes=1_000)
        self.leases: list[RealLease] = []
        self.operation: UUID | None = None
        self.observer = Observer(
            self.place.conn,
            self.domain,
            {command_id: n for n, command_id in enumerate(self.ids)},
            {batch_id: n for n, batch_id in enumerate(self.batch_ids)},
        )

    # -- machinery

    def run(self, action: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await action

        return self.place.runner.run(wait())

    def both(self, expected: Callable[[], Any], action: Callable[[], Awaitable[Any]]) -> Any:
        """The model says what should come of it; the store must say the same."""
        try:
            wanted = expected()
        except Refusal as refusal:
            wanted = refusal.kind
        try:
            got = self.run(action())
        except CommandBusError as error:
            got = type(error)
        assert got == wanted
        return got

    def pick(self, chosen: Sequence[int]) -> list[UUID]:
        return [self.ids[n] for n in chosen]

    def new(self, n: int, attempts: int) -> NewCommand:
        return new("Debit", {"n": n}, command_id=self.ids[n], reply_to=f"{self.domain}.replies",
                   max_attempts=attempts)  # fmt: skip

    def lease(self, index: int) -> tuple[RealLease, Lease] | None:
        if index >= len(self.leases):
            return None
        real = self.leases[-1 - index]
        return real, Lease(self.ids.index(real.command_id), real.lease_epoch)

    async def sql(self, query: str, *params: Any) -> Any:
        cursor = await self.place.conn.execute(query.encode(), params)
        return await cursor.fetchall() if cursor.description else None

    # -- sending

    @initialize()
    def open_domain(self) -> None:
        self.run(self.store.ensure_domain(self.domain))

    @rule(chosen=names, into=st.none() | batch, attempts=st.integers(1, 3))
    def send(self, chosen: list[int], into: int | None, attempts: int) -> None:
        batch_id = None if into is None else self.batch_ids[into]
        commands = [self.new(n, attempts) for n in chosen]
        self.both(
            lambda: self.model.send(chosen, into, attempts),
            lambda: self.store.send(self.domain, commands, batch_id=batch_id),
        )

    @precondition(lambda self: len(self.model.commands) < COMMANDS)
    @rule(number=batch, attempts=st.integers(1, 2), stored=st.booleans(), data=st.data())
    def create_batch(self, number: int, attempts: int, stored: bool, data: st.DataObject) -> None:
        if number in self.model.batches:
            return
        free = [n for n in range(COMMANDS) if n not in self.model.commands]
        known = st.sampled_from(range(COMMANDS))
        chosen = data.draw(
            st.lists(st.sampled_from(free), min_size=1, max_size=3, unique=True)
            | st.lists(known, min_size=1, max_size=2)
        )
        document = new_batch(self.batch_ids[number], domain=self.domain)
        commands = [self.new(n, attempts) for n in chosen]

        async def act() -> None:
            if not stored:
                await self.store.create_batch(document, commands)
                return
            await self.store.gateway.rows(
                "select {schema}.create_stored_batch(%s, %s, cast(%s as jsonb), null, null, null,"
                " null, false, 'two_phase')",
                (self.domain, document.batch_id, encoding.sends(commands)),
                domain=self.domain,
            )

        self.both(
            lambda: self.model.send(chosen, number, attempts, creates=True, stored=stored), act
        )

    @precondition(lambda self: self.model.commands)
    @rule(data=st.data())
    def stray_message(self, data: st.DataObject) -> None:
        """Somebody puts a copy of a message into the queue."""
        n = data.draw(st.sampled_from(sorted(self.model.commands)))
        if not self.model.commands[n].has_msg:
            return  # it would be adopted, which is another rule
        self.model.stray(n)
        message = orjson.dumps({"command_id": str(self.ids[n]), "data": {}}).decode()
        self.run(self.sql("select pgmq.send(%s, %s::jsonb)", f"{self.domain}__commands", message))

    # -- workers

    @rule(
        quantity=st.sampled_from([1, 2, 100, 100]),
        marks=st.booleans(),
        limit=st.sampled_from([None, None, None, 1, 3]),
        worker=st.sampled_from(["w1", "w2"]),
    )
    def receive(self, quantity: int, marks: bool, limit: int | None, worker: str) -> None:
        due = self.model.due()
        if self.model.strays or any(c.is_marked or self.model.is_spent(c, limit) for c in due):
            quantity = 100  # else nobody could say which of them were read
        leases = self.run(
            self.store.receive(
                self.domain, vt_seconds=6_000, quantity=quantity, worker=worker,
                limits={} if limit is None else {"Debit": limit}, mark_in_progress=marks,
            )
        )  # fmt: skip
        got = [
            (self.ids.index(x.command_id), x.lease_epoch, x.attempt, x.is_suspect) for x in leases
        ]
        taken = due
        if quantity < len(due):
            assert len(got) == quantity
            taken = [c for c in due if c.name in {row[0] for row in got}]
        assert sorted(got) == sorted(self.model.receive(taken, limit, marks))
        self.model.drop_strays()
        self.leases += leases

    @precondition(lambda self: self.leases)
    @rule(endings=st.lists(st.tuples(recent, st.sampled_from([*OUTCOMES])), min_size=1, max_size=4))
    def settle(self, endings: list[tuple[int, str]]) -> None:
        group: dict[int, tuple[Lease, str, Outcome]] = {}
        for index, verb in endings:
            if (found := self.lease(index)) is not None:
                real, lease = found
                group[lease.name] = (lease, verb, OUTCOMES[verb](real))
        if group:
            stale = self.run(self.store.settle(self.domain, [o for _, _, o in group.values()]))
            wanted = self.model.settle([(lease, verb) for lease, verb, _ in group.values()])
            assert {self.ids.index(command_id) for command_id in stale} == wanted

    @precondition(lambda self: self.leases)
    @rule(index=recent)
    def confirm_start(self, index: int) -> None:
        if (found := self.lease(index)) is not None:
            real, lease = found
            self.both(lambda: self.model.confirm(lease), lambda: self.store.confirm_start(real))

    @precondition(lambda self: self.leases)
    @rule(indexes=st.lists(recent, min_size=1, max_size=3, unique=True))
    def extend(self, indexes: list[int]) -> None:
        found = {f[1].name: f for n in indexes if (f := self.lease(n)) is not None}
        if found:
            lost = self.run(
                self.store.extend(self.domain, [real for real, _ in found.values()], 6_000)
            )
            wanted = self.model.extend([lease for _, lease in found.values()])
            assert {self.ids.index(command_id) for command_id in lost} == wanted

    @rule()
    def time_passes(self) -> None:
        """All leases lapse, and all delays are over."""
        self.model.lapse()
        self.run(self.sql(f"update pgmq.q_{self.domain}__commands set vt = vt - interval '1 day'"))

    # -- operators

    @precondition(lambda self: self.model.commands)
    @rule(
        verb=st.sampled_from(["retry", "retry", "cancel", "operator cancel", "operator complete"]),
        chosen=st.lists(name, min_size=1, max_size=2, unique=True),
        resets=st.booleans(),
    )
    def operate(self, verb: str, chosen: list[int], resets: bool) -> None:
        ids = self.pick(chosen)
        actions: dict[str, Callable[[], Awaitable[Any]]] = {
            "retry": lambda: self.store.operator_retry(
                self.domain, ids, actor="ann", reset_attempts=resets
            ),
            "cancel": lambda: self.store.cancel(self.domain, ids, reason="r", actor="ann"),
            "operator cancel": lambda: self.store.operator_cancel(
                self.domain, ids, reason="r", actor=None
            ),
            "operator complete": lambda: self.store.operator_complete(
                self.domain, ids, result=b"{}", actor="ann"
            ),
        }
        self.both(lambda: self.model.operate(verb, chosen, resets), actions[verb])

    @precondition(lambda self: self.model.commands)
    @rule(chosen=st.lists(name, min_size=1, max_size=2, unique=True))
    def request_cancel(self, chosen: list[int]) -> None:
        async def act() -> set[int]:
            found = await self.store.request_cancel(
                self.domain, self.pick(chosen), reason="r", actor="ann"
            )
            return {self.ids.index(command_id) for command_id in found}

        self.both(lambda: self.model.request(chosen), act)

    @precondition(lambda self: any(c.parks for c in self.model.commands.values()))
    @rule(n=name, is_current=st.booleans())
    def edit(self, n: int, is_current: bool) -> None:
        """A retry with another payload; one that was made from an old message is refused."""
        row = self.run(self.store.get_command(self.domain, self.ids[n]))
        msg_id = None if row is None else row.msg_id
        edit = Edit(b'{"edited": true}', msg_id if is_current else -1, {})

        def act() -> Awaitable[None]:
            return self.store.operator_retry(
                self.domain, [self.ids[n]], actor="ann", reset_attempts=True,
                edits={self.ids[n]: edit},
            )  # fmt: skip

        if is_current or row is None or row.status != "IN_TROUBLESHOOTING_QUEUE":
            self.both(lambda: self.model.operate("retry", [n]), act)
        else:
            with pytest.raises(CommandBusError, match="sent again since its payload was read"):
                self.run(act())

    @rule(n=name)
    def note(self, n: int) -> None:
        self.both(
            lambda: self.model.note(n),
            lambda: self.store.add_note(self.domain, self.ids[n], text="x", actor="ann"),
        )

    @rule(number=batch, verb=st.sampled_from(["cancel", "request", "retry", "retry"]))
    def operate_batch(self, number: int, verb: str) -> None:
        batch_id = self.batch_ids[number]
        if verb == "request":
            self.both(
                lambda: self.model.request_batch(number),
                lambda: self.store.request_batch_cancel(
                    self.domain, batch_id, reason="r", actor="ann"
                ),
            )
        elif verb == "cancel":
            self.both(
                lambda: self.model.cancel_batch(number),
                lambda: self.store.cancel_batch(self.domain, batch_id, reason="r", actor="ann"),
            )
        else:
            self.both(
                lambda: self.model.retry_batch(number),
                lambda: self.store.retry_batch(self.domain, batch_id, actor="ann"),
            )

    @precondition(lambda self: self.model.bulk is None)
    @rule(verb=st.sampled_from(["retry", "cancel", "complete"]))
    def start_bulk(self, verb: str) -> None:
        self.operation = UUID(int=secrets.randbits(120))

        def wanted() -> UUID | None:
            self.model.start_bulk(verb)
            return self.operation

        async def start() -> UUID:
            reason = "r" if verb == "cancel" else None
            started = await self.bulk.start(
                BulkVerb(verb), BulkFilter(self.domain), reason=reason, operator="ann",
                operation_id=self.operation, everything=True,
            )  # fmt: skip
            return started.operation_id

        self.both(wanted, start)

    @precondition(lambda self: self.model.bulk is not None)
    @rule()
    def run_bulk(self) -> None:
        assert self.operation is not None
        wanted = self.model.run_bulk()
        found = self.run(self.bulk.run(self.operation))
        assert found.is_finished
        assert (found.done, found.skipped, found.failed) == (*wanted, 0)

    # -- stored commands

    @rule(chosen=names, fails=st.booleans())
    def dispatch(self, chosen: list[int], fails: bool) -> None:
        ids = self.pick(chosen)
        if fails:
            self.both(
                lambda: self.model.fail_dispatch(chosen),
                lambda: self.store.gateway.value(
                    "select {schema}.mark_dispatch_failed(%s, %s, 'no answer')", (self.domain, ids)
                ),
            )
        else:
            self.both(
                lambda: self.model.queue_stored(chosen),
                lambda: self.store.gateway.value(
                    "select cardinality({schema}.queue_stored(%s, %s,"
                    " array['pending_queue', 'pending_retry', 'queued']))",
                    (self.domain, ids),
                ),
            )

    # -- retention

    @rule(function=st.sampled_from(["prune_commands", "prune_batches", "prune_archives"]))
    def prune(self, function: str) -> None:
        text = "select o_pruned from {schema}." + function + "(%s, %s, 1000000, null, null)"
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        pruned = self.run(self.store.gateway.value(text, (self.domain, tomorrow)))
        match function:
            case "prune_commands":
                assert pruned["commands"] == self.model.prune_commands()
            case "prune_batches":
                assert pruned["batches"] == self.model.prune_batches()
            case _:
                self.model.prune_archives()

    # -- what must hold after every step

    @invariant()
    def is_as_expected(self) -> None:
        found = self.run(self.observer.look())
        model = self.model
        assert found.commands == {n: c.shown() for n, c in model.commands.items()}
        assert found.batches == {n: b.shown() for n, b in model.batches.items()}
        queue = Counter((c.name, c.is_due) for c in model.commands.values() if c.is_queued)
        queue.update({(n, True): times for n, times in model.strays.items()})
        assert found.queue == queue
        assert found.replies == +model.replies
        assert found.events == model.events
        parked_now = {c.name for c in model.commands.values() if c.parks and "QUEUE" in c.status}
        assert (found.parked, found.groups) == (parked_now, len(parked_now))
        for n, c in model.commands.items():
            status, epoch, is_leased = found.folded[n]
            assert (epoch, is_leased) == (c.epoch, c.is_leased)
            assert c.is_leased or status == c.status

    def teardown(self) -> None:
        if self.model.strays:
            self.receive(100, True, None, "w1")
        found = self.run(self.sql(DOCTOR, *[self.domain] * 6))
        assert found == []


@contextmanager
def opened(dsn: str) -> Iterator[Place]:
    place = Place()
    with asyncio.Runner() as runner:
        place.runner = runner

        async def open_all() -> None:
            place.pool = AsyncConnectionPool[Any](dsn, min_size=1, max_size=2, open=False)
            await place.pool.open()
            place.conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True)

        runner.run(open_all())
        try:
            yield place
        finally:
            runner.run(place.conn.close())
            runner.run(place.pool.close())


@pytest.mark.timeout(900)
def test_any_sequence_of_operations_does_what_the_model_says(dsn: str) -> None:
    with opened(dsn) as place:
        Machine.place = place
        run_kept(Machine, examples=EXAMPLES, steps=STEPS)
