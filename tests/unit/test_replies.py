"""Reading the body of a reply."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from commandbus.commands.replies import parse_reply
from commandbus.errors import InvalidPayloadError
from commandbus.models import Reply, ReplyError, ReplyOutcome

BODY: dict[str, Any] = {
    "command_id": str(UUID(int=1)),
    "correlation_id": str(UUID(int=2)),
    "domain": "payments",
    "type": "DebitResponse",
    "outcome": "SUCCESS",
    "completed_at": "2026-03-01T12:30:00.123456Z",
    "data": {"balance": 5},
    "error": None,
}


def test_a_reply_is_read_as_document_004_prints_it() -> None:
    assert parse_reply(json.dumps(BODY)) == Reply(
        command_id=UUID(int=1),
        correlation_id=UUID(int=2),
        domain="payments",
        type="DebitResponse",
        outcome=ReplyOutcome.SUCCESS,
        completed_at=datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC),
        data={"balance": 5},
        error=None,
    )


def test_a_reply_tells_why_a_command_did_not_succeed() -> None:
    error = {"code": "NO_FUNDS", "message": "too little", "class": "PERMANENT"}
    reply = parse_reply(json.dumps(BODY | {"outcome": "FAILED", "data": None, "error": error}))
    assert reply.outcome is ReplyOutcome.FAILED
    assert reply.error == ReplyError("NO_FUNDS", "too little", "PERMANENT")
    assert reply.data is None


def test_a_reply_may_leave_out_data_and_error() -> None:
    body = {key: value for key, value in BODY.items() if key not in {"data", "error"}}
    reply = parse_reply(json.dumps(body))
    assert (reply.data, reply.error) == (None, None)


@pytest.mark.parametrize("outcome", ReplyOutcome)
def test_every_outcome_is_read(outcome: ReplyOutcome) -> None:
    assert parse_reply(json.dumps(BODY | {"outcome": outcome.value})).outcome is outcome


def broken(**changes: Any) -> str:
    return json.dumps(BODY | changes)


@pytest.mark.parametrize(
    "body",
    [
        "", "{", "[]", "null", "5", '"text"', "{}",
        broken(command_id="x"), broken(command_id=None), broken(correlation_id=5),
        broken(outcome="MAYBE"), broken(completed_at="yesterday"), broken(completed_at=None),
        broken(error="text"), broken(error=[1]),
        json.dumps({key: value for key, value in BODY.items() if key != "domain"}),
    ],
)  # fmt: skip
def test_a_message_that_is_no_reply_is_refused(body: str) -> None:
    with pytest.raises(InvalidPayloadError, match="is no reply"):
        parse_reply(body)


def test_a_message_that_is_no_reply_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        parse_reply(broken(outcome="canary-1", data="canary-2"))
    assert "canary" not in str(caught.value)
