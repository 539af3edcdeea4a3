"""Limits: exemptions, limits of single users, and how full all of them are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from commandbus.access.model import Caller, Scope
from commandbus.governance.model import UserLimits
from commandbus.http.platform import Here
from commandbus.http.problems import not_found
from commandbus.http.schemas.limits import (
    ExemptionForm,
    ExemptionView,
    LimitsStatusView,
    LimitView,
    UserLimitsForm,
    UserLimitsView,
    UserPath,
    UserStateView,
)
from commandbus.http.security import requires

router = APIRouter(prefix="/api/v1/admin/rate-limits", tags=["limits"])

Admin = Annotated[Caller, requires(Scope.ADMIN)]


@router.post("/exemptions", status_code=201)
async def exempt_user(form: ExemptionForm, here: Here, caller: Admin) -> ExemptionView:
    """Lift the limits of a user; the global ones still hold."""
    made = await here.bus.governance.exempt(
        caller, form.user_id, form.reason, expires_at=form.expires_at
    )
    return ExemptionView.model_validate(made)


@router.delete("/exemptions/{user_id:path}", status_code=204)
async def unexempt_user(user_id: UserPath, here: Here, caller: Admin) -> Response:
    """Take an exemption back."""
    if not await here.bus.governance.unexempt(caller, user_id):
        raise not_found("this user has no exemption; GET /api/v1/admin/rate-limits/status has all")
    return Response(status_code=204)


@router.put("/users/{user_id:path}")
async def set_user_limits(
    user_id: UserPath, form: UserLimitsForm, here: Here, caller: Admin
) -> UserLimitsView:
    """Give a user limits of its own. What is left out stays; an empty object takes all back."""
    limits = UserLimits(user_id, **form.model_dump())
    return UserLimitsView.model_validate(await here.bus.governance.set_user_limits(caller, limits))


@router.get("/status")
async def limits_status(here: Here, caller: Admin) -> LimitsStatusView:
    """Show the limits in force, how full they are, and who is excepted."""
    found = await here.bus.governance.limits_status(caller)
    return LimitsStatusView(
        limits=[LimitView.model_validate(each) for each in found.limits],
        defaults=found.defaults,
        exemptions=[ExemptionView.model_validate(each) for each in found.exemptions],
        overrides=[UserLimitsView.model_validate(each) for each in found.overrides],
        users=[
            UserStateView(user_id=user, limits=[LimitView.model_validate(each) for each in limits])
            for user, limits in found.users
        ],
    )
