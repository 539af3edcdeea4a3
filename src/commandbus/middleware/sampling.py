"""Sampling: whether a span would be dropped, known before anything is made for it.

With one trace in a hundred recorded, 99 attempts of 100 need no more than ids that say so. The SDK
comes to the same decision, but makes a dozen objects on its way.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from commandbus.extras import extra
from commandbus.middleware.travelling import Sent

with extra("otel", "the middleware OpenTelemetry"):
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
_new = object.__new__


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


class Sampling:
    """Decides as the sampler of the SDK would, as far as that is one of those known here."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._real: Any = None
        self._sampler: Any = None
        self._drops_children = False
        #: A root span whose trace id has low bits below this is recorded; None: not known.
        self._bound: int | None = None
        self._flags = TraceFlags(TraceFlags.DEFAULT)

    def decide(self, sent: Sent, *, is_parent: bool) -> DroppedSpan | Tracer:
        """A span that is dropped, or the tracer that is to start one.

        `is_parent`: the span goes on with the trace of the sender, if there is one.
        """
        real = self._real
        if real is None or real.sampler is not self._sampler:
            real = self._learn()
            if real is None:
                return self._tracer
        if is_parent and sent.is_valid:
            unsampled = sent.unsampled
            if unsampled is None or not self._drops_children:
                return self._tracer
            return DroppedSpan.of((real.id_generator, *unsampled))
        if self._bound is None:
            return self._tracer
        ids = real.id_generator
        trace_id = ids.generate_trace_id()
        if trace_id & _LOW < self._bound:
            return _with_trace(real, trace_id)
        span = _new(DroppedSpan)  # as `of` makes it, which nearly every attempt would call
        span._known = ids, trace_id, self._flags, _NO_STATE
        return span

    def _learn(self) -> Any:
        """Look at the sampler. The application may set its provider up after this was made."""
        real = getattr(self._tracer, "_tracer", self._tracer)
        sampler = getattr(real, "sampler", None)
        ids = getattr(real, "id_generator", None)
        if sampler is None or ids is None:
            return None
        self._real, self._sampler = real, sampler
        self._drops_children, self._bound = _rules(sampler)
        is_random = getattr(ids, "is_trace_id_random", None)
        if is_random is not None and is_random():
            self._flags = TraceFlags(TraceFlags.RANDOM_TRACE_ID)
        return real


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
