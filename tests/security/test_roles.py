"""Each database role does the whole of its job, over a real login."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus import BatchCommand, BatchMetadata, Command, HandlerContext, Settings
from commandbus.cli.main import app
from commandbus.errors import DatabaseError, DuplicateCommandError
from commandbus.schedules.firing import Firing
from commandbus.wiring import database_roles
from tests.conftest import Server
from tests.integration.http_shop import Shop, fill
from tests.security.roled import RoledDatabase, roled_database
from tests.waiting import until, until_status, working

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(server: Server, template: str) -> Iterator[RoledDatabase]:
    with roled_database(server, template) as made:
        yield made


async def test_roles_that_were_made_are_as_they_should_be(database: RoledDatabase) -> None:
    for dsn in (database.owner, database.dsn("migrator"), database.dsn("reader")):
        status, ran = await database_roles(dsn, Settings())

        assert status.prefix == database.prefix
        assert status.differences == ()
        assert ran == ()


# -- a sender and a worker


async def work(command: Command, ctx: HandlerContext) -> dict[str, Any]:
    return {"got": command.data}


async def test_a_worker_does_what_a_sender_sent_in_a_domain_that_was_not_there(
    database: RoledDatabase,
) -> None:
    async with (
        database.bus("sender") as sender,
        database.bus("worker", poll_max_seconds=0.05) as worker,
    ):
        worker.register_handler("fresh", "Work", work)
        await sender.send("fresh", "Work", uuid4(), {"n": 0})
        await sender.send_many(
            "fresh", [BatchCommand("Work", uuid4(), {"n": n}) for n in range(600)]
        )
        async with working(worker, "fresh"):
            reply = await sender.call("fresh", "Work", {"n": 2}, timeout=30)
            assert reply.data == {"got": {"n": 2}}
            seen = 0
            async with asyncio.timeout(30):
                async for _ in sender.replies("fresh"):
                    seen += 1
                    if seen == 601:
                        break


async def test_batches_and_loads_of_a_sender_reach_their_end(database: RoledDatabase) -> None:
    closed: list[BatchMetadata] = []

    async def note(batch: BatchMetadata) -> None:
        closed.append(batch)

    async with (
        database.bus("sender") as sender,
        database.bus("worker", poll_max_seconds=0.05) as worker,
    ):
        worker.register_handler("shop", "Work", work)
        async with working(worker, "shop"):
            await sender.create_batch(
                "shop", [BatchCommand("Work", uuid4(), {"n": n}) for n in range(3)],
                on_complete=note,
            )  # fmt: skip
            await sender.batches.dispatch(
                "shop", [BatchCommand("Work", uuid4(), {"n": n}) for n in range(3)]
            )
            load = await sender.loads.load(
                "shop", ({"n": n} for n in range(50)), command_type="Work"
            )
            await until(lambda: len(closed) == 1, "the callback")

            async def is_loaded() -> bool:
                found = await worker.get_batch("shop", load.batch_id)
                return found is not None and found.completed_count == 50

            await until(is_loaded, "the end of the load")


async def test_a_worker_does_the_chores_and_prunes_what_the_rules_allow(
    database: RoledDatabase,
) -> None:
    command_id = uuid4()
    async with (
        database.bus("sender") as sender,
        database.bus("worker", poll_max_seconds=0.05) as worker,
        database.connect("migrator") as owner,
    ):
        worker.register_handler("shop", "Work", work)
        await sender.send("shop", "Work", command_id, {})
        async with working(worker, "shop"):
            await until_status(worker, "shop", command_id, "COMPLETED")
        await owner.execute("select commandbus.set_retention(null, 'audit', '1 hour')")
        for kind in ("archives", "commands"):
            await owner.execute("select commandbus.set_retention(null, %s, '1 hour')", (kind,))

        (first, *_) = await worker.upkeep.prune(domain="shop")
        assert first.pruned == {"audit events": 0}
        await make_older(owner)
        results = await worker.upkeep.prune(domain="shop")

        assert {r.kind: r.pruned for r in results} == {
            "audit": {"audit events": 3},
            "archives": {"archived messages": 0},
            "commands": {"commands": 1, "batches": 0},
        } | {r.kind: r.pruned for r in results if r.kind == "replies"}


async def make_older(owner: psycopg.AsyncConnection[Any]) -> None:
    """As if all of it were of yesterday; the owner can."""
    await owner.execute("alter table commandbus.command_bus_audit disable trigger user")
    await owner.execute("update commandbus.command_bus_audit set ts = ts - interval '1 day'")
    await owner.execute("alter table commandbus.command_bus_audit enable trigger user")
    await owner.execute(
        "update commandbus.command_bus_command set created_at = created_at - interval '1 day',"
        " updated_at = updated_at - interval '1 day'"
    )


async def test_a_transactional_handler_settles_and_sends_on_its_own_connection(
    database: RoledDatabase,
) -> None:
    first, second = uuid4(), uuid4()
    async with database.bus("worker", poll_max_seconds=0.05) as worker:

        @worker.handler("shop", "Begin", transactional=True)
        async def begin(command: Command, ctx: HandlerContext) -> None:
            await worker.send("shop", "Work", second, {"n": 1}, conn=ctx.conn)

        worker.register_handler("shop", "Work", work)
        await worker.send("shop", "Begin", first, {})
        async with working(worker, "shop"):
            await until_status(worker, "shop", first, "COMPLETED")
            await until_status(worker, "shop", second, "COMPLETED")


async def test_an_application_sends_in_its_own_transaction_as_a_sender(
    database: RoledDatabase,
) -> None:
    command_id = uuid4()
    async with (
        database.bus("sender") as bus,
        await psycopg.AsyncConnection.connect(database.dsn("sender")) as conn,
    ):
        await bus.send("shop", "Work", command_id, {}, conn=conn)
        await conn.rollback()
        await bus.send("shop", "Work", command_id, {}, conn=conn)
        await conn.commit()
        with pytest.raises(DuplicateCommandError):
            await bus.send("shop", "Work", command_id, {})


# -- operators and readers, on the command line


@pytest.fixture
async def shop(database: RoledDatabase) -> Shop:
    async with database.bus("migrator") as bus:
        return await fill(bus)


def run(database: RoledDatabase, role: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--dsn", database.dsn(role)])


READING = [
    ("list", "--domain", "shop"),
    ("audit", "--domain", "shop"),
    ("batch", "list", "shop"),
    ("tsq", "groups"),
    ("doctor",),
    ("db", "status"),
    ("db", "roles"),
    ("db", "retention", "show"),
]


async def test_a_reader_lists_everything_but_payloads(database: RoledDatabase, shop: Shop) -> None:
    for arguments in READING:
        result = await asyncio.to_thread(run, database, "reader", *arguments)
        assert result.exit_code == 0, f"{arguments}: {result.output} {result.stderr}"
    async with database.bus("reader") as bus:
        assert await bus.get_command("shop", shop.pending)
        assert await bus.get_batch("shop", shop.batch)
        assert (await bus.search.audit(domain="shop")).items
        assert await bus.upkeep.figures.domains()
        with pytest.raises(DatabaseError, match="permission denied"):
            await bus.troubleshooting.page("shop")


async def test_an_operator_reads_and_decides(database: RoledDatabase, shop: Shop) -> None:
    first, second, third = (str(each) for each in shop.parked)
    for arguments in (
        *READING,
        ("show", str(shop.pending), "--payload"),
        ("tsq", "list"),
        ("tsq", "show", first),
        ("tsq", "retry", first),
        ("tsq", "cancel", second, "--reason", "x"),
        ("tsq", "complete", third),
        ("cancel", str(shop.pending), "--reason", "x"),
        ("doctor", "--fix"),
    ):
        result = await asyncio.to_thread(run, database, "operator", *arguments)
        assert result.exit_code == 0, f"{arguments}: {result.output} {result.stderr}"


async def test_schedules_are_put_by_senders_fired_by_workers_and_services_and_read_without_payload(
    database: RoledDatabase,
) -> None:
    async with database.bus("sender") as sender:
        made = await sender.schedules.put("shop", "x", "Work", {"n": 1}, every=3600)
        with pytest.raises(DatabaseError):
            await sender.schedules.pause("shop", "x")
    for number, role in enumerate(("worker", "api"), 1):
        async with await psycopg.AsyncConnection.connect(database.owner, autocommit=True) as owner:
            await owner.execute(
                "update commandbus.command_bus_schedule set next_tick_at = now(), look_at = now(),"
                " overlap = 'allow'"
            )
        async with database.bus(role) as bus:
            await Firing(bus._store).step()
        async with database.bus("reader") as reader:
            page = await reader.search.commands(correlation_id=made.schedule_id)
            assert len(page.items) == number
    async with database.bus("operator") as operator:
        assert (await operator.schedules.pause("shop", "x")).status == "paused"
        assert (await operator.schedules.resume("shop", "x")).status == "active"
        await operator.schedules.trigger("shop", "x")
        assert (await operator.schedules.require("shop", "x", show_data=True)).data == {"n": 1}
    async with database.bus("reader") as reader:
        assert (await reader.schedules.list("shop")).items[0].name == "x"
        with pytest.raises(DatabaseError):
            await reader.schedules.require("shop", "x", show_data=True)
        with pytest.raises(DatabaseError):
            await Firing(reader._store).step()
