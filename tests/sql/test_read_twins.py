"""Reads of one domain, while another has the same ids, message numbers and failure groups."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.sql.clones import clone
from tests.sql.faults import healthy
from tests.sql.helpers import DOMAIN, Session
from tests.sql.test_twins_apart import OTHER

NOTHING = ", ".join(["null"] * 6)


async def both(db: Session) -> dict[str, Any]:
    """A command in every state, in both domains, with payloads that say where they are from."""
    await db.value("select commandbus.change_setting('payload_archive', 'on')")
    await db.send(reply_to="@inbox")
    (asked,) = await db.receive()
    await db.settle("complete", asked.item(data=None))
    made = await healthy(db) | {"ASKED": asked}
    await clone(db, OTHER)
    for table in (f"pgmq.q_{OTHER}__commands", f"pgmq.a_{OTHER}__commands"):
        await db.rows(f'update {table} set message = message || \'{{"data": "other"}}\'')
    await db.rows(
        "update commandbus.command_bus_payload_archive"
        ' set payload_json = payload_json || \'{"data": "other"}\' where domain = %s',
        OTHER,
    )
    return made


@pytest.mark.parametrize(
    "query",
    [
        "list_troubleshooting(%s, null, 100, 0)",
        "page_troubleshooting(%s, null, null, null, null, null, 100)",
        "list_failure_groups(%s)",
        "query_commands(%s, null, 'IN_TROUBLESHOOTING_QUEUE', null, null, null, null, 100, 0)",
    ],
)
async def test_what_is_parked_is_listed_once_and_with_its_own_payload(
    db: Session, query: str
) -> None:
    await both(db)
    (row,) = await db.rows(f"select * from commandbus.{query}", DOMAIN)
    assert row["domain"] == DOMAIN
    assert row.get("data", "{}") != '"other"'


async def test_a_payload_is_read_in_its_own_domain(db: Session) -> None:
    made = await both(db)
    payload = "select commandbus.command_payload(%s, %s)"
    parked = made["PARKED"].command_id
    for where in (f"q_{DOMAIN}", f"a_{DOMAIN}", None):
        assert await db.value(payload, DOMAIN, parked) == '{"n": 0}'
        assert await db.value(payload, OTHER, parked) == '"other"'
        if where:  # in the end the payload table is asked
            await db.rows(f"delete from pgmq.{where}__commands")
    await db.rows(
        "update commandbus.command_bus_command set msg_id = null where domain = %s", OTHER
    )
    assert await db.value(payload, DOMAIN, made["PENDING"].command_id) is None


async def test_a_payload_is_found_by_the_number_that_its_message_has_in_its_domain(
    db: Session,
) -> None:
    command_id, second = uuid4(), uuid4()
    for domain, ids in ((DOMAIN, (command_id, second)), (OTHER, (second, command_id))):
        db.domain = domain
        for known in ids:
            await db.send(known, data={"id": str(known)})
    for domain in (DOMAIN, OTHER):
        payload = await db.value("select commandbus.command_payload(%s, %s)", domain, command_id)
        assert payload == f'{{"id": "{command_id}"}}', domain


async def test_a_command_whose_queue_was_dropped_has_no_payload(db: Session) -> None:
    (command_id,) = await db.send()
    await db.rows(f"select pgmq.drop_queue('{DOMAIN}__commands')")
    assert await db.value("select commandbus.command_payload(%s, %s)", DOMAIN, command_id) is None


async def test_a_reply_is_taken_from_the_inbox_of_its_domain(db: Session) -> None:
    made = await both(db)
    taken = "select commandbus.take_inbox_reply(%s, %s)"
    assert await db.value(taken, DOMAIN, made["ASKED"].command_id) is not None
    assert await db.value(taken, DOMAIN, made["ASKED"].command_id) is None
    assert await db.value(taken, OTHER, made["ASKED"].command_id) is not None


async def test_an_id_is_found_in_each_domain_that_has_it_once(db: Session) -> None:
    made = await both(db)
    await db.send()  # and one that is only in ours
    rows = await db.rows("select commandbus.find_domains(%s) as domain", made["LONE"].command_id)
    assert [row["domain"] for row in rows] == [OTHER, DOMAIN]


@pytest.mark.parametrize("status", [None, "PENDING", "IN_TROUBLESHOOTING_QUEUE"])
async def test_a_query_finds_what_is_of_the_domain_and_the_state(
    db: Session, status: str | None
) -> None:
    await both(db)
    number = await db.value(
        "select count(*) from commandbus.command_bus_command"
        " where domain = %s and status = coalesce(%s, status)",
        DOMAIN, status,
    )  # fmt: skip
    for search, is_wrapped in (
        ("query_commands(%s, null, %s, null, null, null, null, 100, 0)", False),
        (f"search_commands(%s, null, %s, {NOTHING}, null, null, 100)", True),
    ):
        rows = await db.rows(f"select * from commandbus.{search}", DOMAIN, status)
        assert len(rows) == number, search
        if not is_wrapped:
            assert {row["domain"] for row in rows} == {DOMAIN}


async def test_figures_are_those_of_each_domain(db: Session) -> None:
    await both(db)
    await db.rows("select commandbus.worker_heartbeat('w1', %s, false, 4, 2)", DOMAIN)
    rows = await db.rows("select * from commandbus.domain_figures()")
    theirs, ours = rows
    assert (ours["domain"], theirs["domain"]) == (DOMAIN, OTHER)
    known = ("ready", "delayed", "parked", "workers", "concurrency", "in_flight")
    assert [ours[name] for name in known] == [1, 1, 1, 1, 4, 2]
    assert [theirs[name] for name in known] == [1, 1, 1, 0, 0, 0]
    assert ours["batch_remaining"] == theirs["batch_remaining"] == 3


async def test_events_are_listed_of_the_domain_that_is_asked_for(db: Session) -> None:
    made = await both(db)
    for command_id in (None, made["LONE"].command_id):
        rows = await db.rows(
            "select domain from commandbus.list_audit("
            "%s, %s, null, null, null, null, null, null, true, 100)",
            DOMAIN, command_id,
        )  # fmt: skip
        assert {row["domain"] for row in rows} == {DOMAIN}


FEW = (
    "select place, (command).* from commandbus.search_commands("
    "%s, null, %s, null, %s, null, null, %s, null, null, null, 9)"
)


async def test_a_search_by_id_or_correlation_finds_it_in_the_domain_that_is_asked_for(
    db: Session,
) -> None:
    made = await both(db)
    parked = made["PARKED"].command_id
    row = await db.command(parked)
    for few in ((parked, None), (None, row["correlation_id"])):
        command_id, correlation_id = few
        for domain, number in ((None, 2), (DOMAIN, 1), ("nowhere", 0)):
            for status in (None, row["status"]):
                rows = await db.rows(FEW, domain, status, correlation_id, command_id)
                assert len(rows) == number, (domain, status)
            assert await db.rows(FEW, domain, "PENDING", correlation_id, command_id) == []


async def test_the_place_of_what_is_found_is_when_it_was_parked_if_that_is_asked_for(
    db: Session,
) -> None:
    made = await both(db)
    await db.rows(
        "update commandbus.command_bus_troubleshooting set parked_at = now() + interval '1 day'"
        " where domain = %s",
        OTHER,
    )
    parked = made["PARKED"].command_id
    listed = await db.value(
        "select parked_at from commandbus.command_bus_troubleshooting where domain = %s", DOMAIN
    )
    (row,) = await db.rows(FEW, DOMAIN, "IN_TROUBLESHOOTING_QUEUE", None, parked)
    assert row["place"] == listed
    (row,) = await db.rows(FEW, DOMAIN, None, None, parked)
    assert row["place"] == row["created_at"]


async def test_a_walk_through_what_is_parked_counts_the_rows_of_its_own_domain(
    db: Session,
) -> None:
    await both(db)
    await db.rows(
        "update commandbus.command_bus_troubleshooting set parked_at = now() + interval '1 day'"
        " where domain = %s",
        OTHER,
    )
    search = f"search_commands(%s, null, 'IN_TROUBLESHOOTING_QUEUE', {NOTHING}, null, null, 9, 1)"
    rows = await db.rows(f"select (command).domain from commandbus.{search}", DOMAIN)
    # One row is one step of the walk, and here also its end: the last row only says so.
    assert [row["domain"] for row in rows] == [DOMAIN, None]


async def three_parked(db: Session) -> list[Any]:
    """Two that were parked in the same instant, and one before them; as a search has them."""
    ids = sorted([(await db.put("IN_TROUBLESHOOTING_QUEUE")).command_id for _ in range(3)])
    for command_id, minutes in zip(ids, (1, 1, 2), strict=True):
        await db.rows(
            "update commandbus.command_bus_troubleshooting"
            " set parked_at = date_trunc('day', now()) - %s * interval '1 minute'"
            " where command_id = %s",
            minutes, command_id,
        )  # fmt: skip
    return ids


WALK = (
    "select place, (command).command_id from commandbus.search_commands("
    f"%s, null, 'IN_TROUBLESHOOTING_QUEUE', {NOTHING}, %s::timestamptz, %s::uuid, %s, %s)"
)


async def test_a_bounded_walk_through_what_is_parked_goes_on_where_it_ended(db: Session) -> None:
    ids = await three_parked(db)
    first = await db.rows(WALK, DOMAIN, None, None, 9, 1)
    assert [row["command_id"] for row in first] == [*ids[:2], None]
    second = await db.rows(WALK, DOMAIN, first[-1]["place"], None, 9, 1)
    assert [row["command_id"] for row in second] == [ids[2], None]
    assert await db.rows(WALK, DOMAIN, second[-1]["place"], None, 9, 1) == []


async def test_a_search_goes_on_among_what_was_parked_in_the_same_instant(db: Session) -> None:
    ids = await three_parked(db)
    place, last = None, None
    for command_id in ids:
        (row,) = await db.rows(WALK, DOMAIN, place, last, 1, 100)
        assert row["command_id"] == command_id
        place, last = row["place"], row["command_id"]
    assert await db.rows(WALK, DOMAIN, place, last, 1, 100) == []
