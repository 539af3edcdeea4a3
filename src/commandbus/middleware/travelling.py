"""What came with a command of the trace that sent it.

Commands that were sent together, and retries, bring the same texts: they are read once.
"""

from __future__ import annotations

import re
from functools import lru_cache

from commandbus.extras import extra
from commandbus.meta import decode_meta
from commandbus.privacy.sensitive import is_sensitive_key

with extra("otel", "the middleware OpenTelemetry"):
    from opentelemetry import baggage, propagate, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

#: In the meta of commands that were sent together: their creation is linked, it is not the parent.
LINKED = "commandbus-linked"
#: Texts that are kept: those of the last sends.
_KEPT = 256
_SAMPLED = 1
_NOBODY = 0, 0, 0
_NO_STATE = TraceState()
# Anything else is left to the propagators: an older or newer version, ids of zeros.
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})\Z")
_MEMBER = re.compile(r'"(traceparent|tracestate|baggage|' + LINKED + r')"\s*:\s*"([^"]*)"')
_W3C = {TraceContextTextMapPropagator, W3CBaggagePropagator}


class Sent:
    """The trace of a command's sender. What only few ask for is made when they do."""

    __slots__ = ("_creation", "_ids", "baggage", "is_linked", "onward", "replied")

    def __init__(
        self,
        ids: tuple[int, int, int] | None,
        creation: SpanContext | None,
        baggage: Context,
        *,
        is_linked: bool,
        replied: dict[str, str] | None,
        onward: dict[str, str] | None = None,
    ) -> None:
        self._ids = ids
        self._creation = creation
        #: The context of an attempt before its own span is in it.
        self.baggage = baggage
        self.is_linked = is_linked
        #: What goes on with the replies of attempts that begin a trace and are dropped: it is the
        #: same for all, and so is `onward`, of those that go on with the sender's trace. None: ask
        #: the propagators.
        self.replied = replied
        self.onward = onward

    @property
    def creation(self) -> SpanContext:
        """The span that sent the command; not valid: none is known."""
        if self._creation is None:
            trace_id, span_id, flags = self._ids or _NOBODY
            self._creation = SpanContext(
                trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags)
            )
        return self._creation

    @property
    def is_valid(self) -> bool:
        """Whether a span is known that sent the command."""
        return self._ids is not None or self.creation.is_valid

    @property
    def unsampled(self) -> tuple[int, TraceFlags, TraceState] | None:
        """Trace id, flags and state, if the trace of the sender is not recorded."""
        if self._ids is not None:
            trace_id, _, flags = self._ids
            return None if flags & _SAMPLED else (trace_id, TraceFlags(flags), _NO_STATE)
        found = self.creation
        if found.trace_flags & _SAMPLED:
            return None
        return found.trace_id, found.trace_flags, found.trace_state

    @property
    def context(self) -> Context:
        """That of the sender, for an attempt that goes on with its trace."""
        return trace.set_span_in_context(NonRecordingSpan(self.creation), self.baggage)


@lru_cache(maxsize=_KEPT)
def sent_with(propagator: TextMapPropagator, text: str | None) -> Sent:
    """Read the meta of a message, by the propagators of the application."""
    is_known = _is_w3c(propagator)
    meta = _read(text) if is_known else decode_meta(text) or {}
    is_known = is_known and "tracestate" not in meta
    is_linked = LINKED in meta
    found = _TRACEPARENT.match(meta.get("traceparent", "")) if is_known else None
    context, replied = _carried(propagator, meta.get("baggage")) if is_known else (None, None)
    if found is None or context is None or replied is None:
        context = propagate.extract(meta, Context())
        creation = trace.get_current_span(context).get_span_context()
        return Sent(None, creation, context, is_linked=is_linked, replied=replied)
    ids = int(found[1], 16), int(found[2], 16), int(found[3], 16)
    onward = {"traceparent": found[0], **replied}
    return Sent(ids, None, context, is_linked=is_linked, replied=replied, onward=onward)


def _read(text: str | None) -> dict[str, str]:
    """The members of meta; those of traces without JSON, since each single send has another."""
    if text is None:
        return {}
    # One object, and nothing in it that stands for something else: then each pair is what it seems.
    if "\\" in text or text.count("{") != 1:
        return decode_meta(text) or {}
    return dict(_MEMBER.findall(text))


@lru_cache(maxsize=_KEPT)
def _carried(propagator: TextMapPropagator, text: str | None) -> tuple[Context, dict[str, str]]:
    """The baggage of a sender, as a context and as it goes on with a reply."""
    if text is None:
        return Context(), {}
    context = onward = propagator.extract({"baggage": text}, Context())
    for name in baggage.get_all(context):
        # Sentry keeps its own there, for a trace that it does not continue with replies.
        if name.startswith("sentry-"):
            onward = baggage.remove_baggage(name, onward)
        elif is_sensitive_key(name):
            return context, {}  # operators see meta
    carrier: dict[str, str] = {}
    propagator.inject(carrier, onward)
    return context, {key: value for key, value in carrier.items() if key == "baggage"}


@lru_cache(maxsize=8)
def _is_w3c(propagator: TextMapPropagator) -> bool:
    """Whether traces travel in the headers of the W3C alone, as they do unless told otherwise."""
    parts = {type(each) for each in getattr(propagator, "_propagators", [propagator])}
    return parts <= _W3C and TraceContextTextMapPropagator in parts
