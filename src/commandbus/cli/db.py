"""`db`: set up, migrate and examine the database; how long things are kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.cli import schema
from commandbus.cli.frame import Frame, View, command
from commandbus.cli.options import DomainFilter, Operator
from commandbus.cli.output import (
    Column,
    ExitCode,
    Table,
    jsonable,
    say,
    text_of,
    working,
)
from commandbus.errors import InvalidInputError, InvalidSettingError
from commandbus.settings import Settings
from commandbus.upkeep.retention import PRUNERS, PruneResult, RetentionRule, parse_age

if TYPE_CHECKING:
    from commandbus.database.roles import RoleStatus

db = typer.Typer(help="Set up, migrate and examine the database.", no_args_is_help=True)
rules = typer.Typer(
    help="How long finished commands, audit, archives and replies are kept.", no_args_is_help=True
)
db.add_typer(rules, name="retention")


for _name, _function in (
    ("init", schema.init),
    ("migrate", schema.migrate),
    ("status", schema.status),
    ("sql", schema.sql),
):
    command(db, _name)(_function)


@command(db, "roles")
async def roles(
    frame: Frame,
    *,
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the roles, and give them exactly what they need.")
    ] = False,
    as_sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements of --apply, and run none of them.")
    ] = False,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The roles are <NAME>_worker, … Default: the schema."),
    ] = None,
) -> View:
    """Compare the database's roles and rights with what they should be; exit code 1 if they differ.

    The roles are groups: give each process a login that is a member of one.
    """
    from commandbus.wiring import database, database_roles

    if apply and as_sql:
        raise InvalidInputError("--apply runs the statements, --sql prints them; use one of them")
    async with database(frame.place.one.dsn, frame.place.data_dir) as address:
        found, ran = await database_roles(address, Settings.from_env(), prefix=prefix, apply=apply)
    is_right = found.is_set_up and not found.differences
    document = {"is_right": is_right, **jsonable(found), "ran": ran}
    code = ExitCode.OK if is_right or as_sql else ExitCode.FAILED
    return View(document, partial(_print_roles, found, ran, as_sql=as_sql), code)


def _print_roles(found: RoleStatus, ran: Sequence[str], *, as_sql: bool) -> None:
    if as_sql:
        for each in found.differences:
            print(f"{each.statement};")
        return
    for statement in ran:
        say(statement)
    for each in found.differences if found.is_set_up else ():
        say(f"[red]{each.role}[/]: {each.problem}")
    if not found.is_set_up:
        say(f"No roles {found.prefix}_… here; make them with `commandbus db roles --apply`.")
    elif found.differences:
        say("Put it right with `commandbus db roles --apply`.")
    else:
        say(f"[green]The roles {found.prefix}_… have what they need and no more.[/]")


# -- how long things are kept


@command(db, "prune")
async def prune(
    frame: Frame,
    *,
    domain: DomainFilter = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="For example 30d. Default: what the rules say."),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only this; may be repeated. Default: all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be removed, and change nothing.")
    ] = False,
    operator: Operator = None,
) -> View:
    """Remove what is finished and old, in chunks. What is open or parked is never removed.

    Commands are moved to the history, and not removed, where a rule says how long that is kept.
    """
    age = None if older_than is None else parse_age(older_than)
    with working("counting …", quiet=frame.as_json) as display:

        def progress(result: PruneResult) -> None:
            if display is not None:
                display.update(f"{result.domain}: {_counts(result)}")

        async with frame.open() as session:
            results = await session.bus.upkeep.prune(
                domain=domain, older_than=age, kinds=kind or None, dry_run=dry_run,
                operator=operator, progress=progress,
            )  # fmt: skip
    document = {"dry_run": dry_run, "results": results}
    return View(document, partial(_print_results, results, is_dry=dry_run))


def _counts(result: PruneResult) -> str:
    return ", ".join(f"{n:,} {what}" for what, n in result.pruned.items())


def _print_results(results: Sequence[PruneResult], *, is_dry: bool) -> None:
    Table[PruneResult](
        Column("DOMAIN", lambda each: each.domain),
        Column("KIND", lambda each: each.kind),
        Column("OLDER THAN", lambda each: each.before),
        Column("WOULD REMOVE" if is_dry else "REMOVED", lambda each: _counts(each) or "0"),
        empty="Nothing to do: no rule says how long to keep things. Set one with `commandbus db "
        "retention set`, or say --older-than 30d.",
    ).print(results)
    if results and is_dry:
        say("Nothing was changed.")


@command(rules, "show")
async def show(frame: Frame) -> View:
    """Show the rules. Without a rule nothing is removed."""
    async with frame.open() as session:
        found = await session.bus.upkeep.get_retention()
    return View({"rules": [_rule_json(rule) for rule in found]}, partial(_RULES.print, found))


def _rule_json(rule: RetentionRule) -> dict[str, Any]:
    return {
        "domain": rule.domain,
        "kind": rule.kind,
        "keep_seconds": None if rule.keep is None else rule.keep.total_seconds(),
        "updated_by": rule.updated_by,
        "updated_at": rule.updated_at,
    }


def _age(keep: timedelta | None) -> str:
    if keep is None:
        return "forever"
    hours = keep.total_seconds() / 3_600
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"


_RULES = Table[RetentionRule](
    Column("DOMAIN", lambda rule: rule.domain or "(all others)"),
    Column("KIND", lambda rule: rule.kind),
    Column("KEEP", lambda rule: _age(rule.keep)),
    Column("BY", lambda rule: text_of(rule.updated_by)),
    Column("SINCE", lambda rule: rule.updated_at),
    empty="No rules: everything is kept.",
)


@command(rules, "set")
async def set_rule(
    frame: Frame,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(PRUNERS) + ".")],
    keep: Annotated[
        str, typer.Argument(metavar="AGE", help="30d, 12h, `forever`, or `none`: no rule.")
    ],
    *,
    domain: Annotated[
        str | None,
        typer.Option("--domain", "-d", help="Only for this domain. Default: all without a rule."),
    ] = None,
    operator: Operator = None,
) -> View:
    """Set how long a kind is kept. Workers then remove what is older, as a chore.

    With a rule for `history`, commands whose time is over are moved there, where they are found.
    """
    whose = f"domain {domain}" if domain else "all domains without a rule of their own"
    rule: dict[str, Any] = {"kind": kind, "domain": domain}
    if keep == "none":
        async with frame.open() as session:
            is_changed = await session.bus.upkeep.clear_retention(kind, domain=domain)
        gone = f"The rule of {kind} for {whose} is gone."
        return View.line(gone if is_changed else "There was no such rule.", **rule)
    age = None if keep == "forever" else parse_age(keep)
    if age is not None and age < timedelta(minutes=1):
        raise InvalidSettingError("a rule keeps things for a minute at least")
    async with frame.open() as session:
        await session.bus.upkeep.set_retention(kind, age, domain=domain, operator=operator)
    seconds = None if age is None else age.total_seconds()
    return View.line(f"{kind} of {whose}: kept {_age(age)}.", **rule, keep_seconds=seconds)
