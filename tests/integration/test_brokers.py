"""Transports by the kit for those who write one; and batches through real brokers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from commandbus import CommandBus, InvalidSettingError
from commandbus.batches import DispatchMode
from commandbus.brokers import BrokerError, Transport, open_transport
from commandbus.cli.main import app
from commandbus.database.pgmq import RemoteQueue
from commandbus.errors import MissingExtraError
from commandbus.extras import extra
from commandbus.names import physical_queue
from commandbus.testing import TransportConformance
from faults.brokers import BROKERS, Broker
from tests.integration.test_dispatch import commands, register
from tests.waiting import until, working


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Broker]:
    yield from started("nats")


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[Broker]:
    yield from started("rabbitmq")


def started(kind: str) -> Iterator[Broker]:
    if missing := BROKERS[kind].missing():
        pytest.skip(missing)
    # Not in a folder of pytest: the next pytest that the same account starts would close the way to
    # it for the account of the server.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)
        broker = BROKERS[kind](Path(place) / "broker")
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()


@pytest.mark.postgres
class TestRemoteQueue(TransportConformance):
    @pytest.fixture
    async def transport(self, empty_dsn: str) -> AsyncIterator[Transport]:
        async with RemoteQueue.connect(empty_dsn) as queue:
            self.dsn = empty_dsn
            yield queue

    async def purge(self, transport: Transport, queue: str) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await conn.execute("select pgmq.purge_queue(%s)", (physical_queue(queue),))


@pytest.mark.xdist_group("nats")
class TestNatsTransport(TransportConformance):
    @pytest.fixture
    async def transport(self, nats_server: Broker) -> AsyncIterator[Transport]:
        async with open_transport(nats_server.url) as transport:
            yield transport

    async def purge(self, transport: Any, queue: str) -> None:
        name = physical_queue(transport.subject(queue))
        await transport._streams.purge_stream(name)

    async def test_a_stream_that_somebody_deleted_is_made_again(
        self, transport: Any, queue: str
    ) -> None:
        await transport.publish(queue, ["{}"])
        await transport._streams.delete_stream(physical_queue(transport.subject(queue)))
        await transport.publish(queue, ['{"n": 2}'])

        async def found() -> list[Any]:
            return await transport.receive(queue, quantity=2, lease_seconds=30)

        assert [each.text for each in await until(found)] == ['{"n": 2}']


@pytest.mark.long
@pytest.mark.xdist_group("rabbitmq")
class TestRabbitTransport(TransportConformance):
    @pytest.fixture
    async def transport(self, rabbit_server: Broker) -> AsyncIterator[Transport]:
        async with open_transport(rabbit_server.url) as transport:
            yield transport

    async def purge(self, transport: Any, queue: str) -> None:
        place = await transport._queue("publish", transport.queue_name(queue))
        await place.purge()

    async def test_a_queue_that_somebody_deleted_is_made_again(
        self, transport: Any, queue: str
    ) -> None:
        await transport.publish(queue, ["{}"])
        place = await transport._queue("publish", transport.queue_name(queue))
        await place.delete(if_unused=False, if_empty=False)
        await transport.publish(queue, ['{"n": 2}'])
        found = await transport.receive(queue, quantity=2, lease_seconds=30)
        assert [each.text for each in found] == ['{"n": 2}']


@pytest.mark.postgres
@pytest.mark.xdist_group("nats")
@pytest.mark.parametrize("mode", [DispatchMode.TWO_PHASE, DispatchMode.OPTIMISTIC])
async def test_a_batch_through_nats_is_executed_once(
    bus: CommandBus, nats_server: Broker, mode: DispatchMode
) -> None:
    work = commands(120)
    seen = register(bus)
    async with open_transport(nats_server.url, name="edge") as queue:
        result = await bus.batches.dispatch("shop", work, mode=mode, queue=queue)
        assert (result.status, result.queued_tasks) == ("success", 120)
        assert await bus.batches.relay("shop", queue, drain=True) == 120
        async with working(bus, "shop"):
            await bus.batches.wait("shop", result.batch_id, timeout=30)
    assert sorted(seen) == sorted(c.command_id for c in work)


@pytest.mark.parametrize("address", ["nats://127.0.0.1:1", "amqp://guest:hidden@127.0.0.1:1/"])
async def test_a_broker_that_is_not_there_says_so_without_a_password(address: str) -> None:
    with pytest.raises(BrokerError, match="cannot be reached") as caught:
        async with asyncio.timeout(30), open_transport(address, timeout_seconds=1):
            pass
    assert "hidden" not in str(caught.value)


async def test_an_unknown_address_says_what_is_known() -> None:
    with pytest.raises(InvalidSettingError, match="begins with nats://") as caught:
        async with open_transport("kafka://user:hidden@there"):
            pass
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("name", ["nats", "rabbitmq", "azure"])
def test_a_missing_library_of_a_broker_is_told_with_its_extra(name: str) -> None:
    package = {"nats": "nats", "rabbitmq": "aio_pika", "azure": "azure"}[name]
    with (
        pytest.raises(MissingExtraError, match=f"commandbus\\[{name}\\]"),
        extra(name, "a queue"),
    ):
        raise ModuleNotFoundError("no", name=f"{package}.part")


def test_naming_the_brokers_loads_no_library_of_theirs() -> None:
    program = (
        "import sys, commandbus.brokers\n"
        "found = ('nats', 'aio_pika', 'azure.servicebus', 'psycopg')\n"
        "print([name for name in found if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_the_adapter_for_azure_can_be_imported() -> None:
    from commandbus.brokers.azure import AzureTransport

    assert AzureTransport.connect is not None


@pytest.mark.postgres
def test_dispatch_and_relay_of_the_command_line_bring_a_file_to_the_queue(
    dsn: str, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = conninfo_to_dict(empty_dsn)
    address = "postgresql://{user}:{password}@/{dbname}?host={host}&port={port}".format(**known)
    monkeypatch.setenv("COMMANDBUS_QUEUE", address)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"n": 1}\n{"n": 2}\n')
    runner = CliRunner()
    sent = runner.invoke(app, ["dispatch", "shop", str(file), "--type", "Work", "--dsn", dsn])
    assert (sent.exit_code, "success: 2 of 2 commands queued" in sent.output) == (0, True)
    with psycopg.connect(dsn) as conn:
        query = "select count(*) from pgmq.q_shop__commands"
        assert conn.execute(query).fetchone() == (0,), "they are elsewhere"
        moved = runner.invoke(app, ["relay", "shop", "--until-empty", "--dsn", dsn])
        assert (moved.exit_code, "shop: 2 commands came" in moved.output) == (0, True)
        assert conn.execute(query).fetchone() == (2,)


def test_a_relay_without_a_broker_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_QUEUE", raising=False)
    done = CliRunner().invoke(app, ["relay", "shop", "--dsn", "postgresql:///nowhere"])
    assert done.exit_code == 2
    assert "--queue ADDRESS" in done.output
