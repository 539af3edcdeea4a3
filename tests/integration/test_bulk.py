"""Bulk operations on a real database: frozen, paced, stoppable, each item once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.errors import (
    BulkOperationNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSettingError,
)
from commandbus.testing import InMemoryStore
from commandbus.troubleshooting.model import (
    BulkFilter,
    BulkItem,
    BulkOperation,
    BulkOutcome,
    BulkStatus,
    BulkVerb,
)
from tests.integration.looking import another_bus, replies, rows, value
from tests.parking import MISCOUNTED, park
from tests.waiting import until, working

Conn = psycopg.AsyncConnection[Any]
SHOP = BulkFilter("shop")


async def group_of(bus: CommandBus, code: str) -> str:
    return next(
        g.fingerprint for g in await bus.troubleshooting.groups("shop") if g.error_code == code
    )


async def parked_ids(bus: CommandBus) -> list[UUID]:
    return [item.command_id for item in await bus.list_troubleshooting("shop", limit=1_000)]


async def acts(conn: Conn) -> list[tuple[Any, ...]]:
    """(event, actor, how many, of how many commands) of what operators did."""
    return await rows(
        conn,
        "select event_type, actor, count(*), count(distinct command_id)"
        " from commandbus.command_bus_audit where event_type like 'OPERATOR%%' group by 1, 2"
        " order by 1, 2",
    )


async def items_of(
    bus: CommandBus, operation: BulkOperation, outcome: str | None = None
) -> list[BulkItem]:
    kind = None if outcome is None else BulkOutcome(outcome)
    page = await bus.bulk.page_items(operation.operation_id, outcome=kind)
    assert page.next_cursor is None
    return page.items


async def operations(bus: CommandBus, domain: str | None = None) -> list[BulkOperation]:
    return (await bus.bulk.page(domain)).items


async def finish(bus: CommandBus, operation: BulkOperation) -> tuple[int, int, int]:
    ended = await bus.bulk.run(operation.operation_id)
    assert ended.status == "finished"
    return ended.done, ended.skipped, ended.failed


async def test_a_group_is_retried_and_nothing_else(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 30)
    await park(conn, 20, code="LATE")
    group = await group_of(bus, "LATE")

    operation = await bus.bulk.start(
        BulkVerb.RETRY, BulkFilter("shop", group=group[:6]), operator="ann"
    )
    assert (operation.total, operation.status, operation.conditions) == (
        20, "running", {"group": group},
    )  # fmt: skip
    told: list[int] = []
    ended = await bus.bulk.run(operation.operation_id, on_progress=lambda o: told.append(o.acted))

    assert (ended.status, ended.done, ended.acted, told) == ("finished", 20, 20, [20])
    assert None not in {ended.started_at, ended.finished_at, ended.executor}
    assert await acts(conn) == [("OPERATOR_RETRY", "ann", 20, 20)]
    left = await bus.troubleshooting.groups("shop")
    assert [(g.error_code, g.parked_count) for g in left] == [("DOWN", 30)]
    items = await items_of(bus, operation)
    assert [(i.item_no, i.outcome, i.detail) for i in items] == [
        (n, "done", None) for n in range(1, 21)
    ]
    trail = await bus.get_audit_trail(operation.operation_id)
    assert [(e.event_type, e.actor) for e in trail] == [
        ("BULK_STARTED", "ann"), ("BULK_FINISHED", "ann"),
    ]  # fmt: skip
    assert await value(conn, MISCOUNTED) == 0


async def test_a_cancel_and_a_complete_reply_once_for_each(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 7)
    await park(conn, 5, command_type="Other", code="LATE")

    canceled = await bus.bulk.start(
        BulkVerb.CANCEL, BulkFilter("shop", error_code="LATE"), reason="too late", operator="ann"
    )
    completed = await bus.bulk.start(
        BulkVerb.COMPLETE, BulkFilter("shop", command_type="Work"), result_data={"by": "hand"}
    )
    assert await finish(bus, canceled) == (5, 0, 0)
    assert await finish(bus, completed) == (7, 0, 0)

    found = await replies(bus)
    assert len(found) == len({reply.command_id for reply in found}) == 12
    assert {r.error.message for r in found if r.error} == {"too late"}
    assert [r.data for r in found if r.outcome == "SUCCESS"] == [{"by": "hand"}] * 7
    assert await bus.troubleshooting.groups("shop") == []


async def test_the_preview_counts_exactly_and_changes_nothing(bus: CommandBus, conn: Conn) -> None:
    batch = uuid4()
    await conn.execute(
        "insert into commandbus.command_bus_batch (batch_id, domain) values (%s, 'shop')", (batch,)
    )
    await park(conn, 4)
    await park(conn, 3, code="LATE", batch=batch)
    await park(conn, 2, code="LATE", command_type="Other")
    now = datetime.now(UTC)

    for chosen, total in (
        (SHOP, 9),
        (BulkFilter("shop", error_code="LATE"), 5),
        (BulkFilter("shop", error_code="LATE", command_type="Work"), 3),
        (BulkFilter("shop", batch_id=batch), 3),
        (BulkFilter("shop", parked_before=now), 9),
        (BulkFilter("shop", parked_after=now), 0),
        (BulkFilter("shop", command_ids=tuple((await parked_ids(bus))[:2])), 2),
        (BulkFilter("elsewhere"), 0),
    ):
        preview = await bus.bulk.preview(chosen)
        assert preview.total == total == sum(match.matched for match in preview.groups), chosen
    preview = await bus.bulk.preview(BulkFilter("shop", error_code="LATE"))
    assert [(m.command_type, m.error_code, m.matched) for m in preview.groups] == [
        ("Work", "LATE", 3), ("Other", "LATE", 2),
    ]  # fmt: skip
    assert await operations(bus) == []


async def test_membership_is_frozen_at_the_start(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 3)
    operation = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True)
    await park(conn, 2)
    told: list[int] = []

    async def tell(progress: BulkOperation) -> None:
        told.append(progress.done)

    await bus.bulk.run(operation.operation_id, on_progress=tell)
    assert told == [3]
    assert len(await parked_ids(bus)) == 2


async def test_what_has_changed_meanwhile_is_skipped_with_the_reason(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 4)
    first, second, third, fourth = await parked_ids(bus)
    operation = await bus.bulk.start(BulkVerb.CANCEL, SHOP, reason="x", everything=True)
    await bus.operator_complete("shop", first)
    await bus.operator_retry("shop", second)
    await bus.operator_retry("shop", third)
    await conn.execute(
        "select commandbus.park_commands('shop', (select jsonb_agg(to_jsonb(h)"
        " || jsonb_build_object('reason', 'PERMANENT', 'error_msg', 'again'))"
        " from commandbus.receive_commands('shop', 600, 1, 'w') h))"
    )
    still_parked = set(await parked_ids(bus)) & {second, third}

    assert await finish(bus, operation) == (1, 3, 0)

    items = await items_of(bus, operation, "skipped")
    reasons = {item.command_id: item.detail for item in items}
    assert reasons[first] == "it is COMPLETED"
    [again] = still_parked
    [retried] = {second, third} - still_parked
    assert reasons[again] == "it was decided on, and parked again, meanwhile"
    assert reasons[retried] == "it is PENDING"
    assert (await bus.get_command("shop", fourth)).status == "CANCELED"  # type: ignore[union-attr]


async def test_lost_payloads_fail_and_the_others_go_on(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 6)
    await conn.execute(
        "delete from pgmq.a_shop__commands where msg_id in"
        " (select msg_id from pgmq.a_shop__commands order by msg_id limit 2)"
    )
    operation = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True)

    assert await finish(bus, operation) == (4, 0, 2)

    items = await items_of(bus, operation, "failed")
    assert [item.detail for item in items] == ["the payload is no longer archived"] * 2
    assert sorted(await parked_ids(bus)) == sorted(item.command_id for item in items)


async def test_an_item_that_breaks_for_another_reason_fails_alone(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 9)
    victim = (await parked_ids(bus))[4]
    await conn.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        " if new.status = 'CANCELED' and new.command_id = tg_argv[0]::uuid then"
        " raise exception 'not this one'; end if; return new; end $$"
    )
    await conn.execute(
        "create trigger refuse before update on commandbus.command_bus_command"
        f" for each row execute function refuse('{victim}')".encode()
    )
    operation = await bus.bulk.start(BulkVerb.CANCEL, SHOP, reason="x", everything=True)

    assert await finish(bus, operation) == (8, 0, 1)

    [item] = await items_of(bus, operation, "failed")
    assert (item.command_id, item.detail) == (victim, "P0001: not this one")
    assert len(await replies(bus)) == 8
    assert await value(conn, MISCOUNTED) == 0


async def test_what_lies_with_the_database_is_no_outcome(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 3)
    operation = await bus.bulk.start(BulkVerb.CANCEL, SHOP, reason="x", everything=True)
    await conn.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        " raise exception 'no room' using errcode = '53100'; end $$"
    )
    await conn.execute(
        "create trigger refuse before update on commandbus.command_bus_command"
        " for each row execute function refuse()"
    )
    with pytest.raises(CommandBusError, match="no room"):
        await bus.bulk.run(operation.operation_id)
    found = await bus.bulk.get(operation.operation_id)
    assert found is not None
    assert (found.status, found.acted) == ("running", 0)

    await conn.execute("drop trigger refuse on commandbus.command_bus_command")
    assert await finish(bus, operation) == (3, 0, 0)


async def test_a_second_click_is_the_same_operation(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 3)
    own = uuid4()
    late = BulkFilter("shop", error_code="DOWN")
    first = await bus.bulk.start(BulkVerb.RETRY, late, operation_id=own, everything=True, rate=50)
    again = await bus.bulk.start(BulkVerb.RETRY, late, operation_id=own, everything=True, rate=50)
    other = await bus.bulk.start(
        BulkVerb.RETRY, late, operation_id=uuid4(), everything=True, rate=70
    )

    assert {first.operation_id, again.operation_id, other.operation_id} == {own}
    await bus.bulk.run(own)
    finished = await bus.bulk.start(
        BulkVerb.RETRY, late, operation_id=own, everything=True, rate=50
    )
    assert (finished.operation_id, finished.done) == (own, 3)
    assert await acts(conn) == [("OPERATOR_RETRY", None, 3, 3)]
    for verb, chosen, rate in (
        (BulkVerb.COMPLETE, late, 50), (BulkVerb.RETRY, SHOP, 50), (BulkVerb.RETRY, late, 51),
        (BulkVerb.RETRY, late, None),
    ):  # fmt: skip
        with pytest.raises(InvalidOperationError, match="with other content; use a new id"):
            await bus.bulk.start(verb, chosen, operation_id=own, everything=True, rate=rate)


async def test_two_clicks_at_once_are_one_operation(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 40)

    started = await asyncio.gather(
        *(bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True) for _ in range(6))
    )

    assert len({operation.operation_id for operation in started}) == 1
    assert len(await operations(bus, "shop")) == 1


async def test_two_executors_act_on_each_item_once_and_keep_to_the_rate(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    await park(conn, 100)
    operation = await bus.bulk.start(BulkVerb.CANCEL, SHOP, reason="x", everything=True, rate=100)
    async with another_bus(dsn) as other:
        ended = await asyncio.gather(
            bus.bulk.run(operation.operation_id), other.bulk.run(operation.operation_id)
        )

    assert {o.done for o in ended} == {100}
    assert await acts(conn) == [("OPERATOR_CANCEL", None, 100, 100)]
    assert len(await replies(bus)) == 100
    chunks = await rows(
        conn,
        "select extract(epoch from acted_at)::float8, count(*)"
        " from commandbus.command_bus_bulk_item group by 1 order by 1",
    )
    assert [size for _, size in chunks] == [25, 25, 25, 25]
    assert chunks[-1][0] - chunks[0][0] >= 75 / 100 - 0.001  # what came before the last chunk


async def test_the_rate_outlives_its_executor(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 3)
    operation = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True, rate=0.01)
    chunk = "select status, acted, wait_seconds from commandbus.run_bulk_chunk(%s, 500, 'a')"

    assert (await rows(conn, chunk, operation.operation_id))[0][1] == 1
    [(status, acted, wait)] = await rows(conn, chunk.replace("'a'", "'b'"), operation.operation_id)
    assert (status, acted) == ("running", 0)
    assert 90 < wait <= 100
    resumed = await bus.bulk.resume(operation.operation_id, rate=1_000, operator="ann")
    assert (resumed.status, resumed.rate) == ("running", 1_000)


async def test_a_stopped_operation_acts_on_nothing_until_it_is_resumed(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 5)
    operation = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True, rate=0.01)
    running = asyncio.create_task(bus.bulk.run(operation.operation_id))

    async def has_begun() -> bool:
        found = await bus.bulk.get(operation.operation_id)
        return found is not None and found.done == 1

    await until(has_begun, "the first item")
    stopped = await bus.bulk.stop(operation.operation_id, operator="ann")
    assert (stopped.status, stopped.done) == ("stopped", 1)
    assert (await running).status == "stopped"
    assert (await bus.bulk.stop(operation.operation_id)).status == "stopped"  # once more: no harm
    assert (await bus.bulk.run(operation.operation_id)).done == 1

    await bus.bulk.resume(operation.operation_id, rate=1_000, operator="bob")
    await conn.execute("update commandbus.command_bus_bulk_operation set next_due_at = now()")
    assert await finish(bus, operation) == (5, 0, 0)
    trail = await bus.get_audit_trail(operation.operation_id)
    assert [(e.event_type, e.actor) for e in trail] == [
        ("BULK_STARTED", None), ("BULK_STOPPED", "ann"), ("BULK_RESUMED", "bob"),
        ("BULK_FINISHED", None),
    ]  # fmt: skip
    for verb in (bus.bulk.stop, bus.bulk.resume):
        with pytest.raises(InvalidOperationError, match="is finished"):
            await verb(operation.operation_id)


async def test_workers_go_on_with_an_operation_that_nobody_runs(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 12)

    async def handle(command: Any, ctx: Any) -> None:
        return None

    bus.register_handler("shop", "Work", handle)
    operation = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True, rate=1_000)

    async def is_finished() -> bool:
        found = await bus.bulk.get(operation.operation_id)
        return found is not None and found.status == "finished"

    async with working(bus, "shop"):
        await until(is_finished, "the bulk operation finished by the worker")
    found = await bus.bulk.get(operation.operation_id)
    assert found is not None
    assert (found.done, (found.executor or "")[:7]) == (12, "worker:")


async def test_an_operation_that_somebody_works_at_is_left_alone(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 2)
    operation = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True, rate=0.01)
    query = "select commandbus.next_bulk('shop', %s)"
    assert await value(conn, query, "b") == operation.operation_id
    await rows(conn, "select commandbus.run_bulk_chunk(%s, 1, 'a')", operation.operation_id)

    assert await value(conn, query, "a") == operation.operation_id
    assert await value(conn, query, "b") is None
    await conn.execute(
        "update commandbus.command_bus_bulk_operation set heartbeat_at = now() - interval '1 min'"
    )
    assert await value(conn, query, "b") == operation.operation_id


async def test_whoever_holds_the_row_of_the_operation_keeps_others_from_acting(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    await park(conn, 2)
    operation = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute("select 1 from commandbus.command_bus_bulk_operation for update")
        [(status, acted, wait)] = await rows(
            conn, "select * from commandbus.run_bulk_chunk(%s)", operation.operation_id
        )
    assert (status, acted, wait) == ("running", 0, 0.25)


async def test_operations_and_items_are_paged(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 5)
    ids = await parked_ids(bus)
    started = [
        (await bus.bulk.start(BulkVerb.RETRY, BulkFilter("shop", command_ids=(i,)))).operation_id
        for i in ids
    ]
    newest_first = [o.operation_id for o in await operations(bus, "shop")]
    assert newest_first == started[::-1]
    first = await bus.bulk.page(limit=2)
    second = await bus.bulk.page(limit=9, cursor=first.next_cursor)
    assert [o.operation_id for o in [*first.items, *second.items]] == newest_first
    assert second.next_cursor is None
    await bus.bulk.run(started[0])
    finished = await bus.bulk.page(status=BulkStatus.FINISHED)
    assert [o.operation_id for o in finished.items] == [started[0]]
    assert await operations(bus, "elsewhere") == []

    whole = await bus.bulk.start(
        BulkVerb.CANCEL, BulkFilter("shop", command_ids=tuple(ids[1:])), reason="x"
    )
    page = await bus.bulk.page_items(whole.operation_id, limit=3)
    rest = await bus.bulk.page_items(whole.operation_id, limit=3, cursor=page.next_cursor)
    assert [i.item_no for i in [*page.items, *rest.items]] == [1, 2, 3, 4]
    assert {i.outcome for i in page.items} == {None}
    assert rest.next_cursor is None


async def test_a_cursor_of_another_listing_is_refused(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 3)
    ids = await parked_ids(bus)
    await bus.bulk.start(BulkVerb.RETRY, BulkFilter("shop", command_ids=tuple(ids[:1])))
    operation = await bus.bulk.start(BulkVerb.RETRY, BulkFilter("shop", command_ids=tuple(ids[1:])))
    operations_cursor = (await bus.bulk.page(limit=1)).next_cursor
    items_cursor = (await bus.bulk.page_items(operation.operation_id, limit=1)).next_cursor
    assert None not in {operations_cursor, items_cursor}

    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        await bus.bulk.page("shop", cursor=operations_cursor)
    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        await bus.bulk.page_items(
            operation.operation_id, outcome=BulkOutcome.DONE, cursor=items_cursor
        )
    with pytest.raises(InvalidSettingError, match="not one that a search gave"):
        await bus.bulk.page(cursor="%")


# -- the total that the caller expects


async def test_a_start_with_the_total_of_the_preview_is_accepted(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 3)
    await park(conn, 2, code="LATE")
    late = BulkFilter("shop", error_code="LATE")
    total = (await bus.bulk.preview(late)).total

    operation = await bus.bulk.start(BulkVerb.RETRY, late, expected_total=total)

    assert operation.total == total == 2


async def test_a_start_that_would_freeze_another_number_is_refused_and_creates_nothing(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 3)
    ids = tuple(await parked_ids(bus))
    for chosen, found, expected in (
        (SHOP, 3, 2),
        (SHOP, 3, 4),
        (SHOP, 3, 0),
        (BulkFilter("shop", error_code="NONE"), 0, 3),
        (BulkFilter("shop", command_ids=(*ids, uuid4())), 3, 4),
    ):
        with pytest.raises(
            InvalidOperationError,
            match=f"the filter matches {found} commands now, not {expected}; look at the preview",
        ):
            await bus.bulk.start(BulkVerb.RETRY, chosen, everything=True, expected_total=expected)
    wrong: list[Any] = [-1, 1.0, True, "3", 2**63]
    for value_of in wrong:
        with pytest.raises(InvalidSettingError, match="expected_total is"):
            await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True, expected_total=value_of)
    assert await operations(bus) == []
    assert await value(conn, "select count(*) from commandbus.command_bus_bulk_item") == 0


async def test_the_expected_total_does_not_replace_the_confirmation_of_everything(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 3)
    with pytest.raises(InvalidOperationError, match="matches everything"):
        await bus.bulk.start(BulkVerb.RETRY, SHOP, expected_total=3)
    with pytest.raises(InvalidOperationError, match="nothing in troubleshooting"):
        await bus.bulk.start(BulkVerb.RETRY, BulkFilter("empty"), everything=True, expected_total=0)


async def test_a_repeat_is_the_same_operation_whatever_total_it_expects(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 3)
    own = uuid4()

    async def start(operation_id: UUID, expected: int) -> BulkOperation:
        return await bus.bulk.start(
            BulkVerb.RETRY, SHOP, everything=True, operation_id=operation_id,
            expected_total=expected,
        )  # fmt: skip

    await start(own, 3)
    await park(conn, 2)
    assert (await start(own, 3)).total == 3  # the filter matches five now
    assert (await start(own, 7)).operation_id == own
    assert (await start(uuid4(), 7)).operation_id == own  # the same decision runs already
    await bus.bulk.run(own)
    assert (await start(own, 3)).done == 3
    with pytest.raises(InvalidOperationError, match="matches 2 commands now, not 3"):
        await start(uuid4(), 3)


async def test_what_is_parked_meanwhile_is_neither_frozen_nor_counted(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    await park(conn, 3)
    async with await psycopg.AsyncConnection.connect(dsn) as parking:
        await park(parking, 2)  # not committed yet
        first = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True, expected_total=3)
        assert first.total == 3
        await bus.bulk.stop(first.operation_id)
        await parking.commit()
    with pytest.raises(InvalidOperationError, match="matches 5 commands now, not 3"):
        await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True, expected_total=3)


async def test_while_others_park_each_start_freezes_the_expected_number_or_nothing(
    bus: CommandBus, conn: Conn, dsn: str
) -> None:
    await park(conn, 1)
    stop = asyncio.Event()

    async def keep_parking() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as parking:
            while not stop.is_set():
                await park(parking, 1)

    parking = asyncio.create_task(keep_parking())
    accepted = refused = 0
    try:
        while not (accepted >= 3 and refused >= 3) and accepted + refused < 500:
            expected = (await bus.bulk.preview(SHOP)).total
            try:
                started = await bus.bulk.start(
                    BulkVerb.RETRY, SHOP, everything=True, expected_total=expected
                )
            except InvalidOperationError:
                refused += 1
                continue
            accepted += 1
            assert started.total == expected
            frozen = await value(
                conn,
                "select count(*) from commandbus.command_bus_bulk_item where operation_id = %s",
                started.operation_id,
            )
            assert frozen == expected
            await bus.bulk.stop(started.operation_id)
    finally:
        stop.set()
        await parking
    assert accepted


# -- bad input: a clear error, nothing changed


async def test_bad_input_is_refused_and_nothing_is_created(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 3)
    known = await parked_ids(bus)
    done = known[0]
    await bus.operator_complete("shop", done)
    missing = uuid4()
    cases: list[tuple[type[CommandBusError], str, Any, BulkFilter, dict[str, Any]]] = [
        (InvalidSettingError, "no verb 'redo'", "redo", SHOP, {}),
        (InvalidInputError, "reason must be a text", "cancel", SHOP, {}),
        (InvalidInputError, "reason must be a text", "cancel", SHOP, {"reason": " "}),
        (InvalidInputError, "reason must be a text", "retry", SHOP, {"reason": " "}),
        (InvalidSettingError, "limit is 0", "retry", SHOP, {"limit": 0}),
        (InvalidSettingError, "start_after is -1", "retry", SHOP, {"start_after": -1}),
        (InvalidSettingError, "start_after is 3601", "retry", SHOP, {"start_after": 3_601}),
        (
            InvalidOperationError, "matches everything in troubleshooting of 'shop': 2 commands",
            "retry", SHOP, {"limit": 2},
        ),
        (InvalidInputError, "a retry has no result", "retry", SHOP, {"result_data": 1}),
        (InvalidSettingError, "rate is 0", "retry", SHOP, {"rate": 0}),
        (InvalidSettingError, "rate is -1", "retry", SHOP, {"rate": -1}),
        (
            InvalidOperationError,
            "matches everything in troubleshooting of 'shop': 2 commands; say .* --yes",
            "retry", SHOP, {},
        ),
        (
            InvalidOperationError, "matches everything .*: 2 commands",
            "retry", BulkFilter("shop", error_code="DOWN"), {},
        ),
        (
            InvalidOperationError, "nothing in troubleshooting of 'shop' matches",
            "retry", BulkFilter("shop", error_code="NONE"), {},
        ),
        (
            InvalidOperationError, "nothing in troubleshooting of 'empty' matches",
            "retry", BulkFilter("empty"), {"everything": True},
        ),
        (
            InvalidOperationError, "no failure group 'ffff'",
            "retry", BulkFilter("shop", group="ffff"), {},
        ),
        (
            InvalidInputError, "is not the fingerprint",
            "retry", BulkFilter("shop", group="%"), {},
        ),
        (
            CommandNotFoundError, f"no command {missing}",
            "retry", BulkFilter("shop", command_ids=(known[1], missing)), {},
        ),
        (
            InvalidOperationError, f"cannot cancel command {done}: it is COMPLETED",
            "cancel", BulkFilter("shop", command_ids=(done, known[1])), {"reason": "x"},
        ),
        (
            InvalidInputError, "from 1 to 10,000 ids",
            "retry", BulkFilter("shop", command_ids=()), {},
        ),
        (
            InvalidSettingError, "parked_after must be a datetime, with a time zone",
            "retry", BulkFilter("shop", parked_after=datetime(2026, 1, 1)), {},  # noqa: DTZ001
        ),
        (
            InvalidInputError, "result_data",
            "complete", SHOP, {"result_data": {"x" * 300_000: 1}},
        ),
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match="with a BulkFilter"):
        await bus.bulk.preview("shop")  # type: ignore[arg-type]
    for kind, text, verb, chosen, options in cases:
        with pytest.raises(kind, match=text):
            await bus.bulk.start(verb, chosen, **options)
    assert await operations(bus) == []
    assert await value(conn, "select count(*) from commandbus.command_bus_bulk_item") == 0
    assert len(await parked_ids(bus)) == 2


async def test_an_unknown_operation_is_refused(bus: CommandBus, conn: Conn) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    missing = uuid4()
    assert await bus.bulk.get(missing) is None
    for verb in (bus.bulk.run, bus.bulk.stop, bus.bulk.resume, bus.bulk.page_items):
        with pytest.raises(BulkOperationNotFoundError, match=str(missing)) as caught:
            await verb(missing)
        assert caught.value.operation_id == missing
    with pytest.raises(psycopg.Error, match="no bulk operation") as refused:
        await conn.execute("select commandbus.run_bulk_chunk(%s)", (missing,))
    assert refused.value.sqlstate == "CB010"
    with pytest.raises(InvalidSettingError, match="no status 'done'"):
        await bus.bulk.page(status="done")  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingError, match="no outcome 'x'"):
        await bus.bulk.page_items(
            await _some_operation(bus, conn),
            outcome="x",  # type: ignore[arg-type]
        )


async def _some_operation(bus: CommandBus, conn: Conn) -> UUID:
    await park(conn, 1)
    return (await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True)).operation_id


async def test_the_sql_function_refuses_bad_input_too(conn: Conn) -> None:
    await park(conn, 1)
    for arguments, text in (
        ("'shop', 'redo'", "no such verb"),
        ("'shop', null", "no such verb"),
        ("'shop', 'cancel'", "a cancel needs a reason"),
        ("'shop', 'retry', p_rate => 0", "the rate is 0"),
        ("'shop', 'retry', '{\"color\": 1}'", "no such condition: 'color'"),
        ("'Shop', 'retry'", "not well formed"),
    ):
        with pytest.raises(psycopg.Error, match=text):
            await conn.execute(
                f"select commandbus.start_bulk(gen_random_uuid(), {arguments})".encode()
            )


async def test_several_groups_with_one_beginning_are_told_apart(
    bus: CommandBus, conn: Conn
) -> None:
    for number in range(20):
        await park(conn, 1, code=f"CODE{number}")
    names = sorted(g.fingerprint for g in await bus.troubleshooting.groups("shop"))
    first, second = next((a, b) for a, b in pairwise(names) if a[0] == b[0])

    with pytest.raises(InvalidInputError, match=f"several .* begin with '{first[0]}': .*{first}"):
        await bus.troubleshooting.require_group(first[0])
    assert (await bus.troubleshooting.require_group(second)).fingerprint == second
    page = await bus.troubleshooting.page("shop", group=first)
    group = await bus.troubleshooting.require_group(first, "shop")
    assert [item.last_error_code for item in page.items] == [group.error_code]


async def test_a_bus_in_memory_says_that_bulk_operations_and_groups_need_postgresql() -> None:
    bus = CommandBus(store=InMemoryStore())
    for verb in (
        bus.bulk.preview(SHOP),
        bus.bulk.start(BulkVerb.RETRY, SHOP),
        bus.bulk.page(),
        bus.troubleshooting.groups(),
        bus.troubleshooting.require_group("ffff"),
    ):
        with pytest.raises(InvalidOperationError, match="needs PostgreSQL"):
            await verb


async def test_a_time_range_is_a_filter(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 2)
    middle = await value(conn, "select clock_timestamp()")
    await park(conn, 3)
    early = BulkFilter("shop", parked_before=middle, parked_after=middle - timedelta(hours=1))

    assert await finish(bus, await bus.bulk.start(BulkVerb.RETRY, early)) == (2, 0, 0)
