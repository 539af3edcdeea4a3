"""The operator of a failed command finds the line of code that raised, wherever the worker ran.

Told apart: a failing handler, a hang, a crashed worker, a lost lease.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import AsyncConnection
from typer.testing import CliRunner

from commandbus import Command, CommandBus, CommandStatus, HandlerContext
from commandbus.cli.main import app
from commandbus.models import AuditEventType
from commandbus.worker import failure_log
from tests.canaries import Canaries, assert_hidden
from tests.http_world import app_of, caller, client_of
from tests.integration import failing_bank
from tests.integration.failing_bank import HERE, WHERE
from tests.waiting import until_status, working

Conn = AsyncConnection[tuple[object, ...]]
Print = Callable[..., str]

TYPES = {
    "Book": CommandStatus.IN_TROUBLESHOOTING_QUEUE,
    "BookInThread": CommandStatus.IN_TROUBLESHOOTING_QUEUE,
    "BookTogether": CommandStatus.IN_TROUBLESHOOTING_QUEUE,
    "BookOnce": CommandStatus.FAILED,
}


@pytest.fixture
def run(dsn: str) -> Print:
    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--dsn", dsn])
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


@pytest.fixture(autouse=True)
def nothing_logged_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_log, "_sightings", failure_log.Sightings())


async def fail(bus: CommandBus, *types: str, password: str) -> list[UUID]:
    """Commands of these types, each failed for good."""
    failing_bank.register(bus)
    sent = [await bus.send("bank", kind, uuid4(), {"password": password}) for kind in types]
    async with working(bus, "bank"):
        for kind, command_id in zip(types, sent, strict=True):
            await until_status(bus, "bank", command_id, TYPES[kind])
    return sent


async def test_every_failed_attempt_of_every_kind_of_handler_says_where_it_was_raised(
    bus: CommandBus, canaries: Canaries
) -> None:
    for kind, command_id in zip(
        TYPES, await fail(bus, *TYPES, password=canaries.password), strict=True
    ):
        page = await bus.search.audit(
            command_id=command_id, event_types=[AuditEventType.FAILED], newest_first=False
        )
        assert len(page.items) == (1 if kind == "BookOnce" else 2), kind
        handler = "book_in_thread" if kind == "BookInThread" else "book"
        for event in page.items:
            assert event.details is not None
            stack = event.details["stack"]
            assert stack["exception"] == "KeyError"
            assert [frame.rpartition(" ")[2] for frame in stack["frames"]] == [
                handler,
                "find_account",
            ], kind
            assert stack["last"] == stack["frames"][-1] == WHERE
            assert stack["first"] == stack["frames"][0]
            assert stack["first"].startswith(f"{HERE}:")
            assert [cause["relation"] for cause in stack["causes"]] == ["cause"]
            assert_hidden(json.dumps(event.details), kind)


async def test_the_program_shows_the_line_that_raised(
    bus: CommandBus, run: Print, canaries: Canaries
) -> None:
    parked, failed = map(str, await fail(bus, "Book", "BookOnce", password=canaries.password))

    for call in (("show", parked), ("tsq", "show", parked), ("show", failed)):
        text = await asyncio.to_thread(run, *call)
        assert f"KeyError at {WHERE}, called from {HERE}:" in text
        assert "Stack of the last failure" not in text
        whole = await asyncio.to_thread(run, *call, "--stack")
        assert f"\n  {WHERE}\n  KeyError\n" in whole
        assert "caused by KeyError: " in whole
        shown = await asyncio.to_thread(run, *call, "--json")
        assert json.loads(shown)["stack"]["last"] == WHERE
        [*_, event] = [e for e in json.loads(shown)["events"] if e["event_type"] == "FAILED"]
        assert event["details"]["stack"]["last"] == WHERE
        assert_hidden(text + whole + shown, " ".join(call))
    groups = await asyncio.to_thread(run, "tsq", "groups")
    listed = json.loads(await asyncio.to_thread(run, "tsq", "list", "--domain", "bank", "--json"))
    audit = await asyncio.to_thread(run, "audit", "--json")
    assert f"at {WHERE}" in groups
    assert listed["commands"][0]["stack"]["last"] == WHERE
    assert_hidden(groups + json.dumps(listed) + audit, "listings")


async def test_the_service_shows_the_line_that_raised_to_a_reader(
    bus: CommandBus, canaries: Canaries
) -> None:
    [parked] = await fail(bus, "BookInThread", password=canaries.password)
    async with client_of(app_of(bus, ann=caller("read")), "ann") as client:

        async def get(path: str) -> Any:
            answer = await client.get(f"/api/v1/{path}")
            assert answer.status_code == 200, answer.text
            assert_hidden(answer.text, path)
            return answer.json()

        assert (await get(f"commands/bank/{parked}"))["stack"]["last"] == WHERE
        assert (await get(f"troubleshooting/bank/{parked}"))["stack"]["last"] == WHERE
        [event] = (await get(f"audit?event_type=FAILED&command_id={parked}&limit=1"))["items"]
        assert event["details"]["stack"]["last"] == WHERE
        [group] = (await get("failure-groups"))["items"]
        assert group["last_frame"] == WHERE
        assert group["first_frame"].endswith(" book_in_thread")
    [item] = await bus.list_troubleshooting("bank")
    assert item.stack == (await bus.troubleshooting.require("bank", parked)).stack
    assert item.stack == await bus.search.stack("bank", parked)


async def test_the_log_has_one_line_with_everything_and_a_redacted_traceback(
    bus: CommandBus, caplog: pytest.LogCaptureFixture, canaries: Canaries
) -> None:
    with caplog.at_level(logging.INFO, logger="commandbus"):
        [sent] = await fail(bus, "BookTogether", password=canaries.password)
    lines = [r for r in caplog.records if str(sent) in r.getMessage()]
    retried, parked = lines
    assert f"bank BookTogether {sent} failed on attempt 1 of 2: KeyError: " in retried.getMessage()
    assert f"(TRANSIENT KeyError) at {WHERE}; next try in 0 s" in retried.getMessage()
    assert (retried.levelname, retried.exc_text) == ("INFO", None)
    assert f"at {WHERE}; parked (EXHAUSTED); see `commandbus show {sent}" in parked.getMessage()
    assert (parked.levelname, parked.exc_info) == ("WARNING", None)
    assert parked.exc_text is not None
    assert "This was the direct cause" in parked.exc_text
    assert 'raise KeyError(f"no account {data!r}") from error' in parked.exc_text
    assert all("\n" not in record.getMessage() for record in lines)
    assert_hidden(caplog.text, "the log")


async def test_a_retry_has_its_traceback_at_debug(
    bus: CommandBus, caplog: pytest.LogCaptureFixture, canaries: Canaries
) -> None:
    with caplog.at_level(logging.DEBUG, logger="commandbus"):
        await fail(bus, "Book", password=canaries.password)
    tracebacks = [r for r in caplog.records if r.exc_text]
    assert "DEBUG" in [record.levelname for record in tracebacks]
    assert_hidden(caplog.text, "the log at DEBUG")


# -- told apart


async def take_and_lose(conn: Conn, worker: str) -> None:
    """Lease everything due as that worker, and let the lease run out."""
    await conn.execute("select commandbus.receive_commands('bank', 30, 10, %s)", (worker,))
    await conn.execute(
        "update commandbus.command_bus_command set lease_expires_at = clock_timestamp()"
        " where leased_by is not null"
    )
    await conn.execute(
        "select pgmq.set_vt(commandbus.physical_queue('bank.commands'), msg_id, 0)"
        " from commandbus.command_bus_command where leased_by is not null"
    )


async def test_a_crashed_worker_and_a_lost_lease_are_told_apart(
    bus: CommandBus, conn: Conn, run: Print
) -> None:
    @bus.handler("bank", "Ok")
    async def ok(command: Command, ctx: HandlerContext) -> None: ...

    sent = str(await bus.send("bank", "Ok", uuid4(), {}))
    for worker in ("unseen", "silent", "alive"):
        if worker != "unseen":
            await bus_heartbeat(conn, worker)
        await take_and_lose(conn, worker)
    await bus_heartbeat(conn, "alive")
    async with working(bus, "bank"):
        await until_status(bus, "bank", UUID(sent), CommandStatus.COMPLETED)

    text = await asyncio.to_thread(run, "show", sent)
    assert "unseen, which had it since " in text
    assert text.count("brought no result before the lease ran out: ") == 3
    [unseen, silent, alive] = [line for line in text.splitlines() if "LEASE_EXPIRED" in line]
    assert "ran out: it crashed, was killed, or lost its connection" in unseen
    assert "ran out: silent since " in silent
    assert "it is alive (seen " in alive
    assert "so it lost the lease" in alive


async def bus_heartbeat(conn: Conn, worker: str) -> None:
    await conn.execute("select commandbus.worker_heartbeat(%s, 'bank', false, 1, 1)", (worker,))


async def test_a_command_that_lost_all_its_workers_says_which_and_is_not_called_stopped(
    bus: CommandBus, conn: Conn, run: Print
) -> None:
    sent = str(await bus.send("bank", "Ok", uuid4(), {}))
    for number in range(12):
        await take_and_lose(conn, f"w{number}")
    text = await asyncio.to_thread(run, "tsq", "show", sent, "--stack")
    assert "the lease ran out before a result came, attempt 1 of " in text
    assert "what it was  a crash or a lost lease: " in text
    assert "w10, which had it since " in text
    assert "there is no stack" in text
    assert "stopped without a result" not in text


async def test_a_late_result_and_a_hang_are_said_in_words(
    bus: CommandBus, conn: Conn, run: Print
) -> None:
    sent = str(await bus.send("bank", "Ok", uuid4(), {}))
    await take_and_lose(conn, "w1")
    await conn.execute("select commandbus.receive_commands('bank', 30, 10, 'w2')")
    old = json.dumps([{"command_id": sent, "msg_id": 1, "lease_epoch": 1}])
    await conn.execute("select commandbus.complete_commands('bank', %s)", (old,))
    hung = json.dumps(
        [
            {
                "command_id": sent, "msg_id": 1, "lease_epoch": 2, "reason": "EXHAUSTED",
                "error_type": "TRANSIENT", "error_code": "HANDLER_TIMEOUT", "error_msg": "5 s",
            }
        ]
    )  # fmt: skip
    await conn.execute("select commandbus.park_commands('bank', %s)", (hung,))
    text = await asyncio.to_thread(run, "tsq", "show", sent)
    assert "a worker that had lost its lease brought a result; it was ignored" in text
    assert "what it was  a hang: the handler ran longer than its time-out" in text
