"""Ordering keys: which are open and blocked, and how to go on."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from commandbus.access.model import Scope
from commandbus.http.auth.scopes import Operator, Sight, requires
from commandbus.http.platform import Here
from commandbus.http.schemas.base import DomainPath, PageOf50
from commandbus.http.schemas.ordering import (
    KeyPath,
    KeyPlaceView,
    KeyPolicyView,
    KeyView,
    OrderingKeyView,
    SetKeyPolicy,
    SkipKey,
    Skipped,
)
from commandbus.http.schemas.views import PageView
from commandbus.http.strict import StrictRoute

router = APIRouter(prefix="/keys", tags=["keys"], route_class=StrictRoute)


@router.get("/{domain}", dependencies=[requires(Scope.READ)])
async def list_keys(
    domain: DomainPath,
    here: Here,
    viewer: Sight,
    paging: PageOf50,
    blocked: Annotated[bool | None, Query(description="true: only those that are blocked.")] = None,
) -> PageView[OrderingKeyView]:
    """List the ordering keys of a domain that have open commands, those that are blocked first."""
    page = await here.bus.keys.list(domain, blocked=blocked, viewer=viewer, **paging)
    items = [OrderingKeyView.of(each) for each in page.items]
    return PageView[OrderingKeyView].of(page, items=items)


@router.put("/{domain}")
async def set_key_policy(
    domain: DomainPath, form: SetKeyPolicy, here: Here, caller: Operator
) -> KeyPolicyView:
    """Say whether a parked command blocks its key; with `skip` the blocked ones go on."""
    await here.bus.keys.set_policy(
        domain, form.on_park, reason=form.reason, operator=caller.user_id
    )
    return KeyPolicyView(domain=domain, on_park=await here.bus.keys.get_policy(domain))


@router.get("/{domain}/{ordering_key:path}", dependencies=[requires(Scope.READ)])
async def show_key(
    domain: DomainPath,
    ordering_key: KeyPath,
    here: Here,
    viewer: Sight,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Commands that are shown.")] = 50,
) -> KeyView:
    """Show the commands of a key in their order, the one whose turn it is first."""
    places = await here.bus.keys.show(domain, ordering_key, limit=limit, viewer=viewer)
    shown = [KeyPlaceView.of(each) for each in places]
    return KeyView(domain=domain, ordering_key=ordering_key, places=shown)


@router.post("/{domain}/{ordering_key:path}/skip")
async def skip_key(
    domain: DomainPath, ordering_key: KeyPath, form: SkipKey, here: Here, caller: Operator
) -> Skipped:
    """Step over the parked command that blocks a key: it stays parked, and the next one goes.

    409 if nothing blocks the key, or another command than `expected`.
    """
    passed = await here.bus.keys.skip(
        domain, ordering_key, expected=form.expected, reason=form.reason, operator=caller.user_id
    )
    return Skipped(domain=domain, ordering_key=ordering_key, stepped_over=passed)
