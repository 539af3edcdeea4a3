"""What waits for an operator: items, groups, bulk operations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AwareDatetime, ConfigDict, Field

from commandbus.http.schemas.base import DomainName, Form, JsonObject, Reason, TypeName, View
from commandbus.models import ParkReason
from commandbus.troubleshooting.model import BulkOutcome, BulkStatus, BulkVerb

Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{1,16}$", examples=["9f86d081884c7d65"])]


class ParkedView(View):
    """A command in troubleshooting; the payload only if asked for and allowed, secrets masked."""

    domain: str
    command_id: UUID
    command_type: str
    reason: ParkReason
    parked_at: datetime
    attempts: int
    max_attempts: int
    last_error_type: str | None
    last_error_code: str | None
    last_error_msg: str | None
    correlation_id: UUID
    batch_id: UUID | None
    created_at: datetime
    payload: Any = None


class ParkedPageView(View):
    """Some of what waits, longest first."""

    items: list[ParkedView]
    next_cursor: str | None


class RetryParked(Form):
    """Send a parked command again, perhaps with an edited payload."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the bank is back"}]})

    reason: Reason
    payload: JsonObject | None = Field(
        None, description="Instead of the old one. Fields left masked keep their real values."
    )
    reset_attempts: bool = True


class CompleteParked(Form):
    """End a parked command as done."""

    reason: Reason
    result: Any = Field(None, description="What its reply carries.")


class NoteText(Form):
    """A remark for the audit."""

    text: Annotated[str, Field(min_length=1, max_length=2_000, examples=["asked the bank"])]


class GroupView(View):
    """Parked commands with one cause."""

    domain: str
    fingerprint: str
    command_type: str
    error_class: str | None
    error_code: str | None
    message: str
    sample_message: str | None
    sample_command_id: UUID
    parked_count: int
    total_seen: int
    first_seen: datetime
    last_seen: datetime


class GroupList(View):
    """Groups, largest first. There is no next page: the smallest causes are left out."""

    items: list[GroupView]


# -- bulk operations


class BulkFilterForm(Form):
    """Which parked commands are meant. All that is given must hold."""

    domain: DomainName
    command_type: TypeName | None = None
    error_code: str | None = Field(None, min_length=1, max_length=200)
    group: Fingerprint | None = None
    batch_id: UUID | None = None
    parked_after: AwareDatetime | None = None
    parked_before: AwareDatetime | None = None
    command_ids: list[UUID] | None = Field(None, min_length=1, max_length=10_000)


class StartBulk(Form):
    """One decision for many parked commands."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "verb": "retry",
                    "filter": {"domain": "payments", "error_code": "BANK_DOWN"},
                    "expected_total": 120,
                    "rate": 50,
                }
            ]
        }
    )

    verb: BulkVerb
    filter: BulkFilterForm
    reason: Reason | None = Field(None, description="Needed to cancel, refused otherwise.")
    result: Any = Field(None, description="What the replies carry, if the verb is complete.")
    reset_attempts: bool = True
    rate: float | None = Field(None, ge=0.0001, le=1_000_000, description="Commands per second.")
    operation_id: UUID | None = Field(None, description="Makes the request repeatable.")
    everything: bool = Field(False, description="Needed if the filter matches all there is.")
    expected_total: int | None = Field(
        None, ge=0, description="What the preview said; if it is another by now, nothing starts."
    )


class ResumeBulk(Form):
    """Let a stopped operation go on."""

    rate: float | None = Field(None, ge=0.0001, le=1_000_000)


class BulkMatchView(View):
    """How many of one group match."""

    fingerprint: str
    command_type: str
    error_class: str | None
    error_code: str | None
    message: str
    matched: int


class BulkPreviewView(View):
    """What a filter matches now."""

    domain: str
    total: int
    groups: list[BulkMatchView]


class BulkView(View):
    """A bulk operation and how far it is."""

    operation_id: UUID
    domain: str
    verb: BulkVerb
    conditions: dict[str, Any]
    rate: float | None
    actor: str | None
    status: BulkStatus
    total: int
    done: int
    skipped: int
    failed: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class BulkList(View):
    """Operations, newest first; the next page comes `before` the last id of this one."""

    items: list[BulkView]
    next_before: UUID | None


class BulkItemView(View):
    """What became of one command."""

    item_no: int
    command_id: UUID
    outcome: BulkOutcome | None
    detail: str | None
    acted_at: datetime | None


class BulkItemList(View):
    """Items in their order; the rest comes `after` this number."""

    items: list[BulkItemView]
    next_after: int | None
