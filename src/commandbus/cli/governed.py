"""`governed`: the command types that only a batch type may bring in over HTTP."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.cli.frame import Frame, View, command
from commandbus.cli.options import Operator
from commandbus.cli.output import Column, Table, jsonable, text_of

if TYPE_CHECKING:
    from commandbus.governance.model import GovernedType

governed = typer.Typer(
    no_args_is_help=True, help="Command types that are submitted over HTTP, and not sent."
)


@command(governed, "list")
async def list_types(
    frame: Frame,
    *,
    domain: Annotated[str | None, typer.Option("--domain", "-d", help="Only this domain.")] = None,
) -> View:
    """List governed command types, and the batch types that govern them."""
    async with frame.open() as session:
        found = await session.bus.governance.governed_types(domain)
    return View({"governed": [jsonable(each) for each in found]}, partial(_TYPES.print, found))


@command(governed, "remove")
async def remove(
    frame: Frame,
    domain: Annotated[str, typer.Argument(help="The domain of the command type.")],
    command_type: Annotated[str, typer.Argument(help="The command type.")],
    batch_type: Annotated[str, typer.Argument(help="The batch type that is declared no more.")],
    *,
    operator: Operator = None,
) -> View:
    """Let a batch type that no program declares any more govern a command type no longer."""
    from commandbus.access.model import Caller, Scope

    caller = Caller(operator or "unknown", frozenset({Scope.ADMIN}))
    async with frame.open() as session:
        await session.bus.governance.remove_governed_type(caller, domain, command_type, batch_type)
    text = f"{text_of(batch_type)} governs {text_of(command_type)} of {text_of(domain)} no more."
    return View.line(text, domain=domain, command_type=command_type, batch_type=batch_type)


_TYPES: Table[GovernedType] = Table(
    Column("DOMAIN", lambda each: each.domain),
    Column("COMMAND TYPE", lambda each: text_of(each.command_type)),
    Column("BATCH TYPE", lambda each: text_of(each.batch_type)),
    Column("SUBMITTED AT", lambda each: text_of(each.path or "/api/v1/batches")),
    Column("APPROVAL", lambda each: "yes" if each.requires_approval else "no"),
    Column("SINCE", lambda each: each.registered_at),
    empty="No governed command types.",
)
