"""Commands and their audit."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, Strict

from commandbus.commands.contents import FormerPayload, ShownReply
from commandbus.flow import MAX_KEY_LENGTH, SendOptions
from commandbus.http.schemas.base import (
    DomainName,
    Flag,
    Form,
    JsonObject,
    Reason,
    TypeName,
    Whole,
    example,
)
from commandbus.http.schemas.flow import FlowForm
from commandbus.http.schemas.views import View, view_of
from commandbus.models import (
    AuditEvent,
    AuditEventType,
    CommandMetadata,
    CommandStatus,
    Progress,
    ReplyError,
    Running,
)
from commandbus.troubleshooting import Attempt, CommandLife, LifeFacts, LifeStep


class SendCommand(FlowForm):
    """A command to send. Choose the command_id yourself, and a repeat is safe."""

    model_config = example(
        domain="payments",
        command_type="DebitAccount",
        command_id="0b6b9f0e-5d3c-4d0e-9a34-3f2a8f0c1a11",
        data={"account_id": 1, "amount_cents": 500},
    )

    domain: DomainName
    command_type: TypeName
    data: JsonObject
    command_id: UUID | None = Field(
        None, description="Makes the request repeatable. The header Idempotency-Key is the same."
    )
    correlation_id: UUID | None = None
    wants_reply: Flag = Field(True, description="false: no reply is published.")
    max_attempts: Whole | None = Field(None, ge=1, le=1_000)
    unique_key: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_KEY_LENGTH,
        description="Of the commands of one key one at a time is sent.",
    )
    unique_while: Literal["waiting", "open"] | Annotated[float, Strict()] | None = Field(
        None, description="How long it holds its key; a number is seconds. Default: open."
    )
    on_duplicate: Literal["refuse", "skip", "replace"] | None = Field(
        None, description="If the key is held. Default: refuse, which is 409."
    )
    max_wait_seconds: Annotated[float, Strict()] | None = Field(
        None, description="With replace: it waits no longer than this from its first send."
    )

    def options(self) -> SendOptions:
        """What is said of when it starts, and that it is sent once."""
        return SendOptions(
            **super().options(),
            unique_key=self.unique_key,
            unique_while=self.unique_while,
            on_duplicate=self.on_duplicate,
            max_wait=self.max_wait_seconds,
        )


@view_of(CommandMetadata, hide=("queue_name", "msg_id", "lease_epoch"))
class CommandView(View):
    """A command. Its payload is not part of it."""


@view_of(Progress)
class ProgressView(View):
    """How far a running command has come, as its handler last said."""


class CommandDetail(CommandView):
    """A command, with its payload if that was asked for and may be seen; secrets are masked."""

    progress: ProgressView | None = Field(
        None, description="How far it has come, while it runs, if its handler says so."
    )

    payload: Any = None
    meta: dict[str, str] | None = Field(
        None, description="What travels with it beside its payload, while its message is kept."
    )
    stack: dict[str, Any] | None = Field(
        None, description="Where in the code the last failure was raised."
    )
    parent_ticket_id: UUID | None = Field(
        None, description="The governed batch that it is a child of."
    )
    sequence_no: int | None = Field(
        None, description="Its number in that batch, in the order of the request."
    )
    status_url: str


class Accepted(View):
    """The command is stored, and will be executed."""

    domain: str
    command_id: UUID
    command_type: str
    status: CommandStatus
    is_repeat: bool = Field(description="It was sent before; nothing new was created.")
    outcome: str = Field(
        "sent",
        description="sent or repeat; skipped or replaced: command_id is what holds the unique key.",
    )
    status_url: str


class WithReason(Form):
    """A reason for the audit."""

    reason: Reason


class CancelForm(WithReason):
    """A cancel, and what to do with commands that a worker has."""

    running: Running = Field(
        "refuse", description="request: the worker that has a command is asked to end it."
    )


@view_of(AuditEvent)
class AuditEventView(View):
    """One event of the audit. Its details were redacted before they were stored."""

    event_type: str = Field(examples=[AuditEventType.SENT.value])


@view_of(LifeStep)
class LifeStepView(View):
    """One event of a life, and how long after the one before it came."""

    event: AuditEventView


@view_of(Attempt)
class AttemptView(View):
    """One run of the handler: who, when, and how it ended."""


@view_of(
    LifeFacts,
    hide=("dispatch_status",),
    describe={
        "reply": "open, unwanted, waiting, leased, taken, gone (taken, or removed) or unknown.",
        "traceparent": "The trace that it is part of, while its message or its reply is kept.",
    },
)
class LifeFactsView(View):
    """What is known of a command beside its row."""


@view_of(ReplyError)
class ShownErrorView(View):
    """Why a command did not succeed."""


@view_of(ShownReply, hide=("data",))
class ShownReplyView(View):
    """Where a reply is and what it says while it is there; nobody is kept from taking it."""

    data: Any = Field(None, description="What was answered, secrets masked; with `payload=true`.")
    error: ShownErrorView | None


@view_of(FormerPayload)
class FormerPayloadView(View):
    """A payload that a command had before it was edited; null: it is not kept any more."""


@view_of(
    CommandLife,
    describe={
        "sentence": "Why it stands where it stands, in words.",
        "left_out": "Events between the first and the last 50; -1: more than 10,000.",
        "actions": "What its state allows.",
    },
)
class LifeView(View):
    """What happened to a command, without its payload."""

    command: CommandView
    steps: list[LifeStepView]
    attempts: list[AttemptView]
    facts: LifeFactsView
    siblings: list[CommandView] = Field(description="Others with the same correlation.")
