"""What keeps a domain from leaving its shard: whatever of it would be left behind."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from commandbus import CommandBus, new_id
from commandbus.shards.record import left_in

pytestmark = pytest.mark.postgres

DOMAIN = "mail"
KEY = "insert into commandbus.command_bus_unique (domain, unique_key, command_id, holds_while, holds_until, first_at, look_at)"  # noqa: E501

#: By what is left: the statement that leaves it.
LEFT = {
    "replies that nobody has read": "select pgmq.send('mail__replies', '{}')",
    "messages that nobody has read in 'mail__done'": (
        "select commandbus.ensure_queue('mail.done'); select pgmq.send('mail__done', '{}')"
    ),
    "replies of calls that nobody has taken": (
        "insert into commandbus.command_bus_reply_inbox (domain, command_id, reply)"
        " values ('mail', gen_random_uuid(), '{}')"
    ),
    "commands at a broker": (
        "insert into commandbus.command_bus_unconfirmed (domain, command_id, queue)"
        " values ('mail', gen_random_uuid(), 'nats')"
    ),
    "running bulk operations": (
        "insert into commandbus.command_bus_bulk_operation"
        " (operation_id, domain, verb, filter, arguments, digest, status, total)"
        " values (gen_random_uuid(), 'mail', 'retry', '{}', '{}', '', 'running', 1)"
    ),
    "unique keys that are held": (
        f"{KEY} values ('mail', 'a', null, 'until', now() + interval '1 day', now(), now())"
    ),
}


async def run(conn: psycopg.AsyncConnection[Any], text: str) -> None:
    for each in text.split("; "):
        await conn.execute(each.encode())


@pytest.mark.parametrize("what", LEFT)
async def test_a_domain_does_not_leave_while_something_of_it_is_there(
    bus: CommandBus, dsn: str, what: str
) -> None:
    sent = await bus.send(DOMAIN, "Post", new_id(), {}, reply_to="")
    gateway = bus._store.gateway
    assert await left_in(gateway, DOMAIN) == {"commands that wait or run": 1}
    await bus.cancel(DOMAIN, sent, "void")
    assert await left_in(gateway, DOMAIN) == {}
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await run(conn, LEFT[what])
        assert await left_in(gateway, DOMAIN) == {what: 1}
        with pytest.raises(psycopg.Error, match="cannot leave this shard yet: 1 "):
            await conn.execute("select commandbus.let_domain_go('mail')")
        # What is of others, or over, keeps nobody.
        assert await left_in(gateway, "post") == {}
        await conn.execute("update commandbus.command_bus_unique set holds_until = now()")
        await conn.execute("update commandbus.command_bus_bulk_operation set status = 'stopped'")
        await conn.execute("delete from commandbus.command_bus_unconfirmed")
        await conn.execute("delete from commandbus.command_bus_reply_inbox")
        await conn.execute("delete from pgmq.q_mail__replies")
        if what.startswith("messages"):
            await conn.execute("delete from pgmq.q_mail__done")
        assert await left_in(gateway, DOMAIN) == {}
        await conn.execute("select commandbus.let_domain_go('mail')")
