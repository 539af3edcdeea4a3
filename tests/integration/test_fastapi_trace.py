"""One trace from a request to the last command: FastAPI, the bus, a handler, what that sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from fastapi import FastAPI, Request, Response
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from commandbus import Command, HandlerContext, Handlers, new_id
from commandbus.fastapi import BusDep, bus_lifespan
from commandbus.middleware.opentelemetry import OpenTelemetry
from tests.integration.test_fastapi_kit import running
from tests.waiting import until

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def shop(seen: list[str]) -> Handlers:
    handlers = Handlers("shop")

    @handlers.handle("Order")
    async def order(command: Command, ctx: HandlerContext) -> None:
        seen.append("order")
        ctx.send("shop", "Pack", new_id(), {})

    @handlers.handle("Pack")
    async def pack(command: Command, ctx: HandlerContext) -> None:
        seen.append("pack")

    return handlers


def traced_site(dsn: str, provider: TracerProvider, seen: list[str]) -> FastAPI:
    """An application whose requests have a span, as the instrumentation of FastAPI gives them."""

    around = [OpenTelemetry(tracer_provider=provider)]
    lifespan = bus_lifespan(dsn, handlers=shop(seen), workers=["shop"], middleware=around)
    app = FastAPI(lifespan=lifespan)

    @app.middleware("http")
    async def request_span(
        request: Request, proceed: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        context = propagate.extract(request.headers)
        with provider.get_tracer("site").start_as_current_span(
            f"{request.method} {request.url.path}", context=context, kind=SpanKind.SERVER
        ):
            return await proceed(request)

    @app.post("/orders")
    async def order(bus: BusDep) -> UUID:
        return await bus.send("shop", "Order", new_id(), {})

    return app


async def test_a_request_and_all_that_it_leads_to_are_one_trace(dsn: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen: list[str] = []

    async def is_packed() -> bool:
        names = [each.name for each in exporter.get_finished_spans()]
        return seen == ["order", "pack"] and names.count("process shop") == 2

    async with running(traced_site(dsn, provider, seen)) as client:
        answer = await client.post("/orders", headers={"traceparent": CALLER})
        assert answer.status_code == 200, answer.text
        await until(is_packed, "both handlers")

    spans = exporter.get_finished_spans()
    assert {format(each.context.trace_id, "032x") for each in spans} == {CALLER[3:35]}
    assert path_to(spans, last_of(spans)) == [
        "POST /orders", "send shop", "process shop", "send shop", "process shop",
    ]  # fmt: skip
    assert len(spans) == 5  # nothing of the worker's own work
    assert not trace.get_current_span().is_recording()


def last_of(spans: tuple[ReadableSpan, ...]) -> ReadableSpan:
    return next(
        each for each in spans if (each.attributes or {}).get("commandbus.command_type") == "Pack"
        and each.kind is SpanKind.CONSUMER
    )  # fmt: skip


def path_to(spans: tuple[ReadableSpan, ...], span: ReadableSpan) -> list[str]:
    """The names from the root to a span."""
    by_id = {each.context.span_id: each for each in spans}
    names = [span.name]
    while span.parent is not None and span.parent.span_id in by_id:
        span = by_id[span.parent.span_id]
        names.insert(0, span.name)
    return names
