"""What travels of a trace of Sentry: little, unless it is recorded; events name all of it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.scope import Scope
from sentry_sdk.transport import Transport

from commandbus import Command, HandlerContext, PermanentCommandError
from commandbus.middleware.sentry import Sentry
from commandbus.middleware.sentry_traces import travelling
from commandbus.testing import fake_bus, run_until_idle

DSN = "https://key@sentry.invalid/1"
IDS = f"{'a' * 32}-{'b' * 16}"
WHOLE = f"sentry-trace_id={'a' * 32},sentry-environment=production,sentry-public_key=key"


class Recording(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__({"dsn": DSN, "org_id": None})
        self.envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if envelope.get_event() is not None:
            self.envelopes.append(envelope)


@pytest.fixture
def recorded() -> Iterator[Recording]:
    transport = Recording()
    with sentry_sdk.isolation_scope(), sentry_sdk.new_scope():
        sentry_sdk.init(
            dsn=DSN, transport=transport,
            auto_enabling_integrations=False, release="test", environment="worker",
        )  # fmt: skip
        yield transport
        sentry_sdk.init()


async def refuse(command: Command, ctx: HandlerContext) -> None:
    raise PermanentCommandError("BROKEN", "no")


async def trace_header(transport: Recording, **meta: str) -> dict[str, Any]:
    """What the event of a failed command says of its trace."""
    bus = fake_bus(middleware=[Sentry()])
    bus.register_handler("shop", "Work", refuse)
    await bus.send("shop", "Work", uuid4(), {}, meta=meta or None)
    await run_until_idle(bus)
    await bus.close()
    header: dict[str, Any] = transport.envelopes[-1].headers["trace"]
    return header


@pytest.mark.parametrize(
    ("end", "baggage", "expected"),
    [
        ("-1", WHOLE, WHOLE),
        ("-0", WHOLE, None),
        ("", WHOLE, None),
        ("", f"tenant=north, {WHOLE},sentry-org_id=7", "tenant=north,sentry-org_id=7"),
        ("-0", f"{WHOLE},sentry-sample_rand=0.5", "sentry-sample_rand=0.5"),
        ("-0", None, None),
        ("-0", "tenant=north", "tenant=north"),
    ],
)
def test_the_baggage_of_a_trace_travels_whole_only_if_it_is_recorded(
    end: str, baggage: str | None, expected: str | None
) -> None:
    given = {"sentry-trace": IDS + end} | ({} if baggage is None else {"baggage": baggage})
    found = travelling(given)
    assert found["sentry-trace"] == IDS + end
    assert found.get("baggage") == expected


def test_headers_without_a_trace_of_sentry_travel_as_they_are() -> None:
    assert travelling({"baggage": WHOLE}) == {"baggage": WHOLE}
    assert travelling({}) == {}


async def test_an_event_names_the_whole_trace_although_little_of_it_has_travelled(
    recorded: Recording,
) -> None:
    for baggage in ({}, {"baggage": "sentry-org_id=7,sentry-sample_rand=0.25"}):
        header = await trace_header(recorded, **{"sentry-trace": f"{IDS}-0", **baggage})
        assert header["trace_id"] == "a" * 32
        assert header["public_key"] == "key"
        assert header["environment"] == "worker"
        event = recorded.envelopes[-1].get_event()
        assert event is not None
        assert event["contexts"]["trace"]["trace_id"] == "a" * 32


async def test_an_event_of_a_recorded_trace_says_what_has_travelled(recorded: Recording) -> None:
    header = await trace_header(recorded, **{"sentry-trace": f"{IDS}-1", "baggage": WHOLE})
    assert header["environment"] == "production"
    assert header["trace_id"] == "a" * 32


async def test_a_sender_s_trace_that_nobody_decided_on_goes_on_in_the_event(
    recorded: Recording,
) -> None:
    header = await trace_header(recorded)
    sent = sentry_sdk.get_isolation_scope().get_active_propagation_context()
    assert header["trace_id"] == sent.trace_id


async def test_where_the_application_has_no_scope_yet_no_command_makes_one(
    recorded: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Scope] = []
    plain = Scope.__init__

    def counted(self: Scope, *args: Any, **options: Any) -> None:
        made.append(self)
        plain(self, *args, **options)

    async def work(command: Command, ctx: HandlerContext) -> None:
        """Nothing."""

    async def commands(count: int) -> int:
        bus = fake_bus(middleware=[Sentry()])
        bus.register_handler("shop", "Work", work)
        for _ in range(count):  # each in a task, or a send would leave its scopes here
            await asyncio.create_task(bus.send("shop", "Work", uuid4(), {}))
        before = len(made)
        await run_until_idle(bus)
        await bus.close()
        return len(made) - before

    monkeypatch.setattr(Scope, "__init__", counted)
    # As a thread begins, and a task of a server that has not looked at Sentry before.
    for name in ("_isolation_scope", "_current_scope"):
        variable: contextvars.ContextVar[Any] = getattr(sentry_sdk.scope, name)
        token = variable.set(None)
        try:
            assert await commands(30) <= await commands(1) + 2
        finally:
            variable.reset(token)
