"""What a command holds: where its reply is and what it says, and its payloads before each edit."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus, PermanentCommandError
from commandbus.commands.contents import ReplyState
from commandbus.errors import CommandNotFoundError
from commandbus.names import INBOX, NO_REPLY
from tests.http_world import app_of, caller, client_of
from tests.waiting import until_status, working

Conn = psycopg.AsyncConnection[Any]
TRACE = "0af7651916cd43dd8448eb211c80319c"
SECRET = "sk-very-secret-1"


async def ended(bus: CommandBus, *, reply_to: str | None = None, **more: Any) -> UUID:
    """A command that its handler has done; its result has a secret."""

    async def work(command: Any, ctx: Any) -> dict[str, Any]:
        return {"n": 1, "api_key": SECRET}

    command_id = uuid4()
    kind = f"Work{command_id.hex[:8]}"
    bus.register_handler("shop", kind, work)
    await bus.send("shop", kind, command_id, {"api_key": SECRET}, reply_to=reply_to, **more)
    async with working(bus, "shop"):
        await until_status(bus, "shop", command_id, "COMPLETED")
    return command_id


async def state_of(bus: CommandBus, command_id: UUID) -> ReplyState:
    return (await bus.search.reply("shop", command_id)).state


async def test_a_reply_waits_is_read_and_is_taken_and_its_secrets_are_never_shown(
    bus: CommandBus,
) -> None:
    command_id = await ended(bus, meta={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    reply = await bus.search.reply("shop", command_id)
    assert (reply.state, reply.outcome) == (ReplyState.WAITING, "SUCCESS")
    assert reply.data["n"] == 1
    assert SECRET not in repr(reply)
    facts = (await bus.troubleshooting.life("shop", command_id)).facts
    assert facts.reply == "waiting"

    [leased] = await bus.lease_replies("shop", limit=1, vt_seconds=600)
    assert await state_of(bus, command_id) is ReplyState.LEASED
    await bus.acknowledge_replies("shop", {leased.msg_id: leased.receipt})
    assert await bus.search.reply("shop", command_id) == type(reply)(ReplyState.TAKEN)
    with pytest.raises(CommandNotFoundError):
        await bus.search.reply("shop", uuid4())


async def test_what_is_not_in_a_queue_is_told_apart(bus: CommandBus, conn: Conn) -> None:
    assert await state_of(bus, await ended(bus, reply_to=NO_REPLY)) is ReplyState.UNWANTED
    inbox = await ended(bus, reply_to=INBOX)
    assert await state_of(bus, inbox) is ReplyState.WAITING
    await bus.wait_reply("shop", inbox)
    assert await state_of(bus, inbox) is ReplyState.TAKEN
    waits = await bus.send("shop", "Later", uuid4(), {})
    assert await state_of(bus, waits) is ReplyState.OPEN
    # Once retention has had its time, nobody can say which of the two it was.
    await conn.execute(
        "insert into commandbus.command_bus_retention (domain, kind, keep)"
        " values ('shop', 'replies', '0 s')"
    )
    assert await state_of(bus, inbox) is ReplyState.GONE


async def test_a_reply_is_found_among_very_many_or_it_is_said_that_it_was_not(
    bus: CommandBus, conn: Conn
) -> None:
    command_id = await ended(bus)
    [(body,)] = await (await conn.execute("select message from pgmq.q_shop__replies")).fetchall()
    put = (
        "insert into pgmq.q_shop__replies (vt, message) select now(), %s::jsonb ||"
        " jsonb_build_object('command_id', gen_random_uuid(),"
        " 'completed_at', commandbus.iso8601(now() + n * %s::interval))"
        " from generate_series(1, %s) n"
    )
    await conn.execute(put, (json.dumps(body), "1 s", 5_000))
    reply = await bus.search.reply("shop", command_id)
    assert (reply.state, reply.outcome) == (ReplyState.WAITING, "SUCCESS")
    # Gaps are what is taken; a message that is no reply is stepped over.
    await conn.execute(
        "delete from pgmq.q_shop__replies where msg_id %% 3 = 0 or message ->> 'command_id' = %s",
        (str(command_id),),
    )
    await conn.execute("insert into pgmq.q_shop__replies (vt, message) values (now(), '{}')")
    assert await state_of(bus, command_id) is ReplyState.TAKEN
    await conn.execute("truncate pgmq.q_shop__replies")
    assert await state_of(bus, command_id) is ReplyState.TAKEN
    await conn.execute(put, (json.dumps(body), "1 ms", 3_000))
    assert await state_of(bus, command_id) is ReplyState.UNKNOWN


async def test_the_same_id_of_another_domain_in_one_queue_of_replies_is_another_reply(
    bus: CommandBus, conn: Conn
) -> None:
    command_id = await ended(bus)
    await conn.execute(
        'update pgmq.q_shop__replies set message = message || \'{"domain": "bank"}\''
    )
    assert await state_of(bus, command_id) is ReplyState.TAKEN


async def test_a_command_has_its_trace_and_its_payloads_before_each_edit(
    bus: CommandBus, conn: Conn
) -> None:
    async def fail(command: Any, ctx: Any) -> None:
        raise PermanentCommandError("NO_ACCOUNT", "no such account")

    bus.register_handler("shop", "Pay", fail)
    await bus._store.declare_secrets("shop", {"Pay": {"iban"}})
    command_id = uuid4()
    await bus.send(
        "shop", "Pay", command_id, {"account": 1, "iban": SECRET},
        meta={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"},
    )  # fmt: skip
    async with working(bus, "shop"):
        for account in (2, 3):
            await until_status(bus, "shop", command_id, "IN_TROUBLESHOOTING_QUEUE")
            payload = {"account": account, "iban": SECRET}
            await bus.troubleshooting.retry("shop", command_id, operator="ada", payload=payload)
        await until_status(bus, "shop", command_id, "IN_TROUBLESHOOTING_QUEUE")

    former = await bus.search.former_payloads("shop", command_id)
    assert [each.payload["account"] for each in former] == [2, 1]
    assert {each.replaced_by for each in former} == {"ada"}
    assert former[0].replaced_at > former[1].replaced_at
    assert SECRET not in repr(former)
    assert (await bus.search.payload("shop", command_id))["account"] == 3
    facts = (await bus.troubleshooting.life("shop", command_id)).facts
    assert facts.trace_id == TRACE

    app = app_of(
        bus, reader=caller("read"), peer=caller("read", "read-payload", domains=("bank",)),
        developer=caller("read", "read-payload"),
    )  # fmt: skip
    url = f"/api/v1/commands/shop/{command_id}"
    async with client_of(app, "developer") as client:
        found = await client.get(f"{url}/payloads")
        assert [each["payload"]["account"] for each in found.json()["items"]] == [2, 1]
        assert SECRET not in found.text
    for who, wanted in (("reader", 403), ("peer", 404)):
        async with client_of(app, who) as client:
            assert (await client.get(f"{url}/payloads")).status_code == wanted
            shown = await client.get(f"{url}/reply", params={"payload": "true"})
            assert shown.status_code == wanted
    async with client_of(app, "reader") as client:
        assert (await client.get(f"{url}/reply")).json()["state"] == "open"

    await conn.execute("truncate pgmq.a_shop__commands")
    assert [each.payload for each in await bus.search.former_payloads("shop", command_id)] == [
        None, None,
    ]  # fmt: skip


async def test_a_reply_over_http_says_what_was_answered_to_those_who_read_payloads(
    bus: CommandBus,
) -> None:
    command_id = await ended(bus)
    app = app_of(bus, reader=caller("read"), developer=caller("read", "read-payload"))
    url = f"/api/v1/commands/shop/{command_id}/reply"
    async with client_of(app, "reader") as client:
        plain = (await client.get(url)).json()
    async with client_of(app, "developer") as client:
        whole = await client.get(url, params={"payload": "true"})
    assert (plain["state"], plain["outcome"], plain["data"]) == ("waiting", "SUCCESS", None)
    assert whole.json()["data"]["n"] == 1
    assert SECRET not in whole.text
