"""Governed batches: what is shown, and the forms that are the same for all batch types."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from pydantic import Field

from commandbus.access.model import Scope
from commandbus.governance.considering import Consideration, ItemChange, Look, Rejected
from commandbus.governance.model import (
    BatchTicket,
    ChildStatus,
    ChildTicket,
    Edit,
    ReviewedChild,
    TicketStatus,
    Undecided,
)
from commandbus.http.schemas.base import Form, Reason, example
from commandbus.http.schemas.views import View, view_of

BATCH_ID = "6f1d6a0e-6f0b-4b0b-8a53-0d7f3c1f9a01"

ChildStatusQuery = Annotated[
    ChildStatus | None, Query(description="Only children with this status.")
]
TypeFilter = Annotated[
    str | None, Query(min_length=1, max_length=64, description="Only this batch type.")
]
OwnerFilter = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=200,
        description="Only of this user, as far as the caller may see them.",
    ),
]

Digest = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$", description="64 hexadecimal digits.")]
Links = Annotated[
    dict[str, str],
    Field(
        description="What can be asked for or done next, by name.",
        examples=[{"self": f"/api/v1/batches/{BATCH_ID}"}],
    ),
]


class Submitted(View):
    """The batch is stored; its commands are queued, or wait for an approval."""

    model_config = example(
        batch_id=BATCH_ID,
        batch_type="BATCH_CREATE",
        status="IN_PROGRESS",
        status_url=f"/api/v1/vms/batch/{BATCH_ID}",
        retry_after_seconds=2,
        links={"self": f"/api/v1/vms/batch/{BATCH_ID}"},
    )

    batch_id: UUID = Field(validation_alias="ticket_id")
    batch_type: str
    status: TicketStatus
    status_url: str = Field(description="Where to look; the header Location says the same.")
    retry_after_seconds: int = Field(description="After how many seconds to look first.")
    links: Links


@view_of(
    BatchTicket,
    rename={"ticket_id": "batch_id"},
    describe={
        "failed_count": "Including those in troubleshooting.",
        "content_digest": "Of everything that was submitted. A decision may name it.",
        "edit_count": "Edits of its children that wait for a decision.",
        "expires_at": "When it is canceled unless somebody decides before.",
    },
)
class TicketView(View):
    """A governed batch and its counts. `batch_id` is what approvals call `ticket_id`."""

    status_url: str
    links: Links


@view_of(
    ChildTicket,
    hide=("parent_ticket_id",),
    describe={
        "ticket_id": "The id of its command.",
        "sequence_no": "Counts from 1, in the order of the request.",
        "error_message": "Redacted, at most 512 characters.",
        "attempt_count": "How often it was dispatched; never reset.",
    },
)
class ChildView(View):
    """One command of a governed batch."""


class StatusView(TicketView):
    """A governed batch with a page of its children."""

    children: list[ChildView]
    next_cursor: str | None = Field(description="`cursor` of the next page of children.")


class RetriedView(TicketView):
    """What a retry did. Both lists contain sequence numbers."""

    retried: list[int]
    exhausted: list[int] = Field(description="Failed, and dispatched as often as is allowed.")


@view_of(
    Edit,
    describe={
        "digest": "An approval must name it.",
        "changes": "From the payload that the child has: paths, and values that may be shown.",
        "payload": "Secrets are masked.",
        "masked_count": "Values that are not shown. The digest covers them.",
    },
)
class EditView(View):
    """A payload that an operator proposes for a child."""


@view_of(
    ReviewedChild,
    describe={
        "ticket_id": "The id of its command.",
        "digest": "Of what was submitted.",
        "payload": "Secrets are masked; null: it is no longer kept.",
        "masked_count": "Values that are not shown. The digest covers them.",
        "is_edited": "Its payload is not the one that was submitted: an edit was approved.",
    },
)
class ReviewedChildView(View):
    """A child as those who decide see it."""

    edit: EditView | None = Field(description="The edit that waits for a decision.")


class ReviewView(TicketView):
    """What a decision is about. `content_digest` covers all children, on all pages."""

    children: list[ReviewedChildView]
    next_cursor: str | None = Field(description="`cursor` of the next page of children.")


@view_of(Look)
class LookView(View):
    """Somebody who may decide has seen what a batch consists of."""


@view_of(Rejected)
class RejectedView(View):
    """The request of the same user and type that was rejected last, and what differs from it."""

    ticket: TicketView


@view_of(
    Consideration,
    describe={
        "is_dangerous": "Ask for the number of items to be typed.",
        "why_not": "Why you cannot decide; null: you can.",
    },
)
class ConsiderationView(View):
    """What those who decide should know beside the items."""

    ticket: TicketView
    looks: list[LookView]
    earlier: list[TicketView] = Field(description="Decided batches of the same type, newest first.")
    rejected: RejectedView | None


@view_of(ItemChange)
class ItemChangeView(View):
    """What one item would change; `problem`: that cannot be told."""


@view_of(
    Undecided,
    rename={"ticket_id": "batch_id"},
    describe={
        "command_id": "Of the child whose edit waits; null: the batch waits.",
        "editor": "Who proposed the edit; null: the batch waits.",
        "digest": "Of the batch, or of the edit.",
    },
)
class UndecidedView(View):
    """A batch, or the edit of one child, that waits for a decision."""

    links: Links


class RetryForm(Form):
    """An optional reason."""

    reason: Reason | None = None


class DecisionForm(Form):
    """A decision about a batch that waits for it; a rejection needs a reason."""

    model_config = example(decision="reject", reason="not this week")

    decision: Literal["approve", "reject"]
    reason: Reason | None = None
    digest: Digest | None = Field(
        None,
        description="What you have seen: `content_digest`. If it is another one by now: 409.",
    )


class EditDecisionForm(DecisionForm):
    """A decision about the edit of a child; an approval needs its digest."""

    digest: Digest | None = Field(
        None, description="Of the edit that you have seen. If it was replaced since: 409."
    )


class BatchTypeView(View):
    """What may be submitted."""

    name: str
    description: str
    domain: str
    permission: Scope
    max_size: int
    max_attempts: int
    requires_approval: bool
    submit_url: str
    operation: str | None = Field(description="Of the body, where several types share a path.")
    item_schema: dict[str, Any] = Field(description="JSON Schema of one item.")
    example: dict[str, Any] | None
