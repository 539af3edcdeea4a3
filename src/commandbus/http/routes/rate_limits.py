"""Limits: exemptions, limits of single users, and how full all of them are."""

from __future__ import annotations

from fastapi import APIRouter

from commandbus.governance.model import UserLimits
from commandbus.http.auth.scopes import Admin
from commandbus.http.platform import Here
from commandbus.http.problems import not_found
from commandbus.http.schemas.limits import (
    ExemptionForm,
    ExemptionView,
    LimitsStatusView,
    UserLimitsForm,
    UserLimitsView,
    UserPath,
)
from commandbus.http.strict import StrictRoute

router = APIRouter(prefix="/api/v1/admin/rate-limits", tags=["limits"], route_class=StrictRoute)


@router.post("/exemptions", status_code=201)
async def exempt_user(form: ExemptionForm, here: Here, caller: Admin) -> ExemptionView:
    """Lift the limits of a user; the global ones still hold."""
    made = await here.bus.governance.exempt(
        caller, form.user_id, form.reason, expires_at=form.expires_at
    )
    return ExemptionView.of(made)


@router.delete("/exemptions/{user_id:path}", status_code=204)
async def unexempt_user(user_id: UserPath, here: Here, caller: Admin) -> None:
    """Delete an exemption."""
    if not await here.bus.governance.unexempt(caller, user_id):
        raise not_found(
            "this user has no exemption; GET /api/v1/admin/rate-limits/status lists all of them"
        )


@router.put("/users/{user_id:path}")
async def set_user_limits(
    user_id: UserPath, form: UserLimitsForm, here: Here, caller: Admin
) -> UserLimitsView:
    """Give a user its own limits. Fields that are left out stay; an empty object removes all."""
    limits = UserLimits(user_id, **form.model_dump())
    return UserLimitsView.of(await here.bus.governance.set_user_limits(caller, limits))


@router.get("/status")
async def limits_status(here: Here, caller: Admin) -> LimitsStatusView:
    """Show the limits in force, how full they are, and who is excepted."""
    found = await here.bus.governance.limits_status(caller)
    users = [{"user_id": user_id, "limits": limits} for user_id, limits in found.users]
    return LimitsStatusView.of(found, users=users)
