"""OpenTelemetry with a sampler: what is dropped costs little, and everything else is as without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from commandbus import BatchCommand, Command, CommandBus, HandlerContext, PermanentCommandError
from commandbus.middleware.opentelemetry import OpenTelemetry
from commandbus.middleware.sampling import DroppedContext, Sampling
from commandbus.middleware.travelling import Sent, sent_with
from commandbus.testing import fake_bus, run_until_idle

RATIO = 0.25
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
SAMPLED = UNSAMPLED[:-2] + "01"


def sent_of(traceparent: str = UNSAMPLED) -> Sent:
    """What a message brought."""
    return sent_with(propagate.get_global_textmap(), f'{{"traceparent": "{traceparent}"}}')


class Counting(RandomIdGenerator):
    """Traces in turn: of four, the first is below the bound of a quarter."""

    def __init__(self) -> None:
        self.made = 0

    def generate_trace_id(self) -> int:
        self.made += 1
        low = (1 << 62) - 1 if self.made % 4 == 1 else (1 << 64) - 1
        return (self.made << 64) | low


class Traced:
    """A bus whose spans are kept, as far as the sampler lets them."""

    def __init__(self, sampler: Sampler, ids: RandomIdGenerator | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, id_generator=ids)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider = provider
        self.seen: list[trace.SpanContext] = []
        self.bus: CommandBus = fake_bus(middleware=[OpenTelemetry(tracer_provider=provider)])

        async def work(command: Command, ctx: HandlerContext) -> None:
            self.seen.append(trace.get_current_span().get_span_context())
            with provider.get_tracer("test").start_as_current_span("inside"):
                pass
            if command.data.get("fails"):
                raise PermanentCommandError("BROKEN", "no")

        self.bus.register_handler("shop", "Work", work)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.exporter.get_finished_spans() if each.name == name]

    async def run(self, **options: Any) -> None:
        await self.bus.send("shop", "Work", uuid4(), {}, **options)
        await run_until_idle(self.bus)

    async def reply_meta(self) -> dict[str, str]:
        (reply,) = [each async for each in self.bus.replies("shop", wait=False)]
        return dict(reply.meta or {})


async def test_an_attempt_of_an_unsampled_trace_makes_no_span_and_says_so_onward() -> None:
    traced = Traced(ParentBased(ALWAYS_ON))
    await traced.run(meta={"traceparent": UNSAMPLED, "baggage": "tenant=north,sentry-release=1"})
    reply = await traced.reply_meta()
    await traced.bus.close()

    assert traced.spans("process shop") == traced.spans("inside") == []
    (seen,) = traced.seen
    assert f"{seen.trace_id:032x}" == UNSAMPLED[3:35]
    assert f"{seen.span_id:016x}" != UNSAMPLED[36:52]  # it has a span of its own, for logs
    assert not seen.trace_flags.sampled
    # There is no span that a reader could be part of: the trace goes on from its sender.
    assert reply == {"traceparent": UNSAMPLED, "baggage": "tenant=north"}


async def test_the_reply_of_a_dropped_attempt_that_began_a_trace_carries_none() -> None:
    traced = Traced(ALWAYS_OFF)
    meta = {"baggage": "tenant=north"}
    many = [BatchCommand("Work", uuid4(), {}, meta=meta), BatchCommand("Work", uuid4(), {})]
    await traced.bus.send_many("shop", many)
    await run_until_idle(traced.bus)
    replies = [each.meta async for each in traced.bus.replies("shop", wait=False)]
    await traced.bus.close()
    assert traced.spans("process shop") == []
    assert replies in ([{"baggage": "tenant=north"}, None], [None, {"baggage": "tenant=north"}])


def test_a_dropped_span_keeps_its_ids() -> None:
    sampling = Sampling(TracerProvider(sampler=ALWAYS_OFF).get_tracer("test"))
    one, other = (sampling.decide(sent_of(), is_parent=True) for _ in range(2))
    assert isinstance(one, DroppedContext)
    assert isinstance(other, DroppedContext)
    first, again, second = (
        trace.get_current_span(each).get_span_context() for each in (one, one, other)
    )
    assert first == again
    assert first.trace_id == second.trace_id
    assert first.span_id != second.span_id


@pytest.mark.parametrize(
    ("text", "trace_id", "baggage_of"),
    [
        (f'{{"traceparent": "{SAMPLED}"}}', SAMPLED[3:35], None),
        (f'{{"a":"traceparent","traceparent":"{SAMPLED}","baggage":"x=1"}}', SAMPLED[3:35], "1"),
        (f'{{"note": "\\"traceparent\\": \\"{SAMPLED}", "baggage": "x=2"}}', None, "2"),
        (f'{{"inner": {{"traceparent": "{SAMPLED}"}}}}', None, None),
        ('{"traceparent": 4}', None, None),
        ("no json", None, None),
        (None, None, None),
    ],
)
def test_the_trace_of_a_sender_is_read_from_its_text_as_from_its_json(
    text: str | None, trace_id: str | None, baggage_of: str | None
) -> None:
    sent = sent_with(propagate.get_global_textmap(), text)
    found = trace.get_current_span(sent.context).get_span_context()
    assert found.is_valid is sent.is_valid is (trace_id is not None)
    assert found == sent.creation
    assert trace_id is None or f"{found.trace_id:032x}" == trace_id
    assert baggage.get_baggage("x", sent.context) == baggage_of


async def test_an_attempt_of_a_sampled_trace_is_recorded_whatever_the_ratio() -> None:
    traced = Traced(ParentBasedTraceIdRatio(0.0))
    await traced.run(meta={"traceparent": SAMPLED})
    reply = await traced.reply_meta()
    await traced.bus.close()
    (handled,), (inside,) = traced.spans("process shop"), traced.spans("inside")
    assert f"{handled.context.trace_id:032x}" == SAMPLED[3:35]
    assert inside.parent is not None
    assert inside.parent.span_id == handled.context.span_id
    assert reply["traceparent"].endswith("-01")


async def test_of_attempts_that_begin_traces_the_ratio_is_recorded_by_their_ids() -> None:
    traced = Traced(ParentBasedTraceIdRatio(RATIO), Counting())
    await traced.bus.send_many("shop", [BatchCommand("Work", uuid4(), {}) for _ in range(40)])
    await run_until_idle(traced.bus)
    await traced.bus.close()

    handled = traced.spans("process shop")
    assert len(handled) == 10
    # All were decided on once, by the trace that they then have.
    assert len({each.trace_id for each in traced.seen}) == 40
    recorded = {each.trace_id for each in traced.seen if each.trace_flags.sampled}
    assert recorded == {each.context.trace_id for each in handled}
    assert len(traced.spans("inside")) == 10


async def test_a_dropped_attempt_that_fails_is_no_span_either() -> None:
    traced = Traced(ALWAYS_OFF)
    await traced.bus.send("shop", "Work", uuid4(), {"fails": True})
    await run_until_idle(traced.bus)
    await traced.bus.close()
    assert traced.exporter.get_finished_spans() == ()
    assert len(traced.seen) == 1


async def test_a_sampler_that_nobody_knows_is_asked_with_all_that_there_is_to_know() -> None:
    class ByType(Sampler):
        def __init__(self) -> None:
            self.asked: list[Any] = []

        def should_sample(
            self, parent_context: Any, trace_id: int, name: str, kind: Any = None,
            attributes: Any = None, links: Any = None, trace_state: Any = None,
        ) -> SamplingResult:  # fmt: skip
            self.asked.append((name, (attributes or {}).get("commandbus.command_type")))
            return ALWAYS_OFF.should_sample(parent_context, trace_id, name)

        def get_description(self) -> str:
            return "by type"

    sampler = ByType()
    traced = Traced(sampler)
    await traced.run()
    await traced.bus.close()
    assert ("process shop", "Work") in sampler.asked


async def test_a_batch_that_fails_to_be_linked_is_not_dropped_because_its_sender_is() -> None:
    traced = Traced(ParentBased(ALWAYS_ON))
    token = context.attach(propagate.extract({"traceparent": UNSAMPLED}))
    try:
        await traced.bus.send_many("shop", [BatchCommand("Work", uuid4(), {})])
    finally:
        context.detach(token)
    await run_until_idle(traced.bus)
    await traced.bus.close()
    (handled,) = traced.spans("process shop")
    assert handled.parent is None
    assert f"{handled.links[0].context.trace_id:032x}" == UNSAMPLED[3:35]


async def test_a_trace_of_another_form_is_left_to_the_propagators() -> None:
    traced = Traced(ParentBased(ALWAYS_ON))
    await traced.run(meta={"traceparent": UNSAMPLED, "tracestate": "a=b"})
    reply = await traced.reply_meta()
    await traced.run(meta={"traceparent": f"00-{'0' * 32}-{'0' * 16}-00"})  # it is none
    await traced.bus.close()
    assert traced.seen[0].trace_state == {"a": "b"}
    assert reply["tracestate"] == "a=b"
    assert traced.seen[1].trace_flags.sampled


async def test_baggage_that_a_handler_leaves_goes_with_the_reply_of_a_dropped_attempt() -> None:
    traced = Traced(ALWAYS_OFF)

    async def work(command: Command, ctx: HandlerContext) -> None:
        context.attach(baggage.set_baggage("found", "yes"))

    traced.bus.register_handler("shop", "Leave", work)
    await traced.bus.send("shop", "Leave", uuid4(), {}, meta={"traceparent": UNSAMPLED})
    await run_until_idle(traced.bus)
    reply = await traced.reply_meta()
    await traced.bus.close()
    assert reply["baggage"] == "found=yes"


async def test_secret_baggage_stays_out_of_the_reply_of_a_dropped_attempt() -> None:
    traced = Traced(ALWAYS_OFF)
    await traced.run(meta={"traceparent": UNSAMPLED, "baggage": "password=hunter"})
    reply = await traced.reply_meta()
    await traced.bus.close()
    assert set(reply) == {"traceparent"}


@pytest.fixture
def only_traces() -> Iterator[None]:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(CompositePropagator([TraceContextTextMapPropagator(), Other()]))
    yield
    propagate.set_global_textmap(before)


class Other(TraceContextTextMapPropagator):
    """A form that we do not know."""

    def inject(self, carrier: Any, *args: Any, **options: Any) -> None:
        carrier["other"] = "1"

    @property
    def fields(self) -> set[str]:
        return {"other"}


@pytest.mark.usefixtures("only_traces")
async def test_propagators_of_the_application_write_the_replies_of_dropped_attempts_too() -> None:
    traced = Traced(ALWAYS_OFF)
    await traced.run(meta={"traceparent": UNSAMPLED})
    reply = await traced.reply_meta()
    await traced.bus.close()
    assert reply["other"] == "1"
    assert reply["traceparent"].endswith("-00")


@pytest.mark.parametrize(
    ("sampler", "child", "root"),
    [
        (ALWAYS_OFF, True, True),
        (ALWAYS_ON, False, False),
        (ParentBased(ALWAYS_OFF), True, True),
        (ParentBased(ALWAYS_ON), True, False),
        (ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON), False, False),
        (TraceIdRatioBased(0.0), False, True),
        (ParentBasedTraceIdRatio(0.0), True, True),
        (ParentBasedTraceIdRatio(1.0), True, False),
    ],
)
def test_what_is_dropped_early_is_what_the_sampler_drops(
    sampler: Sampler, child: bool, root: bool
) -> None:
    tracer = TracerProvider(sampler=sampler).get_tracer("test")
    decided = [Sampling(tracer).decide(sent_of(), is_parent=each) for each in (True, False)]
    assert [isinstance(each, DroppedContext) for each in decided] == [child, root]
    sent = sent_of().context
    for each, given, early in zip(decided, (sent, context.Context()), (child, root), strict=True):
        span = tracer.start_span("x", context=given)
        assert not (early and span.is_recording())
        if isinstance(each, DroppedContext):
            dropped = trace.get_current_span(each)
            found = dropped.get_span_context()
            assert found.trace_flags == span.get_span_context().trace_flags
            assert not dropped.is_recording()
            assert f"{found.trace_id:032x}" in repr(dropped)


def test_a_provider_that_is_set_up_later_is_found() -> None:
    class Proxy(trace.NoOpTracer):
        _tracer: Any = trace.NoOpTracer()

    proxy = Proxy()
    sampling = Sampling(proxy)
    assert sampling.decide(sent_of(), is_parent=False) is proxy
    proxy._tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")
    assert isinstance(sampling.decide(sent_of(), is_parent=False), DroppedContext)


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.25, 1.0])
def test_what_begins_a_trace_is_recorded_as_often_as_the_ratio_says(ratio: float) -> None:
    sampling = Sampling(TracerProvider(sampler=TraceIdRatioBased(ratio)).get_tracer("test"))
    count = 20_000
    found = [sampling.decide(sent_of(), is_parent=False) for _ in range(count)]
    recorded = [each for each in found if not isinstance(each, DroppedContext)]
    # Six times the deviation of as many throws: one run in a hundred million is outside.
    assert abs(len(recorded) - ratio * count) <= 6 * (count * ratio * (1 - ratio)) ** 0.5
    for each in recorded[:50]:
        assert isinstance(each, trace.Tracer)
        assert each.start_span("x", context=context.Context()).is_recording()
    bound = round(ratio * (1 << 64))
    for dropped in [each for each in found if isinstance(each, DroppedContext)][:50]:
        # Another service that has to decide on this trace drops it too.
        assert trace.get_current_span(dropped).get_span_context().trace_id % (1 << 64) >= bound


def test_a_dropped_context_is_one_however_it_is_looked_at() -> None:
    sampling = Sampling(TracerProvider(sampler=ALWAYS_OFF).get_tracer("test"))
    carried = sent_with(propagate.get_global_textmap(), '{"baggage": "tenant=north"}')

    def new() -> context.Context:
        made = sampling.decide(carried, is_parent=False)
        assert isinstance(made, DroppedContext)
        return made

    looks: list[Any] = [
        dict, list, len, repr, lambda each: {**each}, lambda each: each | {},
        lambda each: {} | each, lambda each: each.copy(), lambda each: list(each.items()),
        lambda each: list(each.values()), lambda each: list(each.keys()),
        lambda each: list(reversed(each)), lambda each: context.set_value("a", "b", each),
        baggage.get_all, lambda each: each != {}, bool,
    ]  # fmt: skip
    for look in looks:
        made = new()
        assert look(made), look
        assert baggage.get_baggage("tenant", made) == "north"
        assert trace.get_current_span(made) is trace.get_current_span(made)
        assert trace.get_current_span(made).get_span_context().is_valid
