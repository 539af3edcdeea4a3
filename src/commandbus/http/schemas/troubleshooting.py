"""What waits for an operator: items, groups, bulk operations."""

from __future__ import annotations

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
from commandbus.http.schemas.views import View, view_of
from commandbus.models import TroubleshootingItem
from commandbus.troubleshooting.model import (
    BulkItem,
    BulkMatch,
    BulkOperation,
    BulkPreview,
    BulkVerb,
    EditExample,
    EditPreview,
    FailureGroup,
)
from commandbus.troubleshooting.patch import JsonPatch, MergePatch

Rate = Annotated[float, Field(strict=True, ge=0.0001, le=1_000_000)]
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


@view_of(FailureGroup)
class GroupView(View):
    """Parked commands with one cause."""


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
    reason: Reason | None = Field(None, description="Needed to cancel, refused otherwise.")
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


class ResumeBulk(Form):
    """Let a stopped operation go on."""

    rate: Rate | None = None


@view_of(BulkMatch)
class BulkMatchView(View):
    """How many commands of one group match."""


@view_of(BulkPreview)
class BulkPreviewView(View):
    """What a filter matches now."""

    groups: list[BulkMatchView]


@view_of(EditExample)
class EditExampleView(View):
    """What an edit would do to one command, secrets masked; values only if payloads are shown."""


@view_of(EditPreview)
class EditPreviewView(View):
    """What an edit would do to the commands that a filter matches now."""

    examples: list[EditExampleView]


@view_of(BulkOperation, hide=("arguments", "executor", "heartbeat_at"))
class BulkView(View):
    """A bulk operation and how far it is."""

    edited_paths: list[str] = Field(description="What its edit writes to; its values are not kept.")


@view_of(BulkItem)
class BulkItemView(View):
    """What became of one command."""
