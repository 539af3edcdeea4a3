"""Batches of commands, as the library has them (not the governed ones)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import Field

from commandbus.batches.actions import BatchAction
from commandbus.batches.standing import BatchError, BatchErrors, BatchPace
from commandbus.http.schemas.base import Form, JsonObject, ListOf, Reason, TypeName, example
from commandbus.http.schemas.flow import FlowForm
from commandbus.http.schemas.views import View, view_of
from commandbus.loads.model import LoadMetadata, LoadResult
from commandbus.models import BatchMetadata, BatchStatus


class CommandOfBatch(FlowForm):
    """One command of a batch."""

    command_type: TypeName
    data: JsonObject
    command_id: UUID | None = None
    correlation_id: UUID | None = None


class CreateBatch(Form):
    """A batch, created whole or not at all. Choose the ids of its commands, and a repeat is refused
    instead of done twice.
    """

    model_config = example(
        name="two debits",
        commands=[
            {"command_type": "DebitAccount", "data": {"amount_cents": 500}},
            {"command_type": "DebitAccount", "data": {"amount_cents": 700}},
        ],
    )

    commands: ListOf[CommandOfBatch] = Field(min_length=1, max_length=10_000)
    name: str | None = Field(None, min_length=1, max_length=255)
    custom_data: dict[str, Any] | None = None


class BatchCreated(View):
    """The batch and its commands are stored."""

    batch_id: UUID
    domain: str
    command_ids: list[UUID]
    status_url: str


@view_of(BatchMetadata)
class BatchView(View):
    """A batch and its counters. `custom_data` only for callers who may read payloads."""

    status: BatchStatus
    custom_data: dict[str, Any] | None = None


@view_of(LoadMetadata, hide=("last_first_row", "last_digest"))
class LoadView(View):
    """How far the load of a batch is. `actions` is what can be done with the batch now."""

    actions: list[BatchAction]


class ResumeLoad(Form):
    """The source of a load: all its rows, from the beginning; those that are loaded are skipped."""

    rows: ListOf[JsonObject] = Field(min_length=1, max_length=100_000)


@view_of(LoadResult)
class LoadResultView(View):
    """How a load ended. After `partial_success` it can be resumed, sealed or canceled."""


class Counted(View):
    """How many commands were changed."""

    count: int


class Canceled(Counted):
    """How many were canceled, and of how many that was requested; `count` is both."""

    canceled: int
    requested: int


class RetryBatch(Form):
    """Why a batch is sent again."""

    reason: Reason | None = None


@view_of(BatchError)
class BatchErrorView(View):
    """What went wrong under one error code."""


@view_of(
    BatchErrors,
    describe={
        "is_complete": "Otherwise: of the first 100,000 commands, and at most 10,000 failed ones."
    },
)
class BatchErrorsView(View):
    """What failed or is parked, by error code, most first."""

    codes: list[BatchErrorView]


@view_of(BatchPace)
class BatchPaceView(View):
    """How fast a batch goes; recent_per_second is null, because one request has seen it once."""


class BatchStandingView(View):
    """How a batch stands."""

    sentence: str = Field(description="Why it is open, or how it ended, in words.")
    pace: BatchPaceView
    errors: BatchErrorsView
