"""BlockingBus: the verbs wait, threads share it, and it always comes to an end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from commandbus import (
    BatchCommand,
    BatchNotFoundError,
    BlockingBus,
    Command,
    CommandStatus,
    DatabaseUnavailableError,
    DuplicateCommandError,
    HandlerContext,
    InvalidOperationError,
    InvalidSettingError,
    ReplyTimeoutError,
    Settings,
)
from tests.waiting import until_sync

DOMAIN = "payments"


@pytest.fixture
def bus(dsn: str) -> Iterator[BlockingBus]:
    with BlockingBus.connect(dsn) as bus:
        yield bus


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "commandbus-blocking"]


def test_a_blocking_bus_sends_also_on_the_connection_of_its_caller(dsn: str) -> None:
    kept, undone = uuid4(), uuid4()
    with BlockingBus.connect(dsn) as bus:
        with psycopg.connect(dsn) as conn:
            bus.send(DOMAIN, "Debit", undone, {}, conn=conn)
            conn.rollback()
            bus.send(DOMAIN, "Debit", kept, {}, conn=conn)
            conn.commit()
        assert bus.get_command(DOMAIN, undone) is None
        found = bus.get_command(DOMAIN, kept)
        assert found is not None
        assert found.status is CommandStatus.PENDING
        with pytest.raises(DuplicateCommandError):
            bus.send(DOMAIN, "Debit", kept, {})
        assert bus.domains == []
        with pytest.raises(AttributeError):
            bus.no_such_verb()  # type: ignore[attr-defined]


def test_a_blocking_bus_has_the_facets_and_their_verbs_wait(dsn: str) -> None:
    with BlockingBus.connect(dsn) as bus:
        command_id = bus.send(DOMAIN, "Debit", uuid4(), {"amount": 5})
        batch_id = bus.create_batch(DOMAIN, [BatchCommand("Debit", uuid4(), {})])
        found = bus.search.commands(domain=DOMAIN)
        assert command_id in {command.command_id for command in found.items}
        assert [batch.batch_id for batch in bus.batches.page(DOMAIN).items] == [batch_id]
        assert bus.batches.cancel(DOMAIN, batch_id, "not needed") == 1
        assert [figures.domain for figures in bus.upkeep.figures.domains()] == [DOMAIN]
        assert bus.upkeep.doctor().is_healthy
        assert bus.governance.types.require("BATCH_APPROVE").domain == "approvals"
        with pytest.raises(BatchNotFoundError):
            bus.batches.require(DOMAIN, uuid4())


def test_a_blocking_bus_that_cannot_be_opened_leaves_no_thread_behind(dsn: str) -> None:
    import threading

    with (
        pytest.raises(InvalidSettingError, match="command_id_scope"),
        BlockingBus.connect(dsn, settings=Settings(command_id_scope="global")),
    ):
        pass
    assert "commandbus-blocking" not in {thread.name for thread in threading.enumerate()}


def test_it_opens_with_the_first_call_and_not_before(dsn: str) -> None:
    before = len(threads())
    bus = BlockingBus.connect(dsn)
    assert len(threads()) == before
    assert bus.get_command(DOMAIN, uuid4()) is None
    assert len(threads()) == before + 1
    bus.close()
    assert len(threads()) == before


def test_a_server_that_is_not_there_shows_where_the_block_begins() -> None:
    before = len(threads())
    with (
        pytest.raises(DatabaseUnavailableError),
        BlockingBus.connect("host=127.0.0.1 port=1 dbname=none user=none"),
    ):
        pass
    until_sync(lambda: len(threads()) == before)


def test_it_can_be_closed_twice_and_says_so_when_used_after(dsn: str) -> None:
    bus = BlockingBus.connect(dsn)
    bus.check()
    bus.close()
    bus.close()
    with pytest.raises(InvalidOperationError, match="closed; open another"):
        bus.check()
    with pytest.raises(InvalidOperationError, match="closed; open another"):
        bus.batches.get(DOMAIN, uuid4())


def test_a_call_that_waits_ends_when_another_thread_closes_the_bus(dsn: str) -> None:
    bus = BlockingBus.connect(dsn)
    bus.check()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            bus.run_worker(DOMAIN)
            bus.wait_reply(DOMAIN, uuid4(), timeout=300)
        except InvalidOperationError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until_sync(lambda: bool(bus._bus._workers.running))
    bus.close()
    waiting.join(30)
    assert not waiting.is_alive()
    assert "closed" in str(raised[0])


def test_on_the_thread_of_an_event_loop_it_refuses_to_wait(bus: BlockingBus) -> None:
    async def call() -> None:
        with pytest.raises(InvalidOperationError, match="use CommandBus there"):
            bus.check()
        await asyncio.to_thread(bus.check)

    asyncio.run(call())


def test_many_threads_share_one_bus(dsn: str) -> None:
    bus = BlockingBus.connect(dsn)
    barrier = threading.Barrier(8)
    ids = [uuid4() for _ in range(8)]
    found: list[object] = []

    def use(number: int) -> None:
        barrier.wait()
        bus.send(DOMAIN, "Debit", ids[number], {})
        found.append(bus.batches._facet)

    users = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join(60)
    assert len(set(map(id, found))) == 1
    assert all(bus.get_command(DOMAIN, each) is not None for each in ids)
    bus.close()


def test_one_that_is_collected_ends_its_thread(dsn: str) -> None:
    before = len(threads())
    bus = BlockingBus.connect(dsn)
    bus.check()
    assert len(threads()) == before + 1
    del bus
    gc.collect()
    until_sync(lambda: len(threads()) == before)


def test_a_stream_of_replies_is_a_plain_loop_and_can_be_left(bus: BlockingBus) -> None:
    @bus.handler(DOMAIN, "Echo")
    def echo(command: Command, ctx: HandlerContext) -> object:
        return command.data

    worker = threading.Thread(target=bus.run_worker, args=(DOMAIN,))
    worker.start()
    sent = [bus.send(DOMAIN, "Echo", uuid4(), {"number": number}) for number in range(3)]
    came = set()
    # One at a time: others that were read with it would come back only after their lease.
    for reply in bus.replies(DOMAIN, batch_size=1):
        came.add(reply.command_id)
        break
    for reply in bus.replies(DOMAIN):
        came.add(reply.command_id)
        if len(came) == len(sent):
            break
    assert came == set(sent)
    assert bus.call(DOMAIN, "Echo", {"again": True}).data == {"again": True}
    bus.stop()
    worker.join(30)
    assert not worker.is_alive()


def test_an_error_that_is_a_timeout_is_the_callers_and_no_sign_of_a_dead_thread(
    bus: BlockingBus,
) -> None:
    with pytest.raises(ReplyTimeoutError):
        bus.call(DOMAIN, "Nobody", {}, timeout=0.01)


def test_what_a_search_tails_waits_too(bus: BlockingBus) -> None:
    tail = bus.search.tail()
    assert tail.look() == []
    bus.send(DOMAIN, "Debit", uuid4(), {})
    assert [str(event.event_type) for event in tail.look()] == ["SENT"]
