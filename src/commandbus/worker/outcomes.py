"""Outcomes: the one value that the end of an execution becomes, before it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commandbus.database.model import Failure, Lease, Outcome, OutcomeKind, OutgoingCommands
from commandbus.errors import (
    CommandCanceledError,
    DuplicateCommandError,
    Fail,
    InvalidPayloadError,
    TransientCommandError,
)
from commandbus.handler import HandlerEntry, UnfitError
from commandbus.middleware.base import CallOutcome, OutcomeName
from commandbus.models import Command, NewCommand, ParkReason
from commandbus.outcomes import CHOSEN, MAX_REASON, Discard, RetryAfter, Snooze
from commandbus.payload import decode_payload, encode_json
from commandbus.privacy.redaction import redact_details, redact_text
from commandbus.privacy.values import NONE, Secrets, secret_values, text_of
from commandbus.retry import RetryPolicy
from commandbus.worker.failure_log import log_chosen, log_end, log_retry
from commandbus.worker.stacks import stack_of

#: A connection that is lost costs no attempt so often, counted with what the handler snoozed: a
#: command that always ends its own connection must come to an end.
MAX_LOSSES = 50
#: The longest pause after a lost connection, in seconds; the first is one second.
MAX_LOSS_SECONDS = 60.0


class ConnectionLostError(TransientCommandError):
    """The connection that a handler had its transaction on was cut, or there was none to be had."""

    @classmethod
    def during(cls) -> ConnectionLostError:
        """While the handler ran: what it wrote is undone."""
        return cls("DATABASE_UNAVAILABLE", "the connection of the handler's transaction was lost")

    @classmethod
    def before(cls, error: BaseException) -> ConnectionLostError:
        """There was none, so the handler did not run."""
        text = f"no connection for the handler's transaction: {type(error).__name__}: {error}"
        return cls("DATABASE_UNAVAILABLE", redact_text(text))


def command_of(lease: Lease) -> Command:
    """What the handler is given; raises InvalidPayloadError if the payload cannot be decoded."""
    return Command(
        domain=lease.domain,
        command_type=lease.command_type,
        command_id=lease.command_id,
        data=decode_payload(lease.payload),
        correlation_id=lease.correlation_id,
        reply_to=lease.reply_queue or None,
        created_at=lease.created_at,
        batch_id=lease.batch_id,
    )


def secrets_of(lease: Lease, entry: HandlerEntry | None) -> Secrets:
    """The secret values of a payload; of one that cannot be decoded there are none."""
    try:
        data = decode_payload(lease.payload)
    except InvalidPayloadError:
        return NONE
    return secret_values(data, () if entry is None else entry.secret_keys)


_NAMES: dict[OutcomeKind, OutcomeName] = {
    OutcomeKind.COMPLETE: "completed", OutcomeKind.RETRY: "retried", OutcomeKind.PARK: "parked",
    OutcomeKind.FAIL: "failed", OutcomeKind.RELEASE: "released", OutcomeKind.SNOOZE: "snoozed",
    OutcomeKind.DISCARD: "discarded",
}  # fmt: skip


#: Nearly all; made once.
COMPLETED = CallOutcome("completed")


def call_outcome(outcome: Outcome) -> CallOutcome:
    """An outcome as middleware are told it."""
    if outcome.kind is OutcomeKind.COMPLETE:
        return COMPLETED
    name, failure = _NAMES[outcome.kind], outcome.failure
    if failure is None:
        return CallOutcome(name, delay_seconds=outcome.delay_seconds)
    return CallOutcome(
        name, failure.error_type, failure.code, failure.message, outcome.delay_seconds
    )


def parked(lease: Lease, code: str, message: str) -> Outcome:
    """Straight to troubleshooting: no retry can help."""
    failure = Failure("PERMANENT", code, redact_text(message))
    log_end(lease, failure, "parked (PERMANENT)")
    return Outcome(lease, OutcomeKind.PARK, reason=ParkReason.PERMANENT, failure=failure)


def failure_of(
    lease: Lease, entry: HandlerEntry, error: BaseException, policy: RetryPolicy
) -> Failure:
    """What is stored of a failed attempt, with the secrets of the payload masked: a handler may
    repeat parts of its payload in an error. The payload is decoded again: the handler may have
    changed the first copy.
    """
    marked = entry.secret_keys
    secrets = secret_values(decode_payload(lease.payload), marked)
    code, message, details = (_part_of(error, name) for name in ("code", "message", "details"))
    # SQLAlchemy's code is a page of its documentation.
    is_code = isinstance(code, str) and not type(error).__module__.startswith("sqlalchemy.")
    name = code if is_code and isinstance(code, str) else type(error).__name__
    text = message if isinstance(message, str) else text_of(error)
    return Failure(
        error_type="PERMANENT" if policy.is_permanent(error) else "TRANSIENT",
        code=redact_text(name, 200, secrets=secrets),
        message=redact_text(text, secrets=secrets),
        details=redact_details(details, marked=marked, secrets=secrets)
        if isinstance(details, dict)
        else None,
        stack=stack_of(error, secrets, home=getattr(entry.handler, "__module__", None)),
    )


def _part_of(error: BaseException, name: str) -> Any:
    """An attribute of an exception; it may be a property that fails."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001  (whatever a property of somebody else's raises)
        return None


def timed_out(seconds: float, error: BaseException | None, policy: RetryPolicy) -> BaseException:
    """What a handler that ran too long has failed with; `error` is what it raised in the end.

    One that no retry can fix says more than the time-out, and so does what the handler chose.
    """
    if error is not None and (policy.is_permanent(error) or isinstance(error, CHOSEN)):
        return error
    text = f"the handler ran longer than {seconds:g} s"
    if error is None:
        text += ", and has not ended since"
    elif not isinstance(error, asyncio.CancelledError):
        text += f"; it ended with {type(error).__name__}: {text_of(error)}"
    failure = TransientCommandError("HANDLER_TIMEOUT", text)
    failure.__cause__ = error
    return failure


def completed(
    lease: Lease,
    result: object,
    sent: Sequence[tuple[str, NewCommand, str | None]],
    *,
    max_bytes: int,
) -> Outcome:
    """The handler has returned; a result that cannot be stored parks the command."""
    sends: tuple[OutgoingCommands, ...] = ()
    if sent:
        sends = tuple(OutgoingCommands(where, (one,), None, who) for where, one, who in sent)
    if result is None:
        return Outcome(lease, OutcomeKind.COMPLETE, sends=sends)
    try:
        encoded = encode_json(result, what="the handler's result", max_bytes=max_bytes)
    except InvalidPayloadError as error:
        return parked(lease, "INVALID_RESULT", str(error))
    return Outcome(lease, OutcomeKind.COMPLETE, result=encoded, sends=sends)


def snoozed(
    lease: Lease, entry: HandlerEntry | None, seconds: float, reason: str | None
) -> Outcome:
    """The handler wants the command later; the attempt does not count."""
    text = None if reason is None else _reason(lease, entry, reason)
    log_chosen(lease, f"snoozed for {seconds:g} s", text)
    return Outcome(lease, OutcomeKind.SNOOZE, delay_seconds=seconds, reason=text)


def discarded(lease: Lease, entry: HandlerEntry | None, reason: str) -> Outcome:
    """The handler says that the command is not needed any more."""
    text = _reason(lease, entry, reason)
    log_chosen(lease, "discarded", text)
    return Outcome(lease, OutcomeKind.DISCARD, reason=text)


def canceled(
    lease: Lease, entry: HandlerEntry, error: BaseException, policy: RetryPolicy
) -> Outcome:
    """The end of a run that somebody asked to cancel, and that is neither done nor done for.

    The database ends such a command in place of what is said here, which would start it again: so
    it does not matter how many attempts are left.
    """
    if isinstance(error, (asyncio.CancelledError, CommandCanceledError, Snooze)):
        log_chosen(lease, "ended as it was asked to", None)
        return Outcome(lease, OutcomeKind.RELEASE)
    failure = failure_of(lease, entry, error, policy)
    log_chosen(lease, "ended as it was asked to, with an error", failure.code)
    return Outcome(lease, OutcomeKind.RETRY, failure=failure)


def too_many_snoozes(lease: Lease, error: Snooze) -> BaseException:
    """What a command has failed with that was snoozed as often as its policy allows."""
    text = f"it was snoozed {lease.snoozes or 0} times, as often as its policy allows"
    failure = TransientCommandError("SNOOZED_TOO_OFTEN", text)
    return failure.with_traceback(error.__traceback__)


def _reason(lease: Lease, entry: HandlerEntry | None, reason: object) -> str:
    """A reason as it is kept: a handler may repeat parts of its payload in it."""
    return redact_text(str(reason), MAX_REASON, secrets=secrets_of(lease, entry))


def _is_free(lease: Lease, policy: RetryPolicy) -> bool:
    """Whether a lost connection costs no attempt."""
    lost = lease.snoozes or 0
    return lost < MAX_LOSSES and policy.allows_snooze(lost)


def failed(
    lease: Lease, entry: HandlerEntry, error: BaseException, default_policy: RetryPolicy
) -> Outcome:
    """The handler has failed; its retry policy decides what happens next.

    Or it has chosen what happens: later, or never.
    """
    policy = entry.retry_policy or default_policy
    if isinstance(error, Snooze):
        if policy.allows_snooze(lease.snoozes or 0):
            return snoozed(lease, entry, error.seconds, error.reason)
        error = too_many_snoozes(lease, error)
    elif isinstance(error, Discard):
        return discarded(lease, entry, error.reason)
    elif isinstance(error, ConnectionLostError) and _is_free(lease, policy):
        seconds = min(2.0 ** (lease.snoozes or 0), MAX_LOSS_SECONDS)
        return snoozed(lease, entry, seconds, f"{error.code}: {error.message}")
    try:
        failure = failure_of(lease, entry, error, policy)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  (an error may raise others when it is looked at)
        name = type(error).__name__
        failure = Failure("TRANSIENT", redact_text(name, 200), f"<{name} that cannot be read>")
    is_permanent = failure.error_type == "PERMANENT"
    if isinstance(error, DuplicateCommandError) and entry.is_transactional:
        is_permanent = True
        failure = replace(failure, error_type="PERMANENT", code="DUPLICATE_COMMAND", details=None)
    elif not is_permanent and lease.attempt < lease.max_attempts:
        delay = (
            error.seconds
            if isinstance(error, RetryAfter)
            else policy.delay_after(lease.attempt, lease.command_id)
        )
        log_retry(lease, entry, error, failure, delay)
        return Outcome(lease, OutcomeKind.RETRY, delay_seconds=delay, failure=failure)
    elif isinstance(error, Fail) or (
        policy.when_exhausted == "fail" and not isinstance(error, UnfitError)
    ):
        log_end(lease, failure, "FAILED for good", entry, error)
        return Outcome(lease, OutcomeKind.FAIL, failure=failure)
    reason = ParkReason.PERMANENT if is_permanent else ParkReason.EXHAUSTED
    log_end(lease, failure, f"parked ({reason})", entry, error)
    return Outcome(lease, OutcomeKind.PARK, reason=reason, failure=failure)
