"""`doctor`: is everything in the database as it must be?"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
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
from commandbus.errors import InvalidInputError
from commandbus.upkeep.findings import Diagnosis, Finding, Severity
from commandbus.upkeep.retention import parse_age
from commandbus.upkeep.verification import AuditVerification


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
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Verify the audit against its seals, and nothing else."),
    ] = False,
    seals: Annotated[
        Path | None,
        typer.Option(
            "--seals", metavar="FILE", help="With --audit: what `seals export` wrote to this file."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="AGE", help="With --audit: no rule may keep events for less, as 365d."
        ),
    ] = None,
    approved: Annotated[
        list[int] | None,
        typer.Option(
            "--approved", metavar="N", help="With --audit: this removal by hand was meant."
        ),
    ] = None,
    operator: Operator = None,
) -> View:
    """Examine the database; exit code 1 if something is wrong. Changes nothing without --fix."""
    window = None if since is None else parse_age(since)
    if audit:
        if fix or full or domain is not None:
            raise InvalidInputError("--audit goes with --since, --seals, --keep, --approved only")
        shortest = None if keep is None else parse_age(keep)
        return await _verify(frame, window, seals, shortest, approved or ())
    if seals is not None or keep is not None or approved:
        raise InvalidInputError("--seals, --keep and --approved go with --audit")
    with working("examining …", quiet=frame.as_json):
        # A standby is looked at too, and is a finding; what is repaired is on the primary.
        async with frame.open(only_reads=not fix) as session:
            found = await session.bus.upkeep.doctor(
                domain=domain, window=window, full=full, fix=fix, operator=operator
            )
    code = ExitCode.OK if found.is_healthy else ExitCode.FAILED
    document = {"is_healthy": found.is_healthy, **jsonable(found)}
    return View(document, lambda: print_diagnosis(found), code)


async def _verify(
    frame: Frame,
    window: timedelta | None,
    heads: Path | None,
    keep: timedelta | None,
    approved: Collection[int],
) -> View:
    with working("verifying the seals …", quiet=frame.as_json) as display:

        def progress(done: int, total: int) -> None:
            if display is not None:
                display.update(f"{done:,} of {total:,} events compared")

        async with frame.open() as session:
            found = await session.bus.upkeep.verify_audit(
                window=window, heads=heads, keep=keep, approved=approved, progress=progress
            )
    code = ExitCode.OK if found.is_intact else ExitCode.FAILED
    document = {"is_intact": found.is_intact, **jsonable(found)}
    return View(document, lambda: _print_verification(found), code)


def _print_verification(found: AuditVerification) -> None:
    for finding in found.findings:
        places = [place for place in found.places if place.code == finding.code]
        say(
            f"{styled_status(finding.severity)} [bold]{finding.code}[/], {finding.found:,}: "
            f"{finding.meaning}"
        )
        for place in places:
            say(f"    {text_of(place.text)}")
        if len(places) < finding.found:
            say(f"    [dim]and {finding.found - len(places):,} more[/]")
        say(f"    [dim]what to do[/]  {finding.advice}")
    unread = f", of which {found.dropped:,} went unread with their part" if found.dropped else ""
    say(
        f"Compared {found.rows:,} events with {found.seals:,} seals; {found.removed:,} were "
        f"lawfully removed{unread}. {found.unsealed:,} events are not sealed yet, and not proven."
    )
    if found.last_sealed_at is None:
        say("[yellow]Nothing was ever sealed.[/]")
        return
    keys = ", ".join(found.key_ids) or "none"
    say(
        f"Keys that signed: {keys}. The last seal is of {moment(found.last_sealed_at)}; "
        f"{found.heads} heads from outside were compared."
    )
    say("[green]Intact[/]." if found.is_intact else "[red]Not intact[/].")


def print_diagnosis(found: Diagnosis) -> None:
    """What was found, and what to do about it."""
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
