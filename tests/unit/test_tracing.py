"""OpenTelemetry: one trace for one command, links for many, and names from the conventions."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
)
from commandbus.errors import InvalidSettingError
from commandbus.middleware.guarding import Guard
from commandbus.middleware.opentelemetry import OpenTelemetry
from commandbus.middleware.travelling import LINKED
from commandbus.testing import fake_bus, run_until_idle, store_of

SECRET = "hunter-two-4711"


class Traced:
    """A bus whose spans are kept."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        telemetry = OpenTelemetry(**options, tracer_provider=self.provider)
        self.bus: CommandBus = fake_bus(
            middleware=[telemetry], retry_policy=RetryPolicy(max_attempts=3)
        )

    def spans(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.exporter.get_finished_spans() if each.name == name]


@pytest.fixture
def traced() -> Traced:
    return Traced()


async def test_send_retry_handler_nested_send_and_reply_are_one_tree(traced: Traced) -> None:
    bus = traced.bus

    async def work(command: Command, ctx: HandlerContext) -> None:
        if ctx.attempt == 1:
            raise RuntimeError(f"no {command.data['password']}")
        ctx.send("mail", "Tell", uuid4(), {})

    async def tell(command: Command, ctx: HandlerContext) -> None:
        pass

    bus.register_handler("shop", "Work", work)
    bus.register_handler("mail", "Tell", tell)
    with traced.tracer.start_as_current_span("request") as request:
        sent = await bus.send("shop", "Work", uuid4(), {"password": SECRET})
    await run_until_idle(bus, skip_waits=True)
    (reply,) = [each async for each in bus.replies("shop", wait=False)]
    await bus.close()

    (send,) = traced.spans("send shop")
    first, second = traced.spans("process shop")
    (nested,) = traced.spans("send mail")
    (told,) = traced.spans("process mail")
    parents = {
        each: each.parent and each.parent.span_id for each in (send, first, second, nested, told)
    }
    assert parents == {
        send: request.get_span_context().span_id, first: send.context.span_id,
        second: send.context.span_id, nested: second.context.span_id,
        told: nested.context.span_id,
    }  # fmt: skip
    assert {each.context.trace_id for each in parents} == {request.get_span_context().trace_id}
    assert [link.context.span_id for link in first.links] == [send.context.span_id]
    answered = trace.get_current_span(propagate.extract(reply.meta or {})).get_span_context()
    assert answered.span_id == second.context.span_id

    assert dict(first.attributes or {}) == {
        conventions.MESSAGING_SYSTEM: "pgmq",
        conventions.MESSAGING_OPERATION_NAME: "process",
        conventions.MESSAGING_OPERATION_TYPE: (
            conventions.MessagingOperationTypeValues.PROCESS.value
        ),
        conventions.MESSAGING_DESTINATION_NAME: "shop",
        conventions.MESSAGING_MESSAGE_ID: str(sent),
        conventions.MESSAGING_MESSAGE_CONVERSATION_ID: str(reply.correlation_id),
        "commandbus.command_type": "Work", "commandbus.attempt": 1,
        "commandbus.outcome": "retried", "commandbus.error_code": "RuntimeError",
        ERROR_TYPE: "RuntimeError",
    }  # fmt: skip
    assert (send.kind, first.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert not first.status.is_ok
    assert (second.attributes or {})["commandbus.outcome"] == "completed"
    for span in traced.exporter.get_finished_spans():
        assert SECRET not in span.to_json()


async def test_a_batch_of_1000_links_to_its_creation(traced: Traced) -> None:
    bus = traced.bus

    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    bus.register_handler("shop", "Work", work)
    await bus.create_batch("shop", [BatchCommand("Work", uuid4(), {}) for _ in range(1_000)])
    await bus.send_many("shop", [BatchCommand("Work", uuid4(), {})])
    await run_until_idle(bus, timeout=60)
    await bus.close()

    batch, many = traced.spans("send shop")
    assert (batch.attributes or {})[conventions.MESSAGING_BATCH_MESSAGE_COUNT] == 1_000
    handled = traced.spans("process shop")
    assert len(handled) == 1_001
    links = [each.links[0].context.span_id for each in handled]
    assert links.count(batch.context.span_id) == 1_000
    assert links.count(many.context.span_id) == 1
    assert {each.parent for each in handled} == {None}
    assert len({each.context.trace_id for each in handled}) == 1_001


@pytest.mark.parametrize("relation", ["parent", "link"])
async def test_the_relation_can_be_chosen(relation: Any) -> None:
    traced = Traced(relation=relation)

    async def work(command: Command, ctx: HandlerContext) -> None:
        assert ctx.meta.get(LINKED) == ("1" if command.data["many"] else None)

    traced.bus.register_handler("shop", "Work", work)
    await traced.bus.send("shop", "Work", uuid4(), {"many": False})
    await traced.bus.send_many("shop", [BatchCommand("Work", uuid4(), {"many": True})])
    await run_until_idle(traced.bus)
    await traced.bus.close()
    handled = traced.spans("process shop")
    assert [each.parent is None for each in handled] == [relation == "link"] * 2


async def test_a_send_that_is_refused_ends_its_span_as_failed(traced: Traced) -> None:
    sent = await traced.bus.send("shop", "Work", uuid4(), {})
    with pytest.raises(Exception, match="already"):
        await traced.bus.send("shop", "Work", sent, {})
    await traced.bus.close()
    good, bad = traced.spans("send shop")
    assert good.status.status_code is trace.StatusCode.UNSET
    assert (bad.attributes or {})[ERROR_TYPE] == "DuplicateCommandError"


async def test_baggage_that_does_not_fit_is_left_out_and_the_trace_is_not(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    token = context.attach(baggage.set_baggage("big", "x" * 3_000))
    try:
        sent = await traced.bus.send("shop", "Work", uuid4(), {})
    finally:
        context.detach(token)
    meta = await traced.bus.search.meta("shop", sent)
    await traced.bus.close()
    assert meta is not None
    assert "traceparent" in meta
    assert "baggage" not in meta
    assert "baggage of the trace does not fit" in caplog.text


async def test_a_tracer_that_fails_fails_no_command_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(trace.NoOpTracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            class Tracer(trace.NoOpTracer):
                def start_span(self, *args: Any, **kwargs: Any) -> Any:
                    raise RuntimeError("the collector is gone")

            return Tracer()

    bus = fake_bus(middleware=[OpenTelemetry(tracer_provider=Broken())])
    ran: list[int] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        ran.append(1)

    bus.register_handler("shop", "Work", work)
    with caplog.at_level(logging.WARNING, "commandbus.middleware"):
        await bus.send("shop", "Work", uuid4(), {})
        await bus.send("shop", "Work", uuid4(), {})
        await run_until_idle(bus)
    await bus.close()
    assert ran == [1, 1]
    assert len([each for each in caplog.records if "OpenTelemetry" in each.getMessage()]) == 1


def test_a_guard_warns_again_after_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("commandbus.middleware.guarding.time.monotonic", lambda: now[0])
    guard = Guard("Test")
    for seconds in (0, 30, 31):
        now[0] += seconds
        with guard:
            raise ValueError(SECRET)
    assert len(caplog.records) == 2
    assert SECRET not in caplog.text


def test_a_guard_lets_pass_what_ends_a_task() -> None:
    with pytest.raises(KeyboardInterrupt), Guard("Test"):
        raise KeyboardInterrupt


def test_a_relation_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="auto, parent, link"):
        OpenTelemetry("child")  # type: ignore[arg-type]


async def test_an_operators_retry_keeps_the_parent_and_the_link(traced: Traced) -> None:
    bus = traced.bus

    async def work(command: Command, ctx: HandlerContext) -> None:
        if not is_mended:
            raise PermanentCommandError("BROKEN", "not yet")

    is_mended = False
    bus.register_handler("shop", "Work", work)
    sent = await bus.send("shop", "Work", uuid4(), {})
    await run_until_idle(bus)
    is_mended = True
    await bus.operator_retry("shop", sent)
    await run_until_idle(bus)
    await bus.close()

    (send,) = traced.spans("send shop")
    handled = traced.spans("process shop")
    assert [(each.attributes or {})["commandbus.outcome"] for each in handled] == [
        "parked", "completed",
    ]  # fmt: skip
    for each in handled:
        assert each.parent is not None
        assert each.parent.span_id == send.context.span_id
        assert [link.context.span_id for link in each.links] == [send.context.span_id]


async def test_a_def_handler_and_its_sends_are_in_the_trace_from_their_thread(
    traced: Traced,
) -> None:
    def work(command: Command, ctx: HandlerContext) -> None:
        with traced.tracer.start_as_current_span("inside"):
            ctx.send("mail", "Tell", uuid4(), {})

    traced.bus.register_handler("shop", "Work", work)
    await traced.bus.send("shop", "Work", uuid4(), {})
    await run_until_idle(traced.bus)
    await traced.bus.close()
    (handled,), (inside,), (nested,) = map(traced.spans, ("process shop", "inside", "send mail"))
    assert inside.parent is not None
    assert nested.parent is not None
    assert inside.parent.span_id == handled.context.span_id
    assert nested.parent.span_id == inside.context.span_id


async def test_only_the_worker_itself_is_kept_from_instrumentations(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[Any]] = {"receive": set(), "handler": set(), "caller": set()}
    store = store_of(traced.bus)
    receive = store.receive

    def note(where: str) -> None:
        seen[where].add(context.get_value("suppress_instrumentation"))

    async def receiving(*args: Any, **options: Any) -> Any:
        note("receive")
        return await receive(*args, **options)

    async def work(command: Command, ctx: HandlerContext) -> None:
        note("handler")

    monkeypatch.setattr(store, "receive", receiving)
    traced.bus.register_handler("shop", "Work", work)
    await traced.bus.send("shop", "Work", uuid4(), {})
    with traced.tracer.start_as_current_span("what starts the worker"):
        await traced.bus.run_worker("shop", until_empty=True)
        note("caller")
    await traced.bus.close()
    assert seen == {"receive": {True}, "handler": {None}, "caller": {None}}
    (send,), (handled,) = map(traced.spans, ("send shop", "process shop"))
    assert handled.context.trace_id == send.context.trace_id
    assert traced.spans("receive shop") == []


async def test_receives_are_spans_if_that_is_wanted_and_only_those_that_brought_something() -> None:
    traced = Traced(record_receive=True)

    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    traced.bus.register_handler("shop", "Work", work)
    await traced.bus.send("shop", "Work", uuid4(), {})
    await traced.bus.send("shop", "Work", uuid4(), {})
    await traced.bus.run_worker("shop", until_empty=True)
    await traced.bus.close()
    received = traced.spans("receive shop")
    links = {link.context.span_id for each in received for link in each.links}
    assert links == {each.context.span_id for each in traced.spans("send shop")}
    counts = [
        (each.attributes or {})[conventions.MESSAGING_BATCH_MESSAGE_COUNT] for each in received
    ]
    assert sum(int(str(each)) for each in counts) == 2
    assert {each.kind for each in received} == {trace.SpanKind.CLIENT}
    assert all(each.start_time and each.end_time and each.start_time < each.end_time
               for each in received)  # fmt: skip


async def test_a_generator_is_counted_when_it_has_been_sent(traced: Traced) -> None:
    await traced.bus.send_many("shop", (BatchCommand("Work", uuid4(), {}) for _ in range(7)))
    await traced.bus.close()
    (send,) = traced.spans("send shop")
    assert (send.attributes or {})[conventions.MESSAGING_BATCH_MESSAGE_COUNT] == 7


async def test_what_a_sender_says_of_its_trace_itself_stays_and_other_meta_is_joined(
    traced: Traced,
) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    said = await traced.bus.send("shop", "Work", uuid4(), {}, meta={"traceparent": own})
    other = await traced.bus.send("shop", "Work", uuid4(), {}, meta={"tenant": "north"})
    full = {f"key{number}": "x" for number in range(20)}
    no_room = await traced.bus.send("shop", "Work", uuid4(), {}, meta=full)
    metas = [await traced.bus.search.meta("shop", each) for each in (said, other, no_room)]
    await traced.bus.close()
    assert metas[0] == {"traceparent": own}
    assert metas[1] is not None
    assert set(metas[1]) == {"tenant", "traceparent"}
    assert metas[2] == full


async def test_baggage_with_the_name_of_a_secret_does_not_travel(traced: Traced) -> None:
    token = context.attach(baggage.set_baggage("password", SECRET))
    try:
        sent = await traced.bus.send("shop", "Work", uuid4(), {})
    finally:
        context.detach(token)
    meta = await traced.bus.search.meta("shop", sent)
    await traced.bus.close()
    assert meta is not None
    assert set(meta) == {"traceparent"}


async def test_a_handler_may_fill_the_meta_of_its_reply(traced: Traced) -> None:
    full = {f"key{number}": "x" for number in range(20)}

    async def work(command: Command, ctx: HandlerContext) -> None:
        ctx.add_reply_meta(full)

    traced.bus.register_handler("shop", "Work", work)
    await traced.bus.send("shop", "Work", uuid4(), {})
    await run_until_idle(traced.bus)
    (reply,) = [each async for each in traced.bus.replies("shop", wait=False)]
    await traced.bus.close()
    assert reply.meta == full
    (handled,) = traced.spans("process shop")
    assert (handled.attributes or {})["commandbus.outcome"] == "completed"


async def test_without_a_tracer_of_the_application_commands_carry_nothing() -> None:
    bus = fake_bus(middleware=[OpenTelemetry(tracer_provider=trace.NoOpTracerProvider())])

    async def work(command: Command, ctx: HandlerContext) -> None:
        assert ctx.meta == {}

    bus.register_handler("shop", "Work", work)
    sent = await bus.send("shop", "Work", uuid4(), {})
    await run_until_idle(bus)
    assert await bus.search.meta("shop", sent) is None
    (reply,) = [each async for each in bus.replies("shop", wait=False)]
    await bus.close()
    assert reply.outcome == "SUCCESS"
    assert reply.meta is None
