"""Commands and their audit."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ConfigDict, Field

from commandbus.http.schemas.base import DomainName, Form, JsonObject, Reason, TypeName, View
from commandbus.models import AuditEventType, CommandStatus


class SendCommand(Form):
    """A command to send. Choose the command_id yourself, and a repeat is safe."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "domain": "payments",
                    "command_type": "DebitAccount",
                    "command_id": "0b6b9f0e-5d3c-4d0e-9a34-3f2a8f0c1a11",
                    "data": {"account_id": 1, "amount_cents": 500},
                }
            ]
        }
    )

    domain: DomainName
    command_type: TypeName
    data: JsonObject
    command_id: UUID | None = Field(
        None, description="Makes the request repeatable. The header Idempotency-Key is the same."
    )
    correlation_id: UUID | None = None
    wants_reply: bool = Field(True, description="false: nobody is to be told how it ended.")
    max_attempts: int | None = Field(None, ge=1, le=1_000)


class CommandView(View):
    """A command. Its payload is not part of it."""

    domain: str
    command_id: UUID
    command_type: str
    status: CommandStatus
    attempts: int
    max_attempts: int
    correlation_id: UUID
    batch_id: UUID | None
    created_at: datetime
    updated_at: datetime
    lease_expires_at: datetime | None
    leased_by: str | None
    last_error_type: str | None
    last_error_code: str | None
    last_error_msg: str | None
    reply_queue: str


class CommandDetail(CommandView):
    """A command, with its payload if that was asked for and may be seen; secrets are masked."""

    payload: Any = None
    status_url: str


class Accepted(View):
    """The command is stored: it will be worked on, once."""

    domain: str
    command_id: UUID
    command_type: str
    status: CommandStatus
    is_repeat: bool = Field(description="It was sent before; nothing new was created.")
    status_url: str


class CommandPageView(View):
    """Some commands, newest first."""

    items: list[CommandView]
    next_cursor: str | None
    searched_back_to: datetime | None = Field(
        description="Set if the page is short because the search went far back."
    )


class WithReason(Form):
    """Why somebody acts."""

    reason: Reason


class AuditEventView(View):
    """One line of the audit. Its details were redacted before they were stored."""

    audit_id: int
    domain: str
    command_id: UUID
    event_type: str = Field(examples=[AuditEventType.SENT.value])
    ts: datetime
    details: dict[str, Any] | None
    batch_id: UUID | None
    actor: str | None


class AuditPageView(View):
    """Some events."""

    items: list[AuditEventView]
    next_cursor: str | None
    searched_to: datetime | None
