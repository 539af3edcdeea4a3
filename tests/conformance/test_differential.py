"""Any sequence of verbs leaves the two stores in the same state, and gives the same answers."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg_pool import AsyncConnectionPool

from commandbus.database.model import Lease, Outcome, OutgoingCommands
from commandbus.errors import (
    CommandBusError,
    CommandNotFoundError,
    DatabaseError,
    DuplicateCommandError,
)
from commandbus.names import INBOX, NO_REPLY
from tests.conformance.batching import CLOSING
from tests.conformance.showing import TIME
from tests.conformance.worlds import (
    DOMAIN,
    MemoryWorld,
    PostgresWorld,
    World,
    done,
    failed,
    new,
    parked,
    released,
    retried,
)

COMMANDS = 6
BATCHES = 3
ENDINGS: list[Callable[..., Outcome]] = [done, retried, parked, failed, released]
REPLY_TO = ["payments.replies", NO_REPLY, INBOX]

Step = Callable[["Run"], Awaitable[Any]]
some = st.lists(st.integers(0, COMMANDS - 1), min_size=1, max_size=3)
batches = st.integers(0, BATCHES - 1)
recent = st.integers(0, 5)  # which of the leases that were given out, from the last


class Run:
    """One world on its way through a sequence."""

    def __init__(self, world: World, base: int) -> None:
        self.world = world
        self.ids = [UUID(int=base + n) for n in range(COMMANDS + 50)]
        self.relation = UUID(int=base)
        #: The first is there from the beginning.
        self.batches = [UUID(int=base + 1_000 + n) for n in range(BATCHES)]
        self.leases: list[Lease] = []

    def pick(self, indexes: Sequence[int]) -> list[UUID]:
        return [self.ids[index] for index in indexes]

    def lease(self, index: int) -> Lease | None:
        return self.leases[-1 - index] if index < len(self.leases) else None

    def new(self, index: int) -> Any:
        return new(
            "Debit" if index % 2 else "Credit",
            {"n": index},
            command_id=self.ids[index],
            reply_to=REPLY_TO[index % 3],
            correlation_id=self.relation,
            max_attempts=1 + index % 3,
        )


async def answer(run: Run, step: Step) -> Any:
    """What a step says: its value, or its refusal."""
    try:
        return await step(run)
    except DuplicateCommandError as error:
        return type(error), sorted(error.command_ids)
    except CommandNotFoundError as error:
        return type(error), error.command_id
    except DatabaseError as error:
        return type(error)  # in whose words, is the server's business
    except CommandBusError as error:
        text = str(error).partition(";")[0].replace("'", "")
        return type(error), TIME.sub("<time>", text)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    verb = draw(st.sampled_from(["send", "receive", "receive", "settle", "settle", *OTHER]))
    step: Step = draw(STRATEGIES[verb])
    return step


def _send(indexes: Sequence[int], batch: int | None) -> Step:
    async def step(run: Run) -> None:
        batch_id = None if batch is None else run.batches[batch]
        await run.world.send(*(run.new(index) for index in indexes), batch_id=batch_id)

    return step


def _receive(quantity: int, mark: bool, limit: int | None) -> Step:
    async def step(run: Run) -> list[tuple[Any, ...]]:
        leases = await run.world.receive(
            quantity,
            vt_seconds=600,
            mark_in_progress=mark,
            limits={} if limit is None else {"Debit": limit},
        )
        run.leases += leases
        return [
            (e.command_id, e.lease_epoch, e.attempt, e.max_attempts, e.is_suspect) for e in leases
        ]

    return step


def _settle(endings: Sequence[tuple[int, int, bool]]) -> Step:
    async def step(run: Run) -> Any:
        group = {}
        for index, kind, sends in endings:
            lease = run.lease(index)
            if lease is not None:
                ending = ENDINGS[kind](lease) if kind != 1 else retried(lease, 600 * (index % 2))
                if sends:
                    sent = OutgoingCommands(DOMAIN, (run.new((index + kind) % COMMANDS),))
                    ending = dataclasses.replace(ending, sends=(sent,))
                group[lease.command_id] = ending
        return await run.world.settle(*group.values()) if group else None

    return step


def _confirm(index: int) -> Step:
    async def step(run: Run) -> Any:
        lease = run.lease(index)
        return lease and await run.world.store.confirm_start(lease)

    return step


def _extend(indexes: Sequence[int]) -> Step:
    async def step(run: Run) -> Any:
        # One lease of each command: the answer names commands, so it could not tell two apart.
        found = {lease.command_id: lease for i in indexes if (lease := run.lease(i)) is not None}
        return found and await run.world.store.extend(DOMAIN, list(found.values()), 600)

    return step


def _advance(seconds: int) -> Step:
    return lambda run: run.world.advance(seconds)


def _operate(verb: str, indexes: Sequence[int], flag: bool) -> Step:
    async def step(run: Run) -> None:
        store, ids = run.world.store, run.pick(indexes)
        match verb:
            case "retry":
                await store.operator_retry(DOMAIN, ids, actor="ann", reset_attempts=flag)
            case "operator_cancel":
                await store.operator_cancel(DOMAIN, ids, reason="r", actor=None)
            case "complete":
                await store.operator_complete(DOMAIN, ids, result=b'{"x": 1}', actor="ann")
            case _:
                await store.cancel(DOMAIN, ids, reason="r", actor="ann")

    return step


def _stray(index: int) -> Step:
    async def step(run: Run) -> None:
        message = {"command_id": str(run.ids[index]), "data": {}}
        await run.world.pgmq.send("payments.commands", message)

    return step


def _create(indexes: Sequence[int], batch: int) -> Step:
    async def step(run: Run) -> None:
        # Only one has a closing command: if a group closes two, their order is anybody's guess.
        on_complete = CLOSING if batch == 1 else None
        batch_id = run.batches[batch]
        await run.world.create_batch(
            *(run.new(index) for index in indexes),
            batch_id=batch_id,
            created_by="ann",
            on_complete=on_complete,
        )

    return step


def _operate_batch(verb: str, batch: int) -> Step:
    async def step(run: Run) -> Any:
        store, batch_id = run.world.store, run.batches[batch]
        match verb:
            case "retry":
                return await store.retry_batch(DOMAIN, batch_id, actor="ann")
            case "cancel":
                return await store.cancel_batch(DOMAIN, batch_id, reason="r", actor="ann")
            case _:
                closed = await store.closed_batches(run.batches)
                return sorted((b.batch_id, b.status, b.completed_count) for b in closed)

    return step


def _purge() -> Step:
    return lambda run: run.world.lose_archive()


OTHER = [
    "confirm",
    "extend",
    "advance",
    "advance",
    "operate",
    "operate",
    "operate",
    "create",
    "create",
    "operate batch",
    "operate batch",
    "operate batch",
    "stray",
    "purge",
]
STRATEGIES: dict[str, st.SearchStrategy[Step]] = {
    "send": st.builds(_send, some, st.none() | batches),
    "receive": st.builds(_receive, st.integers(1, 4), st.booleans(), st.none() | st.integers(1, 4)),
    "settle": st.builds(
        _settle,
        st.lists(
            st.tuples(recent, st.integers(0, 4), st.sampled_from([False, False, True])),
            min_size=1,
            max_size=4,
        ),
    ),
    "confirm": st.builds(_confirm, recent),
    "extend": st.builds(_extend, st.lists(recent, min_size=1, max_size=3)),
    "advance": st.builds(_advance, st.sampled_from([300, 1_000])),
    "operate": st.builds(
        _operate,
        st.sampled_from(["retry", "retry", "operator_cancel", "complete", "cancel"]),
        st.lists(st.integers(0, COMMANDS - 1), min_size=1, max_size=2),
        st.booleans(),
    ),
    "create": st.builds(_create, some, batches),
    "operate batch": st.builds(
        _operate_batch, st.sampled_from(["retry", "retry", "cancel", "closed"]), batches
    ),
    "stray": st.builds(_stray, st.integers(0, COMMANDS - 1)),
    "purge": st.builds(_purge),
}


async def both_agree(worlds: list[World], sequence: Sequence[Step], kind: type[Run] = Run) -> None:
    base = secrets.randbits(100) << 20  # the audit remembers every id: new ones for each sequence
    runs = [kind(world, base) for world in worlds]
    for run in runs:
        await run.world.store.ensure_domain(DOMAIN)
        await run.world.add_batch(batch_id=run.batches[0])
        await run.world.send(run.new(0), run.new(1))
        await run.world.send(run.new(2), batch_id=run.batches[0])
    told: list[str] = []
    for number, step in enumerate(sequence):
        memory, postgres = [await answer(run, step) for run in runs]
        told.append(f"{_described(step)}: {memory!r}")
        assert memory == postgres, "\n".join([*told, f"step {number}"])
    memory, postgres = [await run.world.dump() for run in runs]
    for part, content in postgres.items():
        found = _differences(part, memory[part], content) if memory[part] != content else ""
        assert not found, "\n".join([*told, found])


def _described(step: Step) -> str:
    """The verb of a step, and what it was given."""
    given = [cell.cell_contents for cell in getattr(step, "__closure__", None) or ()]
    return f"{step.__qualname__.partition('.')[0]}{given}"


def _differences(path: str, memory: Any, postgres: Any) -> str:
    """Where two dumps differ, for the reader of a failed test."""
    if isinstance(memory, dict) and isinstance(postgres, dict):
        keys = memory.keys() | postgres.keys()
        pairs = [(key, memory.get(key), postgres.get(key)) for key in keys]
    elif isinstance(memory, list) and isinstance(postgres, list) and len(memory) == len(postgres):
        pairs = [(n, one, postgres[n]) for n, one in enumerate(memory)]
    else:
        return f"{path}: {memory!r} in memory, {postgres!r} on PostgreSQL"
    return "\n".join(
        _differences(f"{path}.{key}", one, other) for key, one, other in pairs if one != other
    )


def compare_stores(
    dsn: str, steps: st.SearchStrategy[Step], kind: type[Run] = Run, *, sequences: int
) -> None:
    """Run this many sequences of steps on both stores."""
    with asyncio.Runner() as runner:

        async def open_world() -> tuple[AsyncConnectionPool[Any], PostgresWorld]:
            pool = AsyncConnectionPool[Any](dsn, min_size=1, max_size=2, open=False)
            await pool.open()
            conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
            return pool, PostgresWorld(pool, conn)

        pool, postgres = runner.run(open_world())

        async def compare(sequence: Sequence[Step]) -> None:
            await postgres.clear()
            await both_agree([MemoryWorld(), postgres], sequence, kind)

        @settings(
            max_examples=sequences,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(steps, min_size=10, max_size=25))
        def any_sequence(sequence: Sequence[Step]) -> None:
            runner.run(compare(sequence))

        try:
            any_sequence()
        finally:
            runner.run(postgres.conn.close())
            runner.run(pool.close())


@pytest.mark.postgres
def test_any_sequence_of_verbs_has_the_same_effect_on_both_stores(shared_dsn: str) -> None:
    compare_stores(shared_dsn, steps(), sequences=60)
