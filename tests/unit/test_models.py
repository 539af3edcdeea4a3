"""The words of the domain."""

from __future__ import annotations

import dataclasses
import inspect
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from commandbus import models
from commandbus.database import model
from commandbus.database.model import Lease, Outcome, QueuedReply
from commandbus.models import CommandStatus, NewCommand

VALUES = [
    kind
    for module in (models, model)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
]


def test_there_are_values_to_look_at() -> None:
    assert len(VALUES) > 10


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_frozen_and_slotted(kind: Any) -> None:
    # One of each for every command: to make a frozen one takes three times as long.
    assert kind.__dataclass_params__.frozen is (kind not in {Lease, NewCommand, Outcome})
    assert "__slots__" in vars(kind)
    assert kind.__hash__ is not None


@pytest.mark.parametrize("status", CommandStatus)
def test_a_status_is_terminal_when_no_arrow_leads_out_of_it(status: CommandStatus) -> None:
    assert status.is_terminal == (status in {"COMPLETED", "CANCELED", "FAILED"})


def test_a_status_is_its_own_text() -> None:
    assert CommandStatus.PENDING == "PENDING"
    assert f"{CommandStatus.IN_TROUBLESHOOTING_QUEUE}" == "IN_TROUBLESHOOTING_QUEUE"


def test_a_payload_is_not_shown_by_the_values_that_carry_it() -> None:
    lease = Lease(
        "payments", uuid4(), "Debit", 1, 1, 1, 3, False, uuid4(), "", None, datetime.now(UTC),
        '{"pin": "canary"}',
    )  # fmt: skip
    assert "canary" not in repr(lease)
    assert "canary" not in repr(QueuedReply("payments.replies", 1, '{"data": "canary"}'))
