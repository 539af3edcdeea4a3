"""`limits`: how many commands run at once, and how often they start, over all workers."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from commandbus.cli.frame import Frame, View, command
from commandbus.cli.options import Domain, DomainFilter, Operator
from commandbus.cli.output import Column, Table, jsonable, text_of
from commandbus.errors import InvalidInputError
from commandbus.gates.model import ExecutionLimit, LimitedKey

limits = typer.Typer(
    no_args_is_help=True, help="How many commands run at once, and how often they start."
)

OfType = Annotated[
    str | None,
    typer.Option("--type", "-t", metavar="TYPE", help="Of this command type; else of the domain."),
]
PerKey = Annotated[bool, typer.Option("--per-key", help="Of each limit key of the type by itself.")]
Why = Annotated[str | None, typer.Option("--reason", "-r", help="Why; it is audited.")]


@command(limits, "set")
async def set_limit(
    frame: Frame,
    domain: Domain,
    *,
    command_type: OfType = None,
    per_key: PerKey = False,
    max_running: Annotated[
        int | None, typer.Option("--max-running", metavar="N", help="At most N at once.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="At most N starts in --per seconds.")
    ] = None,
    per: Annotated[float, typer.Option("--per", metavar="SECONDS", help="Of --rate.")] = 1.0,
    burst: Annotated[
        float | None,
        typer.Option("--burst", metavar="N", help="At most N starts at once after a pause."),
    ] = None,
    reason: Why = None,
    operator: Operator = None,
) -> View:
    """Set a limit, in place of the one that was there; what runs goes on."""
    async with frame.open(creates=True) as session:
        await session.bus.limits.set(
            domain, command_type, per_key=per_key, max_running=max_running, rate=rate, per=per,
            burst=burst, operator=operator, reason=reason,
        )  # fmt: skip
        found = await session.bus.limits.list(domain)
    made = [each for each in found if (each.type, each.per_key) == (command_type, per_key)]
    return View(jsonable(made[0]) if made else None, partial(_LIMITS.print, made))


@command(limits, "clear")
async def clear(
    frame: Frame,
    domain: Domain,
    *,
    command_type: OfType = None,
    per_key: PerKey = False,
    reason: Why = None,
    operator: Operator = None,
) -> View:
    """Remove a limit, and make due what waits for it."""
    async with frame.open() as session:
        was_set = await session.bus.limits.clear(
            domain, command_type, per_key=per_key, operator=operator, reason=reason
        )
    text = "The limit is removed." if was_set else "There was no such limit."
    return View.line(text, domain=domain, type=command_type, per_key=per_key, was_set=was_set)


@command(limits, "show")
async def show(
    frame: Frame,
    *,
    domain: DomainFilter = None,
    keys_of: Annotated[
        str | None,
        typer.Option("--keys", metavar="TYPE", help="The keys of this type; needs --domain."),
    ] = None,
) -> View:
    """Show limits and paused types, with what runs and waits now."""
    if keys_of is not None and domain is None:
        raise InvalidInputError("--keys is about the keys of one domain: say which with --domain")
    async with frame.open() as session:
        if keys_of is not None and domain is not None:
            keys = await session.bus.limits.keys(domain, keys_of)
            return View({"keys": jsonable(keys)}, partial(_KEYS.print, keys))
        found = await session.bus.limits.list(domain)
    return View({"limits": jsonable(found)}, partial(_LIMITS.print, found))


def _tokens(each: ExecutionLimit) -> Any:
    return "" if each.tokens is None else f"{max(each.tokens, 0.0):.1f}"


def _running(each: ExecutionLimit) -> str:
    if each.max_running is None:
        return ""
    return f"{each.running:,}" + ("" if each.per_key else f" of {each.max_running:,}")


_LIMITS = Table[ExecutionLimit](
    Column("DOMAIN", lambda each: text_of(each.domain)),
    Column("TYPE", lambda each: text_of(each.type or "all") + (" by key" if each.per_key else "")),
    Column("LIMIT", lambda each: text_of(each.rule), may_fold=True),
    Column("RUNNING", _running),
    Column("TOKENS", _tokens),
    Column("WAITING", lambda each: f"{each.waiting:,}"),
    Column("OLDEST", lambda each: each.oldest),
    empty="No limits; `commandbus limits set` makes one.",
)
_KEYS = Table[LimitedKey](
    Column("KEY", lambda each: text_of(each.limit_key)),
    Column("RUNNING", lambda each: f"{each.running:,}"),
    Column("WAITING", lambda each: f"{each.waiting:,}"),
    Column("OLDEST", lambda each: each.oldest),
    empty="No key runs or waits.",
)
