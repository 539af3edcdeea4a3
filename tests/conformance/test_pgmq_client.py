"""PgmqClient on PostgreSQL and FakePgmqClient in memory behave alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from commandbus.database.pgmq.client import PgmqClient
from commandbus.errors import DatabaseError, SchemaMissingError
from commandbus.testing import FakeClock, FakePgmqClient

Q = "orders.commands"


class Bench:
    """A client, and power over its time."""

    def __init__(
        self, client: Any, advance: Callable[[float], Awaitable[None]], archive: Any
    ) -> None:
        self.client = client
        self.advance = advance
        self.archived = archive


@pytest.fixture
async def bench(address: str | None) -> AsyncIterator[Bench]:
    if address is None:
        client = FakePgmqClient(FakeClock())

        async def advance(seconds: float) -> None:
            client.clock.advance(seconds)

        async def archived() -> list[Any]:
            archive = client.queues.get(Q).archive
            return [(i, m.read_ct, m.message) for i, m in sorted(archive.items())]

        yield Bench(client, advance, archived)
        return
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as conn:
        await conn.execute("select pgmq.drop_queue(queue_name) from pgmq.meta")

        async def advance_messages(seconds: float) -> None:
            table = sql.Identifier("pgmq", "q_orders__commands")
            await conn.execute(
                sql.SQL("update {} set vt = vt - make_interval(secs => %s)").format(table),
                (seconds,),
            )

        async def archived_rows() -> list[Any]:
            cursor = await conn.execute(
                "select msg_id, read_ct, message from pgmq.a_orders__commands order by msg_id"
            )
            return await cursor.fetchall()

        yield Bench(PgmqClient(conn), advance_messages, archived_rows)


async def test_messages_are_numbered_and_read_in_the_order_of_sending(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    assert await client.send(Q, {"n": 1}) == 1
    assert await client.send_batch(Q, [{"n": 2}, {"n": 3}]) == [2, 3]

    first = await client.read(Q, 600, 2)
    second = await client.read(Q, 600)

    assert [(m.msg_id, m.read_ct, m.message) for m in first + second] == [
        (1, 1, {"n": 1}),
        (2, 1, {"n": 2}),
        (3, 1, {"n": 3}),
    ]
    assert await client.read(Q, 600, 9) == []


async def test_a_read_message_comes_again_when_its_time_is_over(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.send(Q, {})
    [first] = await client.read(Q, 600)
    assert timedelta(seconds=599) < first.vt - first.enqueued_at < timedelta(seconds=700)

    await bench.advance(300)
    assert await client.read(Q, 600) == []
    await bench.advance(301)
    [again] = await client.read(Q, 600)

    assert (again.msg_id, again.read_ct) == (1, 2)


async def test_a_message_may_be_delayed(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.send(Q, "late", 600)
    await client.send_batch(Q, ["later"], 6_000)
    await client.send(Q, "now")

    assert [m.message for m in await client.read(Q, 30, 9)] == ["now"]
    await bench.advance(601)
    assert [m.message for m in await client.read(Q, 30_000, 9)] == ["late", "now"]


async def test_visibility_can_be_set(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.send_batch(Q, ["a", "b"])
    assert await client.set_vt(Q, [1, 7], 600) == [1]

    assert [m.message for m in await client.read(Q, 600, 9)] == ["b"]
    assert sorted(await client.set_vt(Q, [1, 2, 2], 0)) == [1, 2]
    assert [m.read_ct for m in await client.read(Q, 600, 9)] == [1, 2]


async def test_a_deleted_message_is_gone(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.send_batch(Q, ["a", "b", "c"])

    assert sorted(await client.delete(Q, [1, 3, 3, 9])) == [1, 3]
    assert await client.delete(Q, [1]) == []
    assert await client.delete(Q, []) == []
    assert [m.message for m in await client.read(Q, 30, 9)] == ["b"]
    assert await bench.archived() == []


async def test_an_archived_message_is_kept_apart(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.send_batch(Q, ["a", "b"])
    await client.read(Q, 30, 1)

    assert await client.archive(Q, [1, 9]) == [1]
    assert await client.archive(Q, [1]) == []
    assert await client.archive(Q, []) == []
    assert await bench.archived() == [(1, 1, "a")]
    assert [m.message for m in await client.read(Q, 30, 9)] == ["b"]
    assert await client.set_vt(Q, [1], 0) == []


async def test_numbers_are_not_used_again(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.delete(Q, [await client.send(Q, {})])

    assert await client.send(Q, {}) == 2


async def test_creating_a_queue_again_keeps_what_is_in_it(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.send(Q, {})
    await client.create(Q)

    assert len(await client.read(Q, 30)) == 1


@pytest.mark.parametrize(
    "message", [None, 1, "ü", [1, [2]], {"a": {"b": None}, "c": 1.5}, True, {"n": 2**53 - 1}]
)
async def test_any_json_is_read_as_it_was_sent(bench: Bench, message: Any) -> None:
    client = bench.client
    await client.create(Q)
    await client.send(Q, message)

    [read] = await client.read(Q, 30)
    assert read.message == message


async def test_keys_come_back_in_the_order_of_jsonb(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.send(
        Q, {"bb": 1, "a": 2, "ccc": {"zz": 1, "y": 2}, "ü": 3, "ab": [{"d": 1, "c": 2}]}
    )

    [read] = await client.read(Q, 30)
    assert str(read.message) == str(
        {"a": 2, "ab": [{"c": 2, "d": 1}], "bb": 1, "ü": 3, "ccc": {"y": 2, "zz": 1}}
    )


async def test_what_was_sent_cannot_be_changed_from_outside(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    message = {"a": [1]}
    await client.send(Q, message)
    message["a"].append(2)
    [read] = await client.read(Q, 0)
    read.message["a"].append(3)

    [again] = await client.read(Q, 30)
    assert again.message == {"a": [1]}


async def test_reading_nothing_leases_nothing(bench: Bench) -> None:
    client = bench.client
    await client.create(Q)
    await client.send(Q, {})

    assert await client.read(Q, 30, 0) == []
    assert len(await client.read(Q, 30, 1)) == 1


@pytest.mark.parametrize(
    "verb",
    [
        lambda client: client.send(Q, {}),
        lambda client: client.send_batch(Q, [{}]),
        lambda client: client.read(Q, 30, 1),
        lambda client: client.delete(Q, [1]),
        lambda client: client.archive(Q, [1]),
        lambda client: client.set_vt(Q, [1], 0),
    ],
)
async def test_a_queue_that_is_not_there_is_an_error(bench: Bench, verb) -> None:
    with pytest.raises(SchemaMissingError):
        await verb(bench.client)


async def test_a_name_that_is_too_long_is_an_error(bench: Bench) -> None:
    with pytest.raises(DatabaseError):
        await bench.client.create("x" * 48)
    await bench.client.create("x" * 47)


async def test_an_empty_group_is_refused(bench: Bench) -> None:
    await bench.client.create(Q)
    with pytest.raises(DatabaseError):
        await bench.client.send_batch(Q, [])
