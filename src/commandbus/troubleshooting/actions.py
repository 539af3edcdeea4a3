"""What a person may do with a command as it is now. SQL has the last word: it checks again."""

from __future__ import annotations

from enum import StrEnum

from commandbus.models import CommandStatus


class Action(StrEnum):
    """Something that a person does with one command; each is one verb of the bus."""

    #: `bus.troubleshooting.retry`: send a parked command again, with the same payload.
    RETRY = "retry"
    #: `bus.troubleshooting.retry(payload=...)`: send a parked command again with another payload.
    EDIT = "edit"
    #: `bus.troubleshooting.cancel`: end a parked command as CANCELED.
    CANCEL = "cancel"
    #: `bus.troubleshooting.complete`: end a parked command as COMPLETED.
    COMPLETE = "complete"
    #: `bus.cancel`: end a command as CANCELED that no worker has leased yet.
    CANCEL_PENDING = "cancel_pending"
    #: `bus.troubleshooting.note`: put a remark into the audit.
    NOTE = "note"

    @property
    def is_decision(self) -> bool:
        """Whether it changes what becomes of the command; a note does not."""
        return self is not Action.NOTE


def allowed_actions(
    status: CommandStatus, *, is_leased: bool = False, has_payload: bool = True
) -> tuple[Action, ...]:
    """What a person may do with a command of this status, decisions first.

    `is_leased`: a worker has a lease on it (`leased_by` is set). `has_payload`: its payload is
    still archived; without one there is nothing that could be sent again.
    """
    decisions: tuple[Action, ...] = ()
    if status is CommandStatus.IN_TROUBLESHOOTING_QUEUE:
        again = (Action.RETRY, Action.EDIT) if has_payload else ()
        decisions = (*again, Action.CANCEL, Action.COMPLETE)
    elif status is CommandStatus.PENDING and not is_leased:
        decisions = (Action.CANCEL_PENDING,)
    return (*decisions, Action.NOTE)
