"""What came with a command of the trace that sent it.

Commands that were sent together, and retries, bring the same texts: they are read once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from commandbus.extras import extra
from commandbus.meta import decode_meta
from commandbus.privacy.sensitive import is_sensitive_key

with extra("otel", "the middleware OpenTelemetry"):
    from opentelemetry import baggage, propagate, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

#: In the meta of commands that were sent together: their creation is linked, it is not the parent.
LINKED = "commandbus-linked"
#: Texts that are kept: those of the last sends.
_KEPT = 256
# Anything else is left to the propagators: an older or newer version, ids of zeros.
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})\Z")
_W3C = {TraceContextTextMapPropagator, W3CBaggagePropagator}


@dataclass(frozen=True, slots=True)
class Sent:
    """The trace of a command's sender."""

    context: Context
    creation: SpanContext
    is_linked: bool
    #: What replies carry beside `traceparent`; None: ask the propagators.
    replied: dict[str, str] | None


@lru_cache(maxsize=_KEPT)
def sent_with(propagator: TextMapPropagator, text: str | None) -> Sent:
    """Read the meta of a message, by the propagators of the application."""
    meta = decode_meta(text) or {}
    is_linked = LINKED in meta
    if not _is_w3c(propagator) or "tracestate" in meta:
        context = propagate.extract(meta, Context())
        creation = trace.get_current_span(context).get_span_context()
        return Sent(context, creation, is_linked, None)
    context, replied = _carried(propagator, meta.get("baggage"))
    found = _TRACEPARENT.match(meta.get("traceparent", ""))
    if found is None:
        context = propagate.extract(meta, Context())
        creation = trace.get_current_span(context).get_span_context()
    else:
        flags = TraceFlags(int(found[3], 16))
        creation = SpanContext(
            int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags
        )
        context = trace.set_span_in_context(NonRecordingSpan(creation), context)
    return Sent(context, creation, is_linked, replied)


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
