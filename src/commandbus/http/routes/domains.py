"""The domains and how they stand; and who the caller is taken for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from commandbus.access.model import Caller, Scope
from commandbus.http.platform import Here
from commandbus.http.schemas.service import DomainList, DomainView, Whoami
from commandbus.http.security import requires

router = APIRouter(tags=["service"])

Reader = Annotated[Caller, requires(Scope.READ)]


@router.get("/domains")
async def list_domains(here: Here, caller: Reader) -> DomainList:
    """How much waits, runs and is parked in each domain that the caller reaches."""
    figures = await here.bus.upkeep.figures.domains()
    return DomainList(
        items=[DomainView.model_validate(each) for each in figures if caller.reaches(each.domain)]
    )


@router.get("/whoami")
async def whoami(caller: Reader) -> Whoami:
    """Who the service takes the caller for."""
    return Whoami(
        user_id=caller.user_id,
        scopes=sorted(caller.scopes),
        domains=None if caller.domains is None else sorted(caller.domains),
    )
