"""`tsq`: what waits in the troubleshooting queue, and the three ways out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from commandbus.cli.bulk import Decision, decide_for_many
from commandbus.cli.bulk_options import (
    Choice,
    CodeChoice,
    CommandIds,
    DomainOfChoice,
    DryRun,
    Everything,
    GroupChoice,
    OperationId,
    Operator,
    Rate,
    TypeChoice,
    Wait,
    Yes,
)
from commandbus.cli.bulk_view import print_groups
from commandbus.cli.options import (
    AsJson,
    DataDir,
    DomainFilter,
    Dsn,
    Place,
    Session,
    TypeFilter,
    actor_or_login,
    open_session,
    parse_json,
)
from commandbus.cli.output import Column, duration, jsonable, print_json, print_table, say, text_of
from commandbus.models import TroubleshootingItem
from commandbus.troubleshooting.model import FailureGroup

tsq = typer.Typer(
    help="The troubleshooting queue: commands that failed for good and wait for a decision.",
    no_args_is_help=True,
)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(tsq, name="tsq", rich_help_panel="Operate")


@tsq.command("list")
def list_parked(
    *,
    domain: DomainFilter = None,
    command_type: TypeFilter = None,
    group: GroupChoice = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """List what waits, longest first."""
    place = Place(dsn, data_dir)

    async def work() -> list[TroubleshootingItem]:
        async with open_session(place) as session:
            return await _parked(session, domain, command_type, group, limit)

    items = asyncio.run(work())
    if as_json:
        # `commandbus show ID --payload` has the payload, masked.
        documents = [{**jsonable(item)} for item in items]
        for document in documents:
            document.pop("data")
        print_json({"commands": documents})
    else:
        _print_parked(items)


async def _parked(
    session: Session, domain: str | None, command_type: str | None, group: str | None, limit: int
) -> list[TroubleshootingItem]:
    if group is not None:
        found = await session.bus.troubleshooting.require_group(group, domain)
        domain, group = found.domain, found.fingerprint
    domains = [domain] if domain is not None else await _domains_with_parked(session)
    items = [
        item
        for each in domains
        for item in await session.bus.list_troubleshooting(
            each, type=command_type, limit=limit, group=group
        )
    ]
    return sorted(items, key=lambda item: item.parked_at)[:limit]


async def _domains_with_parked(session: Session) -> list[str]:
    found = await session.bus.troubleshooting.groups(limit=10_000)
    return sorted({group.domain for group in found})


def _print_parked(items: list[TroubleshootingItem]) -> None:
    if not items:
        say("Nothing waits for an operator.")
        return
    now = datetime.now(UTC)
    print_table(
        [
            Column("ID"),
            Column("DOMAIN"),
            Column("TYPE"),
            Column("REASON"),
            Column("ATTEMPTS", is_number=True),
            Column("WAITS", is_number=True),
            Column("ERROR", may_fold=True),
        ],
        [
            [
                str(item.command_id),
                item.domain,
                item.command_type,
                item.reason,
                f"{item.attempts}/{item.max_attempts}",
                duration(max((now - item.parked_at).total_seconds(), 0.0)),
                f"{text_of(item.last_error_code)}: {text_of(item.last_error_msg)}",
            ]
            for item in items
        ],
    )


@tsq.command("groups")
def groups(
    domain: Annotated[str | None, typer.Argument(metavar="[DOMAIN]")] = None,
    *,
    command_type: TypeFilter = None,
    include_empty: Annotated[
        bool, typer.Option("--empty", help="Also causes of which nothing is parked any more.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """List what waits by cause, most first: one line for a thousand failures of one kind."""
    place = Place(dsn, data_dir)

    async def work() -> list[FailureGroup]:
        async with open_session(place) as session:
            return await session.bus.troubleshooting.groups(
                domain, type=command_type, include_empty=include_empty, limit=limit
            )

    found = asyncio.run(work())
    if as_json:
        print_json({"groups": found})
    else:
        print_groups(found)


@tsq.command("retry")
def retry(  # noqa: PLR0913  (each is an option)
    command_ids: CommandIds = None,
    *,
    domain: DomainOfChoice = None,
    group: GroupChoice = None,
    command_type: TypeChoice = None,
    code: CodeChoice = None,
    everything: Everything = False,
    keep_attempts: Annotated[
        bool, typer.Option("--keep-attempts", help="Do not count attempts from zero again.")
    ] = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = True,
    operation_id: OperationId = None,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Send parked commands again, with the same payload: one by its id, or many by cause."""
    place, actor = Place(dsn, data_dir), actor_or_login(operator)
    choice = Choice(
        command_ids, domain, group, command_type, code, everything, rate, dry_run, yes, wait,
        operation_id, as_json,
    )  # fmt: skip
    if choice.only_id is None:
        arguments = {"reset_attempts": not keep_attempts}
        decide_for_many(place, choice, Decision("retry", actor, arguments))
        return

    async def decide(session: Session, where: str, wanted: UUID) -> None:
        await session.bus.operator_retry(
            where, wanted, operator=actor, reset_attempts=not keep_attempts
        )

    _decide(place, choice.only_id, domain, decide, "is queued again")


@tsq.command("cancel")
def cancel(  # noqa: PLR0913  (each is an option)
    command_ids: CommandIds = None,
    *,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it is kept and replied.")],
    domain: DomainOfChoice = None,
    group: GroupChoice = None,
    command_type: TypeChoice = None,
    code: CodeChoice = None,
    everything: Everything = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = True,
    operation_id: OperationId = None,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """End parked commands as CANCELED; their replies go out."""
    place, actor = Place(dsn, data_dir), actor_or_login(operator)
    choice = Choice(
        command_ids, domain, group, command_type, code, everything, rate, dry_run, yes, wait,
        operation_id, as_json,
    )  # fmt: skip
    if choice.only_id is None:
        decide_for_many(place, choice, Decision("cancel", actor, {"reason": reason}))
        return

    async def decide(session: Session, where: str, wanted: UUID) -> None:
        await session.bus.operator_cancel(where, wanted, reason, operator=actor)

    _decide(place, choice.only_id, domain, decide, "is canceled")


@tsq.command("complete")
def complete(  # noqa: PLR0913  (each is an option)
    command_ids: CommandIds = None,
    *,
    data: Annotated[
        str | None, typer.Option(metavar="JSON", help="The result that the replies carry.")
    ] = None,
    domain: DomainOfChoice = None,
    group: GroupChoice = None,
    command_type: TypeChoice = None,
    code: CodeChoice = None,
    everything: Everything = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = True,
    operation_id: OperationId = None,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """End parked commands as COMPLETED: their work was done by other means."""
    place, actor = Place(dsn, data_dir), actor_or_login(operator)
    result = None if data is None else parse_json(data, "--data")
    choice = Choice(
        command_ids, domain, group, command_type, code, everything, rate, dry_run, yes, wait,
        operation_id, as_json,
    )  # fmt: skip
    if choice.only_id is None:
        decide_for_many(place, choice, Decision("complete", actor, {"result_data": result}))
        return

    async def decide(session: Session, where: str, wanted: UUID) -> None:
        await session.bus.operator_complete(where, wanted, result, operator=actor)

    _decide(place, choice.only_id, domain, decide, "is completed")


def _decide(
    place: Place,
    command_id: str,
    domain: str | None,
    decide: Callable[[Session, str, UUID], Awaitable[None]],
    done: str,
) -> None:
    async def work() -> str:
        async with open_session(place) as session:
            where, wanted = await session.find(command_id, domain)
            await decide(session, where, wanted)
            return f"{wanted} {done}"

    say(asyncio.run(work()))
