"""The machines of the demo, beside its governed batches. Only `commandbus up --demo` has it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from commandbus.access.model import Caller, Scope
from commandbus.demo import vms
from commandbus.http.platform import Here
from commandbus.http.schemas.base import View
from commandbus.http.security import refuse_domain, requires

router = APIRouter(tags=["demo"])


class MachineView(View):
    """A virtual machine of the demo."""

    name: str
    cpu: int
    memory_mb: int
    is_running: bool
    restarts: int


class MachineList(View):
    """All of them."""

    items: list[MachineView]


@router.get("/vms")
async def list_machines(here: Here, caller: Annotated[Caller, requires(Scope.READ)]) -> MachineList:
    """List the virtual machines."""
    refuse_domain(caller, vms.DOMAIN)
    found = await vms.list_machines(here.bus)
    return MachineList(items=[MachineView(**machine) for machine in found])
