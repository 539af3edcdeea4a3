"""`tsq`: what waits in the troubleshooting queue, and the three ways out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from commandbus.cli.options import (
    AsJson,
    CommandId,
    DataDir,
    DomainFilter,
    DomainOfId,
    Dsn,
    Place,
    Session,
    TypeFilter,
    actor_or_login,
    open_session,
    parse_json,
)
from commandbus.cli.output import Column, duration, jsonable, print_json, print_table, say, text_of
from commandbus.models import CommandStatus, TroubleshootingItem

tsq = typer.Typer(
    help="The troubleshooting queue: commands that failed for good and wait for a decision.",
    no_args_is_help=True,
)

Operator = Annotated[
    str | None,
    typer.Option("--operator", metavar="NAME", help="Who decides. Default: your login name."),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(tsq, name="tsq", rich_help_panel="Operate")


@tsq.command("list")
def list_parked(
    *,
    domain: DomainFilter = None,
    command_type: TypeFilter = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """List what waits, longest first."""
    place = Place(dsn, data_dir)

    async def work() -> list[TroubleshootingItem]:
        async with open_session(place) as session:
            return await _parked(session, domain, command_type, limit)

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
    session: Session, domain: str | None, command_type: str | None, limit: int
) -> list[TroubleshootingItem]:
    domains = [domain] if domain is not None else await _domains_with_parked(session)
    items = [
        item
        for each in domains
        for item in await session.bus.list_troubleshooting(each, type=command_type, limit=limit)
    ]
    return sorted(items, key=lambda item: item.parked_at)[:limit]


async def _domains_with_parked(session: Session) -> list[str]:
    status = CommandStatus.IN_TROUBLESHOOTING_QUEUE
    parked = await session.bus.query_commands(status=status, limit=10_000)
    return sorted({command.domain for command in parked})


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


@tsq.command("retry")
def retry(
    command_id: CommandId,
    *,
    domain: DomainOfId = None,
    keep_attempts: Annotated[
        bool, typer.Option("--keep-attempts", help="Do not count attempts from zero again.")
    ] = False,
    operator: Operator = None,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Send a parked command again, with the same payload."""
    actor = actor_or_login(operator)

    async def decide(session: Session, where: str, wanted: UUID) -> None:
        await session.bus.operator_retry(
            where, wanted, operator=actor, reset_attempts=not keep_attempts
        )

    _decide(Place(dsn, data_dir), command_id, domain, decide, "is queued again")


@tsq.command("cancel")
def cancel(
    command_id: CommandId,
    *,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it is kept and replied.")],
    domain: DomainOfId = None,
    operator: Operator = None,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """End a parked command as CANCELED; its reply goes out."""
    actor = actor_or_login(operator)

    async def decide(session: Session, where: str, wanted: UUID) -> None:
        await session.bus.operator_cancel(where, wanted, reason, operator=actor)

    _decide(Place(dsn, data_dir), command_id, domain, decide, "is canceled")


@tsq.command("complete")
def complete(
    command_id: CommandId,
    *,
    data: Annotated[
        str | None, typer.Option(metavar="JSON", help="The result that the reply carries.")
    ] = None,
    domain: DomainOfId = None,
    operator: Operator = None,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """End a parked command as COMPLETED: its work was done by other means."""
    actor = actor_or_login(operator)
    result = None if data is None else parse_json(data, "--data")

    async def decide(session: Session, where: str, wanted: UUID) -> None:
        await session.bus.operator_complete(where, wanted, result, operator=actor)

    _decide(Place(dsn, data_dir), command_id, domain, decide, "is completed")


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
