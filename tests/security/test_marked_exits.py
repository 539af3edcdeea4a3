"""Secrets that a user marked, through every exit of a worker: they are found nowhere.

The handler does what careless code does: it logs them, has them in variables, in the text of an
error and of its cause, and the worker reports to all that there is.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import psycopg
import pytest
import sentry_sdk
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from psycopg import sql
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from commandbus import (
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    RetryPolicy,
    Secret,
    Settings,
    new_id,
)
from commandbus.logging import CommandContextFilter, JsonFormatter, TextFormatter
from commandbus.middleware.opentelemetry import OpenTelemetry
from commandbus.middleware.sentry import Sentry
from tests.canaries import assert_hidden, new_canary
from tests.waiting import until_status, working

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
log = logging.getLogger("bank.handlers")


@dataclass
class Account:
    iban: Annotated[str, Secret]
    note: str = ""


class Everything(Transport):
    """Keeps what would be sent to Sentry: events, transactions, logs."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent.append(envelope.serialize().decode(errors="replace"))
        if (event := envelope.get_event()) is not None:
            self.events.append(event)


@pytest.fixture
def sentry() -> Iterator[Everything]:
    transport = Everything()
    with sentry_sdk.isolation_scope(), sentry_sdk.new_scope():
        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1", transport=transport, attach_stacktrace=True,
            include_local_variables=True, traces_sample_rate=1.0, include_source_context=False,
            auto_enabling_integrations=False,
        )  # fmt: skip
        yield transport
        sentry_sdk.init()


@pytest.fixture
def written() -> Iterator[dict[str, io.StringIO]]:
    """All logs at DEBUG, as text and as JSON."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.DEBUG)
    kept: dict[str, io.StringIO] = {}
    added = []
    for name, formatter in {"text": TextFormatter(), "json": JsonFormatter()}.items():
        handler = logging.StreamHandler(kept.setdefault(name, io.StringIO()))
        handler.setFormatter(formatter)
        handler.addFilter(CommandContextFilter())
        root.addHandler(handler)
        added.append(handler)
    yield kept
    for handler in added:
        root.removeHandler(handler)
    root.setLevel(level)


def careless(command: Command, ctx: HandlerContext) -> None:
    iban = command.data["iban"]
    log.info("booking for %s", iban)
    log.error("no such account: %s", iban, extra={"account": iban, "all": command.data})
    try:
        raise KeyError(iban)
    except KeyError as error:
        log.exception("not found")
        raise RuntimeError(f"the bank refused {iban} with {command.data!r}") from error


async def test_secrets_that_a_user_marked_are_found_at_no_exit(
    dsn: str,
    conn: psycopg.AsyncConnection[Any],
    sentry: Everything,
    written: dict[str, io.StringIO],
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    middleware = [OpenTelemetry(record_receive=True, tracer_provider=provider), Sentry("all")]
    policy = RetryPolicy(max_attempts=2, backoff_schedule=(0,))
    async with CommandBus.connect(dsn, settings=Settings(), middleware=middleware) as bus:
        monitor = bus.monitor()

        async def on_loop(command: Command, ctx: HandlerContext) -> None:
            await asyncio.sleep(0)
            careless(command, ctx)

        bus.register_handler("bank", "Thread", careless, payload_type=Account, retry_policy=policy)
        bus.register_handler("bank", "Loop", on_loop, payload_type=Account, retry_policy=policy)
        ids = [
            await bus.send("bank", kind, new_id(), {"iban": new_canary(kind), "note": "seen"})
            for kind in ("Thread", "Loop")
        ]
        async with working(bus, "bank"):
            for each in ids:
                await until_status(bus, "bank", each, PARKED)
        shown = [
            repr((await bus.get_audit_trail("bank", each), await bus.get_command("bank", each)))
            for each in ids
        ]
        metrics = monitor.metrics.text().decode()
    sentry_sdk.flush()

    # Each exit was used, or nothing would be shown by its silence.
    text, lines = written["text"].getvalue(), written["json"].getvalue()
    assert text.count("booking for") == lines.count("booking for") == 4
    assert {json.loads(line)["level"] for line in lines.splitlines()} >= {"INFO", "ERROR"}
    assert len(sentry.events) >= 4
    assert "the bank refused" in str(sentry.events)
    spans = [each.to_json() for each in exporter.get_finished_spans()]
    assert sum('"process bank"' in each for each in spans) == 4
    assert any("the bank refused" in each for each in spans)
    assert "RuntimeError" in metrics
    assert "careless" in "".join(shown)  # the stack

    assert_hidden(text, "the log")
    assert_hidden(lines, "the log in JSON")
    assert_hidden("".join(shown), "the audit, the item or the command")
    assert_hidden("".join(spans), "a span")
    assert_hidden(metrics, "the metrics")
    for envelope in sentry.sent:
        assert_hidden(envelope, "what Sentry was sent")
    for table in ("command", "audit", "troubleshooting", "failure_group"):
        name = sql.Identifier("commandbus", f"command_bus_{table}")
        rows = await conn.execute(sql.SQL("select t::text from {} t").format(name))
        assert_hidden(str(await rows.fetchall()), table)
