"""`doctor`: is everything in the database as it must be?"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from commandbus.cli.bulk_options import Operator
from commandbus.cli.options import (
    AsJson,
    DataDir,
    DomainFilter,
    Dsn,
    Place,
    actor_or_login,
    open_session,
)
from commandbus.cli.output import ExitCode, is_fancy, jsonable, moment, print_json, say, text_of
from commandbus.cli.output import console as console_of
from commandbus.upkeep.findings import Diagnosis, Finding, Severity
from commandbus.upkeep.retention import parse_age

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTICE: "cyan"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("doctor", rich_help_panel="Operate")(doctor)


def doctor(
    *,
    domain: DomainFilter = None,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what can be repaired safely.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="AGE", help="Only what was changed in this time, for example 24h."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Everything, however many commands there are.")
    ] = False,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Examine the database; exit code 1 if something is wrong. Changes nothing without --fix."""
    place = Place(dsn, data_dir)
    window = None if since is None else parse_age(since)

    async def work() -> Diagnosis:
        async with open_session(place) as session:
            return await session.bus.upkeep.doctor(
                domain=domain, window=window, full=full, fix=fix, operator=actor_or_login(operator)
            )

    if is_fancy(console_of()) and not as_json:
        with console_of().status("examining …"):
            found = asyncio.run(work())
    else:
        found = asyncio.run(work())
    if as_json:
        print_json({"is_healthy": found.is_healthy, **jsonable(found)})
    else:
        _print_diagnosis(found)
    if not found.is_healthy:
        raise typer.Exit(ExitCode.FAILED)


def _print_diagnosis(found: Diagnosis) -> None:
    for repair in found.repairs:
        shown = ", ".join(map(text_of, repair.repaired[:5]))
        more = f" and {len(repair.repaired) - 5:,} more" if len(repair.repaired) > 5 else ""
        say(
            f"[green]repaired[/] {len(repair.repaired):,} in {repair.domain} "
            f"({repair.function}): {shown}{more}"
        )
    for finding in found.findings:
        _print_finding(finding)
    facts = found.facts
    looked = (
        "everything" if found.since is None else f"what was changed since {moment(found.since)}"
    )
    size = facts["database_bytes"] / 1_048_576
    say(
        f"Looked at {looked}, in one snapshot: PostgreSQL {facts['server_version']}, database "
        f"{text_of(facts['database'])}, {size:,.0f} MB."
    )
    if found.since is not None:
        say("`--full` looks at everything.")
    for unknown in found.unknown:
        say(f"Not known: {unknown}.")
    counts = {
        severity: sum(finding.severity is severity for finding in found.findings)
        for severity in Severity
    }
    told = ", ".join(f"{counts[severity]} {severity}s" for severity in Severity)
    say(f"[green]Healthy[/]: {told}." if found.is_healthy else f"[red]Not healthy[/]: {told}.")


def _print_finding(finding: Finding) -> None:
    where = f" in {finding.domain}" if finding.domain else ""
    say(
        f"[{_COLOURS[finding.severity]}]{finding.severity}[/] [bold]{finding.code}[/]{where}, "
        f"{finding.found:,}: {finding.meaning}"
    )
    say(f"    [dim]for example[/] {', '.join(map(text_of, finding.examples))}")
    say(f"    [dim]what to do[/]  {finding.advice}")
