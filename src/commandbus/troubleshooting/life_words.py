"""Why a command stands where it stands, in one sentence: a pure function of what is known of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from commandbus.models import AuditEvent, CommandMetadata, CommandStatus
from commandbus.wording import span

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")


@dataclass(frozen=True, slots=True)
class LifeFacts:
    """What is known of a command beside its row."""

    #: Where it is on its way into the queue: `queued`, `awaiting_approval`, `pending_queue`, …
    dispatch_status: str = "queued"
    #: Of its failure group, and since when it waits there; None: it is not parked.
    fingerprint: str | None = None
    parked_at: datetime | None = None
    #: Whether its payload can still be read, and so be sent again.
    has_payload: bool = False
    #: Somebody has proposed another payload, which waits for a decision.
    has_edit: bool = False
    cancel_requested_at: datetime | None = None
    cancel_requested_by: str | None = None
    #: When the worker that has it was last heard of.
    worker_seen_at: datetime | None = None
    #: Where its reply is: `open`, `unwanted`, `waiting`, `leased`, `taken`, `gone` or `unknown`.
    reply: str = "open"
    #: The trace of the W3C that it is part of, while its message or its reply is there.
    traceparent: str | None = None

    @property
    def trace_id(self) -> str | None:
        """By which tools of tracing find it; None: it is part of none, or that is gone."""
        found = _TRACEPARENT.fullmatch(self.traceparent or "")
        return None if found is None else found[1]


def life_sentence(
    command: CommandMetadata, facts: LifeFacts, events: Sequence[AuditEvent], now: datetime
) -> str:
    """Where it stands, since when, and why."""
    match command.status:
        case CommandStatus.PENDING if command.leased_by is None:
            return _pending(command, facts, now)
        case CommandStatus.PENDING | CommandStatus.IN_PROGRESS:
            return _running(command, facts, events, now)
        case CommandStatus.IN_TROUBLESHOOTING_QUEUE:
            return _parked(command, facts, now)
        case _ if command.history_since is not None:
            moved = _since(command.history_since, now)
            return f"{_ended(command, events, now)}; in the history, for {moved}"
        case _:
            return _ended(command, events, now)


def _pending(command: CommandMetadata, facts: LifeFacts, now: datetime) -> str:
    if facts.dispatch_status == "awaiting_approval":
        return f"waits for the approval of its batch, for {_since(command.created_at, now)}"
    if facts.dispatch_status in {"scheduled", "pending_queue", "pending_retry"}:
        return f"stored {_since(command.created_at, now)} ago, and not in its queue yet"
    before = ""
    if command.attempts:
        before = f" after {_attempts(command.attempts)}{_error(command)}"
    if command.waiting_for is not None:
        return f"waits for {command.waiting_for}{before}"
    if command.due_at is not None and command.due_at > now:
        again = "is tried again" if command.attempts else "starts"
        return f"{again} in {span((command.due_at - now).total_seconds())}{before}"
    return f"waits for a worker, for {_since(command.updated_at, now)}{before}"


def _running(
    command: CommandMetadata, facts: LifeFacts, events: Sequence[AuditEvent], now: datetime
) -> str:
    who = command.leased_by or "a worker"
    if command.lease_expires_at is not None and command.lease_expires_at <= now:
        late = _since(command.lease_expires_at, now)
        return (
            f"the lease of {who} ran out {late} ago, without a result; the next worker that is "
            "free takes it"
        )
    begun = next((each.ts for each in reversed(events) if each.event_type == "RECEIVED"), None)
    since = "" if begun is None else f" for {_since(begun, now)}"
    asked = ""
    if facts.cancel_requested_at is not None:
        by = facts.cancel_requested_by or "somebody"
        asked = f"; {by} asked {_since(facts.cancel_requested_at, now)} ago to cancel it"
    return f"attempt {command.attempts} of {command.max_attempts} runs at {who}{since}{asked}"


def _parked(command: CommandMetadata, facts: LifeFacts, now: datetime) -> str:
    since = command.updated_at if facts.parked_at is None else facts.parked_at
    text = f"parked {_since(since, now)} ago after {_attempts(command.attempts)}{_error(command)}"
    if facts.has_edit:
        return f"{text}; another payload for it waits for an approval"
    if not facts.has_payload:
        return f"{text}; its payload is no longer kept, so it can only be canceled or completed"
    return text


def _ended(command: CommandMetadata, events: Sequence[AuditEvent], now: datetime) -> str:
    took = span((command.updated_at - command.created_at).total_seconds())
    when = f"{_since(command.updated_at, now)} ago"
    last = events[-1] if events else None
    by = f" by {last.actor}" if last is not None and last.actor else ""
    why = ((last.details or {}).get("reason") if last is not None else None) or None
    if command.status is CommandStatus.COMPLETED:
        how = f"{by}, not by its handler" if by else f" after {_attempts(command.attempts)}"
        return f"completed {when}{how}, {took} after it was sent"
    if command.status is CommandStatus.CANCELED:
        return f"canceled {when}{by}" + (f": {why}" if why else "")
    return f"failed {when} after {_attempts(command.attempts)}{_error(command)}"


def _attempts(number: int) -> str:
    return "1 attempt" if number == 1 else f"{number:,} attempts"


def _error(command: CommandMetadata) -> str:
    if command.last_error_code is None:
        return ""
    message = command.last_error_msg
    return f": {command.last_error_code}" + (f", {message}" if message else "")


def _since(moment: datetime, now: datetime) -> str:
    return span((now - moment).total_seconds())
