"""Sentry: an event for a command that failed for good. No payload, no local variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

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
from commandbus.middleware.scopes import LazyScope, is_blank
from commandbus.middleware.sentry_traces import complete, travelling

with extra("sentry", "the middleware Sentry"):
    import sentry_sdk
    from sentry_sdk import scope as scopes
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.scope import Scope, use_isolation_scope
    from sentry_sdk.utils import event_from_exception

__all__ = ["Report", "Sentry"]

Report = Literal["final", "all", "none"]
_REPORTS = ("final", "all", "none")
#: Loggers of Django's Tasks: a receiver of theirs logs the last failure of each task as an error.
_REPEATING = frozenset({"django.tasks", "django_tasks"})


def _setter(name: str, otherwise: Callable[[Scope], None]) -> Callable[[Scope], object]:
    """That of a variable of the SDK, if it is where we know it: it is called for each command."""
    found: Callable[[Scope], object] = getattr(getattr(scopes, name, None), "set", otherwise)
    return found


def _getter(name: str, otherwise: Callable[[], Scope]) -> Callable[[], Scope | None]:
    """The same to read it: None where there is no scope yet."""
    found: Callable[[], Scope | None] = getattr(getattr(scopes, name, None), "get", otherwise)
    return found


_set_isolation = _setter("_isolation_scope", Scope.set_isolation_scope)
_set_current = _setter("_current_scope", Scope.set_current_scope)
_isolation = _getter("_isolation_scope", Scope.get_isolation_scope)
_current = _getter("_current_scope", Scope.get_current_scope)
_new = object.__new__


def _blank_current() -> None:
    """Let the SDK make a current scope when somebody asks for it, as where there was none yet."""
    variable = getattr(scopes, "_current_scope", None)
    if variable is not None:
        variable.set(None)


class Sentry(WorkerMiddleware, Surrounding):
    """Sends events to the Sentry that the application has set up with `sentry_sdk.init`.

    `report`: "final" when a command is parked or has failed for good, "all" for each failed
    attempt, "none" for nothing. Each attempt has a scope of its own. Never fails a command.
    """

    def __init__(self, report: Report = "final") -> None:
        if report not in _REPORTS:
            raise InvalidSettingError(f"report is {report!r}; use {', '.join(_REPORTS)}")
        self._report = report
        self.guard = Guard("the middleware Sentry")
        self._described = self._describe  # bound once: each attempt has it in its scope
        # The worker logs each failure too: the logging integration would send it a second time.
        ignore_logger("commandbus.worker")

    # -- sending

    def sending(self, drafts: Drafts) -> AbstractContextManager[Any]:
        """Let the trace of the sender travel with each command."""
        return self._sending(drafts)

    @contextmanager
    def _sending(self, drafts: Drafts) -> Iterator[None]:
        with self.guard:
            headers = travelling(
                dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())
            )
            drafts.each(lambda draft: self._add(draft, headers))
        yield

    def _add(self, draft: Draft, headers: dict[str, str]) -> None:
        with self.guard:
            for key in sorted(headers, reverse=True):  # the trace before its baggage
                if key in draft.meta:
                    continue
                try:
                    check_meta({**draft.meta, key: headers[key]})
                except InvalidInputError:
                    self.guard.warn(f"{key} does not fit into meta, and is left out")
                else:
                    draft.meta[key] = headers[key]

    # -- handling

    def enter(self, call: Call) -> tuple[Scope, Scope] | None:
        """Give the attempt a scope of its own: what it notes is in no event of another."""
        isolation = _isolation() or Scope.get_isolation_scope()
        scope = _new(LazyScope)  # as `of` makes it, which every attempt would call
        scope._origin = isolation
        scope._describe = self._described
        scope._call = call
        if call._state is None:
            call._state = {self: scope}
        else:
            call._state[self] = scope
        _set_isolation(scope)
        current = _current()
        if current is None:
            if call.owns_context and call.entry.is_async:
                return None  # who asks for it gets a new one, in this context alone
            current = Scope.get_current_scope()
        _set_current(LazyScope.of(current, None, None))
        return None if call.owns_context else (isolation, current)

    def leave(self, call: Call, entered: tuple[Scope, Scope]) -> None:
        """Back to the scopes of before."""
        del call
        Scope.set_isolation_scope(entered[0])
        Scope.set_current_scope(entered[1])

    def own_work(self) -> AbstractContextManager[Any]:
        """Have the scopes that those of attempts are forks of, or each attempt would make them."""
        return self._own_work()

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        current: Scope | None = None
        with self.guard:
            Scope.get_isolation_scope()
            current = _current()
            if current is not None and is_blank(current):
                _blank_current()
        try:
            yield
        finally:
            with self.guard:
                if current is not None:
                    _set_current(current)

    def _describe(self, call: Call, scope: Scope) -> None:
        command = call.command
        scope.clear_breadcrumbs()  # what the process noted before
        # Called after those of integrations, and with the breadcrumbs of the handler. For what the
        # handler reports or logs itself too: that has its variables, and the payload is in them.
        scope.add_event_processor(partial(self._processed, call))
        # Also without `sentry-trace`: then it is a new trace, not that of what started the worker.
        scope.generate_propagation_context(call.ctx.meta)
        complete(scope)
        scope.set_transaction_name(f"{command.domain}/{command.command_type}")
        scope.set_tag("commandbus.domain", command.domain)
        scope.set_tag("commandbus.command_type", command.command_type)
        scope.set_tag("commandbus.attempt", str(call.attempt))
        scope.set_context(
            "command",
            {
                "command_id": str(command.command_id),
                "correlation_id": str(command.correlation_id),
                "attempt": call.attempt,
            },
        )

    def _processed(self, call: Call, event: Any, hint: Any) -> Any:
        del hint
        if event.get("logger") in _REPEATING and self._report != "none":
            return None  # the same failure, which `on_outcome` reports with all that is known of it
        return _redacted(event, call)

    def on_outcome(self, call: Call, outcome: CallOutcome, error: BaseException | None) -> None:
        """Report it, if it is to be reported."""
        scope: Scope | None = call.state.pop(self, None)  # always: it knows the call
        if scope is None or outcome.error_code is None or self._report == "none":
            return
        if self._report == "final" and not outcome.is_final:
            return
        with self.guard, use_isolation_scope(scope):
            scope.set_tag("commandbus.outcome", outcome.name)
            scope.set_tag("commandbus.error_code", outcome.error_code)
            event, hint = _event(call, outcome, error)
            sentry_sdk.capture_event(event, hint=hint)


def _event(call: Call, outcome: CallOutcome, error: BaseException | None) -> tuple[Any, Any]:
    """Of an error the places in the code, without the values of variables."""
    command = call.command
    event: dict[str, Any] = {
        "level": "error",
        "fingerprint": [
            "commandbus", command.domain, command.command_type, str(outcome.error_type),
            str(outcome.error_code),
        ],
    }  # fmt: skip
    if error is None:
        event["message"] = f"{outcome.error_code}: {outcome.error_message}"
        # Else `attach_stacktrace` adds the place where this is, with the values of variables.
        event["threads"] = {"values": []}
        return event, None
    options = {
        **sentry_sdk.get_client().options, "include_local_variables": False,
        "add_full_stack": False,
    }  # fmt: skip
    found, hint = event_from_exception(
        (type(error), error, error.__traceback__),
        client_options=options,
        mechanism={"type": "commandbus", "handled": True},
    )
    return {**found, **event}, hint


def _redacted(event: Any, call: Call) -> Any:
    """Without the secrets of the payload: handlers repeat them in errors, and in what they log."""
    for name in ("exception", "threads"):
        for value in (event.get(name) or {}).get("values", ()):
            for frame in (value.get("stacktrace") or {}).get("frames", ()):
                frame.pop("vars", None)  # an integration may have added them
            if value.get("value") is not None:
                value["value"] = call.redact(str(value["value"]))
    if not {"exception", "threads", "stacktrace"} & event.keys():
        # Else `attach_stacktrace` adds the place after this, with the values of variables.
        event["threads"] = {"values": []}
    for name in ("message", "logentry", "breadcrumbs", "extra", "contexts", "tags", "user"):
        if name in event:
            event[name] = _walk(event[name], call)
    return event


def _walk(value: Any, call: Call) -> Any:
    if isinstance(value, str):
        return call.redact(value)
    if isinstance(value, dict):
        return {key: _walk(each, call) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(each, call) for each in value]
    return value
