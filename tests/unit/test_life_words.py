"""Why a command stands where it stands, in words; and its attempts, from events alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from commandbus.models import AuditEvent, CommandMetadata, CommandStatus
from commandbus.troubleshooting import LifeFacts, life_sentence
from commandbus.troubleshooting.life import attempts_of

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
ID = UUID(int=7)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


COMMAND = CommandMetadata(
    "shop", "shop.commands", 1, ID, "Work", CommandStatus.PENDING, 0, 5, None, None, None, None,
    ago(600), ago(300), "shop.replies", ID, None, 0, None,
)  # fmt: skip
FAILED = {"last_error_code": "DOWN", "last_error_msg": "no answer"}


def event(kind: str, seconds: float, actor: str | None = None, **details: Any) -> AuditEvent:
    return AuditEvent(1, "shop", ID, kind, ago(seconds), details, None, actor)


PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
RUNNING = {"status": CommandStatus.IN_PROGRESS, "attempts": 2, "leased_by": "w1"}


@pytest.mark.parametrize(
    ("row", "facts", "events", "words"),
    [
        ({}, {}, [], "waits for a worker, for 5 min"),
        ({"attempts": 2, **FAILED}, {}, [],
         "waits for a worker, for 5 min after 2 attempts: DOWN, no answer"),
        ({"due_at": NOW + timedelta(seconds=30)}, {}, [], "starts in 30 s"),
        ({"attempts": 1, "due_at": NOW + timedelta(seconds=30), "last_error_code": "DOWN"}, {}, [],
         "is tried again in 30 s after 1 attempt: DOWN"),
        ({"waiting_for": "a place of its limit"}, {}, [], "waits for a place of its limit"),
        ({}, {"dispatch_status": "awaiting_approval"}, [],
         "waits for the approval of its batch, for 10 min"),
        ({}, {"dispatch_status": "pending_queue"}, [],
         "stored 10 min ago, and not in its queue yet"),
        ({**RUNNING, "lease_expires_at": NOW + timedelta(seconds=9)}, {},
         [event("RECEIVED", 12)], "attempt 2 of 5 runs at w1 for 12 s"),
        (RUNNING, {"cancel_requested_at": ago(3), "cancel_requested_by": "ann"}, [],
         "attempt 2 of 5 runs at w1; ann asked 3 s ago to cancel it"),
        ({**RUNNING, "lease_expires_at": ago(40)}, {}, [],
         "the lease of w1 ran out 40 s ago, without a result; the next worker that is free takes"
         " it"),
        ({"leased_by": "w1", "attempts": 1}, {}, [], "attempt 1 of 5 runs at w1"),
        ({"status": PARKED, "attempts": 5, **FAILED}, {"parked_at": ago(720), "has_payload": True},
         [], "parked 12 min ago after 5 attempts: DOWN, no answer"),
        ({"status": PARKED, "attempts": 5}, {}, [],
         "parked 5 min ago after 5 attempts; its payload is no longer kept, so it can only be"
         " canceled or completed"),
        ({"status": PARKED, "attempts": 5}, {"has_payload": True, "has_edit": True}, [],
         "parked 5 min ago after 5 attempts; another payload for it waits for an approval"),
        ({"status": CommandStatus.COMPLETED, "attempts": 1}, {}, [event("COMPLETED", 300)],
         "completed 5 min ago after 1 attempt, 5 min after it was sent"),
        ({"status": CommandStatus.COMPLETED, "attempts": 5}, {},
         [event("OPERATOR_COMPLETE", 300, "ann")],
         "completed 5 min ago by ann, not by its handler, 5 min after it was sent"),
        ({"status": CommandStatus.CANCELED}, {}, [event("CANCELED", 300, "ann", reason="late")],
         "canceled 5 min ago by ann: late"),
        ({"status": CommandStatus.CANCELED}, {}, [], "canceled 5 min ago"),
        ({"status": CommandStatus.FAILED, "attempts": 3, **FAILED}, {}, [event("FAILED", 300)],
         "failed 5 min ago after 3 attempts: DOWN, no answer"),
    ],
)  # fmt: skip
def test_a_command_says_why_it_stands_where_it_stands(
    row: dict[str, Any], facts: dict[str, Any], events: list[AuditEvent], words: str
) -> None:
    command = replace(COMMAND, **row)
    assert life_sentence(command, LifeFacts(**facts), events, NOW) == words


def test_attempts_are_found_also_if_ends_or_beginnings_are_missing() -> None:
    found = attempts_of(
        [
            event("FAILED", 99, code="LOST"),  # its beginning is left out
            event("RECEIVED", 90, "w1", attempt=1),
            event("LEASE_EXPIRED", 80),
            event("RECEIVED", 80, "w2", attempt=2),
            event("RECEIVED", 70, "w3", attempt=3),  # the end before it is left out
            event("FAILED", 60, code="DOWN", message="x", stack={"exception": "E"}),
            event("NOTE", 50, "ann"),
            event("RECEIVED", 40, "w4", attempt=4),
        ]
    )
    assert [(a.number, a.worker, a.outcome, a.error_code) for a in found] == [
        (1, "w1", "LEASE_EXPIRED", None),
        (2, "w2", None, None),
        (3, "w3", "FAILED", "DOWN"),
        (4, "w4", None, None),
    ]
    assert found[2].stack == {"exception": "E"}
    assert found[3].ended_at is None
