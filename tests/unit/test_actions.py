"""What a person may do with a command, by its status."""

from __future__ import annotations

import pytest

from commandbus.models import CommandStatus
from commandbus.troubleshooting.actions import Action, allowed_actions

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


def test_a_parked_command_can_be_retried_edited_canceled_completed_and_noted() -> None:
    assert allowed_actions(PARKED) == (
        Action.RETRY, Action.EDIT, Action.CANCEL, Action.COMPLETE, Action.NOTE,
    )  # fmt: skip


def test_a_parked_command_without_its_payload_can_not_be_sent_again() -> None:
    assert allowed_actions(PARKED, has_payload=False) == (
        Action.CANCEL, Action.COMPLETE, Action.NOTE,
    )  # fmt: skip


def test_a_pending_command_can_be_canceled_until_a_worker_leases_it() -> None:
    assert allowed_actions(CommandStatus.PENDING) == (Action.CANCEL_PENDING, Action.NOTE)
    assert allowed_actions(CommandStatus.PENDING, is_leased=True) == (Action.NOTE,)


@pytest.mark.parametrize("status", sorted(set(CommandStatus) - {PARKED, CommandStatus.PENDING}))
def test_of_a_command_that_runs_or_has_ended_nothing_is_to_be_decided(
    status: CommandStatus,
) -> None:
    found = allowed_actions(status)
    assert found == (Action.NOTE,)
    assert not any(action.is_decision for action in found)


def test_every_action_but_a_note_is_a_decision() -> None:
    assert {action for action in Action if not action.is_decision} == {Action.NOTE}
