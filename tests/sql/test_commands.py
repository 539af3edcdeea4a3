"""Sending, receiving, and the leases in between."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.helpers import DOMAIN, FAILURE, Session


async def test_a_head_of_messages_that_back_off_is_looked_through_and_left(db: Session) -> None:
    await db.send()
    await db.rows(
        f"insert into pgmq.q_{DOMAIN}__commands (msg_id, vt, message)"
        " overriding system value"
        " select -n, now() + interval '1 hour', '{}' from generate_series(1, 1001) n"
    )
    (held,) = await db.receive(from_head=True)
    assert held.msg_id == 1


async def test_a_command_sent_from_psql_is_stored_queued_and_audited(db: Session) -> None:
    command_id, correlation_id = uuid4(), uuid4()
    returned = await db.value(
        "select commandbus.send_command('payments', 'DebitAccount', %s, %s, null, %s)",
        command_id, Jsonb({"amount": 5}), correlation_id,
    )  # fmt: skip
    assert returned == command_id
    row = await db.command(command_id)
    assert (row["status"], row["attempts"], row["max_attempts"]) == ("PENDING", 0, 3)
    assert (row["reply_queue"], row["queue_name"]) == ("payments.replies", "payments.commands")
    assert (row["lease_epoch"], row["leased_by"], row["dispatch_status"]) == (0, None, "queued")
    (message,) = await db.queued()
    assert message["msg_id"] == row["msg_id"]
    created = message["message"].pop("created_at")
    assert created.endswith("Z")
    assert message["message"] == {
        "command_id": str(command_id), "type": "DebitAccount", "domain": "payments",
        "correlation_id": str(correlation_id), "reply_to": "payments.replies",
        "data": {"amount": 5},
    }  # fmt: skip
    assert await db.events(command_id) == ["SENT"]


async def test_a_command_needs_no_more_than_domain_type_and_id(db: Session) -> None:
    command_id = uuid4()
    await db.value("select commandbus.send_command('payments', 'Ping', %s)", command_id)
    (held,) = await db.receive()
    assert (held.command_id, held.row["data"]) == (command_id, "{}")


async def test_a_trigger_can_send_a_command_in_its_own_transaction(db: Session) -> None:
    await db.rows("create table account (id uuid primary key)")
    await db.rows(
        "create function tell() returns trigger language plpgsql as $$ begin"
        " perform commandbus.send_command('payments', 'Opened', new.id); return new; end $$"
    )
    await db.rows(
        "create trigger tell after insert on account for each row execute function tell()"
    )
    kept, undone = uuid4(), uuid4()
    await db.rows("insert into account values (%s)", kept)
    async with db.conn.transaction(force_rollback=True):
        await db.rows("insert into account values (%s)", undone)
    assert [h.command_id for h in await db.receive()] == [kept]
    assert await db.rows("select commandbus.find_domains(%s)", undone) == []


@pytest.mark.parametrize(
    "domain", ["", "Payments", "pay-ments", "pay.ments", "a" * 38, "pay__ments", "1a", "a\nb", None]
)
async def test_a_send_is_refused_for_a_badly_formed_domain(db: Session, domain: str | None) -> None:
    with pytest.raises(psycopg.Error) as info:
        await db.value("select commandbus.send_command(%s, 'Ping', %s)", domain, uuid4())
    assert info.value.sqlstate == "CB005"
    assert "single underscores" in (info.value.diag.message_hint or "")
    assert await db.rows("select * from pgmq.meta") == []


@pytest.mark.parametrize("reply_to", ["Bad.Queue", "a b", "x" * 48, 'a";drop'])
async def test_a_send_is_refused_for_a_badly_formed_reply_queue(db: Session, reply_to: str) -> None:
    await db.value("select commandbus.ensure_domain('payments')")
    before = await db.everything()
    with pytest.raises(psycopg.Error) as info:
        await db.send(reply_to=reply_to)
    assert info.value.sqlstate == "CB005"
    assert await db.everything() == before


async def test_a_duplicate_is_an_error_that_names_the_ids_and_creates_nothing(db: Session) -> None:
    known = uuid4()
    await db.send(known)
    before = await db.everything()
    with pytest.raises(psycopg.Error, match=str(known)) as info:
        await db.send(uuid4(), known, uuid4())
    assert info.value.sqlstate == "CB001"
    assert info.value.diag.message_detail == f'["{known}"]'
    assert await db.everything() == before


async def test_an_offer_returns_the_known_ids_and_leaves_the_transaction_usable(
    db: Session,
) -> None:
    known, new, later = uuid4(), uuid4(), uuid4()
    await db.send(known)
    before = await db.everything()
    async with db.conn.transaction():
        assert await db.offer(new, known) == [known]
        assert await db.everything() == before
        assert await db.offer(later) == []
    assert await db.status(later) == "PENDING"


async def test_an_offer_refuses_an_id_that_stands_twice_in_it(db: Session) -> None:
    await db.value("select commandbus.ensure_domain('payments')")
    before = await db.everything()
    twice = uuid4()
    assert await db.offer(uuid4(), twice, uuid4(), twice) == [twice]
    assert await db.everything() == before


async def test_an_empty_offer_is_no_error(db: Session) -> None:
    assert await db.value("select commandbus.offer_commands('payments', '[]')") == []
    assert await db.value("select commandbus.send_commands('payments', '[]')") == 0


@pytest.mark.parametrize("missing", ["command_id", "type"])
async def test_a_send_is_refused_when_a_command_lacks_its_id_or_type(
    db: Session, missing: str
) -> None:
    command = {"command_id": str(uuid4()), "type": "Ping"}
    del command[missing]
    with pytest.raises(psycopg.errors.NotNullViolation):
        await db.value("select commandbus.send_commands('payments', %s)", Jsonb([command]))


async def test_the_same_id_may_be_sent_in_two_domains_by_default(db: Session) -> None:
    command_id = uuid4()
    await db.send(command_id)
    db.domain = "orders"
    await db.send(command_id)
    assert await db.value(
        "select array_agg(d) from commandbus.find_domains(%s) d", command_id
    ) == ["orders", "payments"]  # fmt: skip


async def test_messages_are_received_in_the_order_of_sending(db: Session) -> None:
    ids = [uuid4() for _ in range(20)]
    await db.send(*ids)
    assert [h.command_id for h in await db.receive(20)] == ids
    rows = await db.rows(
        "select command_id, sequence_no from commandbus.command_bus_command order by msg_id"
    )
    assert [row["command_id"] for row in rows] == ids
    # Numbers are for what a batch was created with: a command sent by itself has no place in one.
    assert {row["sequence_no"] for row in rows} == {None}


async def test_a_receive_leases_for_the_asked_time_and_hides_the_message(db: Session) -> None:
    (command_id,) = await db.send()
    (held,) = await db.receive(vt=120, worker="w7")
    assert held.row["attempt"] == 1
    assert held.row["data"] == '{"n": 0}'
    row = await db.command(command_id)
    assert (row["status"], row["leased_by"], row["lease_epoch"]) == ("IN_PROGRESS", "w7", 1)
    assert await db.value(
        "select lease_expires_at - now() between interval '100 s' and interval '121 s'"
        " from commandbus.command_bus_command"
    )
    assert await db.receive() == []
    assert await db.details(command_id, "RECEIVED") == {"attempt": 1}


async def test_a_receive_takes_no_more_than_it_is_asked_for(db: Session) -> None:
    await db.send(*(uuid4() for _ in range(5)))
    assert len(await db.receive(2)) == 2
    assert len(await db.receive(10)) == 3


async def test_a_receive_leaves_the_status_pending_when_it_is_told_to(db: Session) -> None:
    (command_id,) = await db.send()
    (held,) = await db.receive(mark=False)
    assert await db.status(command_id) == "PENDING"
    with pytest.raises(psycopg.Error, match="leased by a worker"):
        await db.rows("select commandbus.cancel_commands(%s, %s, 'x')", DOMAIN, [command_id])
    assert await db.settle("complete", held.item(data=None)) == []
    assert await db.status(command_id) == "COMPLETED"


async def test_the_workers_own_limit_wins_over_the_one_of_the_sender(db: Session) -> None:
    (command_id,) = await db.send(max_attempts=1)
    (held,) = await db.receive(limits={"Debit": 5, "Other": 1})
    assert held.row["max_attempts"] == 5
    assert (await db.command(command_id))["max_attempts"] == 5


async def test_the_epoch_grows_with_every_lease_and_is_never_reset(db: Session) -> None:
    held = await db.put("IN_TROUBLESHOOTING_QUEUE")
    await db.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, [held.command_id])
    (again,) = await db.receive()
    assert (held.lease_epoch, again.lease_epoch, again.row["attempt"]) == (1, 2, 1)
    assert again.msg_id > held.msg_id


async def test_a_command_whose_attempts_are_used_up_is_parked_without_running(db: Session) -> None:
    (command_id,) = await db.send(max_attempts=1)
    (held,) = await db.receive()
    await db.settle("retry", held.item(delay_seconds=0, **FAILURE))
    assert await db.receive() == []
    row = await db.command(command_id)
    assert (row["status"], row["last_error_code"], row["leased_by"]) == (
        "IN_TROUBLESHOOTING_QUEUE", "ATTEMPTS_EXHAUSTED", None,
    )  # fmt: skip
    assert await db.archived() == [held.msg_id]
    assert (
        await db.value("select reason from commandbus.command_bus_troubleshooting") == "EXHAUSTED"
    )


async def test_two_lapses_make_a_suspect_and_are_not_held_against_the_command(db: Session) -> None:
    (command_id,) = await db.send()
    (first,) = await db.receive()
    assert not first.row["is_suspect"]
    await db.lapse(first)
    (second,) = await db.receive(worker="w2")
    assert not second.row["is_suspect"]
    assert (second.row["attempt"], second.lease_epoch) == (1, 2)
    await db.lapse(second)
    (third,) = await db.receive(worker="w3")
    assert third.row["is_suspect"]
    assert (third.row["attempt"], third.lease_epoch) == (1, 3)
    assert (await db.events(command_id)).count("LEASE_EXPIRED") == 2


async def test_a_suspect_that_ran_alone_and_lapses_again_has_used_an_attempt(db: Session) -> None:
    (command_id,) = await db.send()
    (held,) = await db.receive()
    await db.lapse(held)
    (held,) = await db.receive(worker="w2")
    start = "select commandbus.confirm_start(%s, %s, %s)"
    assert await db.value(start, DOMAIN, command_id, held.lease_epoch) is True
    assert await db.value(start, DOMAIN, command_id, held.lease_epoch - 1) is False
    await db.lapse(held)
    (held,) = await db.receive(worker="w3")
    assert held.row["attempt"] == 2


async def test_a_start_is_not_confirmed_once_the_lease_has_ended(db: Session) -> None:
    held = await db.put("COMPLETED")
    assert not await db.value(
        "select commandbus.confirm_start(%s, %s, %s)", DOMAIN, held.command_id, held.lease_epoch
    )


async def test_a_command_that_kills_its_workers_is_parked_when_its_attempts_are_used_up(
    db: Session,
) -> None:
    (command_id,) = await db.send(max_attempts=2)
    (held,) = await db.receive()
    await db.lapse(held)
    runs = 1
    while found := await db.receive(worker=f"w{runs}"):
        runs += 1
        assert runs < 10
        (held,) = found
        await db.value(
            "select commandbus.confirm_start(%s, %s, %s)", DOMAIN, command_id, held.lease_epoch
        )
        await db.lapse(held)
    row = await db.command(command_id)
    assert (row["status"], row["last_error_code"]) == ("IN_TROUBLESHOOTING_QUEUE", "LEASE_EXPIRED")
    assert row["attempts"] == 2
    assert row["lease_epoch"] == held.lease_epoch + 1  # the last worker, if it lives, is fenced


async def test_a_lease_that_always_lapses_unseen_ends_in_troubleshooting_too(db: Session) -> None:
    (command_id,) = await db.send()
    leases = 0
    while found := await db.receive():
        leases += 1
        assert leases < 20
        await db.lapse(*found)
    assert await db.status(command_id) == "IN_TROUBLESHOOTING_QUEUE"
    assert leases == 11


@pytest.mark.parametrize("status", ["COMPLETED", "CANCELED", "FAILED", "IN_TROUBLESHOOTING_QUEUE"])
async def test_a_message_of_an_ended_command_is_archived_and_nothing_runs(
    db: Session, status: str
) -> None:
    held = await db.put(status)
    stray = await db.value(
        "select pgmq.send('payments__commands', %s)",
        Jsonb({"command_id": str(held.command_id), "data": {}}),
    )
    # The row names this very message, so that nothing but its state stands in the way.
    await db.rows("update commandbus.command_bus_command set msg_id = %s", stray)
    before = await db.command(held.command_id)
    assert await db.receive() == []
    assert await db.command(held.command_id) == before
    assert await db.queued() == []
    assert stray in await db.archived()


@pytest.mark.parametrize(
    "message",
    [{}, {"command_id": None}, {"command_id": "x"}, {"command_id": str(uuid4())}, [1], "a"],
)
async def test_a_message_without_a_command_is_archived_and_its_neighbours_go_on(
    db: Session, message: Any
) -> None:
    await db.value("select commandbus.ensure_domain('payments')")
    stray = await db.value("select pgmq.send('payments__commands', %s)", Jsonb(message))
    (command_id,) = await db.send()
    assert [h.command_id for h in await db.receive()] == [command_id]
    assert await db.archived() == [stray]


async def test_a_second_message_of_a_live_command_is_archived_and_runs_nothing(db: Session) -> None:
    (command_id,) = await db.send()
    stray = await db.value(
        "select pgmq.send('payments__commands', %s)",
        Jsonb({"command_id": str(command_id), "data": {}}),
    )
    (held,) = await db.receive()
    assert held.msg_id != stray
    assert await db.archived() == [stray]
    assert await db.status(command_id) == "IN_PROGRESS"


async def test_a_second_message_cannot_take_the_lease_of_a_command_that_runs(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    stray = await db.value(
        "select pgmq.send('payments__commands', %s)",
        Jsonb({"command_id": str(held.command_id), "data": {}}),
    )
    before = await db.command(held.command_id)
    assert await db.receive(worker="w2") == []
    assert await db.command(held.command_id) == before
    assert await db.archived() == [stray]


async def test_an_extension_moves_the_lease_and_the_message(db: Session) -> None:
    held = await db.put("IN_PROGRESS")
    stale = await db.rows(
        "select commandbus.extend_leases(%s, %s, 3000)", DOMAIN, Jsonb([held.item()])
    )
    assert stale == []
    assert await db.value(f"select vt > now() + interval '2900 s' from pgmq.q_{DOMAIN}__commands")
    assert await db.value(
        "select lease_expires_at > now() + interval '2900 s' from commandbus.command_bus_command"
    )


async def test_an_extension_of_a_lost_lease_is_told_and_moves_nothing(db: Session) -> None:
    kept, lost = await _two_leases(db)
    await db.lapse(lost)
    await db.receive(worker="w2", vt=60)
    before = await db.queued()
    stale = await db.rows(
        "select commandbus.extend_leases(%s, %s, 3000) as id",
        DOMAIN, Jsonb([lost.item(), kept.item()]),
    )  # fmt: skip
    assert [row["id"] for row in stale] == [lost.command_id]
    after = {m["msg_id"]: m["vt"] for m in await db.queued()}
    assert after[lost.msg_id] == {m["msg_id"]: m["vt"] for m in before}[lost.msg_id]
    assert after[kept.msg_id] > {m["msg_id"]: m["vt"] for m in before}[kept.msg_id]


async def test_an_extension_of_an_ended_lease_is_told(db: Session) -> None:
    held = await db.put("COMPLETED")
    stale = await db.rows(
        "select commandbus.extend_leases(%s, %s, 30) as id", DOMAIN, Jsonb([held.item()])
    )
    assert [row["id"] for row in stale] == [held.command_id]


async def _two_leases(db: Session) -> list[Any]:
    await db.send(uuid4(), uuid4())
    return await db.receive()


async def test_ids_are_unique_over_all_domains_when_the_database_says_so(db: Session) -> None:
    early, late = uuid4(), uuid4()
    await db.send(early)  # sent while ids were unique within a domain only
    await db.value("select commandbus.change_setting('command_id_scope', 'global')")
    await db.send(late)
    db.domain = "orders"
    fresh = uuid4()
    assert set(await db.offer(early, fresh, late)) == {early, late}
    assert await db.rows("select commandbus.find_domains(%s)", fresh) == []
    assert await db.offer(fresh) == []


async def test_ids_are_not_made_global_while_one_stands_in_two_domains(db: Session) -> None:
    twice = uuid4()
    await db.send(twice)
    db.domain = "orders"
    await db.send(twice)
    with pytest.raises(psycopg.Error, match="two domains") as info:
        await db.value("select commandbus.change_setting('command_id_scope', 'global')")
    assert info.value.sqlstate == "CB007"
    assert await db.value("select commandbus.setting('command_id_scope')") == "domain"


async def test_many_commands_are_sent_in_one_transaction_when_ids_are_global(db: Session) -> None:
    # One lock for each id would not fit into the server's table of locks.
    await db.value("select commandbus.change_setting('command_id_scope', 'global')")
    sent = await db.value(
        "select commandbus.send_commands('payments', (select jsonb_agg(jsonb_build_object("
        "'command_id', gen_random_uuid(), 'type', 'Debit')) from generate_series(1, 40000)))"
    )
    assert sent == 40_000


@pytest.mark.parametrize(
    ("name", "value"),
    [("command_id_scope", "all"), ("payload_archive", "maybe"), ("nothing", "on"), ("", ""),
     ("functions_checksum", "x")],
)  # fmt: skip
async def test_a_setting_is_refused_when_it_is_not_one_of_ours(
    db: Session, name: str, value: str
) -> None:
    before = await db.rows("select name, value from commandbus.command_bus_setting order by name")
    with pytest.raises(psycopg.Error) as info:
        await db.value("select commandbus.change_setting(%s, %s)", name, value)
    assert info.value.sqlstate == "CB007"
    after = await db.rows("select name, value from commandbus.command_bus_setting order by name")
    assert after == before
