"""The domains and how they stand; and the caller of a token."""

from __future__ import annotations

from fastapi import APIRouter

from commandbus.http.auth.scopes import Reader
from commandbus.http.platform import Here
from commandbus.http.schemas.service import DomainView, Whoami
from commandbus.http.schemas.views import ListView

router = APIRouter(tags=["service"])


@router.get("/domains")
async def list_domains(here: Here, caller: Reader) -> ListView[DomainView]:
    """How many commands wait, run and are parked in each domain that the caller reaches."""
    figures = await here.bus.upkeep.figures.domains()
    items = [DomainView.of(each) for each in figures if caller.reaches(each.domain)]
    return ListView[DomainView](items=items)


@router.get("/whoami")
async def whoami(caller: Reader) -> Whoami:
    """Show the user, scopes and domains of the token."""
    return Whoami(
        user_id=caller.user_id,
        scopes=sorted(caller.scopes),
        domains=None if caller.domains is None else sorted(caller.domains),
    )
