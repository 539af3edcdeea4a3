"""A map that disagrees with the databases is refused, and so are domains of other shards."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from uuid import UUID

import psycopg
import pytest

from commandbus.bus import CommandBus
from commandbus.errors import DomainMovingError, InvalidOperationError, InvalidSettingError
from commandbus.handler import HandlerContext
from commandbus.handlers.router import Handlers
from commandbus.models import BatchCommand, Command, CommandStatus
from commandbus.names import new_id
from commandbus.settings import Settings
from commandbus.shards import ShardedBus, ShardMap, SpanningBus, apply_map, spanning
from commandbus.shards.record import adopt, close_domains
from commandbus.shards.status import shard_states

pytestmark = pytest.mark.postgres


def a_map(one: str, two: str, version: int = 1, mail: str = "two") -> ShardMap:
    return ShardMap({"one": one, "two": two}, {"mail": mail}, "one", version)


def posting() -> Handlers:
    handlers = Handlers("mail")

    @handlers.handle("Post")
    async def post(command: Command, context: HandlerContext) -> None:
        pass

    return handlers


async def test_bus_of_a_shard_refuses_a_domain_of_another_one(dsn: str, empty_dsn: str) -> None:
    async with ShardedBus.connect(a_map(dsn, empty_dsn)) as bus:
        one, two = await bus.shard("one"), await bus.shard("two")
        with pytest.raises(InvalidOperationError, match="version 1 of the map puts it on 'two'"):
            await one.send("mail", "Post", new_id(), {})
        with pytest.raises(InvalidOperationError, match="puts it on 'one'"):
            await two.create_batch("payments", [BatchCommand("Charge", new_id(), {})])
        await two.send("mail", "Post", new_id(), {})
    # So does a bus, or a program of another language, that knows nothing of shards.
    async with CommandBus.connect(dsn) as plain:
        with pytest.raises(InvalidOperationError, match="not on this shard"):
            await plain.send("mail", "Post", new_id(), {})
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        with pytest.raises(psycopg.Error, match="not on this shard"):
            await conn.execute("select commandbus.send_command('mail', 'Post', gen_random_uuid())")


async def test_maps_that_disagree_with_the_databases_are_refused(dsn: str, empty_dsn: str) -> None:
    assert await apply_map(a_map(dsn, empty_dsn, 2)) == {"one": True, "two": True}
    assert await apply_map(a_map(dsn, empty_dsn, 2)) == {"one": False, "two": False}
    for wrong, says in (
        (a_map(dsn, empty_dsn, 2, mail="one"), "needs a higher version"),
        (a_map(empty_dsn, dsn, 2), "are two addresses exchanged"),
    ):
        async with ShardedBus.connect(wrong) as bus:
            with pytest.raises(InvalidSettingError, match=says):
                await bus.shard("one")
    for wrong, says in (
        (a_map(dsn, empty_dsn, 1), "use the newer map"),
        (a_map(dsn, empty_dsn, 2, mail="one"), "needs a higher version"),
        (a_map(empty_dsn, dsn, 3), "are two addresses of the map exchanged"),
        (ShardMap({"one": dsn}, {}, "one", 3), "'two' has domains, and the map has no such shard"),
    ):
        with pytest.raises(InvalidSettingError, match=says):
            await apply_map(wrong)
    async with ShardedBus.connect(a_map(dsn, empty_dsn, 2)) as bus:
        assert set((await bus.everywhere(lambda shard: shard.troubleshooting.counts())).found) == {
            "one", "two",
        }  # fmt: skip


async def test_domain_moves_when_it_is_empty_and_old_processes_are_refused(
    dsn: str, empty_dsn: str
) -> None:
    first, second = a_map(dsn, empty_dsn), a_map(dsn, empty_dsn, 2, mail="one")
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(ShardedBus.connect(first, handlers=posting()))
        former = await old.on("mail")
        sent = await former.send("mail", "Post", new_id(), {})
        with pytest.raises(
            InvalidOperationError, match=r"shard 'two'.*1 commands that wait or run"
        ):
            await apply_map(second)
        # Nothing has changed anywhere: neither shard was told.
        await former.send("mail", "Post", new_id(), {})
        said: list[str] = []
        applying = asyncio.create_task(apply_map(second, wait_seconds=60, tell=said.append))
        while not said:
            await asyncio.sleep(0.01)
        await former.run_worker("mail", until_empty=True)
        await empty_replies(empty_dsn)
        assert await applying == {"one": True, "two": True}
        with pytest.raises(InvalidOperationError, match="version 2 of the map puts it on 'one'"):
            await former.send("mail", "Post", new_id(), {})
        new = await stack.enter_async_context(ShardedBus.connect(second, handlers=posting()))
        moved = await new.on("mail")
        await moved.send("mail", "Post", new_id(), {})
        await moved.run_worker("mail", until_empty=True)
        # Its history stays where it was, and is found there.
        found = await new.everywhere(lambda shard: shard.search.domains(sent))
        assert found.found == {"one": [], "two": ["mail"]}
    # And back again.
    await empty_replies(dsn)
    third = a_map(dsn, empty_dsn, 3)
    await apply_map(third)
    async with ShardedBus.connect(third) as back:
        await (await back.on("mail")).send("mail", "Post", new_id(), {})
        assert len((await (await back.on("mail")).search.commands()).items) == 3


@pytest.mark.parametrize("is_half_way", [False, True], ids=["applied", "half-way"])
async def test_another_version_of_the_map_serves_the_domains_that_have_not_moved(
    dsn: str, empty_dsn: str, is_half_way: bool
) -> None:
    former, newer = a_map(dsn, empty_dsn), a_map(dsn, empty_dsn, 2, mail="one")
    async with ShardedBus.connect(former) as bus:
        await bus.shard("one")
        await bus.shard("two")
    if is_half_way:  # the shard that loses the domain is told first
        async with CommandBus.connect(empty_dsn) as two:
            await adopt(two._store.gateway, "two", newer)
    else:
        await apply_map(newer)
    # A process that is started again with the former map, and one with the newer.
    async with ShardedBus.connect(former) as old, ShardedBus.connect(newer) as new:
        for bus in (old, new):
            await (await bus.on("payments")).send("payments", "Charge", new_id(), {})
            seen = await bus.everywhere(lambda shard: shard.troubleshooting.counts())
            assert seen.missing == {}
        with pytest.raises(InvalidSettingError, match="start this process with the newer map"):
            await old.on("mail")
        with pytest.raises(InvalidOperationError, match="version 2 of the map puts it on 'one'"):
            await (await old.shard("two")).send("mail", "Post", new_id(), {})
        if is_half_way:
            with pytest.raises(InvalidSettingError, match="run `commandbus shards apply`"):
                await new.on("mail")
            assert await apply_map(newer) == {"one": True, "two": False}
        # The same process goes on, once the database was told.
        await (await new.on("mail")).send("mail", "Post", new_id(), {})


async def test_a_shard_that_only_a_newer_map_has_is_missing(dsn: str, empty_dsn: str) -> None:
    one = ShardMap({"one": dsn}, {}, "one")
    async with ShardedBus.connect(one) as bus:
        await bus.shard("one")
    await apply_map(a_map(dsn, empty_dsn, 2))
    async with ShardedBus.connect(one) as bus:
        seen = await bus.everywhere(lambda shard: shard.troubleshooting.counts())
        assert set(seen.found) == {"one"}
        assert "this process has version 1" in seen.missing["two"]
        assert "two" in (await bus.pages.commands()).missing


async def empty_replies(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("delete from pgmq.q_mail__replies")


async def test_domain_does_not_leave_while_a_sender_has_an_open_transaction(
    dsn: str, empty_dsn: str
) -> None:
    first, second = a_map(dsn, empty_dsn), a_map(dsn, empty_dsn, 2, mail="one")
    async with ShardedBus.connect(first) as bus:
        mail = await bus.on("mail")
        sent = await mail.send("mail", "Post", new_id(), {}, reply_to="")
        await mail.cancel("mail", sent, "void")
        async with await psycopg.AsyncConnection.connect(empty_dsn) as conn:
            await mail.send("mail", "Post", new_id(), {}, conn=conn)
            applying = asyncio.create_task(apply_map(second))
            while not await is_waiting(empty_dsn):
                await asyncio.sleep(0.01)
            await conn.commit()
            with pytest.raises(InvalidOperationError, match="1 commands that wait"):
                await applying


async def is_waiting(dsn: str) -> bool:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        cursor = await conn.execute(
            "select exists (select from pg_locks l where not l.granted"
            " and l.relation = 'pgmq.q_mail__commands'::regclass)"
        )
        row = await cursor.fetchone()
        return row is not None and bool(row[0])


async def test_a_domain_moves_while_its_senders_and_workers_go_on(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spanning, "FOLLOW_SECONDS", 0.05)
    first, second = a_map(dsn, empty_dsn), a_map(dsn, empty_dsn, 2, mail="one")
    await apply_map(first)
    sent: list[UUID] = []
    async with SpanningBus.over(first, handlers=posting()) as bus:
        working = asyncio.create_task(bus.run_worker("mail"))

        async def send() -> None:
            while bus.sharded.shard_of("mail") == "two" or len(sent) < 20:
                command_id = new_id()
                await bus.send("mail", "Post", command_id, {}, reply_to="", retry_for=60)
                sent.append(command_id)

        sending = asyncio.create_task(send())
        while not sent:
            await asyncio.sleep(0.01)
        assert await apply_map(second, wait_seconds=60, closes=True) == {"one": True, "two": True}
        await sending
        await bus.send("mail", "Post", last := new_id(), {}, reply_to="")
        done = CommandStatus.COMPLETED
        while (await bus.search.require("mail", last)).status is not done:
            await asyncio.sleep(0.01)
        one, two = await bus.sharded.shard("one"), await bus.sharded.shard("two")
        ends = [await _completed(shard, [*sent, last]) for shard in (one, two)]
        assert sum(ends) == len(sent) + 1
        assert all(ends)
        # What it left behind is found by its id.
        assert await two.get_command("mail", sent[0]) is not None
        assert (await bus.search.require("mail", sent[0])).status is done
        assert await bus.get_audit_trail("mail", sent[0])
        await bus.stop()
        await working


async def _completed(bus: CommandBus, ids: list[UUID]) -> int:
    """How often any of them was completed in one database."""
    trails = [await bus.get_audit_trail("mail", each) for each in ids]
    return sum(event.event_type == "COMPLETED" for trail in trails for event in trail)


async def test_a_domain_that_does_not_become_empty_in_time_is_open_again(
    dsn: str, empty_dsn: str
) -> None:
    first, second = a_map(dsn, empty_dsn), a_map(dsn, empty_dsn, 2, mail="one")
    async with ShardedBus.connect(first) as bus:
        shard = await bus.on("mail")
        await shard.send("mail", "Post", new_id(), {})
        said: list[str] = []
        applying = asyncio.create_task(
            apply_map(second, wait_seconds=1, closes=True, tell=said.append)
        )
        while not said:
            await asyncio.sleep(0.01)
        with pytest.raises(DomainMovingError, match="is being moved to another shard"):
            await shard.send("mail", "Post", new_id(), {})
        assert [each.closed for each in await shard_states(first)] == [[], ["mail"]]
        with pytest.raises(InvalidOperationError, match="1 commands that wait or run"):
            await applying
        await shard.send("mail", "Post", new_id(), {})


async def test_a_move_that_was_killed_goes_on_or_is_given_up_by_the_same_call(
    dsn: str, empty_dsn: str
) -> None:
    first, second = a_map(dsn, empty_dsn), a_map(dsn, empty_dsn, 2, mail="one")
    async with SpanningBus.over(first, settings=Settings()) as bus:
        await bus.sharded.shard("one")
        two = await bus.sharded.shard("two")
        await two.send("mail", "Post", cleared := new_id(), {}, reply_to="")
        await two.cancel("mail", cleared, "void")
        # Killed while it was closed: given up with the former map.
        await close_domains(two._store.gateway, ["mail"])
        with pytest.raises(DomainMovingError):
            await bus.send("mail", "Post", new_id(), {})
        assert await apply_map(first) == {"one": False, "two": False}
        await bus.send("mail", "Post", cleared := new_id(), {}, reply_to="")
        await bus.cancel("mail", cleared, "void")
        # Killed when only the shard that it leaves was told: it is on none.
        assert await adopt(two._store.gateway, "two", second)
        with pytest.raises(DomainMovingError, match="the move is not over, repeat the call"):
            await bus.send("mail", "Post", wanted := new_id(), {})
        assert await apply_map(second, closes=True) == {"one": True, "two": False}
        await bus.send("mail", "Post", wanted, {})
        one = await bus.sharded.shard("one")
        assert await one.get_command("mail", wanted) is not None
