"""Limits: what administrators see and change."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Path
from pydantic import AwareDatetime, ConfigDict, Field

from commandbus.governance.limits import MAX_USER_ID
from commandbus.governance.model import LimitType
from commandbus.http.schemas.base import Form, Reason, View
from commandbus.settings import MAX_COOLDOWN_SECONDS

#: May have a slash in it: some issuers name their users so.
UserPath = Annotated[str, Path(min_length=1, max_length=MAX_USER_ID, examples=["ada"])]


class ExemptionForm(Form):
    """A user whom the user layer should not bind for a while. A second one replaces the first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"user_id": "ada", "reason": "moves the data centre"}]}
    )

    user_id: str = Field(min_length=1, max_length=MAX_USER_ID)
    reason: Reason
    expires_at: AwareDatetime | None = Field(None, description="Left out: until it is deleted.")


class ExemptionView(View):
    """A user whom the user layer does not bind. The global layer still does."""

    user_id: str
    exempted_by: str
    reason: str
    expires_at: datetime | None
    created_at: datetime


class UserLimitsForm(Form):
    """Limits of one user. What is left out stays as it is; an empty object takes them all back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_pending_children": 200}]})

    max_pending_batches: int | None = Field(None, ge=0, le=1_000_000)
    max_pending_children: int | None = Field(None, ge=0, le=100_000_000)
    cooldown_seconds: int | None = Field(None, ge=0, le=MAX_COOLDOWN_SECONDS)


class UserLimitsView(View):
    """Limits of one user. null: the default holds."""

    user_id: str
    max_pending_batches: int | None
    max_pending_children: int | None
    cooldown_seconds: int | None
    updated_by: str | None
    updated_at: datetime | None


class LimitView(View):
    """How full a limit is."""

    limit_type: LimitType
    scope: str = Field(description="global or user.")
    current_value: int
    max_value: int | None = Field(description="null: lifted by an exemption.")
    reset_seconds: int | None = Field(description="null: it eases when work gets done.")


class UserStateView(View):
    """The limits of a user who has something pending."""

    user_id: str
    limits: list[LimitView]


class LimitsStatusView(View):
    """The limits in force, how full they are, and who is excepted."""

    limits: list[LimitView]
    defaults: dict[str, int]
    exemptions: list[ExemptionView]
    overrides: list[UserLimitsView]
    users: list[UserStateView] = Field(description="The fullest first, at most 100.")
