"""Sampling: whether a span would be dropped, known before anything is made for it.

With one trace in a hundred recorded, 99 attempts of 100 need nothing of it. The SDK comes to the
same decision, but makes a dozen objects on its way. Here an attempt gets a context that makes its
span, and the ids of that, when somebody looks.
"""

from __future__ import annotations

import copy
import math
import random
import sys
from collections.abc import Callable
from typing import Any

from commandbus.extras import extra
from commandbus.middleware.travelling import Sent

with extra("otel", "the middleware OpenTelemetry"):
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        Tracer,
        TraceState,
    )

#: The bits of a trace id that samplers by ratio compare with their bound.
_LOW = (1 << 64) - 1
_NO_STATE = TraceState()
#: Under which a context has its span.
(_SPAN_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())
_new = object.__new__
_new_dict: Callable[[Any], Any] = dict.__new__
#: That of the system: it is the same in no two processes, however they were forked.
_throws = random.SystemRandom()


class DroppedSpan(NonRecordingSpan):
    """A span that is not recorded. What others need of it is made when they ask for it."""

    _made: SpanContext | None = None

    #: What makes ids, the trace, its flags, its state.
    _known: tuple[Any, int, TraceFlags, TraceState]

    @staticmethod
    def of(known: tuple[Any, int, TraceFlags, TraceState]) -> DroppedSpan:
        """Make one without `__init__`, which wants all of it now."""
        span = _new(DroppedSpan)
        span._known = known
        return span

    def get_span_context(self) -> SpanContext:
        """The ids that children and logs name; the same ones each time."""
        made = self._made
        if made is None:
            ids, trace_id, flags, state = self._known
            made = SpanContext(trace_id, ids.generate_span_id(), False, flags, state)
            first: SpanContext = vars(self).setdefault("_made", made)  # two threads may ask
            return first
        return made

    def __repr__(self) -> str:
        return f"DroppedSpan({self.get_span_context()!r})"


class DroppedContext(Context):
    """The context of an attempt whose span is dropped. Both are made when somebody looks.

    The object itself is that of one attempt, so it may be kept, and given to a thread.
    """

    __slots__ = ("_sampling", "_sent")
    _sampling: Sampling
    _sent: Sent

    def _known(self) -> tuple[Any, int, TraceFlags, TraceState]:
        """Of an attempt that begins a trace."""
        return self._sampling.dropped_root()

    def _fill(self) -> None:
        if not dict.__contains__(self, _SPAN_KEY):
            dict.update(self, self._sent.baggage)
            dict.setdefault(self, _SPAN_KEY, DroppedSpan.of(self._known()))  # two threads may ask


class DroppedChild(DroppedContext):
    """That of an attempt that goes on with the trace of its sender."""

    __slots__ = ()

    def _known(self) -> tuple[Any, int, TraceFlags, TraceState]:
        return self._sampling.dropped_child(self._sent)


class DroppedTrace(DroppedContext):
    """That of an attempt that begins a trace with an id that is known."""

    __slots__ = ("trace_id",)
    trace_id: int

    def _known(self) -> tuple[Any, int, TraceFlags, TraceState]:
        return self._sampling.dropped_root(self.trace_id)


def _filled(name: str) -> Callable[..., Any]:
    plain = getattr(dict, name)

    def method(self: DroppedContext, *args: Any) -> Any:
        self._fill()
        return plain(self, *args)

    method.__name__ = name
    return method


for _name in (
    "__contains__", "__eq__", "__getitem__", "__iter__", "__len__", "__ne__", "__or__", "__repr__",
    "__reversed__", "__ror__", "copy", "get", "items", "keys", "values",
):  # fmt: skip
    setattr(DroppedContext, _name, _filled(_name))


class Sampling:
    """Decides as the sampler of the SDK would, as far as that is one of those known here."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._real: Any = None
        self._sampler: Any = None
        self._drops_children = False
        #: A root span whose trace id has low bits below this is recorded; None: not known.
        self._bound: int | None = None
        #: How many root spans are dropped before the next one that is recorded. To draw that once
        #: costs less than to draw an id for each attempt. None: ids are not drawn at random.
        self._gap: int | None = None
        self._flags = TraceFlags(TraceFlags.DEFAULT)

    def decide(self, sent: Sent, *, is_parent: bool) -> DroppedContext | Tracer:
        """The context of a span that is dropped, or the tracer that is to start one.

        `is_parent`: the span goes on with the trace of the sender, if there is one.
        """
        real = self._real
        if real is None or real.sampler is not self._sampler:
            real = self._learn()
            if real is None:
                return self._tracer
        context: DroppedContext
        if is_parent and sent.is_valid:
            if not self._drops_children or sent.unsampled is None:
                return self._tracer
            context = _new_dict(DroppedChild)
        elif (gap := self._gap) is not None:
            if gap <= 0:
                self._gap = _draw_gap(self._bound or 0)
                return _with_trace(real, self._trace_id(is_recorded=True))
            self._gap = gap - 1
            context = _new_dict(DroppedContext)
        elif self._bound is None:
            return self._tracer
        else:
            trace_id = real.id_generator.generate_trace_id()
            if trace_id & _LOW < self._bound:
                return _with_trace(real, trace_id)
            known: DroppedTrace = _new_dict(DroppedTrace)
            known.trace_id = trace_id
            context = known
        context._sampling = self
        context._sent = sent
        return context

    def dropped_root(self, trace_id: int | None = None) -> tuple[Any, int, TraceFlags, TraceState]:
        """What is known of a dropped span that begins a trace."""
        if trace_id is None:
            trace_id = self._trace_id(is_recorded=False)
        return self._real.id_generator, trace_id, self._flags, _NO_STATE

    def dropped_child(self, sent: Sent) -> tuple[Any, int, TraceFlags, TraceState]:
        """The same of one that goes on with a trace that is not recorded."""
        trace_id, flags, state = sent.unsampled or (0, self._flags, _NO_STATE)
        return self._real.id_generator, trace_id, flags, state

    def _trace_id(self, *, is_recorded: bool) -> int:
        """One for which samplers by the same ratio, anywhere, come to the same decision."""
        bound = self._bound or 0
        trace_id: int = self._real.id_generator.generate_trace_id()
        if (trace_id & _LOW < bound) == is_recorded:
            return trace_id
        low = _throws.randrange(bound) if is_recorded else _throws.randrange(bound, _LOW + 1)
        return trace_id & ~_LOW | low

    def _learn(self) -> Any:
        """Look at the sampler. The application may set its provider up after this was made."""
        real = getattr(self._tracer, "_tracer", self._tracer)
        sampler = getattr(real, "sampler", None)
        ids = getattr(real, "id_generator", None)
        if sampler is None or ids is None:
            return None
        self._real, self._sampler = real, sampler
        self._drops_children, self._bound = _rules(sampler)
        self._gap = None
        if self._bound is not None and _are_random(ids):
            self._gap = _draw_gap(self._bound)
        is_random = getattr(ids, "is_trace_id_random", None)
        if is_random is not None and is_random():
            self._flags = TraceFlags(TraceFlags.RANDOM_TRACE_ID)
        return real


def _draw_gap(bound: int) -> int:
    """How many are dropped until one is recorded, each being recorded with the same chance."""
    ratio = bound / (_LOW + 1)
    if ratio <= 0:
        return sys.maxsize
    if ratio >= 1:
        return 0
    return min(int(math.log(1 - _throws.random()) / math.log1p(-ratio)), sys.maxsize)


def _are_random(ids: Any) -> bool:
    """Whether ids are those of the SDK. Others may have their own sense, or their own numbers."""
    sdk: Any = sys.modules.get("opentelemetry.sdk.trace.id_generator")
    return sdk is not None and type(ids) is sdk.RandomIdGenerator


def _rules(sampler: Any) -> tuple[bool, int | None]:
    """Whether the child of a span that is not sampled is dropped, and the bound of root spans."""
    sdk: Any = sys.modules.get("opentelemetry.sdk.trace.sampling")
    kind = type(sampler)
    if sdk is None:
        return False, None
    # The very classes only: one that inherits from them may decide otherwise.
    if kind is sdk.StaticSampler:
        is_off = sampler is sdk.ALWAYS_OFF
        return is_off, 0 if is_off else None
    if kind is sdk.TraceIdRatioBased:
        return False, sampler.bound
    if kind in {sdk.ParentBased, sdk.ParentBasedTraceIdRatio}:
        children = getattr(sampler, "_remote_parent_not_sampled", None)
        return children is sdk.ALWAYS_OFF, _rules(getattr(sampler, "_root", None))[1]
    return False, None


class _GivenTrace:
    """Ids for the root span of a trace that was decided on already."""

    def __init__(self, ids: Any, trace_id: int) -> None:
        self._ids = ids
        self._trace_id = trace_id

    def generate_trace_id(self) -> int:
        return self._trace_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ids, name)


def _with_trace(real: Any, trace_id: int) -> Tracer:
    """The same tracer, for one span: its sampler decides on this trace, and not on another."""
    tracer: Any = copy.copy(real)
    tracer.id_generator = _GivenTrace(real.id_generator, trace_id)
    found: Tracer = tracer
    return found
