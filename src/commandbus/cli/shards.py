"""`shards`: several databases, and the map that says which domain is in which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.cli.frame import Frame, View, command
from commandbus.cli.output import ExitCode, jsonable, say, text_of
from commandbus.errors import InvalidInputError
from commandbus.settings import Settings

if TYPE_CHECKING:
    from commandbus.shards.map import ShardMap
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
            say(f"    [dim]{text_of(domain)}: has left; its history is here[/]")
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
