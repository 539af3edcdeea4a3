"""OpenTelemetry with the instrumentation of the driver: one trace, and no span for polling."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from commandbus import Command, CommandBus, HandlerContext, RetryPolicy, Settings, new_id
from commandbus.database.own_connections import OurBlockingConnection, OurConnection
from commandbus.middleware.opentelemetry import OpenTelemetry
from tests.waiting import until_status, working

instrumentation = pytest.importorskip("opentelemetry.instrumentation.psycopg")

#: As the classes have them.
CONNECTS = {kind: vars(kind)["connect"] for kind in (psycopg.Connection, psycopg.AsyncConnection)}
SOON = RetryPolicy(max_attempts=3, backoff_schedule=(0,))
COMMANDS = 10


class Traced:
    """Spans of the bus and of the driver, in one place."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    driver = instrumentation.PsycopgInstrumentor()
    driver.instrument(tracer_provider=made.provider, skip_dep_check=True)
    yield made
    driver.uninstrument()
    for kind, connect in CONNECTS.items():
        # It leaves a method of this class there, which makes connections of no other class.
        kind.connect = connect  # type: ignore[method-assign]


@pytest.fixture
async def watched(dsn: str, traced: Traced) -> AsyncIterator[CommandBus]:
    settings = Settings(poll_max_seconds=0.05)
    middleware = [OpenTelemetry(tracer_provider=traced.provider)]
    async with CommandBus.connect(dsn, settings=settings, middleware=middleware) as bus:
        yield bus


def statement_of(span: ReadableSpan) -> str:
    return str((span.attributes or {}).get("db.statement", ""))


async def test_a_send_a_retry_and_the_handlers_own_statements_are_one_trace(
    dsn: str, watched: CommandBus, traced: Traced
) -> None:
    @watched.handler("shop", "Work", retry_policy=SOON)
    async def work(command: Command, ctx: HandlerContext) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as own:
            await own.execute("select 'by the handler'")
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    @watched.handler("shop", "Wait", transactional=True)
    def wait(command: Command, ctx: HandlerContext) -> None:
        ctx.conn.execute("select 'in a thread'")

    sent: list[UUID] = []
    requests: dict[int, Any] = {}
    async with working(watched, "shop", use_notify=False):
        for number in range(COMMANDS):
            kind = "Wait" if number % 2 else "Work"
            with traced.tracer.start_as_current_span("request") as request:
                async with await psycopg.AsyncConnection.connect(dsn) as conn:
                    await conn.execute("select 'by the request'")
                    sent.append(await watched.send("shop", kind, new_id(), {}, conn=conn))
            requests[request.get_span_context().trace_id] = kind
            # Each is waited for, so the worker polls an empty queue in between.
            await until_status(watched, "shop", sent[-1], "COMPLETED")

    in_traces = [each for each in traced.spans if each.context.trace_id in requests]
    for trace_id, kind in requests.items():
        own = [each for each in in_traces if each.context.trace_id == trace_id]
        names = [each.name for each in own]
        assert names.count("process shop") == (2 if kind == "Work" else 1), names
        assert names.count("send shop") == 1
        said = [text for each in own if (text := statement_of(each))]
        assert sum("by the request" in text for text in said) == 1
        if kind == "Work":
            assert sum("by the handler" in text for text in said) == 2
            process = {each.context.span_id for each in own if each.name == "process shop"}
            (first, *_) = [each for each in own if "by the handler" in statement_of(each)]
            assert first.parent is not None
            assert first.parent.span_id in process
    # The statements of the test itself, which looks at its commands outside of any request, are not
    # the worker's. What remains must not be: receives, settlements, heartbeats, leases.
    others = [each for each in traced.spans if each.context.trace_id not in requests]
    by_worker = [
        text for each in others
        if any(word in (text := statement_of(each))
               for word in ("receive_", "settle", "heartbeat", "extend", "poll", "pg_notify"))
    ]  # fmt: skip
    assert by_worker == []
    assert {each.name for each in others} <= {"SELECT", "select", "SET", "set", ""}, others


async def test_connections_are_ours_after_an_instrumentation_was_taken_back(
    dsn: str, traced: Traced
) -> None:
    instrumentation.PsycopgInstrumentor().uninstrument()
    async with await OurConnection.connect(dsn) as conn:
        assert isinstance(conn, OurConnection)  # else no watch could look at it
        assert await (await conn.execute("select 1")).fetchone() == (1,)
    with OurBlockingConnection.connect(dsn) as blocking:
        assert isinstance(blocking, OurBlockingConnection)
