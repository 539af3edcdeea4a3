"""Limits: what administrators see and change."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import AwareDatetime, BeforeValidator, Field

from commandbus.access.users import MAX_USER_ID
from commandbus.governance.model import Exemption, LimitsStatus, LimitState, UserLimits
from commandbus.http.schemas.base import Form, Reason, Whole, example, written
from commandbus.http.schemas.views import View, view_of
from commandbus.settings import MAX_COOLDOWN_SECONDS

#: May contain a slash: some issuers name their users so.
UserPath = Annotated[str, Path(min_length=1, max_length=MAX_USER_ID, examples=["ada"])]


class ExemptionForm(Form):
    """A user to whom the limits of users should not apply. A second one replaces the first."""

    model_config = example(user_id="ada", reason="moves the data centre")

    user_id: str = Field(min_length=1, max_length=MAX_USER_ID)
    reason: Reason
    expires_at: Annotated[AwareDatetime | None, BeforeValidator(written)] = Field(
        None, description="Left out: until it is deleted."
    )


@view_of(Exemption)
class ExemptionView(View):
    """A user to whom the limits of users do not apply. The global limits still do."""


class UserLimitsForm(Form):
    """Limits of one user. Fields that are left out stay; an empty object removes all."""

    model_config = example(max_pending_children=200)

    max_pending_batches: Whole | None = Field(None, ge=0, le=1_000_000)
    max_pending_children: Whole | None = Field(None, ge=0, le=100_000_000)
    cooldown_seconds: Whole | None = Field(None, ge=0, le=MAX_COOLDOWN_SECONDS)


@view_of(UserLimits)
class UserLimitsView(View):
    """Limits of one user. null: the default applies."""


@view_of(
    LimitState,
    describe={
        "scope": "global or user.",
        "max_value": "null: lifted by an exemption.",
        "reset_seconds": "null: it goes down as commands end.",
    },
)
class LimitView(View):
    """How full a limit is."""


class UserStateView(View):
    """The limits of a user who has something pending."""

    user_id: str
    limits: list[LimitView]


@view_of(LimitsStatus)
class LimitsStatusView(View):
    """The limits in force, how full they are, and who is excepted."""

    limits: list[LimitView]
    exemptions: list[ExemptionView]
    overrides: list[UserLimitsView]
    users: list[UserStateView] = Field(description="The fullest first, at most 100.")
