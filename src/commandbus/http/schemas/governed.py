"""Governed batches: what is shown, and the forms that are the same for all batch types."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from pydantic import Field

from commandbus.access.model import Scope
from commandbus.governance.model import BatchTicket, ChildStatus, ChildTicket, TicketStatus
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
    describe={"failed_count": "Including those in troubleshooting."},
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


class RetryForm(Form):
    """An optional reason."""

    reason: Reason | None = None


class DecisionForm(Form):
    """A decision about a batch that waits for it; a rejection needs a reason."""

    model_config = example(decision="reject", reason="not this week")

    decision: Literal["approve", "reject"]
    reason: Reason | None = None


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
