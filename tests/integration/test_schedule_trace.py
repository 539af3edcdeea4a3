"""Traces and schedules: each tick begins a trace, unless the schedule says otherwise."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from psycopg import AsyncConnection

from commandbus import Command, CommandBus, CommandStatus, HandlerContext
from commandbus.middleware.opentelemetry import OpenTelemetry
from commandbus.schedules import Schedule
from tests.integration.test_schedules import DOMAIN, events, fire, sent, set_back
from tests.waiting import until_status, working

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("given", [None, GIVEN])
async def test_a_tick_begins_a_trace_unless_its_schedule_has_one(
    dsn: str, conn: AsyncConnection, given: str | None
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    meta = None if given is None else {"traceparent": given}
    async with CommandBus.connect(dsn, middleware=[OpenTelemetry(tracer_provider=provider)]) as bus:

        @bus.handler(DOMAIN, "Build")
        async def build(command: Command, ctx: HandlerContext) -> None:
            pass

        async def put() -> tuple[Schedule, int]:
            with provider.get_tracer("test").start_as_current_span("put") as span:
                made = await bus.schedules.put(DOMAIN, "x", "Build", {}, every=3600, meta=meta)
            return made, span.get_span_context().trace_id

        (made, one), (_, other) = await put(), await put()  # as a program does at each start
        assert [name for name, _ in await events(bus, made)] == ["SCHEDULE_PUT"]
        await set_back(conn, "x", 60)
        await fire(bus)
        (command_id,) = await sent(bus, made)
        async with working(bus, DOMAIN):
            await until_status(bus, DOMAIN, command_id, CommandStatus.COMPLETED)

    (handled,) = [
        each for each in exporter.get_finished_spans() if each.name == f"process {DOMAIN}"
    ]
    assert trace_of(handled) not in {f"{one:032x}", f"{other:032x}"}
    if given is None:
        assert handled.parent is None
        assert handled.links == ()
    else:
        assert trace_of(handled) == given[3:35]
        assert len(handled.links) == 1


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"
