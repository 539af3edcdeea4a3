"""`shards`: several databases, and the map that says which domain is in which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.cli.frame import Frame, View, command
from commandbus.cli.output import ExitCode, jsonable, print_note, say, text_of
from commandbus.errors import InvalidInputError
from commandbus.settings import Settings

if TYPE_CHECKING:
    from commandbus.shards.map import ShardMap
    from commandbus.shards.moving import MoveReport
    from commandbus.shards.status import ShardStatus

shards = typer.Typer(no_args_is_help=True, help="Domains in several databases.")


def _map(frame: Frame) -> ShardMap:
    from commandbus.shards.map import ShardMap

    place = frame.place
    if place.dsn is not None or place.data_dir is not None:
        raise InvalidInputError("--dsn and --data-dir name one database; the map names all of them")
    return ShardMap.from_env() if place.map_file is None else ShardMap.from_file(place.map_file)


@command(shards, "status")
async def status(frame: Frame) -> View:
    """Show each shard, and what its domains have to do; exit code 1 if one disagrees or is down."""
    from commandbus.shards.status import shard_states

    known = _map(frame)
    states = await shard_states(known, settings=Settings.from_env())
    is_good = all(each.problem is None for each in states)
    document = {"map_version": known.version, "is_good": is_good, "shards": jsonable(states)}
    code = ExitCode.OK if is_good else ExitCode.FAILED
    return View(document, lambda: _print(states), code)


def _print(states: list[ShardStatus]) -> None:
    for each in states:
        version = "" if each.version is None else f", version {each.version} of the map"
        say(f"[bold]{each.shard}[/]{version}")
        for domain, to_do in each.domains.items():
            told = ", ".join(f"{number:,} {what}" for what, number in to_do.items())
            closed = ", closed to new commands" if domain in each.closed else ""
            say(f"    {text_of(domain)}: {told or 'nothing to do'}{closed}")
        for domain in each.left:
            what = "has left" if domain in each.gone else "has left; its history is here"
            say(f"    [dim]{text_of(domain)}: {what}[/]")
        for domain, how in each.moves.items():
            say(f"    {text_of(domain)}: {text_of(how)}")
        if each.problem is not None:
            say(f"    [red]{text_of(each.problem)}[/]")


@command(shards, "apply")
async def apply(
    frame: Frame,
    *,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", help="Until domains that leave are empty."),
    ] = 0.0,
    close: Annotated[
        bool,
        typer.Option("--close", help="Meanwhile let nothing new into them; senders repeat."),
    ] = False,
) -> View:
    """Tell all shards of a map with a higher version. From then on an older one is refused."""
    from commandbus.shards.applying import apply_map

    known = _map(frame)
    done = await apply_map(known, settings=Settings.from_env(), wait_seconds=wait, closes=close)
    told = [name for name, was_new in done.items() if was_new]
    names = ", ".join(map(text_of, told)) or "none; all knew it"
    text = f"Version {known.version} of the map was new to: {names}."
    return View.line(text, map_version=known.version, shards=done)


@command(shards, "move")
async def move(
    frame: Frame,
    domain: Annotated[str, typer.Argument(help="The domain.")],
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="SHARD", help="Where it goes to.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", help="For commands that run, once it is closed."),
    ] = 60.0,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Give up a move: the domain stays where it is.")
    ] = False,
) -> View:
    """Move a domain with its history to another shard, while its senders go on."""
    from commandbus.shards.moving import cancel_move, move_domain

    if (to is None) != cancel:
        raise InvalidInputError("give --to with the shard, or --cancel")
    known, settings = _map(frame), Settings.from_env()
    if to is None:
        given_up = await cancel_move(known, domain, settings=settings, tell=_tell)
        said = "is where it was" if given_up else "is not being moved"
        return View.line(f"Domain {text_of(domain)} {said}.", domain=domain, canceled=given_up)
    done = await move_domain(known, domain, to, settings=settings, wait_seconds=wait, tell=_tell)
    return View(jsonable(done), lambda: _print_move(done))


def _tell(text: str) -> None:
    print_note(text)


def _print_move(done: MoveReport) -> None:
    rows = sum(done.counts.values())
    closed = "" if done.closed_seconds is None else f", closed for {done.closed_seconds:.1f} s"
    say(
        f"Domain {text_of(done.domain)} is on shard {text_of(done.to_shard)}: {rows:,} rows in "
        f"{done.seconds:.1f} s{closed}."
    )
    say(
        f"All shards know version {done.map_version} of the map. Write it into the file: "
        f"[bold]version = {done.map_version}[/], and under \\[domains] "
        f'[bold]{text_of(done.domain)} = "{text_of(done.to_shard)}"[/].'
    )
