"""Sentry: one event for a command that failed for good, without payload, secrets and doubles."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from commandbus import Command, CommandBus, HandlerContext, RetryPolicy
from commandbus.errors import InvalidSettingError
from commandbus.middleware import Call, CallOutcome, Middleware
from commandbus.middleware.sentry import Sentry
from commandbus.testing import fake_bus, run_until_idle

SECRET = "hunter-two-4711"
PAYLOAD = {"password": SECRET, "note": "only in the payload"}


class Recording(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(event)


@pytest.fixture
def recorded() -> Iterator[list[Any]]:
    transport = Recording()
    with sentry_sdk.isolation_scope(), sentry_sdk.new_scope():
        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1", transport=transport, attach_stacktrace=True,
            auto_enabling_integrations=False, include_local_variables=True,
            release="test",  # else older ones ask git for it, which is a breadcrumb
        )  # fmt: skip
        yield transport.events
        sentry_sdk.init()


async def refuse(command: Command, ctx: HandlerContext) -> None:
    local = command.data["password"]
    logging.getLogger("shop").warning("asking with %s", local)
    try:
        raise KeyError(local)
    except KeyError as error:
        raise RuntimeError(f"the bank refused {local}") from error


async def run(handler: Any, *middleware: Middleware, **options: Any) -> CommandBus:
    bus = fake_bus(middleware=middleware, retry_policy=RetryPolicy(max_attempts=3))
    bus.register_handler("shop", "Work", handler)
    await bus.send("shop", "Work", uuid4(), PAYLOAD, **options)
    await run_until_idle(bus, skip_waits=True)
    await bus.close()
    return bus


async def test_a_command_that_failed_three_times_is_one_event_without_its_payload(
    recorded: list[Any],
) -> None:
    await run(refuse, Sentry())

    (event,) = recorded
    text = json.dumps(event, default=str)
    assert SECRET not in text
    assert PAYLOAD["note"] not in text
    assert '"vars"' not in text
    assert event["fingerprint"] == ["commandbus", "shop", "Work", "TRANSIENT", "RuntimeError"]
    tags = {name.removeprefix("commandbus."): value for name, value in event["tags"].items()}
    assert tags == {
        "domain": "shop", "command_type": "Work", "attempt": "3", "outcome": "parked",
        "error_code": "RuntimeError",
    }  # fmt: skip
    assert event["transaction"] == "shop/Work"
    values = event["exception"]["values"]
    assert [each["type"] for each in values] == ["KeyError", "RuntimeError"]
    assert values[1]["value"].startswith("the bank refused ")
    assert values[1]["stacktrace"]["frames"][-1]["function"] == "refuse"
    crumbs = [each["message"] for each in event["breadcrumbs"]["values"]]
    assert len(crumbs) == 1  # of this attempt only, and nothing that the worker logs
    assert crumbs[0].startswith("asking with ")


@pytest.mark.parametrize(("report", "count"), [("all", 3), ("none", 0)])
async def test_each_attempt_or_none_is_reported_if_that_is_wanted(
    recorded: list[Any], report: Any, count: int
) -> None:
    await run(refuse, Sentry(report))
    assert len(recorded) == count


async def test_a_def_handler_reports_by_itself_with_the_tags_of_its_command(
    recorded: list[Any],
) -> None:
    def work(command: Command, ctx: HandlerContext) -> None:
        sentry_sdk.capture_message("strange")

    await run(work, Sentry())
    sentry_sdk.capture_message("outside")
    inside, outside = recorded
    assert inside["tags"]["commandbus.command_type"] == "Work"
    assert "tags" not in outside


async def test_what_a_handler_reported_itself_is_not_reported_again(recorded: list[Any]) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        try:
            raise PermissionError("no")
        except PermissionError as error:
            if ctx.attempt == 3:
                sentry_sdk.capture_exception(error)
            raise

    await run(work, Sentry())
    assert len(recorded) == 1


async def test_the_trace_of_the_sender_goes_on_in_the_handler(recorded: list[Any]) -> None:
    (sender,) = [
        value
        for name, value in sentry_sdk.get_current_scope().iter_trace_propagation_headers()
        if name == "sentry-trace"
    ]
    await run(refuse, Sentry())
    assert recorded[0]["contexts"]["trace"]["trace_id"] == sender.partition("-")[0]


async def test_a_trace_that_is_there_or_has_no_room_stays_away(recorded: list[Any]) -> None:
    seen: list[dict[str, str]] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        seen.append(ctx.meta)

    own = {"sentry-trace": f"{'a' * 32}-{'b' * 16}-1", "baggage": "a=b"}
    full = {f"key{number}": "x" for number in range(20)}
    await run(work, Sentry(), meta=own)
    await run(work, Sentry(), meta=full)
    assert seen == [own, full]


async def test_a_handler_that_never_ended_is_reported_by_its_message(
    recorded: list[Any], make_call: Callable[[], Any]
) -> None:
    sentry, call = Sentry(), make_call()

    async def nothing() -> None:
        pass

    await sentry.handle(call, nothing)
    outcome = CallOutcome("parked", "TRANSIENT", "HANDLER_TIMEOUT", "it ran too long")
    sentry.on_outcome(call, outcome, None)
    sentry.on_outcome(call, outcome, None)  # it has been told
    (event,) = recorded
    assert event["message"] == "HANDLER_TIMEOUT: it ran too long"
    assert PAYLOAD["note"] not in json.dumps(event, default=str)


@pytest.fixture
async def make_call() -> Callable[[], Any]:
    found: list[Call] = []

    class Keep(Middleware):
        def on_outcome(self, call: Call, outcome: CallOutcome, error: Any) -> None:
            found.append(call)

    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    await run(work, Keep())
    return found.pop


async def test_a_sentry_that_fails_fails_no_command_and_warns_once(
    recorded: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise OSError("the relay is gone")

    done: list[int] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        done.append(1)

    stand_in = SimpleNamespace(isolation_scope=broken, get_current_scope=broken)
    monkeypatch.setattr("commandbus.middleware.sentry.sentry_sdk", stand_in)
    await run(work, Sentry())
    assert done == [1]
    warned = [each for each in caplog.records if each.name == "commandbus.middleware"]
    assert len(warned) == 1
    assert recorded == []


def test_a_report_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="final, all, none"):
        Sentry("some")  # type: ignore[arg-type]
