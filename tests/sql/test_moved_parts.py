"""Carrying the rows of a domain: in chunks by their keys, compared, and each as it was."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import errors

from tests.sql.helpers import DOMAIN, Session
from tests.sql.moves import OTHER, SENDERS, arriving, as_it_is, key, leaving, numbers, senders

CHUNK = "select * from commandbus.move_chunk(%s, %s, false, %s, %s)"
DIGEST = "select * from commandbus.move_digest(%s, %s, %s, %s, %s)"
ROWS = "select r from commandbus.move_rows(%s, %s, false, %s, %s) r"
PUT = "select * from commandbus.put_moved_rows(%s, %s, false, %s, %s, %s)"
FORGET = "select commandbus.forget_moved_rows(%s, %s, %s)"
EVENTS = "select * from commandbus.move_events(%s, %s, %s, %s)"
PUT_EVENTS = "select commandbus.put_moved_events(%s, %s, %s, %s, %s, %s, %s)"
CHUNKS = "select * from commandbus.moved_chunks(%s)"
DROP = "select commandbus.drop_moved_chunk(%s, %s)"
FORGET_EVENTS = "select commandbus.forget_moved_events(%s, %s, %s)"
TRAIL = (
    "select audit_id, command_id, event_type from commandbus.command_bus_audit where domain = %s"
    " order by audit_id"
)
REFUSED = errors.DatabaseError


async def texts(db: Session, after: int | None = None, upto: int | None = None) -> list[str]:
    return [row["r"] for row in await db.rows(ROWS, DOMAIN, SENDERS, key(after), key(upto))]


async def test_a_part_is_walked_in_chunks_in_the_order_of_its_keys(db: Session) -> None:
    await senders(db, 5, 1, 4, 2, 3)
    await senders(db, 6, 7, domain=OTHER)
    seen: list[Any] = []
    after = None
    while True:
        (found,) = await db.rows(CHUNK, DOMAIN, SENDERS, key(after), 2)
        upto = found["o_upto"] and UUID(found["o_upto"]["command_id"]).int
        (same,) = await db.rows(DIGEST, DOMAIN, SENDERS, False, key(after), key(upto))
        assert (same["o_rows"], same["o_digest"]) == (found["o_rows"], found["o_digest"])
        lines = await texts(db, after, upto)
        assert len(lines) == found["o_rows"]
        assert found["o_bytes"] == sum(len(line.encode()) for line in lines)
        seen.append(upto)
        if upto is None:
            break
        after = upto
    assert seen == [2, 4, None]
    (nothing,) = await db.rows(CHUNK, DOMAIN, SENDERS, key(5), 2)
    assert (nothing["o_rows"], nothing["o_upto"], nothing["o_bytes"]) == (0, None, 0)
    assert nothing["o_digest"] is not None


async def test_digests_tell_order_borders_and_each_change(db: Session) -> None:
    await senders(db, 1, 2)
    digests = {(await db.rows(DIGEST, DOMAIN, SENDERS, False, None, None))[0]["o_digest"]}
    for column, value in (("sent_by", "x"), ("digest", b"\x01")):
        await db.rows(
            f"update commandbus.command_bus_sender set {column} = %s where command_id = %s",
            value, UUID(int=2),
        )  # fmt: skip
        digests.add((await db.rows(DIGEST, DOMAIN, SENDERS, False, None, None))[0]["o_digest"])
    assert len(digests) == 3
    for setting in ("timezone = 'Asia/Tokyo'", "datestyle = 'German'", "bytea_output = 'escape'"):
        await db.rows(f"set {setting}")
        digests.add((await db.rows(DIGEST, DOMAIN, SENDERS, False, None, None))[0]["o_digest"])
    assert len(digests) == 3


async def test_only_what_belongs_to_the_domain_is_among_its_parts(db: Session) -> None:
    for domain in (DOMAIN, OTHER):
        await db.value("select commandbus.ensure_domain(%s)", domain)
        await db.rows(
            "with b as (insert into commandbus.command_bus_batch (batch_id, domain)"
            " values (gen_random_uuid(), %s) returning batch_id)"
            " insert into commandbus.command_bus_creation_metric"
            " select batch_id, 'x', 1, 1, 1, 1, 1, false from b",
            domain,
        )
        await db.rows(
            "with o as (insert into commandbus.command_bus_bulk_operation"
            " (operation_id, domain, verb, filter, arguments, digest, status, total)"
            " values (gen_random_uuid(), %s, 'retry', '{}', '{}', '', 'running', 1)"
            " returning operation_id)"
            " insert into commandbus.command_bus_bulk_item"
            " (operation_id, item_no, command_id, parked_at)"
            " select operation_id, 1, gen_random_uuid(), now() from o",
            domain,
        )
    for part in ("command_bus_creation_metric", "command_bus_bulk_item", "command_bus_batch"):
        (found,) = await db.rows(DIGEST, DOMAIN, part, False, None, None)
        assert found["o_rows"] == 1, part
    parts = {
        row["part"] for row in await db.rows("select part from commandbus.move_parts(%s)", DOMAIN)
    }
    assert {"q_payments__commands", "a_payments__replies"} <= parts
    assert not {part for part in parts if OTHER in part}


async def test_only_history_is_copied_ahead(db: Session) -> None:
    for status in ("PENDING", "COMPLETED", "FAILED", "CANCELED", "IN_TROUBLESHOOTING_QUEUE"):
        await db.put(status)
    parts = {True: 3, False: 5}
    for is_early, count in parts.items():
        (found,) = await db.rows(DIGEST, DOMAIN, "command_bus_command", is_early, None, None)
        assert found["o_rows"] == count


async def test_a_range_becomes_what_it_is_on_the_other_side_and_no_more(db: Session) -> None:
    await senders(db, 2, 3, 4, 6)
    lines = await texts(db, 1, 5)
    await db.rows("delete from commandbus.command_bus_sender where command_id = %s", UUID(int=3))
    await db.rows(
        "update commandbus.command_bus_sender set sent_by = 'other' where command_id in (%s, %s)",
        UUID(int=4), UUID(int=6),
    )  # fmt: skip
    await senders(db, 1, 5)
    await senders(db, 5, domain=OTHER)
    move = await arriving(db)
    found: dict[str, Any] = {}
    for _ in range(2):
        (found,) = await db.rows(PUT, move, SENDERS, key(1), key(5), lines)
        assert found["o_rows"] == 3
        assert await numbers(db) == [(1, "s1"), (2, "s2"), (3, "s3"), (4, "s4"), (6, "other")]
    (same,) = await db.rows(DIGEST, DOMAIN, SENDERS, False, key(1), key(5))
    assert same["o_digest"] == found["o_digest"]
    assert (
        await db.value(
            "select count(*) from commandbus.command_bus_sender where domain = %s", OTHER
        )
        == 1
    )


@pytest.mark.parametrize("phase", ["verified", "switched", "finished", "canceled"])
async def test_a_copy_that_is_complete_is_not_changed(db: Session, phase: str) -> None:
    move = await arriving(db)
    await as_it_is(db, move, "closing", is_frozen=True)
    await db.rows(PUT, move, SENDERS, None, None, [])
    await as_it_is(db, move, phase, is_frozen=False)
    with pytest.raises(REFUSED, match=r"is not changed any more|no such move"):
        await db.rows(PUT, move, SENDERS, None, None, [])


async def test_rows_are_put_only_where_the_domain_comes_to(db: Session) -> None:
    move = await leaving(db)
    with pytest.raises(REFUSED, match="no such move is going on here"):
        await db.rows(PUT, move, SENDERS, None, None, [])


async def test_rows_with_what_is_worked_out_and_keys_of_several_columns_are_put(
    db: Session,
) -> None:
    await db.batch()
    await db.rows(
        "insert into commandbus.command_bus_flow_rule (domain, command_type, by_key, max_running)"
        " values ('payments', 'Ä', true, 1), ('payments', 'Z', false, 2),"
        " ('payments', 'a', true, 3)"
    )
    move = await arriving(db)
    for part, table in (("command_bus_batch",) * 2, ("command_bus_flow_rule",) * 2):
        (found,) = await db.rows(CHUNK, DOMAIN, part, None, 2)
        lines = [row["r"] for row in await db.rows(ROWS, DOMAIN, part, None, None)]
        await db.rows(f"delete from commandbus.{table}")
        (put,) = await db.rows(PUT, move, part, None, None, lines)
        (again,) = await db.rows(CHUNK, DOMAIN, part, None, 2)
        assert again == found
        assert put["o_rows"] == len(lines) > 0


async def test_what_was_moved_is_removed_where_it_was_in_steps(db: Session) -> None:
    await senders(db, 1, 2, 3)
    await senders(db, 4, domain=OTHER)
    move = await leaving(db)
    for phase in ("copying", "closing", "verified", "finished"):
        await as_it_is(db, move, phase, is_frozen=False)
        with pytest.raises(REFUSED, match="nothing of this move may be removed"):
            await db.value(FORGET, move, SENDERS, 2)
    await as_it_is(db, move, "switched", is_frozen=True)
    assert [await db.value(FORGET, move, SENDERS, 2) for _ in range(3)] == [2, 1, 0]
    assert await db.value("select count(*) from commandbus.command_bus_sender") == 1


async def test_copies_are_removed_until_they_are_complete(db: Session) -> None:
    move = await arriving(db)
    for phase in ("copying", "closing"):
        await senders(db, 1)
        await as_it_is(db, move, phase, is_frozen=True)
        assert await db.value(FORGET, move, SENDERS, 5) == 1
    for phase in ("verified", "switched", "canceled"):
        await as_it_is(db, move, phase, is_frozen=False)
        with pytest.raises(REFUSED, match="nothing of this move may be removed"):
            await db.value(FORGET, move, SENDERS, 5)


# -- events


async def trail(db: Session) -> list[tuple[Any, str]]:
    return [(row["command_id"], row["event_type"]) for row in await db.rows(TRAIL, DOMAIN)]


async def test_events_are_taken_in_chunks_of_the_whole_audit(db: Session) -> None:
    (one,) = await db.send()
    await db.value("select commandbus.send_command(%s, 'Debit', %s)", OTHER, uuid4())
    (two,) = await db.send()
    ids = [row["audit_id"] for row in await db.rows(TRAIL, DOMAIN)]
    (found,) = await db.rows(EVENTS, DOMAIN, 0, ids[1], 2)
    assert (found["o_old_ids"], found["o_upto_id"]) == ([ids[0]], ids[0] + 1)
    assert str(one) in found["o_rows"][0]
    (rest,) = await db.rows(EVENTS, DOMAIN, found["o_upto_id"], ids[1], 2)
    assert (rest["o_old_ids"], rest["o_upto_id"]) == ([ids[1]], ids[1])
    assert str(two) in rest["o_rows"][0]
    (nothing,) = await db.rows(EVENTS, DOMAIN, ids[1], ids[1] + 9, 2)
    assert nothing["o_upto_id"] is None
    # What may still be added to is not taken.
    (safe,) = await db.rows(EVENTS, DOMAIN, 0, ids[0], 9)
    assert (safe["o_old_ids"], safe["o_upto_id"]) == ([ids[0]], ids[0])
    compare = "select * from commandbus.digest_events(%s, %s, %s) order by n"
    ranges = await db.rows(compare, DOMAIN, [0, ids[0], ids[1]], [ids[0], ids[1], ids[1] + 5])
    assert [row["amount"] for row in ranges] == [1, 1, 0]
    assert [row["digest"] for row in ranges[:2]] == [found["o_digest"], rest["o_digest"]]


async def brought(db: Session, move: UUID, number: int, *ids: UUID) -> dict[str, Any]:
    """Events of another database, as a chunk; what was put."""
    await db.send(*ids)
    (found,) = await db.rows(EVENTS, DOMAIN, 0, 2**60, 100)
    await db.rows("alter table commandbus.command_bus_audit disable trigger user")
    await db.rows(
        "delete from commandbus.command_bus_audit where audit_id = any(%s)", found["o_old_ids"]
    )
    await db.rows("alter table commandbus.command_bus_audit enable trigger user")
    put = (move, number, 0, found["o_upto_id"], found["o_old_ids"], found["o_rows"])
    assert await db.value(PUT_EVENTS, *put, found["o_digest"]) is True
    return found


async def test_events_arrive_in_their_order_with_new_numbers_and_the_old_ones_are_known(
    db: Session,
) -> None:
    move, ids = await arriving(db), [uuid4() for _ in range(3)]
    found = await brought(db, move, 1, *ids)
    assert await trail(db) == [(each, "SENT") for each in ids]
    new = [row["audit_id"] for row in await db.rows(TRAIL, DOMAIN)]
    assert set(new).isdisjoint(found["o_old_ids"])
    former = "select audit_id from commandbus.former_audit_ids(%s)"
    assert [await db.value(former, each) for each in new] == found["o_old_ids"]
    assert await db.value(former, new[-1] + 1) is None
    (chunk,) = await db.rows(CHUNKS, move)
    assert (chunk["chunk_no"], chunk["row_count"], chunk["is_whole"]) == (1, 3, True)
    assert chunk["digest"] == found["o_digest"]


async def test_a_chunk_that_does_not_follow_or_did_not_arrive_whole_is_not_added(
    db: Session,
) -> None:
    move = await arriving(db)
    found = await brought(db, move, 1, uuid4())
    before = await trail(db)
    put = (found["o_upto_id"], found["o_old_ids"], found["o_rows"], found["o_digest"])
    for number in (1, 3):
        assert await db.value(PUT_EVENTS, move, number, 0, *put) is False
    with pytest.raises(REFUSED, match="did not arrive as they were sent"):
        await db.value(PUT_EVENTS, move, 2, 0, *put[:3], b"other")
    foreign = [line.replace(DOMAIN, OTHER) for line in found["o_rows"]]
    text = (
        "select sha256(convert_to("
        "commandbus.moved_event(%s::commandbus.command_bus_audit), 'UTF8'))"
    )
    await db.rows("set timezone = 'UTC'")
    digest = await db.value(text, foreign[0])
    with pytest.raises(REFUSED, match="did not arrive as they were sent"):
        await db.value(PUT_EVENTS, move, 2, 0, put[0], put[1], foreign, digest)
    assert await trail(db) == before
    assert await db.value(PUT_EVENTS, move, 2, 0, *put) is True
    await as_it_is(db, move, "verified", is_frozen=True)
    with pytest.raises(REFUSED, match="is not changed any more"):
        await db.value(PUT_EVENTS, move, 3, 0, *put)


async def test_a_chunk_that_lacks_an_event_is_not_whole_and_goes_with_all_after_it(
    db: Session,
) -> None:
    move = await arriving(db)
    chunks = [uuid4(), uuid4(), uuid4()]
    for number, each in enumerate(chunks, 1):
        await db.rows("update commandbus.command_bus_move set phase = 'copying'")
        await brought_again(db, move, number, each)
    (stays,) = await db.send()  # of nobody's chunk
    new = [row["audit_id"] for row in await db.rows(TRAIL, DOMAIN)]
    await db.rows("alter table commandbus.command_bus_audit disable trigger user")
    await db.rows("delete from commandbus.command_bus_audit where audit_id = %s", new[1])
    await db.rows("alter table commandbus.command_bus_audit enable trigger user")
    assert [row["is_whole"] for row in await db.rows(CHUNKS, move)] == [True, False, True]
    assert [await db.value(DROP, move, 2) for _ in range(3)] == [True, True, False]
    assert [each for each, _ in await trail(db)] == [chunks[0], stays]
    assert [row["chunk_no"] for row in await db.rows(CHUNKS, move)] == [1]
    removed = await db.rows("select * from commandbus.command_bus_audit_removal order by 1")
    assert [(row["domain"], row["row_count"]) for row in removed] == [(DOMAIN, 1)]
    assert removed[0]["actor"] == f"move {move}"


async def brought_again(db: Session, move: UUID, number: int, command: UUID) -> None:
    """One more event, as a chunk of its own."""
    row = await db.rows(
        "select (0, %s::text, %s::uuid, 'SENT', now(), null, null, null)"
        "::commandbus.command_bus_audit::text as line", DOMAIN, command,
    )  # fmt: skip
    line = row[0]["line"]
    digest = await db.value(
        "select sha256(convert_to("
        "commandbus.moved_event(%s::commandbus.command_bus_audit), 'UTF8'))",
        line,
    )
    await db.rows("set timezone = 'UTC'")
    assert await db.value(PUT_EVENTS, move, number, 0, number, [number], [line], digest) is True


async def test_events_of_a_domain_that_has_left_are_removed_and_of_no_other(db: Session) -> None:
    await db.send(uuid4(), uuid4())
    await db.value("select commandbus.send_command(%s, 'Debit', %s)", OTHER, uuid4())
    await db.send()
    move = await leaving(db, "verified")
    with pytest.raises(REFUSED, match="nothing of this move may be removed"):
        await db.value(FORGET_EVENTS, move, 0, 2)
    await as_it_is(db, move, "switched", is_frozen=True)
    after: int | None = 0
    steps = 0
    while after is not None:
        after = await db.value(FORGET_EVENTS, move, after, 2)
        steps += 1
    assert steps == 3
    assert await trail(db) == []
    assert len(await db.rows(TRAIL, OTHER)) == 1
    removed = await db.value("select sum(row_count) from commandbus.command_bus_audit_removal")
    assert removed == 3
