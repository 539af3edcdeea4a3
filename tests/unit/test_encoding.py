"""The JSON documents that SQL functions take."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from commandbus.database import encoding
from commandbus.database.model import Failure, Lease, Outcome, OutcomeKind, OutgoingCommands
from commandbus.models import NewCommand, ParkReason

FENCE = {"command_id": str(UUID(int=1)), "msg_id": 7, "lease_epoch": 4}
LEASE = Lease(
    "payments", UUID(int=1), "Debit", 7, 4, 1, 3, False, UUID(int=9), "payments.replies", None,
    datetime(2026, 1, 1, tzinfo=UTC), '{"pin": 1}',
)  # fmt: skip
COMMAND = NewCommand("Credit", UUID(int=2), b'{"a":[1,"\xc3\xbc"]}', "", UUID(int=3), 5)
SENT = {
    "command_id": str(UUID(int=2)),
    "type": "Credit",
    "data": {"a": [1, "ü"]},
    "reply_to": "",
    "correlation_id": str(UUID(int=3)),
    "max_attempts": 5,
}
FAILURE = Failure("TRANSIENT", "BUSY", "later", {"a": 1})
FAILED = {
    "error_type": "TRANSIENT", "error_code": "BUSY", "error_msg": "later",
    "error_details": {"a": 1},
}  # fmt: skip


def test_commands_to_send_are_listed_in_order_with_the_payload_as_it_was_encoded() -> None:
    assert json.loads(encoding.sends([COMMAND, COMMAND])) == [SENT, SENT]
    assert '"data":{"a":[1,"ü"]}' in encoding.sends([COMMAND])


def test_leases_are_known_by_their_fence() -> None:
    assert json.loads(encoding.leases([LEASE])) == [FENCE]


def test_completions_carry_the_result_as_it_was_encoded() -> None:
    outcome = Outcome(LEASE, OutcomeKind.COMPLETE, result=b'{"x":1}')
    assert json.loads(encoding.completions([outcome])) == [FENCE | {"data": {"x": 1}}]
    empty = Outcome(LEASE, OutcomeKind.COMPLETE)
    assert json.loads(encoding.completions([empty])) == [FENCE | {"data": None}]


@pytest.mark.parametrize(
    ("outcome", "item"),
    [
        (Outcome(LEASE, OutcomeKind.COMPLETE, b"5"), {"data": 5}),
        (
            Outcome(LEASE, OutcomeKind.RETRY, delay_seconds=2.5, failure=FAILURE),
            {"delay_seconds": 2.5, **FAILED},
        ),
        (
            Outcome(LEASE, OutcomeKind.PARK, reason=ParkReason.EXHAUSTED, failure=FAILURE),
            {"reason": "EXHAUSTED", **FAILED},
        ),
        (Outcome(LEASE, OutcomeKind.FAIL, failure=FAILURE), FAILED),
        (Outcome(LEASE, OutcomeKind.RELEASE), {}),
        (Outcome(LEASE, OutcomeKind.SNOOZE, delay_seconds=2.5), {"delay_seconds": 2.5}),
        (Outcome(LEASE, OutcomeKind.DISCARD, reason="why"), {"reason": "why"}),
    ],
)
def test_an_outcome_stands_under_its_kind_with_what_it_needs(
    outcome: Outcome, item: dict[str, Any]
) -> None:
    assert json.loads(encoding.outcomes([outcome])) == {outcome.kind.value: [FENCE | item]}


def test_every_kind_of_outcome_is_covered_by_the_test_above() -> None:
    assert {kind.value for kind in OutcomeKind} == {
        "complete", "retry", "park", "fail", "release", "snooze", "discard",
    }  # fmt: skip


def test_outcomes_are_grouped_by_kind() -> None:
    done = Outcome(LEASE, OutcomeKind.COMPLETE)
    freed = Outcome(LEASE, OutcomeKind.RELEASE)
    document = json.loads(encoding.outcomes([done, freed, done]))
    assert {kind: len(items) for kind, items in document.items()} == {"complete": 2, "release": 1}


def test_what_a_handler_sends_is_tied_to_its_lease() -> None:
    outgoing = OutgoingCommands("orders", (COMMAND,), UUID(int=8))
    outcome = Outcome(LEASE, OutcomeKind.COMPLETE, sends=(outgoing,))
    document = json.loads(encoding.outcomes([outcome]))
    assert document["send"] == [
        {
            "by": FENCE["command_id"],
            "lease_epoch": 4,
            "domain": "orders",
            "commands": [SENT],
            "batch_id": str(UUID(int=8)),
            "actor": None,
        }
    ]
