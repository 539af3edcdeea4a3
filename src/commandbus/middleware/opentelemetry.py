"""OpenTelemetry: a span for each send and each attempt, in one trace.

Only the API is needed: without an SDK its spans do nothing. The context travels in `meta`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from commandbus._version import __version__
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.extras import extra
from commandbus.meta import check_meta
from commandbus.middleware.base import (
    Call,
    CallOutcome,
    Draft,
    Drafts,
    Surrounding,
    WorkerMiddleware,
)
from commandbus.middleware.guarding import Guard
from commandbus.middleware.sampling import DroppedContext, Sampling
from commandbus.middleware.travelling import LINKED, Sent, sent_with
from commandbus.privacy.sensitive import is_sensitive_key

with extra("otel", "the middleware OpenTelemetry"):
    from opentelemetry import baggage, propagate, trace
    from opentelemetry import context as contexts
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from commandbus.handler import HandlerContext

__all__ = ["OpenTelemetry", "Relation"]

#: What the semantic conventions call a messaging system; there is no value for PGMQ among theirs.
SYSTEM = "pgmq"
#: The span of a receive links to the creation of at most this number of commands.
MAX_LINKS = 100
#: Instrumentations of drivers write no span where the context has one of these. The first is what
#: they have in common, the second is the key of newer ones.
_SUPPRESSING = (
    "suppress_instrumentation", getattr(contexts, "_SUPPRESS_INSTRUMENTATION_KEY", None),
)  # fmt: skip

# Without the function around each, if there is one that we know: these are called for each command.
_runtime = getattr(contexts, "_RUNTIME_CONTEXT", None) or contexts
_attach, _current = _runtime.attach, _runtime.get_current
if type(_runtime).__name__ == "ContextVarsRuntimeContext":
    # And without its methods, which do nothing but this.
    _variable = getattr(_runtime, "_current_context", None)
    if isinstance(_variable, ContextVar):
        _attach, _current = _variable.set, _variable.get
#: An attempt whose context is attached: the token, the context, and what its reply carries; None:
#: the propagators say it.
_Begun = tuple[Any, Context, dict[str, str] | None]
_Read = tuple[TextMapPropagator, str | None, Sent]
Relation = Literal["auto", "parent", "link"]
_RELATIONS = ("auto", "parent", "link")


class OpenTelemetry(WorkerMiddleware, Surrounding):
    """`send <domain>` and `process <domain>`, by the semantic conventions for messaging.

    An attempt is always linked to the span that sent its command. `relation`: "auto" makes that the
    parent too, unless many were sent together; "parent" always does, "link" never.
    `record_receive`: also a span for each receive that brought commands. Never fails a command.
    """

    def __init__(
        self,
        relation: Relation = "auto",
        record_receive: bool = False,
        *,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        if relation not in _RELATIONS:
            raise InvalidSettingError(f"relation is {relation!r}; use {', '.join(_RELATIONS)}")
        self._relation = relation
        self.sees_receives = record_receive
        self._tracer = trace.get_tracer("commandbus", __version__, tracer_provider)
        self._sampling = Sampling(self._tracer)
        propagator = propagate.get_global_textmap()
        #: What the last command had brought, and how it is read.
        self._last: _Read = propagator, None, sent_with(propagator, None)
        self.guard = Guard("the middleware OpenTelemetry")

    # -- sending

    def sending(self, drafts: Drafts) -> AbstractContextManager[Any]:
        """A span around one send, whose context travels with each command."""
        return self._sending(drafts)

    @contextmanager
    def _sending(self, drafts: Drafts) -> Iterator[None]:
        span: Span | None = None
        token: Any = None
        counted = _Counted()
        with self.guard:
            span = self._tracer.start_span(
                f"send {drafts.domain}",
                kind=SpanKind.PRODUCER,
                attributes=_attributes(drafts.domain, "send"),
            )
            token = contexts.attach(trace.set_span_in_context(span))
            drafts.each(self._marker(span, counted, is_many=drafts.is_many))
        try:
            yield
        except BaseException as error:
            with self.guard:
                _set_failed(span, type(error).__name__)
            raise
        finally:
            with self.guard:
                if token is not None:
                    contexts.detach(token)
            with self.guard:
                if span is not None:
                    if drafts.is_many:
                        count = counted.number if drafts.count is None else drafts.count
                        span.set_attribute("messaging.batch.message_count", count)
                    span.end()

    def _marker(self, span: Span, counted: _Counted, *, is_many: bool) -> Callable[[Draft], None]:
        # Once for all commands of the send: fitting is dearer than copying.
        carrier = self._fitting({}, _carrier(is_many=is_many))

        def mark(draft: Draft) -> None:
            counted.number += 1
            with self.guard:
                if not is_many:
                    span.set_attribute("messaging.message.id", str(draft.command_id))
                    span.set_attribute("commandbus.command_type", draft.command_type)
                if not draft.meta:
                    draft.meta.update(carrier)
                elif "traceparent" not in draft.meta:  # else the sender has said what it is part of
                    draft.meta.update(self._fitting(draft.meta, carrier))

        return mark

    def _fitting(self, meta: Mapping[str, str], carrier: Mapping[str, str]) -> dict[str, str]:
        """What there is room for; the trace first, since baggage may be of any size."""
        grown, fitting = dict(meta), dict[str, str]()
        for key in sorted(carrier, key=lambda each: _ORDER.get(each, 2)):
            try:
                grown = check_meta({**grown, key: carrier[key]}) or {}
            except InvalidInputError:
                self.guard.warn(f"{key} of the trace does not fit into meta, and is left out")
            else:
                fitting[key] = carrier[key]
        return fitting

    # -- handling

    def enter(self, call: Call) -> _Begun | None:
        """Begin the span of the attempt."""
        command, text = call.command, call.ctx.lease.meta
        propagator, known, sent = self._last
        # Commands that were sent together have the same text: to compare it costs less than a hash.
        if text != known or propagator is not propagate.get_global_textmap():
            propagator = propagate.get_global_textmap()
            sent = sent_with(propagator, text)
            self._last = propagator, text, sent
        is_parent = self._relation == "parent" or (
            self._relation == "auto" and not sent.is_linked and command.batch_id is None
        )
        decided = self._sampling.decide(sent, is_parent=is_parent)
        if isinstance(decided, DroppedContext):
            token = _attach(decided)
            if call.owns_context and command.reply_to is None:
                return None
            goes_on = is_parent and sent.is_valid
            return token, decided, sent.onward if goes_on else sent.replied
        span = decided.start_span(
            f"process {command.domain}",
            context=sent.context if is_parent else Context(),
            kind=SpanKind.CONSUMER,
            links=[Link(sent.creation)] if sent.creation.is_valid else None,
            attributes={
                **_attributes(command.domain, "process"),
                "messaging.message.id": str(command.command_id),
                "messaging.message.conversation_id": str(command.correlation_id),
                "commandbus.command_type": command.command_type,
                "commandbus.attempt": call.attempt,
            },
        )
        call.state[self] = span
        call.tells_success = True
        context = trace.set_span_in_context(span, sent.baggage)
        onward = None if command.reply_to is None else _carried_with(span, sent)
        return contexts.attach(context), context, onward

    def leave(self, call: Call, entered: _Begun) -> None:
        """The handler has ended; its span ends with the attempt."""
        token, context, known = entered
        try:
            # Only now: what the handler itself says in its reply goes first.
            if call.command.reply_to is not None:
                ctx = call.ctx
                if known is None or ctx.reply_meta is not None or _current() is not context:
                    self._let_reply_carry(ctx)
                elif known:  # the same for all that were sent with the same: nothing is made for it
                    ctx.carry_reply_meta(known)
        finally:
            if not call.owns_context:
                contexts.detach(token)

    def _let_reply_carry(self, ctx: HandlerContext) -> None:
        said = ctx.reply_meta
        if said is None or "traceparent" not in said:
            more = self._fitting(said or {}, _carrier())
            if more:
                ctx.add_reply_meta(more)

    def on_outcome(self, call: Call, outcome: CallOutcome, error: BaseException | None) -> None:
        """The end of the attempt is the end of its span. Texts of errors are redacted ones."""
        del error
        if not call.has_state:  # the span is dropped
            return
        span: Span | None = call.state.pop(self, None)
        if span is None:
            return
        with self.guard:
            if span.is_recording():
                span.set_attribute("commandbus.outcome", outcome.name)
                if outcome.error_code is not None:
                    span.set_attribute("commandbus.error_code", outcome.error_code)
                    _set_failed(span, outcome.error_code, outcome.error_message)
        with self.guard:
            span.end()

    # -- the worker itself

    def own_work(self) -> AbstractContextManager[Any]:
        """Suppress the instrumentation of drivers, or each poll would be a span."""
        return self._own_work()

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        quiet = Context()  # no span either: an attempt is no part of what started the worker
        for key in filter(None, _SUPPRESSING):
            quiet = contexts.set_value(key, value=True, context=quiet)
        token = contexts.attach(quiet)
        try:
            yield
        finally:
            with self.guard:
                contexts.detach(token)

    def received(self, domain: str, metas: Sequence[str | None], seconds: float) -> None:
        """A span for a receive, linked to the creation of what it brought."""
        with self.guard:
            propagator = propagate.get_global_textmap()
            found = (sent_with(propagator, meta).creation for meta in metas[:MAX_LINKS])
            span = self._tracer.start_span(
                f"receive {domain}",
                context=Context(),
                kind=SpanKind.CLIENT,
                links=[Link(each) for each in found if each.is_valid],
                attributes={
                    **_attributes(domain, "receive"),
                    "messaging.batch.message_count": len(metas),
                },
                start_time=time.time_ns() - int(seconds * 1e9),
            )
            span.end()


class _Counted:
    """How many commands a send had; a generator says it only at its end."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


#: In which order what a propagator says gets its room; others' keys are between.
_ORDER = {"traceparent": 0, LINKED: 1, "tracestate": 3, "baggage": 4}


def _attributes(domain: str, operation: str) -> dict[str, str | int]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": domain,
    }


def _carrier(*, is_many: bool = False) -> dict[str, str]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if any(is_sensitive_key(key) for key in baggage.get_all()):
        carrier.pop("baggage", None)  # operators see meta
    if is_many and carrier:
        carrier[LINKED] = "1"
    return carrier


def _carried_with(span: Span, sent: Sent) -> dict[str, str] | None:
    """What the reply of a recorded attempt carries; None: the propagators say it.

    They would write the baggage anew for each.
    """
    made = span.get_span_context()
    if sent.replied is None or made.trace_state or not made.is_valid:
        return None
    ids = f"00-{made.trace_id:032x}-{made.span_id:016x}-{made.trace_flags:02x}"
    return {"traceparent": ids, **sent.replied}


def _set_failed(span: Span | None, kind: str, message: str | None = None) -> None:
    if span is not None:
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, message))
