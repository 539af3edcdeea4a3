"""Batches of commands, as the library has them (not the governed ones)."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ConfigDict, Field

from commandbus.http.schemas.base import Form, JsonObject, TypeName, View
from commandbus.http.schemas.commands import CommandView
from commandbus.models import BatchStatus


class CommandOfBatch(Form):
    """One command of a batch."""

    command_type: TypeName
    data: JsonObject
    command_id: UUID | None = None
    correlation_id: UUID | None = None


class CreateBatch(Form):
    """A batch, created whole or not at all. Choose the ids of its commands, and a repeat is refused
    instead of done twice.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "two debits",
                    "commands": [
                        {"command_type": "DebitAccount", "data": {"amount_cents": 500}},
                        {"command_type": "DebitAccount", "data": {"amount_cents": 700}},
                    ],
                }
            ]
        }
    )

    commands: list[CommandOfBatch] = Field(min_length=1, max_length=10_000)
    name: str | None = Field(None, min_length=1, max_length=255)
    custom_data: dict[str, Any] | None = None


class BatchCreated(View):
    """The batch and its commands are stored."""

    batch_id: UUID
    domain: str
    command_ids: list[UUID]
    status_url: str


class BatchView(View):
    """A batch and its counters. `custom_data` only for those who may read payloads."""

    batch_id: UUID
    domain: str
    name: str | None
    status: BatchStatus
    total_count: int
    completed_count: int
    failed_count: int
    canceled_count: int
    in_troubleshooting_count: int
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    custom_data: dict[str, Any] | None = None


class BatchPageView(View):
    """Some batches, newest first."""

    items: list[BatchView]
    next_cursor: str | None


class BatchCommandPageView(View):
    """Some commands of a batch, in their order."""

    items: list[CommandView]
    next_cursor: str | None


class Counted(View):
    """How many commands were changed."""

    count: int
