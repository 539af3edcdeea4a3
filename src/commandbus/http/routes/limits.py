"""Execution limits: how many commands run at once, and how often they start."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from commandbus.access.model import Caller, Scope
from commandbus.http.auth.scopes import Operator, refuse_new_domain, requires
from commandbus.http.platform import Here, Platform
from commandbus.http.problems import not_found
from commandbus.http.schemas.base import DomainPath, Why
from commandbus.http.schemas.execution import ExecutionLimitView, LimitedKeyView, PutLimit
from commandbus.http.schemas.views import ListView
from commandbus.http.strict import StrictRoute
from commandbus.names import MAX_TYPE_LENGTH

router = APIRouter(prefix="/limits", tags=["execution limits"], route_class=StrictRoute)

TypePath = Annotated[
    str,
    Path(
        pattern="^[A-Za-z][A-Za-z0-9_.:-]*$", max_length=MAX_TYPE_LENGTH, examples=["DebitAccount"]
    ),
]
PerKey = Annotated[bool, Query(description="The limit by key of the type.")]


async def _set(
    here: Platform, caller: Caller, domain: str, of_type: str | None, form: PutLimit
) -> ExecutionLimitView:
    await refuse_new_domain(here, caller, domain)
    await here.bus.limits.set(
        domain, of_type, per_key=form.per_key, max_running=form.max_running, rate=form.rate,
        per=form.per_seconds, burst=form.burst, operator=caller.user_id, reason=form.reason,
    )  # fmt: skip
    for each in await here.bus.limits.list(domain):
        if (each.type, each.per_key) == (of_type, form.per_key):
            return ExecutionLimitView.of(each)
    raise not_found("the limit was removed meanwhile")


@router.get("/{domain}", dependencies=[requires(Scope.READ)])
async def list_limits(domain: DomainPath, here: Here) -> ListView[ExecutionLimitView]:
    """List the limits of a domain and its paused types, with what runs and waits now."""
    found = await here.bus.limits.list(domain)
    return ListView[ExecutionLimitView](items=[ExecutionLimitView.of(each) for each in found])


@router.get("/{domain}/{command_type}", dependencies=[requires(Scope.READ)])
async def list_limit_keys(
    domain: DomainPath,
    command_type: TypePath,
    here: Here,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> ListView[LimitedKeyView]:
    """List the keys of a type that run or wait under a limit by key, most waiting first."""
    found = await here.bus.limits.keys(domain, command_type, limit=limit)
    return ListView[LimitedKeyView](items=[LimitedKeyView.of(each) for each in found])


@router.put("/{domain}")
async def set_domain_limit(
    domain: DomainPath, form: PutLimit, here: Here, caller: Operator
) -> ExecutionLimitView:
    """Set the limit of all types of a domain together; what runs goes on."""
    return await _set(here, caller, domain, None, form)


@router.put("/{domain}/{command_type}")
async def set_type_limit(
    domain: DomainPath, command_type: TypePath, form: PutLimit, here: Here, caller: Operator
) -> ExecutionLimitView:
    """Set the limit of a command type, or of each limit key of it."""
    return await _set(here, caller, domain, command_type, form)


@router.delete("/{domain}", status_code=204)
async def clear_domain_limit(
    domain: DomainPath, here: Here, caller: Operator, per_key: PerKey = False, reason: Why = None
) -> None:
    """Remove the limit of a domain; what waits for it becomes due. Again: nothing changes."""
    # Who means a limit by key and forgets the type must not lose the limit of the domain.
    await here.bus.limits.clear(domain, per_key=per_key, operator=caller.user_id, reason=reason)


@router.delete("/{domain}/{command_type}", status_code=204)
async def clear_type_limit(
    domain: DomainPath,
    command_type: TypePath,
    here: Here,
    caller: Operator,
    per_key: PerKey = False,
    reason: Why = None,
) -> None:
    """Remove the limit of a command type; what waits for it becomes due. Again: nothing changes."""
    await here.bus.limits.clear(
        domain, command_type, per_key=per_key, operator=caller.user_id, reason=reason
    )
