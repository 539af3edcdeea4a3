"""`db prune` and `db retention`: how long things are kept."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Annotated

import typer

from commandbus.cli.bulk_options import Operator
from commandbus.cli.database import db
from commandbus.cli.options import (
    AsJson,
    DataDir,
    DomainFilter,
    Dsn,
    Place,
    actor_or_login,
    open_session,
)
from commandbus.cli.output import (
    Column,
    console,
    is_fancy,
    moment,
    print_json,
    print_table,
    say,
    text_of,
)
from commandbus.errors import InvalidSettingError
from commandbus.upkeep.retention import PRUNERS, PruneResult, RetentionRule, parse_age

rules = typer.Typer(
    help="How long finished commands, audit, archives and replies are kept.", no_args_is_help=True
)

Kind = Annotated[str, typer.Argument(metavar="KIND", help=", ".join(PRUNERS) + ".")]
OfDomain = Annotated[
    str | None,
    typer.Option("--domain", "-d", help="A rule for this domain. Default: for all without one."),
]


def add_to(app: typer.Typer) -> None:  # noqa: ARG001  (they belong under `db`)
    """Register the commands."""
    db.command("prune")(prune)
    db.add_typer(rules, name="retention")


def prune(
    *,
    domain: DomainFilter = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="For example 30d. Default: what the rules say."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only this; may be repeated. Default: all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be removed, and change nothing.")
    ] = False,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Remove what is finished and old, in chunks. What is open or parked is never touched."""
    place = Place(dsn, data_dir)
    age = None if older_than is None else parse_age(older_than)
    shows = is_fancy(console(sys.stderr)) and not as_json
    display = console(sys.stderr).status("counting …") if shows else None

    def progress(result: PruneResult) -> None:
        if display is not None:
            display.update(f"{result.domain}: {_counts(result)}")

    async def work() -> list[PruneResult]:
        async with open_session(place) as session:
            return await session.bus.upkeep.prune(
                domain=domain, older_than=age, kinds=kind or None, dry_run=dry_run,
                operator=actor_or_login(operator), progress=progress,
            )  # fmt: skip

    if display is not None:
        with display:
            results = asyncio.run(work())
    else:
        results = asyncio.run(work())
    if as_json:
        print_json({"dry_run": dry_run, "results": results})
    else:
        _print_results(results, is_dry=dry_run)


def _counts(result: PruneResult) -> str:
    return ", ".join(f"{n:,} {what}" for what, n in result.pruned.items())


def _print_results(results: list[PruneResult], *, is_dry: bool) -> None:
    if not results:
        say(
            "Nothing to do: no rule says how long to keep things. Set one with `commandbus db "
            "retention set`, or say --older-than 30d."
        )
        return
    print_table(
        [
            Column("DOMAIN"),
            Column("KIND"),
            Column("OLDER THAN"),
            Column("WOULD REMOVE" if is_dry else "REMOVED"),
        ],
        [[r.domain, r.kind, moment(r.before), _counts(r) or "0"] for r in results],
    )
    if is_dry:
        say("Nothing was changed.")


@rules.command("show")
def show(as_json: AsJson = False, dsn: Dsn = None, data_dir: DataDir = None) -> None:
    """Show the rules. Without a rule nothing is removed."""
    place = Place(dsn, data_dir)

    async def work() -> list[RetentionRule]:
        async with open_session(place) as session:
            return await session.bus.upkeep.get_retention()

    found = asyncio.run(work())
    if as_json:
        keep = [None if rule.keep is None else rule.keep.total_seconds() for rule in found]
        print_json(
            {
                "rules": [
                    {
                        "domain": rule.domain, "kind": rule.kind, "keep_seconds": seconds,
                        "updated_by": rule.updated_by, "updated_at": rule.updated_at,
                    }
                    for rule, seconds in zip(found, keep, strict=True)
                ]
            }
        )  # fmt: skip
    elif not found:
        say("No rules: everything is kept.")
    else:
        print_table(
            [Column("DOMAIN"), Column("KIND"), Column("KEEP"), Column("BY"), Column("SINCE")],
            [
                [
                    rule.domain or "(all others)", rule.kind, _age(rule.keep),
                    text_of(rule.updated_by), moment(rule.updated_at),
                ]
                for rule in found
            ],
        )  # fmt: skip


def _age(keep: timedelta | None) -> str:
    if keep is None:
        return "forever"
    hours = keep.total_seconds() / 3_600
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"


@rules.command("set")
def set_rule(
    kind: Kind,
    keep: Annotated[
        str, typer.Argument(metavar="AGE", help="30d, 12h, `forever`, or `none`: no rule.")
    ],
    *,
    domain: OfDomain = None,
    operator: Operator = None,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Set how long a kind is kept. Workers then remove what is older, as a chore."""
    place = Place(dsn, data_dir)
    whose = f"domain {domain}" if domain else "all domains without a rule of their own"
    age = None if keep in {"forever", "none"} else parse_age(keep)
    if age is not None and age < timedelta(hours=1):
        raise InvalidSettingError("a rule keeps things for an hour at least")

    async def work() -> bool:
        async with open_session(place) as session:
            if keep == "none":
                return await session.bus.upkeep.clear_retention(kind, domain=domain)
            await session.bus.upkeep.set_retention(
                kind, age, domain=domain, operator=actor_or_login(operator)
            )
            return True

    is_changed = asyncio.run(work())
    if keep == "none":
        say(f"The rule of {kind} for {whose} is gone." if is_changed else "There was no such rule.")
    else:
        say(f"{kind} of {whose}: kept {_age(age) if age else 'forever'}.")
