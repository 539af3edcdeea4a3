"""What waits for an operator: items, groups, bulk operations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AwareDatetime, Field

from commandbus.errors import InvalidInputError
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
from commandbus.http.schemas.views import ListView, View, view_of
from commandbus.models import TroubleshootingItem
from commandbus.troubleshooting.model import (
    BulkItem,
    BulkMatch,
    BulkOperation,
    BulkPreview,
    BulkSample,
    BulkVerb,
    EditExample,
    EditPreview,
    FailureGroup,
)
from commandbus.troubleshooting.patch import JsonPatch, MergePatch
from commandbus.troubleshooting.sentences import bulk_sentence, group_sentence

Rate = Annotated[float, Field(strict=True, ge=0.0001, le=1_000_000)]
StartAfter = Annotated[float, Field(strict=True, ge=0, le=3_600)]
Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{1,16}$", examples=["9f86d081884c7d65"])]


@view_of(TroubleshootingItem, hide=("data", "reply_queue"))
class ParkedView(View):
    """A command in troubleshooting; the payload only if asked for and allowed, secrets masked."""

    payload: Any = None


class RetryParked(Form):
    """Send a parked command again, perhaps with an edited payload."""

    model_config = example(reason="the bank is back")

    reason: Reason
    payload: JsonObject | None = Field(
        None, description="Instead of the old one. Fields left masked keep their real values."
    )
    reset_attempts: Flag = True


class CompleteParked(Form):
    """End a parked command as done."""

    reason: Reason
    result: Any = Field(None, description="What its reply carries.")


class NoteText(Form):
    """A remark for the audit."""

    text: Annotated[str, Field(min_length=1, max_length=2_000, examples=["asked the bank"])]


@view_of(
    FailureGroup,
    hide=("back_after",),
    describe={
        "assignee": "Who looks after it.",
        "emptied_at": "When its last parked command left it.",
        "back_at": "When it was last seen again after that.",
        "back_count": "How often it came back.",
        "audit_id": "The `command_id` under which the audit has what people did to the group.",
    },
)
class GroupView(View):
    """Parked commands with one cause."""

    back_after_seconds: float | None = Field(
        description="How long nothing of it was parked before it came back."
    )
    sentence: str = Field(description="What is known of it, in words.")


def group_view(group: FailureGroup, now: datetime) -> GroupView:
    """A failure group as it is at this time."""
    after = group.back_after
    seconds = None if after is None else after.total_seconds()
    return GroupView.of(group, back_after_seconds=seconds, sentence=group_sentence(group, now))


class GroupsView(ListView[GroupView]):
    """Failure groups, largest first."""

    is_cut: bool = Field(description="There are more: narrow the search.")


class GroupNote(Form):
    """A remark about a failure group."""

    text: Annotated[str, Field(min_length=1, max_length=2_000)] | None = Field(
        description="null: takes the remark off.", examples=["the bank fixes it by noon"]
    )


class GroupAssignee(Form):
    """Who looks after a failure group."""

    assignee: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        description="null: nobody.", examples=["ada"]
    )


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
    command_ids: tuple[UUID, ...] | None = Field(None, min_length=1, max_length=10_000)
    failed_of: UUID | None = Field(
        None, description="What failed in this operation, if nobody has acted on it since."
    )


class EditForm(Form):
    """One change for the payload of each command: one of the two."""

    model_config = example(merge_patch={"currency": "EUR"})

    merge_patch: JsonObject | None = Field(
        None, description="JSON Merge Patch (RFC 7396): fields to set, null to remove."
    )
    patch: list[dict[str, Any]] | None = Field(
        None,
        fail_fast=True,
        description="JSON Patch (RFC 6902): add, remove, replace, move, copy, test.",
        examples=[[{"op": "replace", "path": "/currency", "value": "EUR"}]],
    )

    def read(self) -> MergePatch | JsonPatch:
        """The change, as the library takes it."""
        if (self.merge_patch is None) == (self.patch is None):
            raise InvalidInputError("an edit has either merge_patch or patch")
        return (
            JsonPatch(self.patch) if self.patch is not None else MergePatch(self.merge_patch or {})
        )


class PreviewEdit(Form):
    """An edit, and the commands whose payloads it would change."""

    model_config = example(
        filter={"domain": "payments", "group": "9f86d081884c7d65"},
        edit={"merge_patch": {"currency": "EUR"}},
    )

    filter: BulkFilterForm
    edit: EditForm
    examples: Whole = Field(10, ge=0, le=100, description="Commands that are shown.")


class StartBulk(Form):
    """One decision for many parked commands."""

    model_config = example(
        verb="retry",
        filter={"domain": "payments", "error_code": "BANK_DOWN"},
        expected_total=120,
        rate=50,
    )

    verb: BulkVerb
    filter: BulkFilterForm
    reason: Reason | None = Field(
        None, description="Why, for the operation and the audit. Needed to cancel."
    )
    result: Any = Field(None, description="What the replies carry, if the verb is complete.")
    edit: EditForm | None = Field(
        None, description="Change the payloads before they are sent again, if the verb is retry."
    )
    reset_attempts: Flag = True
    rate: Rate | None = Field(None, description="Commands per second.")
    operation_id: UUID | None = Field(None, description="Makes the request repeatable.")
    everything: Flag = Field(
        False, description="Needed if the filter matches all parked commands of the domain."
    )
    expected_total: Whole | None = Field(
        None, ge=0, description="What the preview said; if it is another by now, nothing starts."
    )
    limit: Whole | None = Field(
        None, ge=1, le=2**31 - 1, description="Only this many, those that are parked longest."
    )
    start_after: StartAfter | None = Field(
        None, description="Seconds in which nothing is done yet: a stop undoes everything."
    )


class ResumeBulk(Form):
    """Let a stopped operation go on."""

    rate: Rate | None = None
    reason: Reason | None = None


@view_of(BulkMatch)
class BulkMatchView(View):
    """How many commands of one group match."""


@view_of(BulkSample)
class BulkSampleView(View):
    """One of the commands that match, without its payload."""


@view_of(BulkPreview)
class BulkPreviewView(View):
    """What a filter matches now."""

    groups: list[BulkMatchView]
    samples: list[BulkSampleView] = Field(description="Parked longest; as many as asked for.")


@view_of(EditExample)
class EditExampleView(View):
    """What an edit would do to one command, secrets masked; values only if payloads are shown."""


@view_of(EditPreview)
class EditPreviewView(View):
    """What an edit would do to the commands that a filter matches now."""

    examples: list[EditExampleView]


@view_of(
    BulkOperation,
    hide=("arguments", "executor", "heartbeat_at", "resumed_at", "resumed_from"),
    describe={
        "limit": "It has only this many of what matched, the oldest.",
        "starts_at": "No item before this time; a stop before it undoes everything.",
    },
)
class BulkView(View):
    """A bulk operation and how far it is."""

    per_second: float | None = Field(description="The rate that it reaches.")
    seconds_left: float | None = Field(description="At that rate.")
    last_sign_at: datetime = Field(
        description="When an executor last acted on it, or could first have done so."
    )
    sentence: str = Field(description="Where it stands, in words.")
    edited_paths: list[str] = Field(description="What its edit writes to; its values are not kept.")


def bulk_view(operation: BulkOperation, now: datetime) -> BulkView:
    """A bulk operation as it is at this time."""
    return BulkView.of(
        operation,
        per_second=operation.per_second,
        seconds_left=operation.seconds_left,
        last_sign_at=operation.last_sign_at,
        edited_paths=operation.edited_paths,
        sentence=bulk_sentence(operation, now),
    )


@view_of(BulkItem)
class BulkItemView(View):
    """What became of one command."""
