"""M4: the critical pairs of transactions, in every order of their statements, on the real database.

After each run the doctor finds nothing, and exactly one of the outcomes has come about that could
have come about one after the other. No order ends in a deadlock.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.models.schedules import Act, Refused, Run, play, schedules, symptoms
from tests.sql.conftest import Open
from tests.sql.helpers import FAILURE, Held, Session
from tests.sql.tickets import submitted

pytestmark = pytest.mark.long

PARKED = "IN_TROUBLESHOOTING_QUEUE"
PARK = {"reason": "PERMANENT", **FAILURE}


@dataclass
class Pair:
    """What two or three sessions do, and what may come of it."""

    acts: Sequence[Act]
    #: Called with what the calls returned, after the last commit.
    verdict: Callable[[Run], Awaitable[None]]
    #: What a rollback of the first leaves is judged by the doctor alone.
    after_rollback: Callable[[Run], Awaitable[None]] | None = None


Setup = Callable[[Session], Awaitable[Pair]]
PAIRS: dict[str, Setup] = {}


def pair(setup: Setup) -> Setup:
    PAIRS[setup.__name__.replace("_", " ")] = setup
    return setup


# -- what sessions do


def settles(verb: str, *held: Held, **item: Any) -> Act:
    return lambda s: s.settle(verb, *(h.item(**item) for h in held))


def receives(worker: str = "w2") -> Act:
    return lambda s: s.receive(worker=worker)


def calls(query: str, *params: Any) -> Act:
    async def act(s: Session) -> Any:
        rows = await s.rows(f"select commandbus.{query} as found", s.domain, *params)
        return [row["found"] for row in rows]

    return act


async def lapsed(db: Session, batch_id: UUID | None = None) -> Held:
    held = await db.put("IN_PROGRESS", batch_id)
    await db.lapse(held)
    return held


async def ended_once(db: Session, command_id: UUID, *statuses: str) -> None:
    assert await db.status(command_id) in statuses
    assert len(await db.replies(command_id)) == 1


async def counters(db: Session, batch_id: UUID) -> tuple[int, ...]:
    row = await db.batch_row(batch_id)
    names = ("total", "completed", "failed", "canceled", "in_troubleshooting")
    return tuple(row[f"{name}_count"] for name in names)


# -- the pairs


@pair
async def a_receive_at_a_lapse_and_the_late_complete(db: Session) -> Pair:
    held = await lapsed(db)

    async def verdict(run: Run) -> None:
        taken, stale = run.results
        if taken:
            assert stale == [held.command_id]
            assert await db.status(held.command_id) == "IN_PROGRESS"
            assert await db.settle("complete", taken[0].item(data=None)) == []
        else:
            assert stale == []
        await ended_once(db, held.command_id, "COMPLETED")

    return Pair([receives(), settles("complete", held, data=None)], verdict)


@pair
async def a_receive_at_a_lapse_and_the_late_retry(db: Session) -> Pair:
    held = await lapsed(db)

    async def verdict(run: Run) -> None:
        taken, stale = run.results
        row = await db.command(held.command_id)
        if stale:
            assert (row["leased_by"], row["lease_epoch"]) == ("w2", 2)
        elif taken:  # the failure was recorded first, and it was received again
            assert (row["leased_by"], row["attempts"]) == ("w2", 2)
        else:
            assert (row["status"], row["leased_by"]) == ("PENDING", None)

    retry = settles("retry", held, delay_seconds=0, **FAILURE)
    return Pair([receives(), retry], verdict)


@pair
async def a_receive_at_a_lapse_and_the_late_extension(db: Session) -> Pair:
    held = await lapsed(db)

    async def verdict(run: Run) -> None:
        taken, lost = run.results
        assert bool(taken) == (lost == [held.command_id])
        (message,) = await db.queued()
        assert not message["is_visible"]
        holder = taken[0] if taken else held
        assert await db.settle("complete", holder.item(data=None)) == []

    return Pair([receives(), calls("extend_leases(%s, %s, 60)", Jsonb([held.item()]))], verdict)


@pair
async def a_complete_and_a_cancel_of_what_is_leased_but_not_marked(db: Session) -> Pair:
    (command_id,) = await db.send()
    (held,) = await db.receive(mark=False)
    await db.lapse(held)

    async def verdict(run: Run) -> None:
        assert run.results == [[], Refused("CB003")]
        await ended_once(db, command_id, "COMPLETED")

    cancel = calls("cancel_commands(%s, %s, 'why')", [command_id])
    return Pair([settles("complete", held, data=None), cancel], verdict)


@pair
async def a_complete_and_a_request_to_cancel(db: Session) -> Pair:
    held = await db.put("IN_PROGRESS")

    async def verdict(run: Run) -> None:
        assert run.results[0] == []
        assert run.results[1] in ([held.command_id], Refused("CB003"))
        await ended_once(db, held.command_id, "COMPLETED")  # success wins

    request = calls("request_cancel(%s, %s, 'why')", [held.command_id])
    return Pair([settles("complete", held, data=None), request], verdict)


@pair
async def a_retry_and_a_request_to_cancel(db: Session) -> Pair:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)

    async def verdict(run: Run) -> None:
        assert run.results[0] == []
        assert run.results[1] in ([held.command_id], [])
        await ended_once(db, held.command_id, "CANCELED")
        assert await db.queued() == []
        assert await counters(db, batch) == (1, 0, 0, 1, 0)

    request = calls("request_cancel(%s, %s, 'why')", [held.command_id])
    return Pair([settles("retry", held, delay_seconds=0, **FAILURE), request], verdict)


@pair
async def a_receive_at_a_lapse_and_a_request_to_cancel(db: Session) -> Pair:
    held = await lapsed(db)

    async def verdict(run: Run) -> None:
        taken, asked = run.results
        if taken:
            assert asked == [held.command_id]
            assert await db.settle("release", taken[0].item()) == []
        else:
            await db.receive()
        await ended_once(db, held.command_id, "CANCELED")
        assert (await db.events(held.command_id)).count("CANCEL_REQUESTED") == 1

    request = calls("request_cancel(%s, %s, 'why')", [held.command_id])
    return Pair([receives(), request], verdict)


@pair
async def two_requests_to_cancel(db: Session) -> Pair:
    held = await db.put("IN_PROGRESS")

    async def verdict(run: Run) -> None:
        assert run.results == [[held.command_id]] * 2
        assert (await db.events(held.command_id))[2:] == ["CANCEL_REQUESTED"]

    request = calls("request_cancel(%s, %s, 'why')", [held.command_id])
    return Pair([request, request], verdict)


@pair
async def a_park_and_an_operators_cancel(db: Session) -> Pair:
    held = await db.put("IN_PROGRESS")

    async def verdict(run: Run) -> None:
        assert run.results[0] == []
        if isinstance(run.results[1], Refused):
            assert await db.status(held.command_id) == PARKED
        else:
            await ended_once(db, held.command_id, "CANCELED")

    cancel = calls("operator_cancel(%s, %s, 'why')", [held.command_id])
    return Pair([settles("park", held, **PARK), cancel], verdict)


@pair
async def a_retry_and_a_cancel_of_two_operators(db: Session) -> Pair:
    held = await db.put(PARKED)

    async def verdict(run: Run) -> None:
        refused = [isinstance(result, Refused) for result in run.results]
        assert sorted(refused) == [False, True]
        expected = "CANCELED" if refused[0] else "PENDING"
        assert await db.status(held.command_id) == expected
        assert len(await db.queued()) == (0 if refused[0] else 1)

    retry = calls("operator_retry(%s, %s)", [held.command_id])
    return Pair([retry, calls("operator_cancel(%s, %s, 'why')", [held.command_id])], verdict)


@pair
async def a_retry_and_a_retry_of_two_operators(db: Session) -> Pair:
    held = await db.put(PARKED)

    async def verdict(run: Run) -> None:
        assert sorted(isinstance(result, Refused) for result in run.results) == [False, True]
        assert len(await db.queued()) == 1

    retry = calls("operator_retry(%s, %s)", [held.command_id])
    return Pair([retry, retry], verdict)


@pair
async def a_cancel_and_a_receive(db: Session) -> Pair:
    (command_id,) = await db.send()

    async def verdict(run: Run) -> None:
        canceled, taken = run.results
        if taken:
            assert canceled == Refused("CB003")
            assert await db.status(command_id) == "IN_PROGRESS"
        else:
            await ended_once(db, command_id, "CANCELED")

    return Pair([calls("cancel_commands(%s, %s, 'why')", [command_id]), receives()], verdict)


@pair
async def the_last_two_of_a_batch(db: Session) -> Pair:
    batch = await db.batch()
    await db.send(uuid4(), uuid4(), batch_id=batch)
    left, right = await db.receive()

    async def verdict(run: Run) -> None:
        assert run.results == [[], []]
        assert await counters(db, batch) == (2, 1, 1, 0, 0)
        assert (await db.batch_row(batch))["status"] == "COMPLETED_WITH_FAILURES"
        assert (await db.events(batch)).count("BATCH_COMPLETED") == 1

    async def after_rollback(run: Run) -> None:
        assert await counters(db, batch) == (2, 0, 1, 0, 0)
        assert (await db.batch_row(batch))["completed_at"] is None

    complete = settles("complete", left, data=None)
    return Pair([complete, settles("fail", right, **FAILURE)], verdict, after_rollback)


@pair
async def the_last_of_a_batch_and_a_send_into_it(db: Session) -> Pair:
    batch = await db.batch()
    held = await db.put("IN_PROGRESS", batch)

    async def verdict(run: Run) -> None:
        if run.results[1] == Refused("CB003"):
            assert await counters(db, batch) == (1, 1, 0, 0, 0)
        else:
            assert await counters(db, batch) == (2, 1, 0, 0, 0)
            assert (await db.batch_row(batch))["completed_at"] is None

    async def send(s: Session) -> None:
        await s.send(batch_id=batch)

    return Pair([settles("complete", held, data=None), send], verdict)


@pair
async def a_batch_retry_and_the_complete_that_would_close_it(db: Session) -> Pair:
    batch = await db.batch()
    await db.send(uuid4(), uuid4(), batch_id=batch)
    failed, held = await db.receive()
    await db.settle("fail", failed.item(**FAILURE))

    async def verdict(run: Run) -> None:
        assert run.results == [[1], []]
        assert await counters(db, batch) == (2, 1, 0, 0, 0)
        row = await db.batch_row(batch)
        assert (row["status"], row["completed_at"]) == ("IN_PROGRESS", None)
        events = await db.events(batch)
        assert events.count("BATCH_COMPLETED") == events.count("BATCH_REOPENED")

    return Pair(
        [calls("retry_batch(%s, %s, 'ann')", batch), settles("complete", held, data=None)], verdict
    )


@pair
async def two_retries_of_a_batch(db: Session) -> Pair:
    batch = await db.batch()
    await db.put("FAILED", batch)

    async def verdict(run: Run) -> None:
        assert sorted(run.results) == [[0], [1]]
        assert len(await db.queued()) == 1
        assert (await db.events(batch)).count("BATCH_REOPENED") == 1

    retry = calls("retry_batch(%s, %s, 'ann')", batch)
    return Pair([retry, retry], verdict)


@pair
async def a_pruning_and_a_retry_of_a_batch(db: Session) -> Pair:
    batch = await db.batch()
    held = await db.put("FAILED", batch)
    await db.rows(
        "update commandbus.command_bus_batch set created_at = now() - interval '9 days',"
        " completed_at = now() - interval '9 days' where batch_id = %s",
        batch,
    )
    prune = "prune_batches(%s, now() - interval '1 day', 100)"

    async def verdict(run: Run) -> None:
        row = await db.batch_row(batch)
        if run.results[1] == Refused("CB003"):  # it is marked, and will go
            assert row["pruning_since"] is not None
            assert await db.status(held.command_id) == "FAILED"
        else:
            assert (row["pruning_since"], row["completed_at"]) == (None, None)
            assert await db.status(held.command_id) == "PENDING"

    return Pair([calls(prune), calls("retry_batch(%s, %s, 'ann')", batch)], verdict)


@pair
async def an_approval_and_a_cancel_of_the_batch(db: Session) -> Pair:
    ticket_id = await submitted(db, size=2, requires_approval=True)

    async def verdict(run: Run) -> None:
        assert run.results[1] == [2]
        assert await counters(db, ticket_id) == (2, 0, 0, 2, 0)
        assert await db.queued() == []  # canceled after it was queued, or never queued
        assert run.results[0] in ([""], Refused("CB003"))

    approve = calls("decide_ticket(%s, %s, 'approve', 'bob')", ticket_id)
    return Pair([approve, calls("cancel_batch(%s, %s, 'why')", ticket_id)], verdict)


@pair
async def an_approval_and_a_rejection(db: Session) -> Pair:
    ticket_id = await submitted(db, size=2, requires_approval=True)

    async def verdict(run: Run) -> None:
        refused = [isinstance(result, Refused) for result in run.results]
        assert sorted(refused) == [False, True]
        assert len(await db.queued()) == (0 if refused[0] else 2)

    decide = "decide_ticket(%s, %s, %s, 'bob', 'why')"
    return Pair([calls(decide, ticket_id, "approve"), calls(decide, ticket_id, "reject")], verdict)


@pair
async def two_sends_of_the_same_ids(db: Session) -> Pair:
    await db.value("select commandbus.ensure_domain(%s)", db.domain)
    low, high = sorted([uuid4(), uuid4()])

    async def verdict(run: Run) -> None:
        first, second = run.results
        assert sorted([first, second], key=len) == [[], [low, high]] or {*first, *second} == {
            low,
            high,
        }
        assert len(await db.queued()) == 2

    return Pair([lambda s: s.offer(high, low), lambda s: s.offer(low, high)], verdict)


@pair
async def a_chunk_of_a_bulk_operation_and_an_operator(db: Session) -> Pair:
    one, two = await db.put(PARKED), await db.put(PARKED)
    operation = uuid4()
    await db.value(
        "select commandbus.start_bulk(%s, %s, 'retry', '{}', '{}', null, 'ann', true)",
        operation, db.domain,
    )  # fmt: skip

    async def chunk(s: Session) -> Any:
        return await s.rows("select * from commandbus.run_bulk_chunk(%s)", operation)

    async def verdict(run: Run) -> None:
        (row,) = await db.rows(
            "select done, skipped, failed from commandbus.command_bus_bulk_operation"
            " where operation_id = %s",
            operation,
        )
        assert await db.status(two.command_id) == "PENDING"
        if isinstance(run.results[1], Refused):
            assert (row["done"], row["skipped"], row["failed"]) == (2, 0, 0)
            assert await db.status(one.command_id) == "PENDING"
        else:
            assert (row["done"], row["skipped"], row["failed"]) == (1, 1, 0)
            await ended_once(db, one.command_id, "CANCELED")

    return Pair([chunk, calls("operator_cancel(%s, %s, 'why')", [one.command_id])], verdict)


@pair
async def mixed_groups_in_opposite_orders(db: Session) -> Pair:
    for batch in [await db.batch(), await db.batch()]:
        await db.send(batch_id=batch)
    lost = await db.receive()
    await db.lapse(*lost)
    left, right = await db.receive(worker="w2")
    late = {"complete": [lost[1].item(data=None)], "fail": [lost[0].item(**FAILURE)]}
    live = {"fail": [right.item(**FAILURE)], "park": [left.item(**PARK)]}

    async def verdict(run: Run) -> None:
        assert [sorted(run.results[0]), run.results[1]] == [
            sorted(h.command_id for h in lost),
            [],
        ]
        assert await db.status(left.command_id) == PARKED
        await ended_once(db, right.command_id, "FAILED")

    return Pair(
        [calls("settle_commands(%s, %s)", Jsonb(document)) for document in (late, live)], verdict
    )


@pair
async def two_mixed_groups_of_the_same_batches(db: Session) -> Pair:
    batches = [await db.batch(), await db.batch()]
    held = []
    for batch in batches:
        await db.send(uuid4(), uuid4(), batch_id=batch)
        held.append(await db.receive())
    (a, b), (c, d) = held
    one = {"complete": [c.item(data=None)], "park": [a.item(**PARK)]}
    two = {"complete": [b.item(data=None)], "park": [d.item(**PARK)]}

    async def verdict(run: Run) -> None:
        assert run.results == [[], []]
        for batch in batches:
            assert await counters(db, batch) == (2, 1, 0, 0, 1)

    return Pair(
        [calls("settle_commands(%s, %s)", Jsonb(document)) for document in (one, two)], verdict
    )


async def hold(db: Session) -> UUID:
    command_id = uuid4()
    commands = [{"command_id": str(command_id), "type": "Debit", "data": {"n": 1}}]
    await db.value(
        "select commandbus.create_stored_batch("
        "%s, %s, %s, 'b', null, null, null, false, 'two_phase')",
        db.domain, uuid4(), Jsonb(commands),
    )  # fmt: skip
    return command_id


QUEUE = "queue_stored(%s, %s, array['pending_queue', 'pending_retry'])"


@pair
async def a_dispatch_and_a_cancel_of_what_is_stored(db: Session) -> Pair:
    command_id = await hold(db)

    async def verdict(run: Run) -> None:
        await ended_once(db, command_id, "CANCELED")
        assert await db.queued() == []
        assert run.results[0] in ([[]], [[command_id]])

    cancel = calls("cancel_commands(%s, %s, 'why')", [command_id])
    return Pair([calls(QUEUE, [command_id]), cancel], verdict)


@pair
async def two_dispatches_of_what_is_stored(db: Session) -> Pair:
    command_id = await hold(db)

    async def verdict(run: Run) -> None:
        assert sorted(run.results) == [[[]], [[command_id]]]
        assert len(await db.queued()) == 1

    return Pair([calls(QUEUE, [command_id]), calls(QUEUE, [command_id])], verdict)


@pair
async def a_dispatch_and_the_message_that_comes_from_elsewhere(db: Session) -> Pair:
    command_id = await hold(db)
    envelope = Jsonb([{"command_id": str(command_id)}])

    async def adopt(s: Session) -> Any:
        rows = await s.rows("select * from commandbus.adopt_messages(%s, %s)", s.domain, envelope)
        return [row["verdict"] for row in rows]

    async def verdict(run: Run) -> None:
        assert run.results in ([[[command_id]], ["known"]], [[[]], ["adopted"]])
        assert len(await db.queued()) == 1

    return Pair([calls(QUEUE, [command_id]), adopt], verdict)


@pair
async def a_receive_a_late_complete_and_a_cancel(db: Session) -> Pair:
    held = await lapsed(db)

    async def verdict(run: Run) -> None:
        taken, stale, canceled = run.results
        assert bool(taken) == bool(stale)
        assert canceled == Refused("CB003")  # leased throughout, or ended
        assert await db.status(held.command_id) == ("IN_PROGRESS" if taken else "COMPLETED")

    return Pair(
        [
            receives(),
            settles("complete", held, data=None),
            calls("cancel_commands(%s, %s, 'why')", [held.command_id]),
        ],
        verdict,
    )


# -- the runs

TRIPLES = (a_receive_a_late_complete_and_a_cancel,)


def orders(players: int) -> list[tuple[tuple[int, ...], int | None]]:
    """Every schedule; and those that overlap once more, with the first one rolling back.

    Of three sessions only those in which all have called before the first commits.
    """
    every = list(schedules(players))
    if players == 3:
        every = [(*a, *b) for a in itertools.permutations(range(3))
                 for b in itertools.permutations(range(3))][::2]  # fmt: skip
        return [(schedule, None) for schedule in every]
    return [*((schedule, None) for schedule in every), ((0, 1, 0, 1), 0), ((1, 0, 0, 1), 0)]


@pytest.mark.parametrize("name", PAIRS)
async def test_in_every_order_of_its_statements(
    name: str,
    db: Session,
    session: Open,
) -> None:
    players = 3 if PAIRS[name] in TRIPLES else 2
    sessions = [await session() for _ in range(players)]
    for number, (schedule, rolls_back) in enumerate(orders(players)):
        for s in (db, *sessions):
            s.domain = f"run_{number}"
        one = await PAIRS[name](db)
        run = await play(db, sessions, one.acts, schedule, rolls_back)
        where = f"{name}: order {schedule}, {run}"
        assert await symptoms(db) == [], where
        judge = one.verdict if rolls_back is None else one.after_rollback
        if judge is not None:
            try:
                await judge(run)
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from error
            assert await symptoms(db) == [], where
