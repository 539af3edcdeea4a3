"""Schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Path
from pydantic import AwareDatetime, BeforeValidator, Field

from commandbus.flow import HIGHEST_PRIORITY, LOWEST_PRIORITY, MAX_KEY_LENGTH
from commandbus.http.schemas.base import (
    Flag,
    Form,
    JsonObject,
    Reason,
    TypeName,
    Whole,
    example,
    written,
)
from commandbus.http.schemas.flow import Meta
from commandbus.http.schemas.views import View, view_of
from commandbus.schedules.checks import MAX_JITTER_SECONDS, MAX_MISSED_CAP, MAX_NAME_LENGTH
from commandbus.schedules.model import Missed, Overlap, Schedule, ScheduleStatus
from commandbus.schedules.ticks import MAX_CRON_LENGTH, MAX_EVERY

SchedulePath = Annotated[
    str,
    Path(
        pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]*$",
        max_length=MAX_NAME_LENGTH,
        examples=["nightly-report"],
    ),
]
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class PutSchedule(Form):
    """What a schedule sends, and when: one of cron, every_seconds and at."""

    model_config = example(
        command_type="BuildReport", data={"kind": "sales"}, cron="0 6 * * 1-5",
        timezone="Europe/Berlin",
    )  # fmt: skip

    command_type: TypeName
    data: JsonObject
    cron: str | None = Field(None, max_length=MAX_CRON_LENGTH, examples=["0 6 * * 1-5"])
    timezone: str | None = Field(
        None, max_length=100, examples=["Europe/Berlin"], description="Of cron; left out: UTC."
    )
    every_seconds: Seconds | None = Field(None, ge=1, le=MAX_EVERY.total_seconds())
    at: Annotated[AwareDatetime | None, BeforeValidator(written)] = None
    missed: Missed = Field(
        Missed.ONCE, description="Ticks that nobody fired within a minute: the latest, none or all."
    )
    missed_cap: Whole = Field(100, ge=1, le=MAX_MISSED_CAP)
    overlap: Overlap | None = Field(
        None,
        description="skip: no tick while the last command is open. Left out: skip, and allow if "
        "all missed ticks are made up.",
    )
    jitter_seconds: Seconds = Field(0, ge=0, le=MAX_JITTER_SECONDS)
    expires_in_seconds: Seconds | None = Field(None, ge=1)
    priority: Whole | None = Field(None, ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)
    ordering_key: str | None = Field(None, min_length=1, max_length=MAX_KEY_LENGTH)
    meta: Meta | None = None
    wants_reply: Flag = Field(False, description="true: replies go to the queue of the domain.")
    max_attempts: Whole | None = Field(None, ge=1, le=1_000)


class PauseSchedule(Form):
    """Why a schedule is paused."""

    reason: Reason


class ResumeSchedule(Form):
    """How a schedule goes on."""

    catch_up: Flag = Field(False, description="Treat the ticks of the pause as missed ones.")
    reason: Reason | None = None


class TriggerSchedule(Form):
    """The id of the command that a trigger sends, and why."""

    command_id: UUID | None = Field(None, description="Makes the request repeatable.")
    reason: Reason | None = None


@view_of(
    Schedule,
    hide=("counted_from",),
    describe={
        "next_tick_at": "null: it is finished.",
        "put_for": "The user for whom this service put it; null: an application did.",
        "data": "The payload, secrets masked; only if it was asked for.",
    },
)
class ScheduleView(View):
    """A schedule."""

    status: ScheduleStatus
    data: Any = None


def schedule_view(found: Schedule) -> ScheduleView:
    """What is shown of a schedule."""
    return ScheduleView.of(found, status=found.status)


class TicksView(View):
    """When a schedule is due next."""

    ticks: list[datetime]


class Triggered(View):
    """The command that a trigger has sent."""

    domain: str
    command_id: UUID
    status_url: str
