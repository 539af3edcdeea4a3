"""The command that a lease carries, and what is stored of a failed attempt."""

from __future__ import annotations

from uuid import uuid4

import pytest

from commandbus.database.model import OutcomeKind
from commandbus.handler import HandlerEntry
from commandbus.models import Command, ParkReason
from commandbus.retry import RetryPolicy
from commandbus.worker.outcomes import command_of, failure_of, parked
from tests.unit.stubs import a_lease


@pytest.mark.parametrize(("queue", "reply_to"), [("shop.replies", "shop.replies"), ("", None)])
def test_a_command_says_all_that_its_lease_does(queue: str, reply_to: str | None) -> None:
    lease = a_lease(reply_queue=queue, batch_id=uuid4(), payload='{"n": 1}')
    assert command_of(lease) == Command(
        domain="shop", command_type="Work", command_id=lease.command_id, data={"n": 1},
        correlation_id=lease.correlation_id, reply_to=reply_to, created_at=lease.created_at,
        batch_id=lease.batch_id,
    )  # fmt: skip


def test_a_lease_that_no_handler_can_be_given_is_parked_with_a_redacted_text() -> None:
    lease = a_lease()
    outcome = parked(lease, "NO", "password=hunter2")
    assert (outcome.lease, outcome.kind) == (lease, OutcomeKind.PARK)
    assert outcome.reason is ParkReason.PERMANENT
    assert outcome.failure is not None
    assert (outcome.failure.error_type, outcome.failure.code) == ("PERMANENT", "NO")
    assert outcome.failure.message == "password=[REDACTED]"


def test_a_failure_does_not_repeat_what_is_secret_in_its_payload() -> None:
    entry = HandlerEntry(
        "shop", "Work", print, None, is_transactional=False, is_async=False,
        secret_keys=frozenset({"iban"}),
    )  # fmt: skip
    lease = a_lease(payload='{"iban": "DE123456", "token": "hunter2"}')
    failure = failure_of(lease, entry, ValueError("DE123456 and hunter2"), RetryPolicy())
    assert failure.message == "[REDACTED] and [REDACTED]"
