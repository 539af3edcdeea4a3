"""One bus over two databases, and one that is down: each verb where it belongs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from commandbus.access.model import Caller
from commandbus.errors import (
    DatabaseUnavailableError,
    InvalidBatchRequestError,
    InvalidOperationError,
)
from commandbus.governance.types import BatchType
from commandbus.handler import HandlerContext
from commandbus.handlers.router import Handlers
from commandbus.models import BatchCommand, Command, ReplyOutcome
from commandbus.names import new_id
from commandbus.paging import MISSING
from commandbus.settings import Settings
from commandbus.shards import ShardMap, SpanningBus
from commandbus.troubleshooting.model import BulkFilter, BulkVerb
from tests.http_world import ADMIN
from tests.parking import park

pytestmark = pytest.mark.postgres

#: Nobody listens there.
DOWN = "host=127.0.0.1 port=1 dbname=none connect_timeout=2"
QUICK = Settings(connect_timeout_seconds=2)

payments, mail = Handlers("payments"), Handlers("mail")


@payments.handle("Ask")
@mail.handle("Ask")
async def answer(command: Command, context: HandlerContext) -> dict[str, str]:
    return {"from": command.domain}


def both() -> Handlers:
    handlers = Handlers()
    handlers.include(payments, mail)
    return handlers


@pytest.fixture
async def bus(dsn: str, empty_dsn: str) -> AsyncIterator[SpanningBus]:
    """Payments on one, mail on two, lost on a shard that is down."""
    shards = ShardMap(
        {"one": dsn, "two": empty_dsn, "down": DOWN},
        {"payments": "one", "mail": "two", "approvals": "one", "lost": "down"}, home="one",
    )  # fmt: skip
    async with SpanningBus.over(shards, settings=QUICK, handlers=both()) as bus:
        yield bus


@pytest.fixture
def missing() -> dict[str, str]:
    noted: dict[str, str] = {}
    MISSING.set(noted)
    return noted


async def test_one_bus_serves_the_domains_of_all_shards_and_waits_for_the_one_that_is_down(
    bus: SpanningBus,
) -> None:
    lost = Handlers("lost")
    lost.handle("Ask")(answer)
    bus.include(lost)
    running = [asyncio.create_task(bus.run_worker(domain)) for domain in bus.domains]
    for domain in ("payments", "mail"):
        reply = await bus.call(domain, "Ask", {})
        assert (reply.outcome, reply.data) == (ReplyOutcome.SUCCESS, {"from": domain})
    while set(bus.started_domains) < {"lost", "mail", "payments"}:
        await asyncio.sleep(0.01)
    with pytest.raises(DatabaseUnavailableError) as refused:
        await bus.send("lost", "Ask", new_id(), {})
    assert refused.value.shard == "down"
    assert not any(task.done() for task in running)
    await bus.stop()
    await asyncio.gather(*running)


async def test_listings_without_a_domain_are_of_all_shards_and_name_the_missing_one(
    bus: SpanningBus, missing: dict[str, str]
) -> None:
    for number in range(7):
        await bus.send("mail" if number % 2 else "payments", "Ask", new_id(), {})
    await bus.limits.set("mail", max_running=3)
    await bus.schedules.put("payments", "daily", "Ask", {}, every=86_400)
    await bus.create_batch("mail", [BatchCommand("Ask", new_id(), {})])
    cursor, found = None, []
    for _ in range(5):
        page = await bus.search.commands(limit=2, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len({each.command_id for each in found}) == len(found) == 8
    assert [limit.domain for limit in await bus.limits.list()] == ["mail"]
    assert [each.name for each in (await bus.schedules.list()).items] == ["daily"]
    assert [each.domain for each in await bus.batches.list_open()] == ["mail"]
    assert {each.domain for each in await bus.upkeep.figures.overview()} == {"mail", "payments"}
    assert (await bus.upkeep.figures.watch().look()).domains
    assert set(missing) == {"down"}
    assert (await bus.search.domains(found[0].command_id)) == [found[0].domain]
    with pytest.raises(DatabaseUnavailableError, match="cannot be read whole"):
        [each async for each in bus.search.every_command()]
    assert len([each async for each in bus.search.every_command(domain="mail")]) == 4


async def test_the_doctor_of_all_shards_finds_the_one_that_is_down(bus: SpanningBus) -> None:
    found = await bus.upkeep.doctor()
    lost = [each for each in found.findings if each.code == "SHARD_MISSING"]
    assert [each.examples for each in lost] == [("down",)]
    assert not found.is_healthy
    assert set(found.facts["shards"]) == {"one", "two"}


async def test_what_has_an_id_is_found_on_its_shard(bus: SpanningBus, empty_dsn: str) -> None:
    await bus.sharded.on("mail")
    async with await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as conn:
        await conn.execute("select commandbus.ensure_domain('mail')")
        await park(conn, 2, domain="mail")
    (group,) = await bus.troubleshooting.groups()
    assert (await bus.troubleshooting.counts()) == {"mail": 2}
    assert (await bus.troubleshooting.require_group(group.fingerprint[:8])) == group
    operation = await bus.bulk.start(
        BulkVerb.CANCEL, BulkFilter("mail"), reason="void", everything=True
    )
    done = await bus.bulk.run(operation.operation_id)
    assert (await bus.bulk.require(done.operation_id)).domain == "mail"
    with pytest.raises(DatabaseUnavailableError, match="others did not"):
        # It could be on the shard that is down.
        await bus.bulk.require(new_id())


async def test_tokens_are_on_the_home_shard_and_limits_of_users_on_all(bus: SpanningBus) -> None:
    made = await bus.tokens.create("ann", ["read"])
    one = await bus.sharded.shard("one")
    assert await one.tokens.find(made.token.token_id) is not None
    two = await bus.sharded.shard("two")
    assert await two.tokens.find(made.token.token_id) is None
    with pytest.raises(DatabaseUnavailableError, match="shard 'down'"):
        await bus.governance.exempt(ADMIN, "ann", "a migration")


async def test_a_governed_batch_is_on_the_shard_of_its_type_and_decided_there(
    dsn: str, empty_dsn: str
) -> None:
    shards = ShardMap({"one": dsn, "two": empty_dsn}, {"mail": "two"}, "one")
    async with SpanningBus.over(shards, handlers=both()) as bus:
        bus.governance.declare(
            BatchType(
                name="MAILS",
                domain="mail",
                command_type="Ask",
                max_size=10,
                requires_approval=True,
            )
        )
        bus.governance.register_handlers()
        ticket = (await bus.governance.submit(ADMIN, "MAILS", [{"a": 1}])).ticket
        two = await bus.sharded.shard("two")
        assert await two.batches.get("mail", ticket.ticket_id) is not None
        assert [each.ticket_id for each in (await bus.governance.page(ADMIN)).items] == [
            ticket.ticket_id
        ]
        decision = [{"ticket_id": str(ticket.ticket_id), "decision": "approve"}]
        with pytest.raises(InvalidBatchRequestError, match="no transaction spans both"):
            await bus.governance.submit(ADMIN, "BATCH_APPROVE", decision)
        boss = Caller("boss", ADMIN.scopes)
        after = await bus.governance.decide(boss, ticket.ticket_id, approve=True, reason=None)
        assert not after.is_undecided


async def test_what_is_of_one_database_is_refused(bus: SpanningBus) -> None:
    with pytest.raises(InvalidOperationError, match="each database seals its own audit"):
        await bus.upkeep.verify_audit()
