"""Bulk operations with care: a reason, a few first, a while before the first, what failed."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandBus
from commandbus.errors import BulkOperationNotFoundError, InvalidInputError, InvalidOperationError
from commandbus.models import Viewer
from commandbus.troubleshooting.model import BulkFilter, BulkOutcome, BulkVerb, FailureGroup
from tests.integration.looking import replies, rows, value
from tests.parking import park

Conn = psycopg.AsyncConnection[Any]
SHOP = BulkFilter("shop")
DOWN = BulkFilter("shop", error_code="DOWN")

#: What a worker would find to go on with now.
NEXT = "select commandbus.next_bulk('shop', 'a worker', p_can_edit => true)"


async def group_of(bus: CommandBus, **search: Any) -> FailureGroup:
    [found] = (await bus.troubleshooting.find_groups("shop", **search)).groups
    return found


async def told(bus: CommandBus, operation_id: Any) -> list[Any]:
    """What the audit says of why, at each step of an operation."""
    trail = await bus.get_audit_trail(operation_id)
    return [(event.event_type, (event.details or {}).get("reason")) for event in trail]


async def test_the_reason_of_every_verb_stays_with_the_operation_and_in_the_audit(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 2, code="A")
    await park(conn, 2, code="B")
    await park(conn, 2, code="C")
    decisions: list[tuple[BulkVerb, str, dict[str, Any]]] = [
        (BulkVerb.RETRY, "A", {}),
        (BulkVerb.COMPLETE, "B", {"result_data": {"by": "hand"}}),
        (BulkVerb.CANCEL, "C", {}),
    ]
    for verb, code, options in decisions:
        started = await bus.bulk.start(
            verb, BulkFilter("shop", error_code=code), reason=f"why {verb}, password=hunter2",
            operator="ann", everything=True, **options,
        )  # fmt: skip
        why = f"why {verb}, password=[REDACTED]"
        ended = await bus.bulk.run(started.operation_id)
        assert (ended.reason, ended.done) == (why, 2)
        assert await told(bus, started.operation_id) == [
            ("BULK_STARTED", why), ("BULK_FINISHED", why),
        ]  # fmt: skip
        # The life of each command leads to the operation, and so to the reason.
        for item in (await bus.bulk.page_items(started.operation_id)).items:
            last = (await bus.get_audit_trail("shop", item.command_id))[-1]
            assert last.event_type == f"OPERATOR_{verb.upper()}"
            assert (last.details or {})["operation_id"] == str(started.operation_id)
    # Only a cancel tells it to those who get the replies.
    assert {r.error.message for r in await replies(bus) if r.error} == {
        "why cancel, password=[REDACTED]"
    }


async def test_two_people_who_retry_the_same_make_one_operation_whatever_each_says(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 3)
    first = await bus.bulk.start(BulkVerb.RETRY, SHOP, reason="the bank is back", everything=True)
    again = await bus.bulk.start(BulkVerb.RETRY, SHOP, reason="retry it all", everything=True)
    assert (again.operation_id, again.reason) == (first.operation_id, "the bank is back")
    # A cancel's reason goes out with the replies, so another one is another decision.
    one = await bus.bulk.start(BulkVerb.CANCEL, SHOP, reason="x", everything=True)
    other = await bus.bulk.start(BulkVerb.CANCEL, SHOP, reason="y", everything=True)
    assert one.operation_id != other.operation_id


async def test_until_it_starts_nothing_is_done_and_a_stop_undoes_everything(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 5)
    started = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True, start_after=600)
    assert started.starts_at is not None
    assert started.starts_at > started.created_at
    assert await value(conn, NEXT) is None  # workers leave it alone, and are free for others
    [(status, acted, wait)] = await rows(
        conn, "select * from commandbus.run_bulk_chunk(%s)", started.operation_id
    )
    assert (status, acted) == ("running", 0)
    assert 500 < wait <= 600

    other = await bus.bulk.start(BulkVerb.CANCEL, DOWN, reason="not needed", everything=True)
    assert await value(conn, NEXT) == other.operation_id  # it does not stand in the way

    stopped = await bus.bulk.stop(started.operation_id, operator="ann")
    assert (stopped.acted, stopped.stopped_by) == (0, "ann")
    assert (await bus.troubleshooting.counts("shop")) == {"shop": 5}

    # One that goes on still waits for its time, and then acts without a rate too.
    resumed = await bus.bulk.resume(started.operation_id)
    assert resumed.is_running
    assert await value(conn, NEXT) == other.operation_id
    await bus.bulk.stop(other.operation_id)
    await conn.execute(
        "update commandbus.command_bus_bulk_operation set starts_at = now(), next_due_at = now()"
        " where operation_id = %s",
        (started.operation_id,),
    )
    assert await value(conn, NEXT) == started.operation_id
    assert (await bus.bulk.run(started.operation_id)).done == 5


async def test_the_oldest_few_are_tried_as_an_operation_of_their_own(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 3, message="old")
    await park(conn, 4, message="new")
    oldest = [item.command_id for item in (await bus.troubleshooting.page("shop", limit=3)).items]

    with pytest.raises(InvalidOperationError, match="matches 3 commands now, not 7"):
        await bus.bulk.start(BulkVerb.RETRY, SHOP, limit=3, expected_total=7)
    tried = await bus.bulk.start(BulkVerb.RETRY, SHOP, limit=3, expected_total=3, reason="try")
    assert (tried.total, tried.limit, tried.conditions) == (3, 3, {})
    items = (await bus.bulk.page_items(tried.operation_id)).items
    assert sorted(item.command_id for item in items) == sorted(oldest)
    # The rest, and another number, are other decisions; the same number is the same one.
    assert (await bus.bulk.start(BulkVerb.RETRY, SHOP, limit=3)).operation_id == tried.operation_id
    four = await bus.bulk.start(BulkVerb.RETRY, SHOP, limit=4)
    rest = await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True)
    assert len({tried.operation_id, four.operation_id, rest.operation_id}) == 3
    assert (await bus.bulk.run(tried.operation_id)).done == 3
    # What was tried is not acted on a second time.
    ended = await bus.bulk.run(rest.operation_id)
    assert (ended.total, ended.done, ended.skipped) == (7, 4, 3)


async def test_what_failed_is_taken_up_again_by_a_new_operation(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 6)
    await conn.execute(
        "delete from pgmq.a_shop__commands where msg_id in"
        " (select msg_id from pgmq.a_shop__commands order by msg_id limit 2)"
    )
    first = await bus.bulk.run(
        (await bus.bulk.start(BulkVerb.RETRY, SHOP, everything=True)).operation_id
    )
    assert (first.done, first.failed) == (4, 2)
    await park(conn, 3)  # parked since: not meant

    failed = BulkFilter("shop", failed_of=first.operation_id)
    assert (await bus.bulk.preview(failed)).total == 2
    again = await bus.bulk.start(
        BulkVerb.CANCEL, failed, reason="its payload is lost", expected_total=2
    )
    assert again.conditions == {"failed_of": str(first.operation_id)}
    assert (await bus.bulk.run(again.operation_id)).done == 2
    assert (await bus.bulk.preview(failed)).total == 0
    assert await bus.troubleshooting.counts("shop") == {"shop": 3}

    failures = await bus.bulk.page_items(first.operation_id, outcome=BulkOutcome.FAILED)
    assert {item.detail for item in failures.items} == {"the payload is no longer archived"}
    elsewhere = BulkFilter("bank", failed_of=first.operation_id)
    assert (await bus.bulk.preview(elsewhere)).total == 0
    with pytest.raises(BulkOperationNotFoundError):
        await bus.bulk.preview(BulkFilter("shop", failed_of=uuid4()))


async def test_a_preview_shows_the_commands_that_wait_longest(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 3)
    await park(conn, 2, code="LATE")
    waiting = (await bus.troubleshooting.page("shop")).items
    preview = await bus.bulk.preview(SHOP, samples=3)
    assert (preview.total, [group.matched for group in preview.groups]) == (5, [3, 2])
    assert [(s.command_id, s.error_code, s.parked_at) for s in preview.samples] == [
        (item.command_id, item.last_error_code, item.parked_at) for item in waiting[:3]
    ]
    assert (await bus.bulk.preview(SHOP)).samples == ()
    assert (await bus.bulk.preview(BulkFilter("shop", error_code="X"), samples=3)).samples == ()


async def test_a_cause_is_remembered_when_it_comes_back(bus: CommandBus, conn: Conn) -> None:
    await park(conn, 2)
    group = await group_of(bus)
    assert (group.back_count, group.back_at, group.emptied_at) == (0, None, None)
    tried = await bus.bulk.start(
        BulkVerb.RETRY, BulkFilter("shop", group=group.fingerprint), limit=1
    )
    await bus.bulk.run(tried.operation_id)
    await park(conn, 1)  # it was never empty
    assert (await group_of(bus)).back_count == 0

    whole = await bus.bulk.start(
        BulkVerb.CANCEL, BulkFilter("shop", group=group.fingerprint), reason="x"
    )
    await bus.bulk.run(whole.operation_id)
    empty = await group_of(bus, include_empty=True)
    assert (empty.parked_count, empty.back_count) == (0, 0)
    assert empty.emptied_at is not None
    await conn.execute(
        "update commandbus.command_bus_failure_group"
        " set emptied_at = emptied_at - interval '3 days'"
    )
    await park(conn, 1)
    back = await group_of(bus)
    assert (back.back_count, back.parked_count) == (1, 1)
    assert back.back_after is not None
    assert back.back_after.days == 3
    # What was done about it before, newest first, with its result.
    before = (await bus.bulk.page("shop", group=group.fingerprint)).items
    assert [(o.operation_id, o.done) for o in before] == [
        (whole.operation_id, 2), (tried.operation_id, 1),
    ]  # fmt: skip
    assert (await bus.bulk.page("shop", group="0" * 16)).items == []
    with pytest.raises(InvalidInputError, match="need its domain"):
        await bus.bulk.page(group=group.fingerprint)


async def test_a_cause_has_a_note_and_somebody_who_looks_after_it(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 1)
    group = await group_of(bus)
    where, name = group.domain, group.fingerprint
    queue = bus.troubleshooting
    noted = await queue.note_group(where, name[:6], "case 77, token=abcdef123456", operator="ann")
    assert (noted.note, noted.note_by) == ("case 77, token=[REDACTED]", "ann")
    assert noted.note_at is not None
    for _ in range(2):  # to say the same again is no event
        assert (await queue.assign_group(where, name, "bob", operator="ann")).assignee == "bob"
    assert (await group_of(bus, search="CASE 77")).fingerprint == name
    assert (await group_of(bus, search="bob")).fingerprint == name
    cleared = await queue.note_group(where, name, None, operator="cid")
    assert (cleared.note, cleared.note_by, cleared.assignee) == (None, None, "bob")
    await queue.assign_group(where, name, None)

    assert group.audit_id is not None
    trail = await bus.get_audit_trail(group.audit_id)
    assert [(e.event_type, e.actor, e.details) for e in trail] == [
        ("GROUP_NOTE", "ann", {"note": "case 77, token=[REDACTED]", "group": name}),
        ("GROUP_ASSIGNED", "ann", {"assignee": "bob", "before": None, "group": name}),
        ("GROUP_NOTE", "cid", {"note": None, "group": name}),
        ("GROUP_ASSIGNED", None, {"assignee": None, "before": "bob", "group": name}),
    ]
    for refused in (queue.note_group, queue.assign_group):
        with pytest.raises(InvalidOperationError, match="no failure group"):
            await refused("shop", "0" * 16, "x")
    with pytest.raises(InvalidInputError, match="note must be"):
        await queue.note_group(where, name, "")


async def test_causes_are_cut_and_said_to_be_and_a_search_finds_the_others(
    bus: CommandBus, conn: Conn
) -> None:
    for number, code in enumerate(("A", "B", "C"), 1):
        await park(conn, number, code=code, message=f"100% of {code}_ failed")
    found = await bus.troubleshooting.find_groups("shop", limit=2)
    assert ([g.error_code for g in found.groups], found.is_cut) == (["C", "B"], True)
    whole = await bus.troubleshooting.find_groups(limit=3)
    assert (len(whole.groups), whole.is_cut) == (3, False)
    # A text is a text: no character of it stands for another one.
    assert (await group_of(bus, search="a_ FAILED")).error_code == "A"
    assert (await bus.troubleshooting.find_groups(search="A%failed")).groups == ()


async def test_notes_of_a_governed_cause_are_for_those_who_see_all_of_it(
    bus: CommandBus, conn: Conn
) -> None:
    await park(conn, 1)
    group = await group_of(bus)
    await bus.troubleshooting.note_group("shop", group.fingerprint, "about everybody")
    await conn.execute("update commandbus.command_bus_failure_group set is_governed = true")
    seen = await group_of(bus, viewer=Viewer("eve"))
    assert (seen.parked_count, seen.note) == (1, None)
    assert group.audit_id is not None
    trail = await bus.search.audit(command_id=group.audit_id, viewer=Viewer("eve"))
    assert trail.items == []  # nor there
    assert (await bus.search.audit(command_id=group.audit_id)).items
    hidden = await bus.troubleshooting.find_groups("shop", search="everybody", viewer=Viewer("eve"))
    assert hidden.groups == ()
