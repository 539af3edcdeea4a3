"""The command that a lease carries, and how a lease ends that no handler could be given."""

from __future__ import annotations

from commandbus.handler import HandlerEntry
from commandbus.models import Command, Failure, Lease, Outcome, OutcomeKind, ParkReason
from commandbus.payload import decode_payload
from commandbus.privacy.redaction import redact_text, secret_values
from commandbus.retry import RetryPolicy, describe_failure


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


def parked(lease: Lease, code: str, message: str) -> Outcome:
    """Straight to troubleshooting: no retry can help."""
    return Outcome(
        lease,
        OutcomeKind.PARK,
        reason=ParkReason.PERMANENT,
        failure=Failure("PERMANENT", code, redact_text(message)),
    )


def failure_of(
    lease: Lease, entry: HandlerEntry, error: BaseException, policy: RetryPolicy
) -> Failure:
    """What is stored of a failed attempt. A handler may repeat parts of its payload in an error:
    those that are secret are masked there. The payload was decoded once before, for the handler.
    """
    secrets = secret_values(decode_payload(lease.payload), entry.secret_keys)
    return describe_failure(error, policy, marked=entry.secret_keys, secrets=secrets)
