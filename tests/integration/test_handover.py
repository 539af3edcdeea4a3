"""Commands that a worker in another system does: signed, fenced by the lease, through a broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import (
    CommandBus,
    DatabaseError,
    Fail,
    InvalidSettingError,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)
from commandbus.brokers import BrokerError, MessageRefusedError, open_transport
from commandbus.cli.handover import _keys
from commandbus.database.model import Outcome, OutcomeKind
from commandbus.database.pgmq import RemoteQueue
from commandbus.handover import OutsideCommand, OutsideWorker, UntrustedMessageError
from commandbus.handover.carrier import Carrier
from commandbus.handover.messages import check_keys, open_message, read_command, read_result, sign
from commandbus.keys import Key
from commandbus.outcomes import Discard, RetryAfter, Snooze
from faults.brokers import Broker
from tests.integration.test_brokers import nats_server  # noqa: F401  (a fixture)
from tests.waiting import until, until_status

KEY = b"k" * 32
OTHER = b"o" * 32
DOMAIN = "edge"
NOW = RetryPolicy(max_attempts=3, backoff_schedule=[0, 0])
GIVEN, RESULTS = f"{DOMAIN}.handover", f"{DOMAIN}.results"

pytestmark = pytest.mark.postgres


@pytest.fixture
async def queue(empty_dsn: str) -> AsyncIterator[RemoteQueue]:
    async with RemoteQueue.connect(empty_dsn, pool_size=6) as found:
        yield found


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def handing(bus: CommandBus, queue: Any, **options: Any) -> Any:
    given = {"keys": KEY, "retry_policy": NOW, **options}
    return running(bus.handover(DOMAIN, queue, **given))


def outside(handler: Any, queue: Any, **options: Any) -> Any:
    return running(OutsideWorker(DOMAIN, handler, queue, **{"keys": KEY, **options}).run())


async def sent(bus: CommandBus, count: int = 1, **data: Any) -> list[UUID]:
    ids = [uuid4() for _ in range(count)]
    for command_id in ids:
        await bus.send(DOMAIN, "Weigh", command_id, {"n": 1, **data})
    return ids


async def taken(queue: Any, count: int = 1) -> list[OutsideCommand]:
    """Commands, as a program outside reads them."""
    found: list[OutsideCommand] = []

    async def all_of_them() -> bool:
        for message in await queue.receive(GIVEN, quantity=count, lease_seconds=30):
            found.append(read_command(open_message(message.text, "command", DOMAIN, [KEY])))
            await queue.acknowledge(GIVEN, [message])
        return len(found) >= count

    await until(all_of_them, f"{count} commands")
    return found


async def say(queue: Any, command: OutsideCommand, key: bytes = KEY, **said: Any) -> None:
    head = {"kind": "result", "domain": DOMAIN, "command_id": str(command.command_id)}
    await queue.publish(RESULTS, [sign({**head, "lease": command.lease, **said}, key)])


async def test_a_command_is_done_outside_and_its_result_is_the_reply(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    async def weigh(command: OutsideCommand) -> dict[str, Any]:
        assert (command.command_type, command.attempt, command.domain) == ("Weigh", 1, DOMAIN)
        return {"kilos": command.data["n"] * 2}

    async with handing(bus, queue), outside(weigh, queue):
        reply = await bus.call(DOMAIN, "Weigh", {"n": 21}, timeout=30)
    assert reply.data == {"kilos": 42}
    events = await bus.get_audit_trail(DOMAIN, reply.command_id)
    received = next(event for event in events if event.event_type == "RECEIVED")
    assert (received.actor or "").startswith("handover:")
    assert "COMPLETED" in [event.event_type for event in events]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (TransientCommandError("BUSY", "later"), "IN_TROUBLESHOOTING_QUEUE", "BUSY"),
        (RetryAfter(0, "SLOW", "in a moment"), "IN_TROUBLESHOOTING_QUEUE", "SLOW"),
        (KeyError("weight"), "IN_TROUBLESHOOTING_QUEUE", "KeyError"),
        (PermanentCommandError("BROKEN", "no scale"), "IN_TROUBLESHOOTING_QUEUE", "BROKEN"),
        (Fail("GONE", "no parcel"), "FAILED", "GONE"),
        (Discard("not needed"), "CANCELED", None),
    ],
)
async def test_what_a_worker_outside_raises_means_what_it_means_in_a_handler(
    bus: CommandBus, queue: RemoteQueue, error: Exception, status: str, code: str | None
) -> None:
    async def fails(command: OutsideCommand) -> None:
        raise error

    (command_id,) = await sent(bus)
    async with handing(bus, queue), outside(fails, queue):
        found = await until_status(bus, DOMAIN, command_id, status)
    is_tried_again = not isinstance(error, PermanentCommandError | Fail | Discard)
    assert (found.last_error_code, found.attempts) == (code, 3 if is_tried_again else 1)


async def test_a_snooze_outside_costs_no_attempt(bus: CommandBus, queue: RemoteQueue) -> None:
    async def sleepy(command: OutsideCommand) -> str:
        if not seen:
            seen.append(command.lease)
            raise Snooze(0)
        return "awake"

    seen: list[int] = []
    (command_id,) = await sent(bus)
    async with handing(bus, queue), outside(sleepy, queue):
        assert (await until_status(bus, DOMAIN, command_id, "COMPLETED")).attempts == 1


async def test_secrets_of_the_payload_do_not_come_back_in_errors(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    async def careless(command: OutsideCommand) -> None:
        raise PermanentCommandError("BROKEN", f"cannot log in with {command.data['password']}")

    (command_id,) = await sent(bus, password="tulip-Field-77")
    async with handing(bus, queue), outside(careless, queue):
        found = await until_status(bus, DOMAIN, command_id, "IN_TROUBLESHOOTING_QUEUE")
    assert "tulip" not in str(found.last_error_msg)


async def test_a_result_that_nobody_with_the_key_signed_is_set_aside(
    bus: CommandBus, queue: RemoteQueue, empty_dsn: str
) -> None:
    (command_id,) = await sent(bus)
    async with handing(bus, queue):
        (command,) = await taken(queue)
        await say(queue, command, OTHER, outcome="completed")
        await queue.publish(RESULTS, ["{}", '"text"', '{"body": 1, "signature": 2}'])
        foreign = {"kind": "result", "domain": "another", "command_id": str(command_id)}
        await queue.publish(RESULTS, [sign({**foreign, "lease": 1, "outcome": "completed"}, KEY)])
        async with await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as conn:

            async def kept() -> bool:
                cursor = await conn.execute("select count(*) from pgmq.a_edge__results")
                return await cursor.fetchone() == (5,)

            await until(kept, "all of them in the archive")
        await until_status(bus, DOMAIN, command_id, "IN_PROGRESS")
        await say(queue, command, outcome="completed")
        await until_status(bus, DOMAIN, command_id, "COMPLETED")


async def test_results_of_a_former_key_are_believed_and_tasks_have_the_new_one(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    (command_id,) = await sent(bus)
    async with handing(bus, queue, keys=[KEY, OTHER]):
        (command,) = await taken(queue)
        await say(queue, command, OTHER, outcome="completed")
        await until_status(bus, DOMAIN, command_id, "COMPLETED")


async def test_the_result_of_a_lease_that_has_lapsed_is_refused(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    (command_id,) = await sent(bus)
    async with handing(bus, queue, lease_seconds=1):
        (first,) = await taken(queue)
        (second,) = await taken(queue)
        assert (first.command_id, second.command_id) == (command_id, command_id)
        assert second.lease > first.lease
    async with handing(bus, queue, lease_seconds=60):
        third, *_ = await taken(queue)
        await say(queue, first, outcome="completed", result="late")
        await say(queue, third, outcome="completed", result="in time")
        found = await until_status(bus, DOMAIN, command_id, "COMPLETED")
    assert found.attempts == 1, "what a broker or another system loses costs no attempt"
    replies = [reply async for reply in bus.replies(DOMAIN, wait=False)]
    assert [reply.data for reply in replies] in ([], ["in time"])


async def test_who_has_the_key_cannot_end_what_a_worker_of_the_bus_has(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    (command_id,) = await sent(bus)
    async with bus.consumer(DOMAIN) as consumer:
        (leased,) = await consumer.receive()
        lease = leased.lease.lease_epoch
        async with handing(bus, queue):
            command = OutsideCommand(
                DOMAIN, command_id, "Weigh", lease, 1, 3, None, None, datetime.now(UTC), 300
            )
            await say(queue, command, outcome="completed", result="mine")

            async def is_taken() -> bool:
                return not await queue.receive(RESULTS, quantity=1, lease_seconds=1)

            await until(is_taken)
            await leased.complete("the worker's")
    found = await until_status(bus, DOMAIN, command_id, "COMPLETED")
    events = await bus.get_audit_trail(DOMAIN, found.command_id)
    assert [event.event_type for event in events].count("COMPLETED") == 1


async def test_a_sign_of_life_begins_the_lease_anew_and_shows_progress(
    bus: CommandBus, queue: RemoteQueue, dsn: str
) -> None:
    (command_id,) = await sent(bus)
    async with (
        handing(bus, queue, lease_seconds=300),
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
    ):
        (command,) = await taken(queue)
        await conn.execute(
            "update pgmq.q_edge__commands set vt = clock_timestamp() + interval '20 seconds'"
        )
        await say(queue, command, outcome="alive", progress=0.25, message="a quarter")

        async def is_longer() -> bool:
            cursor = await conn.execute(
                "select vt > clock_timestamp() + interval '200 seconds' from pgmq.q_edge__commands"
            )
            return await cursor.fetchone() == (True,)

        await until(is_longer, "a longer lease")

        async def is_told() -> bool:
            cursor = await conn.execute(
                "select fraction from commandbus.progress_of(%s, %s)", (DOMAIN, [command_id])
            )
            return await cursor.fetchone() == (0.25,)

        await until(is_told, "a quarter")


@pytest.mark.parametrize(
    "said",
    [
        {"outcome": "shrug"}, {}, {"outcome": "retry", "delay_seconds": "soon"},
        {"outcome": "retry", "delay_seconds": -1}, {"outcome": "snooze"},
        {"outcome": "fail", "error": "all wrong"}, {"outcome": "alive", "progress": 7},
        {"outcome": "completed", "result": "x" * 2_000_000},
    ],
)  # fmt: skip
async def test_a_result_that_cannot_be_used_parks_its_command_and_says_why(
    bus: CommandBus, queue: RemoteQueue, said: dict[str, Any]
) -> None:
    (command_id,) = await sent(bus)
    async with handing(bus, queue):
        (command,) = await taken(queue)
        await say(queue, command, **said)
        found = await until_status(bus, DOMAIN, command_id, "IN_TROUBLESHOOTING_QUEUE")
    assert found.last_error_code == "RESULT_INVALID"


async def test_the_first_of_two_results_of_one_lease_counts(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    (command_id,) = await sent(bus)
    async with handing(bus, queue):
        (command,) = await taken(queue)
        head = {"kind": "result", "domain": DOMAIN, "command_id": str(command_id)}
        both = [{"outcome": "completed"}, {"outcome": "park"}]
        texts = [sign({**head, "lease": command.lease, **each}, KEY) for each in both]
        await queue.publish(RESULTS, texts)
        await until_status(bus, DOMAIN, command_id, "COMPLETED")


class Silent:
    """A broker that takes nothing for a while."""

    name = "silent"

    def __init__(self, real: RemoteQueue) -> None:
        self._real = real
        self.refused = 0

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        if queue == GIVEN and self.refused < 3:
            self.refused += 1
            raise BrokerError("it did not confirm")
        await self._real.publish(queue, messages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def test_what_the_broker_does_not_take_goes_back_without_an_attempt(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    async def done(command: OutsideCommand) -> None: ...

    broker = Silent(queue)
    ids = await sent(bus, 3)
    async with handing(bus, broker), outside(done, queue):
        for command_id in ids:
            found = await until_status(bus, DOMAIN, command_id, "COMPLETED")
            assert found.attempts == 1
    assert broker.refused == 3


class Counting:
    """A broker that is down for a while, and answers nothing then; and one that takes no x."""

    name = "counting"

    def __init__(self, real: RemoteQueue) -> None:
        self._real = real
        self.is_down = False
        self.tries: list[int] = []

    async def publish(self, queue: str, messages: Sequence[str]) -> None:
        if queue == GIVEN:
            self.tries.append(len(messages))
        if self.is_down:
            raise BrokerError("it is down")
        if any("xxx" in message for message in messages):
            raise MessageRefusedError("too large")
        await self._real.publish(queue, messages)

    async def receive(self, queue: str, **options: Any) -> Any:
        if self.is_down:
            raise BrokerError("it is down")
        return await self._real.receive(queue, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def test_a_command_that_the_broker_refuses_is_parked_and_the_others_go_on(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    before = await sent(bus, 3)
    (large,) = await sent(bus, 1, text="xxx")
    after = await sent(bus, 4)
    async with handing(bus, Counting(queue)):
        found = await taken(queue, 7)
        parked = await until_status(bus, DOMAIN, large, "IN_TROUBLESHOOTING_QUEUE")
    assert {command.command_id for command in found} == {*before, *after}
    assert parked.last_error_code == "NOT_HANDED_OVER"
    (item,) = (await bus.troubleshooting.page(DOMAIN)).items
    assert "too large" in str(item)


async def test_nothing_is_leased_while_the_broker_is_down(
    bus: CommandBus, queue: RemoteQueue, dsn: str
) -> None:
    ids = await sent(bus, 8)
    broker = Counting(queue)
    broker.is_down = True
    async with handing(bus, broker):
        await until(lambda: broker.tries, "a try")
        await asyncio.sleep(1.5)  # more tries would have come by now
        assert broker.tries == [8]
        broker.is_down = False
        found = await taken(queue, 8)
    assert {command.command_id for command in found} == set(ids)
    # Half of them first, then more again.
    assert broker.tries[:3] == [8, 4, 4]


async def test_a_result_of_a_former_lease_frees_no_place(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    carrier = Carrier(bus._store, queue, DOMAIN, Key(KEY), 60, 1, counts_lapses=False)
    command_id = uuid4()
    carrier._open = {command_id: 7}
    carrier.forget([(command_id, 6), (uuid4(), 7)])
    assert carrier._open == {command_id: 7}
    carrier.forget([(command_id, 7)])
    assert carrier._open == {}


async def test_a_result_that_the_database_refuses_does_not_keep_the_others(
    bus: CommandBus, queue: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await sent(bus, 5)
    bad = ids[2]
    real = bus._store.settle
    sizes: list[int] = []

    async def settle(domain: str, outcomes: Sequence[Outcome], **more: Any) -> set[UUID]:
        sizes.append(len(outcomes))
        if any(
            each.lease.command_id == bad and each.kind is OutcomeKind.COMPLETE for each in outcomes
        ):
            raise DatabaseError("PostgreSQL refused (22P05)")
        return await real(domain, outcomes, **more)

    monkeypatch.setattr(bus._store, "settle", settle)
    async with handing(bus, queue):
        commands = await taken(queue, 5)
        texts = [
            sign(
                {
                    "kind": "result", "domain": DOMAIN, "command_id": str(each.command_id),
                    "lease": each.lease, "outcome": "completed",
                },
                KEY,
            )
            for each in commands
        ]  # fmt: skip
        await queue.publish(RESULTS, texts)
        for command_id in ids:
            wanted = "IN_TROUBLESHOOTING_QUEUE" if command_id == bad else "COMPLETED"
            found = await until_status(bus, DOMAIN, command_id, wanted)
            if command_id == bad:
                assert found.last_error_code == "RESULT_INVALID"
        # None of them comes again.
        assert await queue.receive(RESULTS, quantity=5, lease_seconds=1) == []
    assert 5 in sizes


async def test_a_copy_of_a_command_is_not_done_while_it_is_done_or_after(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    began: list[UUID] = []
    may_end = asyncio.Event()

    async def work(command: OutsideCommand) -> None:
        began.append(command.command_id)
        await may_end.wait()

    (command_id,) = await sent(bus)
    async with handing(bus, queue):
        await until(lambda: _texts(queue), "a command")
        (message,) = await queue.receive(GIVEN, quantity=1, lease_seconds=1)
        worker = OutsideWorker(DOMAIN, work, queue, keys=KEY)
        async with running(worker.run()):
            await until(lambda: began, "it is done")
            # As a broker does after its own lease, whatever signs of life there were.
            await queue.publish(GIVEN, [message.text, message.text])
            await until(lambda: _is_empty(queue), "copies are acknowledged")
            may_end.set()
            await until_status(bus, DOMAIN, command_id, "COMPLETED")
            await queue.publish(GIVEN, [message.text])
            await until(lambda: _is_empty(queue), "a late copy is acknowledged too")
    assert began == [command_id]
    assert worker.done == 1


async def _count(queue: RemoteQueue) -> int:
    async with queue._pool.connection() as conn:
        cursor = await conn.execute("select to_regclass('pgmq.q_edge__handover')")
        if await cursor.fetchone() == (None,):
            return 0
        cursor = await conn.execute("select count(*) from pgmq.q_edge__handover where vt <= now()")
        row = await cursor.fetchone()
        return int(row[0])


async def _texts(queue: RemoteQueue) -> bool:
    return await _count(queue) > 0


async def _is_empty(queue: RemoteQueue) -> bool:
    return await _count(queue) == 0


def test_the_command_line_believes_the_former_key_and_makes_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path))
    monkeypatch.delenv("COMMANDBUS_HANDOVER_KEY", raising=False)
    with pytest.raises(InvalidSettingError, match="COMMANDBUS_HANDOVER_KEY"):
        _keys()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("COMMANDBUS_HANDOVER_KEY", KEY.decode())
    assert _keys() == [KEY]
    monkeypatch.setenv("COMMANDBUS_HANDOVER_FORMER_KEY", OTHER.decode())
    assert _keys() == [KEY, OTHER]


async def test_no_more_tasks_are_open_than_allowed_who_takes_their_results(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    ids = await sent(bus, 5)
    async with handing(bus, queue, at_once=2):
        commands = await taken(queue, 2)
        await asyncio.sleep(0.2)  # a third one would be there by now
        assert await queue.receive(GIVEN, quantity=5, lease_seconds=1) == []
        async with handing(bus, queue):  # results come to either of the two
            for command in commands:
                await say(queue, command, outcome="completed")
                await until_status(bus, DOMAIN, command.command_id, "COMPLETED")
        rest = await taken(queue, 2)
        assert {command.command_id for command in [*commands, *rest]} < set(ids)


async def test_when_all_that_is_out_is_lost_it_is_given_away_again_and_so_is_the_rest(
    bus: CommandBus, queue: RemoteQueue
) -> None:
    ids = await sent(bus, 3)
    async with handing(bus, queue, at_once=2, lease_seconds=1):
        lost = await taken(queue, 2)
        again = await taken(queue, 4)
    assert {each.command_id for each in [*lost, *again]} <= {*ids}
    assert max(each.lease for each in again) > 1


async def test_a_task_whose_time_is_long_over_is_not_begun(queue: RemoteQueue) -> None:
    begun: list[OutsideCommand] = []

    async def begin(command: OutsideCommand) -> None:
        begun.append(command)

    over = datetime.now(UTC) - timedelta(seconds=61)
    body = {
        "kind": "command", "domain": DOMAIN, "command_id": str(uuid4()), "type": "Weigh",
        "lease": 1, "attempt": 1, "max_attempts": 3, "lease_seconds": 300, "data": {},
    }  # fmt: skip
    late = sign({**body, "lease_ends_at": over.isoformat()}, KEY)
    soon = sign({**body, "lease_ends_at": datetime.now(UTC).isoformat()}, KEY)
    forged = sign({**body, "lease_ends_at": datetime.now(UTC).isoformat()}, OTHER)
    await queue.publish(GIVEN, [late, forged, soon])
    worker = OutsideWorker(DOMAIN, begin, queue, keys=KEY, concurrency=1)
    async with running(worker.run()):
        await until(lambda: worker.done == 1)
    assert (len(begun), worker.outdated) == (1, 1)


PROGRAM = """
import asyncio, hashlib, hmac, json, sys
import nats

KEY = sys.argv[2].encode()

async def main():
    client = await nats.connect(sys.argv[1])
    streams = client.jetstream()
    while True:
        try:
            pull = await streams.pull_subscribe_bind("relay", "commandbus__edge__handover")
            break
        except Exception:
            await asyncio.sleep(0.05)
    while True:
        try:
            (message,) = await pull.fetch(1, timeout=1)
        except TimeoutError:
            continue
        outer = json.loads(message.data)
        body = outer["body"]
        right = hmac.new(KEY, body.encode(), hashlib.sha256).hexdigest()
        assert hmac.compare_digest(right, outer["signature"])
        command = json.loads(body)
        text = json.dumps({
            "kind": "result", "domain": command["domain"], "command_id": command["command_id"],
            "lease": command["lease"], "outcome": "completed", "result": command["data"]["n"] + 1,
        })
        signature = hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()
        result = json.dumps({"body": text, "signature": signature})
        await streams.publish("commandbus.edge.results", result.encode())
        await message.ack()

assert "commandbus" not in sys.modules
asyncio.run(main())
"""


@pytest.mark.xdist_group("nats")
async def test_a_program_without_our_library_does_commands_through_nats(
    bus: CommandBus,
    nats_server: Broker,  # noqa: F811  (the fixture)
    dsn: str,
) -> None:
    key = KEY.decode()
    env = {
        **os.environ, "COMMANDBUS_HANDOVER_KEY": key, "COMMANDBUS_QUEUE": nats_server.url,
        "COMMANDBUS_DSN": dsn,
    }  # fmt: skip
    async with open_transport(nats_server.url) as transport:
        # The streams are made by who uses them first.
        await transport.receive(GIVEN, quantity=1, lease_seconds=300)
        await transport.receive(RESULTS, quantity=1, lease_seconds=30)

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    handing_over = start("-m", "commandbus", "handover", DOMAIN)
    program = start("-c", PROGRAM, nats_server.url, key)
    try:
        replies = await asyncio.gather(
            *(bus.call(DOMAIN, "Weigh", {"n": n}, timeout=60) for n in range(20))
        )
        assert [reply.data for reply in replies] == [n + 1 for n in range(20)]
    finally:
        program.kill()
        handing_over.send_signal(signal.SIGTERM)
        printed, _ = await asyncio.to_thread(handing_over.communicate, timeout=30)
        await asyncio.to_thread(program.communicate)
    assert handing_over.returncode == 0, printed
    assert "hands edge over by nats" in printed
    assert key not in printed


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"body": "{}", "signature": null}', '{"body": "{}"}', "x" * 10],
)
def test_what_is_no_signed_message_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(UntrustedMessageError, match=r"no signed message|not one of our keys"):
        open_message(text, "command", DOMAIN, [KEY])


def test_a_message_is_for_one_kind_and_one_domain_and_cannot_be_changed() -> None:
    text = sign({"kind": "command", "domain": DOMAIN, "n": 1}, KEY, data='{"big": 1e999}')
    assert '"big": 1e999' in json.loads(text)["body"]
    written = json.loads(text)
    loud = json.dumps({**written, "signature": written["signature"].upper()})
    assert open_message(loud, "command", DOMAIN, [KEY])["n"] == 1
    for kind, domain in (("result", DOMAIN), ("command", "other")):
        with pytest.raises(UntrustedMessageError, match="it is signed, but is no"):
            open_message(text, kind, domain, [KEY])
    with pytest.raises(UntrustedMessageError, match="not one of our keys"):
        open_message(text.replace('n\\":1', 'n\\":2'), "command", DOMAIN, [KEY])
    with pytest.raises(UntrustedMessageError, match="it is no command"):
        read_command(open_message(text, "command", DOMAIN, [OTHER, KEY]))
    with pytest.raises(UntrustedMessageError, match="names no command and lease"):
        read_result({"command_id": "x", "lease": 1})


@pytest.mark.parametrize("keys", [b"short", [], ["k" * 32], [KEY, b""]])
def test_a_key_that_could_be_guessed_is_refused(keys: Any) -> None:
    with pytest.raises(InvalidSettingError, match="openssl rand"):
        check_keys(keys)
