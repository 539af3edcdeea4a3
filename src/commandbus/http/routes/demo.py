"""The machines of the demo, beside its governed batches. Only `commandbus up --demo` has it."""

from __future__ import annotations

from fastapi import APIRouter

from commandbus.demo import vms
from commandbus.http.auth.scopes import Reader, refuse_domain
from commandbus.http.platform import Here
from commandbus.http.schemas.views import ListView, View

router = APIRouter(tags=["demo"])


class MachineView(View):
    """A virtual machine of the demo."""

    name: str
    cpu: int
    memory_mb: int
    is_running: bool
    restarts: int


@router.get("/vms")
async def list_machines(here: Here, caller: Reader) -> ListView[MachineView]:
    """List the virtual machines."""
    refuse_domain(caller, vms.DOMAIN)
    found = await vms.list_machines(here.bus)
    return ListView[MachineView](items=[MachineView(**machine) for machine in found])
