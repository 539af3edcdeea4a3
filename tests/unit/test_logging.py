"""Logs: the ids of the command that is handled, on every record, and none of its secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest

from commandbus import Command, CommandBus, HandlerContext, PermanentCommandError, Secret, new_id
from commandbus.logging import (
    FIELDS,
    HANDLED,
    MAX_EXCEPTION_BYTES,
    CommandContextFilter,
    JsonFormatter,
    TextFormatter,
    contextvars,
)
from commandbus.testing import fake_bus, run_until_idle

CANARY = "cAnArY-4711-secret"


class Lines(logging.Handler):
    """Keeps what a formatter makes of each record."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


Attach = Callable[[logging.Handler], None]


@pytest.fixture
def attach() -> Iterator[Attach]:
    root, added, level = logging.getLogger(), list[logging.Handler](), logging.getLogger().level
    root.setLevel(logging.INFO)

    def add(handler: logging.Handler) -> None:
        added.append(handler)
        root.addHandler(handler)

    yield add
    root.setLevel(level)
    for each in added:
        root.removeHandler(each)


@pytest.fixture
def lines(attach: Attach) -> Lines:
    made = Lines(JsonFormatter())
    attach(made)
    return made


@pytest.fixture
async def bus() -> AsyncIterator[CommandBus]:
    made = fake_bus()
    yield made
    await made.close()


def record(**values: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "app", "levelname": "INFO", "msg": "hello", **values})


def formatted(**values: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(JsonFormatter().format(record(**values)))
    return found


def raised(error: BaseException) -> Any:
    try:
        raise error
    except type(error):
        return sys.exc_info()


# -- the ids


async def handle_two(bus: CommandBus, *, in_thread: bool) -> tuple[list[UUID], UUID]:
    log, correlation = logging.getLogger("app"), new_id()

    def work(command: Command, ctx: HandlerContext) -> None:
        del ctx
        log.info("works on %s", command.command_id)

    async def work_async(command: Command, ctx: HandlerContext) -> None:
        await asyncio.sleep(0)  # others run meanwhile
        await asyncio.create_task(asyncio.to_thread(work, command, ctx))

    bus.register_handler("shop", "Work", work if in_thread else work_async)
    ids = [
        await bus.send("shop", "Work", new_id(), {"n": 1}, correlation_id=correlation)
        for _ in range(2)
    ]
    await run_until_idle(bus)
    return ids, correlation


@pytest.mark.parametrize("in_thread", [True, False])
async def test_what_a_handler_logs_has_the_ids_of_its_own_command(
    bus: CommandBus, lines: Lines, in_thread: bool
) -> None:
    ids, correlation = await handle_two(bus, in_thread=in_thread)

    found = [each for each in lines.objects if each["logger"] == "app"]
    assert {each["command_id"] for each in found} == {str(each) for each in ids}
    for each in found:
        assert each["msg"] == f"works on {each['command_id']}"
        assert (each["domain"], each["command_type"], each["attempt"]) == ("shop", "Work", 1)
        assert each["correlation_id"] == str(correlation)
        assert each["worker_id"]
        assert each["ts"].endswith("+00:00")
    assert HANDLED.get() is None


async def test_the_worker_s_own_lines_have_the_ids_too_and_lines_about_no_command_have_none(
    bus: CommandBus, lines: Lines
) -> None:
    async def fail(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("NO", "no")

    bus.register_handler("shop", "Work", fail)
    command_id = await bus.send("shop", "Work", new_id(), {})
    await run_until_idle(bus)

    worker = [each for each in lines.objects if each["logger"].startswith("commandbus")]
    parked = [each for each in worker if "failed on attempt" in each["msg"]]
    assert [each["command_id"] for each in parked] == [str(command_id)]
    assert "PermanentCommandError" in parked[0]["exception"]
    assert all("command_id" not in each for each in worker if each not in parked)


async def test_what_outlives_its_command_in_its_context_has_no_ids(bus: CommandBus) -> None:
    gate, seen = asyncio.Event(), list[dict[str, Any]]()
    started: list[asyncio.Task[None]] = []

    async def later() -> None:
        seen.append(contextvars())
        await gate.wait()
        seen.append(contextvars())

    async def work(command: Command, ctx: HandlerContext) -> None:
        started.append(asyncio.create_task(later()))
        await asyncio.sleep(0)

    bus.register_handler("shop", "Work", work)
    command_id = await bus.send("shop", "Work", new_id(), {})
    await run_until_idle(bus)
    gate.set()
    await started[0]

    assert seen[0]["command_id"] == str(command_id)
    assert seen[1] == {}


async def test_the_trace_of_the_sender_is_shown_where_no_span_is_open(
    bus: CommandBus, lines: Lines
) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        logging.getLogger("app").info("here")

    bus.register_handler("shop", "Work", work)
    trace = "0af7651916cd43dd8448eb211c80319c"
    meta = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    await bus.send("shop", "Work", new_id(), {}, meta=meta)
    await run_until_idle(bus)

    (found,) = (each for each in lines.objects if each["logger"] == "app")
    assert found["trace_id"] == trace
    assert "span_id" not in found


def test_a_span_of_opentelemetry_is_shown_if_the_application_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    span = SimpleNamespace(is_valid=True, trace_id=10, span_id=11)
    open_span = SimpleNamespace(get_span_context=lambda: span)
    tracing = SimpleNamespace(get_current_span=lambda: open_span)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", tracing)

    assert formatted()["trace_id"] == f"{10:032x}"
    assert contextvars()["span_id"] == f"{11:016x}"
    span.is_valid = False
    assert contextvars() == {}


async def test_the_filter_puts_the_ids_on_the_application_s_own_records(
    bus: CommandBus, attach: Attach
) -> None:
    plain = Lines(logging.Formatter("[%(command_id)s] %(message)s"))
    plain.addFilter(CommandContextFilter())
    attach(plain)
    logging.getLogger("app").info("outside")
    ids, _ = await handle_two(bus, in_thread=True)

    assert "[] outside" in plain.lines
    assert {f"[{each}] works on {each}" for each in ids} <= set(plain.lines)


def test_the_filter_keeps_what_a_record_has_already() -> None:
    given = record(domain="mine")
    assert CommandContextFilter().filter(given)
    assert (vars(given)["domain"], vars(given)["attempt"]) == ("mine", "")
    assert json.loads(JsonFormatter().format(given))["domain"] == "mine"


async def test_contextvars_is_a_processor_of_structlog(bus: CommandBus) -> None:
    seen: list[dict[str, Any]] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        seen.append(contextvars(None, "info", {"event": "here", "domain": "mine"}))

    bus.register_handler("shop", "Work", work)
    command_id = await bus.send("shop", "Work", new_id(), {})
    await run_until_idle(bus)

    assert seen[0]["command_id"] == str(command_id)
    assert (seen[0]["event"], seen[0]["domain"]) == ("here", "mine")
    assert contextvars() == {}


# -- one line of JSON


def test_a_record_is_one_line_whatever_is_in_it() -> None:
    line = JsonFormatter().format(record(msg="a\nb\ud800", extra_id=UUID(int=1)))
    assert "\n" not in line
    assert line.isascii()
    found = json.loads(line)
    assert (found["msg"], found["extra_id"]) == ("a\nb\ud800", str(UUID(int=1)))
    assert not set(found) & set(FIELDS)


def test_extras_are_written_and_secrets_among_them_masked() -> None:
    found = formatted(order=5, password=CANARY, card={"token": CANARY, "n": 1}, level="mine")
    assert found["order"] == 5
    assert found["card"]["n"] == 1
    assert found["level"] == "INFO"
    assert CANARY not in json.dumps(found)


def test_a_message_whose_arguments_do_not_fit_is_written_all_the_same() -> None:
    assert formatted(msg="%d of %d", args=("x",))["msg"] == "%d of %d (its arguments do not fit)"


def test_a_long_message_is_cut() -> None:
    assert len(formatted(msg="x" * 100_000)["msg"]) == 16_384


def test_of_a_long_exception_the_end_is_kept() -> None:
    error = ValueError("é" * 3_000)
    for _ in range(5):
        following = ValueError("é" * 3_000)
        following.__cause__ = error
        error = following
    found = formatted(exc_info=raised(error), stack_info="Stack: here")
    assert len(found["exception"].encode()) <= MAX_EXCEPTION_BYTES
    assert found["exception"].startswith("…")
    assert found["exception"].endswith("é")
    assert found["stack"] == "Stack: here"


def test_an_exception_that_is_none_is_left_out() -> None:
    assert "exception" not in formatted(exc_info=(None, None, None))


# -- secrets


class Card(TypedDict):
    number: Annotated[str, Secret]


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
async def test_marked_secrets_of_a_payload_reach_no_log(
    bus: CommandBus, attach: Attach, formatter: logging.Formatter
) -> None:
    # A formatter of the application that comes first leaves its text on the record.
    attach(Lines(logging.Formatter()))
    lines = Lines(formatter)
    attach(lines)

    def charge(command: Command, ctx: HandlerContext) -> None:
        number = command.data["number"]
        try:
            raise ValueError(f"cannot charge {number}")
        except ValueError as error:
            logging.getLogger("app").exception("it failed")
            raise PermanentCommandError("NO", f"no {number}", {"was": number}) from error

    bus.register_handler("shop", "Charge", charge, payload_type=Card)
    await bus.send("shop", "Charge", new_id(), {"number": CANARY})
    await run_until_idle(bus)

    written = "\n".join(lines.lines)
    assert "it failed" in written
    assert "cannot charge" in written
    assert "failed on attempt 1" in written
    assert CANARY not in written
