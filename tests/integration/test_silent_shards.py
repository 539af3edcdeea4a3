"""A shard that is down or stands still: what is asked of it, what is asked of all, how long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from commandbus.bus import CommandBus
from commandbus.cli.main import app
from commandbus.cli.output import ExitCode
from commandbus.errors import DatabaseUnavailableError
from commandbus.handler import HandlerContext
from commandbus.handlers.router import Handlers
from commandbus.models import BatchCommand, Command
from commandbus.names import new_id
from commandbus.privacy.redaction import redact_text
from commandbus.settings import Settings
from commandbus.shards import (
    ShardedBus,
    ShardMap,
    SpanningBus,
    apply_map,
    doors,
    silence,
    spanning,
    verbs,
)
from commandbus.transport import TransportMessage
from faults.servers import free_port
from tests.http_world import app_of, client_of, problem
from tests.integration.test_several_hosts import door_to
from tests.waiting import until

pytestmark = pytest.mark.postgres

QUICK = Settings(connect_timeout_seconds=2)


def map_of(one: str, two: str) -> ShardMap:
    return ShardMap({"one": one, "two": two}, {"mail": "two"}, "one")


def nowhere(dsn: str, port: int = 1) -> str:
    """An address at which nobody listens yet."""
    return make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")


async def test_a_send_is_repeated_until_its_shard_can_be_opened(dsn: str, empty_dsn: str) -> None:
    port = free_port()
    shards = map_of(dsn, nowhere(empty_dsn, port))
    async with SpanningBus.over(shards, settings=QUICK) as bus:
        with pytest.raises(DatabaseUnavailableError, match="safe to send it again") as refused:
            await bus.send("mail", "Post", new_id(), {})
        assert refused.value.may_repeat
        assert "REDACTED" not in redact_text(str(refused.value))
        assert refused.value.shard == "two"
        sent, created = ([BatchCommand("Post", new_id(), {})] for _ in range(2))
        waiting = [
            asyncio.create_task(bus.send("mail", "Post", new_id(), {}, retry_for=60)),
            asyncio.create_task(bus.send_many("mail", sent, retry_for=60)),
            asyncio.create_task(bus.create_batch("mail", created, retry_for=60)),
        ]
        await until(lambda: "two" in bus.sharded._doors._shut, "they were refused once")
        async with door_to(empty_dsn, port):
            await asyncio.wait_for(asyncio.gather(*waiting), 60)
            assert len((await bus.search.commands(domain="mail")).items) == 3


async def test_an_id_is_not_called_unknown_while_a_shard_is_missing(
    dsn: str, empty_dsn: str, tmp_path: Path
) -> None:
    shards = map_of(dsn, nowhere(empty_dsn))
    unknown = new_id()
    async with SpanningBus.over(shards, settings=QUICK) as bus:
        for read in (bus.search.domains, bus.search.identify, bus.get_audit_trail):
            with pytest.raises(DatabaseUnavailableError, match="others did not") as refused:
                await read(unknown)
            assert refused.value.shard == "two"
        async with client_of(app_of(bus)) as client:
            problem(await client.get(f"/api/v1/ids/{unknown}"), 503, "UNAVAILABLE")
    file = tmp_path / "shards.toml"
    file.write_text(
        f'default = "one"\n[shards]\none = "{dsn}"\ntwo = "{nowhere(empty_dsn)}"\n'
        '[domains]\nmail = "two"\n'
    )
    for words in (["show"], ["batch", "show"], ["tsq", "show"], ["cancel", "--reason", "void"]):
        found = await asyncio.to_thread(
            CliRunner().invoke, app, [*words, str(unknown), "--map", str(file)]
        )
        assert found.exit_code == ExitCode.UNAVAILABLE, (words, found.output)
        assert "others did not" in found.output, words


async def test_what_is_asked_of_a_domain_needs_its_shard_alone(dsn: str, empty_dsn: str) -> None:
    async with (
        SpanningBus.over(map_of(dsn, nowhere(empty_dsn)), settings=QUICK) as bus,
        client_of(app_of(bus)) as client,
    ):
        for path in ("overview", "workers"):
            here = await client.get(f"/api/v1/{path}?domain=payments")
            assert here.status_code == 200
            assert "x-missing-shards" not in here.headers
            # Empty would say that nothing is there.
            problem(await client.get(f"/api/v1/{path}?domain=mail"), 503, "UNAVAILABLE")


async def test_a_read_that_cannot_be_cancelled_is_left_at_the_deadline(
    dsn: str, empty_dsn: str
) -> None:
    async with ShardedBus.connect(map_of(dsn, empty_dsn), settings=QUICK) as bus:
        slow, answered = await bus.shard("two"), asyncio.Event()
        await bus.shard("one")

        async def read(shard: CommandBus) -> bool:
            if shard is slow:
                try:
                    await asyncio.Event().wait()
                finally:
                    await answered.wait()  # as the driver waits for what it has cancelled
            return True

        asking = asyncio.create_task(bus.everywhere(read, deadline=1))
        try:
            await until(asking.done, "the others have answered")
            assert (await asking).found == {"one": True}
        finally:
            answered.set()


async def test_a_domain_is_refused_at_once_while_its_shard_stands_still(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "LOOK_SECONDS", 0.01)
    async with SpanningBus.over(map_of(dsn, empty_dsn), settings=QUICK) as bus:
        shard = await bus.sharded.shard("two")
        look, is_still = shard.check, True

        async def check() -> None:
            if is_still:
                raise DatabaseUnavailableError("no answer")
            await look()

        async def send(*args: object, **kwargs: object) -> None:
            raise AssertionError("it would wait for the server")

        monkeypatch.setattr(shard, "check", check)
        bus.sharded.silence.begin("two", "shard 'two': no answer within 5 s")
        # One read that took too long is no reason to refuse a send.
        await bus.send("mail", "Post", new_id(), {})
        await until(lambda: bus.sharded.silence.is_sure("two"), "it was looked at")
        with monkeypatch.context() as patch:
            patch.setattr(shard, "send", send)
            with pytest.raises(DatabaseUnavailableError, match="no answer within 5 s"):
                await bus.send("mail", "Post", new_id(), {})
        later = asyncio.create_task(bus.send("mail", "Post", new_id(), {}, retry_for=60))
        await bus.send("payments", "Pay", new_id(), {})
        is_still = False
        await later


async def test_what_a_generator_gave_is_not_lost_when_its_domain_has_moved(
    dsn: str, empty_dsn: str
) -> None:
    first = map_of(dsn, empty_dsn)
    await apply_map(first)
    async with SpanningBus.over(first, settings=QUICK) as bus:
        await bus.send("mail", "Post", known := new_id(), {}, reply_to="")
        await bus.cancel("mail", known, reason="void")
        await apply_map(ShardMap(first.shards, {"mail": "one"}, "one", 2))
        given = [BatchCommand("Post", new_id(), {}) for _ in range(3)]
        try:
            await bus.send_many("mail", (each for each in given))
        except DatabaseUnavailableError:
            await bus.send_many("mail", (each for each in given))
        assert len((await bus.search.commands(domain="mail")).items) == 3


async def test_a_home_shard_that_stands_still_does_not_hold_up_requests_for_others(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "HOME_SECONDS", 0.05)
    async with (
        SpanningBus.over(map_of(dsn, empty_dsn), settings=QUICK) as bus,
        client_of(app_of(bus)) as client,
    ):
        home, answered = await bus.sharded.shard("one"), asyncio.Event()
        await bus.send("mail", "Post", new_id(), {})

        async def count(*args: object, **kwargs: object) -> None:
            await answered.wait()

        monkeypatch.setattr(home.governance, "count_request", count)
        try:
            found = await asyncio.wait_for(client.get("/api/v1/commands?domain=mail"), 5)
            assert len(found.json()["items"]) == 1
            assert bus.sharded.silence.why("one")
        finally:
            answered.set()


async def test_a_shard_that_refuses_the_login_ends_no_worker_of_another(
    dsn: str, empty_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "commandbus.shards")
    absent = make_conninfo(empty_dsn, dbname="absent")
    handlers = Handlers()
    for domain in ("payments", "mail"):
        routes = Handlers(domain)

        @routes.handle("Ask")
        async def ask(command: Command, context: HandlerContext) -> None: ...

        handlers.include(routes)
    async with SpanningBus.over(map_of(dsn, absent), settings=QUICK, handlers=handlers) as bus:
        working = [asyncio.create_task(bus.run_worker(each)) for each in ("mail", "payments")]
        await until(lambda: "mail waits" in caplog.text, "the database is not there")
        assert (await bus.call("payments", "Ask", {})).outcome == "SUCCESS"
        assert not any(task.done() for task in working)
        await bus.stop()
        await asyncio.gather(*working)
    nothing = ShardMap({"two": absent}, {}, "two")
    async with SpanningBus.over(nothing, settings=QUICK, handlers=handlers) as bus:
        with pytest.raises(DatabaseUnavailableError, match="does not exist"):
            await bus.run_worker("mail")


class Empty:
    """A transport that nothing comes through; notes who looks."""

    name = "empty"

    def __init__(self) -> None:
        self.looks: set[str] = set()

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        raise AssertionError

    async def receive(
        self, queue: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        self.looks.add(queue)
        return []

    async def acknowledge(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        raise AssertionError

    async def set_aside(self, queue: str, messages: Sequence[TransportMessage]) -> None:
        raise AssertionError


async def test_relay_and_handover_wait_for_their_shard_and_follow_their_domain(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AGAIN_SECONDS", "FOLLOW_SECONDS"):
        monkeypatch.setattr(spanning, name, 0.05)
    monkeypatch.setattr(doors, "SHUT_SECONDS", 0.0)
    caplog.set_level("INFO", "commandbus.shards")
    port, queue = free_port(), Empty()
    shards = map_of(dsn, nowhere(empty_dsn, port))
    async with SpanningBus.over(shards, settings=QUICK) as bus:
        working = [
            asyncio.create_task(bus.batches.relay("mail", queue)),
            asyncio.create_task(bus.handover("mail", queue, keys=b"k" * 32)),
        ]
        await until(lambda: "mail waits" in caplog.text, "the shard was not there")
        async with door_to(empty_dsn, port):
            await until(lambda: len(queue.looks) == 2, "they look into the broker")
            await apply_map(ShardMap(shards.shards, {"mail": "one"}, "one", 2))
            await until(
                lambda: caplog.text.count("has moved from shard two") == 2, "they have followed"
            )
            queue.looks.clear()
            await until(lambda: len(queue.looks) == 2, "they look again")
            assert not any(task.done() for task in working)
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
