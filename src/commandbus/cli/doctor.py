"""`doctor`: is everything in the database as it must be?"""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.cli.frame import Frame, View
from commandbus.cli.options import DomainFilter, Operator
from commandbus.cli.output import (
    ExitCode,
    first_few,
    jsonable,
    moment,
    say,
    styled_status,
    text_of,
    working,
)
from commandbus.upkeep.findings import Diagnosis, Finding, Severity
from commandbus.upkeep.retention import parse_age


async def doctor(
    frame: Frame,
    *,
    domain: DomainFilter = None,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what can be repaired safely.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="AGE", help="Only what was changed in this time, as 24h."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Everything, however many commands there are.")
    ] = False,
    operator: Operator = None,
) -> View:
    """Examine the database; exit code 1 if something is wrong. Changes nothing without --fix."""
    window = None if since is None else parse_age(since)
    with working("examining …", quiet=frame.as_json):
        async with frame.open() as session:
            found = await session.bus.upkeep.doctor(
                domain=domain, window=window, full=full, fix=fix, operator=operator
            )
    code = ExitCode.OK if found.is_healthy else ExitCode.FAILED
    document = {"is_healthy": found.is_healthy, **jsonable(found)}
    return View(document, lambda: _print_diagnosis(found), code)


def _print_diagnosis(found: Diagnosis) -> None:
    for repair in found.repairs:
        shown = first_few([text_of(each) for each in repair.repaired])
        count = f"{len(repair.repaired):,} in {repair.domain} ({repair.function})"
        say(f"[green]repaired[/] {count}: {shown}")
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
        f"{styled_status(finding.severity)} [bold]{finding.code}[/]{where}, "
        f"{finding.found:,}: {finding.meaning}"
    )
    say(f"    [dim]for example[/] {', '.join(map(text_of, finding.examples))}")
    say(f"    [dim]what to do[/]  {finding.advice}")
