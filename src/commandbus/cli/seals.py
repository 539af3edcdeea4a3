"""`seals`: what makes a change of the audit show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commandbus.cli.frame import Frame, View, command
from commandbus.cli.output import Column, Table, jsonable, moment, say, working
from commandbus.errors import InvalidInputError
from commandbus.upkeep.heads import Head, append_heads
from commandbus.upkeep.sealing import SealResult

seals = typer.Typer(
    help="Seals of the audit: a later change of a sealed event shows in `doctor --audit`.",
    no_args_is_help=True,
)


@command(seals, "now")
async def now(
    frame: Frame,
    *,
    new_key: Annotated[
        bool,
        typer.Option("--new-key", help="Go on with another key than that of the last seal."),
    ] = False,
) -> View:
    """Seal everything that was committed. Workers do it by themselves, as a chore."""
    with working("sealing …", quiet=frame.as_json) as display:

        def progress(result: SealResult) -> None:
            if display is not None:
                display.update(f"{result.rows:,} events sealed")

        async with frame.open() as session:
            result = await session.bus.upkeep.seal_audit(new_key=new_key, progress=progress)
    return View(jsonable(result), lambda: _print_result(result))


def _print_result(result: SealResult) -> None:
    say(
        f"Sealed {result.rows:,} events and {result.removals:,} removals in {result.seals:,} seals "
        f"with the key {result.key_id}; the audit is sealed up to event {result.sealed_to}."
    )
    if result.waits_for and result.waits_since is not None:
        say(
            f"[yellow]Later events wait since {moment(result.waits_since)}[/] for transactions "
            f"that are open: {', '.join(result.waits_for)}."
        )


@command(seals, "list")
async def list_seals(
    frame: Frame,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000)] = 20,
) -> View:
    """List the last seals, newest first. `commandbus doctor --audit` verifies them."""
    async with frame.open() as session:
        found = await session.bus.upkeep.get_seal_heads(limit=limit)
    return View({"seals": found}, lambda: _HEADS.print(found))


_HEADS = Table[Head](
    Column("SEAL", lambda head: str(head.seal_number)),
    Column("SEALED AT", lambda head: head.sealed_at),
    Column("UP TO EVENT", lambda head: str(head.last_id)),
    Column("KEY", lambda head: head.key_id),
    Column("DIGEST", lambda head: head.digest),
    empty="Nothing is sealed. Workers seal the audit, or `commandbus seals now`.",
)


@command(seals, "export")
async def export(
    frame: Frame,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Lines of JSON; they are appended.")],
) -> View:
    """Append the last seal to a file outside the database, for `doctor --audit --seals FILE`.

    Keep the file where the owner of the database cannot write.
    """
    async with frame.open() as session:
        heads = await session.bus.upkeep.get_seal_heads()
    if not heads:
        return View.line("Nothing is sealed yet, so there is nothing to export.", exported=[])
    try:
        append_heads(file, heads)
    except OSError as error:
        raise InvalidInputError(f"cannot write {file}: {error.strerror}") from None
    text = f"Appended seal {heads[0].seal_number} of {heads[0].sealed_at}."
    return View.line(text, exported=jsonable(heads))
