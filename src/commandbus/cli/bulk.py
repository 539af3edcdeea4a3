"""`bulk`: operations on many parked commands; and how `tsq` starts one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer

from commandbus.cli.bulk_options import Choice, Operator, Rate, Wait, parse_rate
from commandbus.cli.bulk_view import (
    bulk_json,
    bulk_view,
    print_operation,
    print_operations,
    print_preview,
    styled,
)
from commandbus.cli.options import (
    AsJson,
    DataDir,
    DomainFilter,
    Dsn,
    Place,
    Session,
    actor_or_login,
    open_session,
)
from commandbus.cli.output import ExitCode, print_json, say
from commandbus.errors import BulkOperationNotFoundError, InvalidOperationError
from commandbus.names import check_uuid
from commandbus.troubleshooting.model import (
    BulkFilter,
    BulkItem,
    BulkOperation,
    BulkPreview,
    BulkStatus,
)

bulk = typer.Typer(
    help="Decisions for many parked commands at once; `tsq retry|cancel|complete` starts them.",
    no_args_is_help=True,
)

BulkId = Annotated[str, typer.Argument(metavar="ID", help="The id of the bulk operation.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(bulk, name="bulk", rich_help_panel="Operate")


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of those that were chosen."""

    verb: str
    actor: str | None
    arguments: dict[str, Any]


def decide_for_many(place: Place, choice: Choice, decision: Decision) -> None:
    """Count what was chosen, or start an operation on it and see it through."""
    rate = parse_rate(choice.rate)
    wanted = uuid4() if choice.operation_id is None else check_uuid(choice.operation_id, "--id")

    async def work() -> BulkPreview | BulkOperation:
        async with open_session(place) as session:
            chosen = await choice.filter(session)
            if choice.is_dry_run:
                return await _preview(session, chosen)
            operation = await session.bus.bulk.start(
                decision.verb,
                chosen,
                rate=rate,
                operator=decision.actor,
                operation_id=wanted,
                everything=choice.is_confirmed,
                **decision.arguments,
            )
            if not choice.as_json:
                _announce(operation, wanted)
            return await _see_through(session, operation, choice.waits, choice.as_json)

    answer = asyncio.run(work())
    if isinstance(answer, BulkPreview):
        if choice.as_json:
            print_json(answer)
        else:
            print_preview(answer, decision.verb)
        return
    _conclude(answer, as_json=choice.as_json, waits=choice.waits)


async def _preview(session: Session, chosen: BulkFilter) -> BulkPreview:
    preview = await session.bus.bulk.preview(chosen)
    if not preview.total:
        raise InvalidOperationError(f"nothing in troubleshooting of {chosen.domain!r} matches")
    return preview


def _announce(operation: BulkOperation, wanted: UUID) -> None:
    if operation.operation_id != wanted:
        say(f"The same decision runs already: {operation.operation_id}")
    say(
        f"bulk {operation.verb} {operation.operation_id}: {operation.total:,} commands of "
        f"{operation.domain}"
    )


async def _see_through(
    session: Session, operation: BulkOperation, waits: bool, quiet: bool
) -> BulkOperation:
    if not waits:
        return operation
    if not quiet:
        say(f"Ctrl-C leaves it to the workers; `commandbus bulk stop {operation.operation_id}`")
    with bulk_view(quiet=quiet) as view:
        return await session.bus.bulk.run(operation.operation_id, on_progress=view.tell)


def _conclude(operation: BulkOperation, *, as_json: bool, waits: bool) -> None:
    if as_json:
        print_json(bulk_json(operation))
    elif not waits and operation.status is BulkStatus.RUNNING:
        say(
            f"The workers of {operation.domain} act on it; "
            f"`commandbus bulk show {operation.operation_id}` shows how far they are"
        )
    elif waits:
        say(f"{styled(operation.status)}: {operation.done:,} of {operation.total:,} done")
        if operation.skipped or operation.failed:
            say(f"`commandbus bulk show {operation.operation_id}` shows which were not, and why")
    if operation.failed or (waits and operation.status is not BulkStatus.FINISHED):
        raise typer.Exit(ExitCode.FAILED)


@bulk.command("list")
def list_operations(
    *,
    domain: DomainFilter = None,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="Only running, stopped or finished ones.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 20,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Those that are older than this.")
    ] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """List bulk operations, newest first."""
    place = Place(dsn, data_dir)
    last = None if before is None else check_uuid(before, "--before")

    async def work() -> list[BulkOperation]:
        async with open_session(place) as session:
            return await session.bus.bulk.operations(
                domain, status=status, limit=limit, before=last
            )

    found = asyncio.run(work())
    if as_json:
        print_json({"operations": [bulk_json(each) for each in found]})
    else:
        print_operations(found)


@bulk.command("show")
def show(
    operation_id: BulkId,
    *,
    outcome: Annotated[
        str | None,
        typer.Option(
            "--outcome", "-o", help="List items with this outcome: done, skipped, failed."
        ),
    ] = None,
    after: Annotated[
        int, typer.Option("--after", metavar="NO", help="List items after this number.")
    ] = 0,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many items.")] = 20,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Show a bulk operation: how far it is, and which items failed or were skipped."""
    place = Place(dsn, data_dir)
    wanted = check_uuid(operation_id, "operation id")

    async def work() -> tuple[BulkOperation, list[BulkItem]]:
        async with open_session(place) as session:
            operation = await session.bus.bulk.get(wanted)
            if operation is None:
                raise BulkOperationNotFoundError(wanted)
            items: list[BulkItem] = []
            for each in ["failed", "skipped"] if outcome is None else [outcome]:
                items += await session.bus.bulk.items(
                    wanted, outcome=each, after=after, limit=limit
                )
            return operation, items[:limit]

    operation, items = asyncio.run(work())
    if as_json:
        print_json({**bulk_json(operation), "items": items})
    else:
        print_operation(operation, items)


@bulk.command("stop")
def stop(
    operation_id: BulkId,
    *,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Stop a bulk operation: no further command is acted on."""
    place = Place(dsn, data_dir)
    wanted = check_uuid(operation_id, "operation id")

    async def work() -> BulkOperation:
        async with open_session(place) as session:
            return await session.bus.bulk.stop(wanted, operator=actor_or_login(operator))

    operation = asyncio.run(work())
    if as_json:
        print_json(bulk_json(operation))
    else:
        left = operation.total - operation.acted
        say(f"{wanted} is stopped; {left:,} of {operation.total:,} were not acted on")


@bulk.command("resume")
def resume(
    operation_id: BulkId,
    *,
    rate: Rate = None,
    wait: Wait = True,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Go on with a bulk operation that was stopped, or whose process is gone."""
    place = Place(dsn, data_dir)
    wanted = check_uuid(operation_id, "operation id")
    pace = parse_rate(rate)

    async def work() -> BulkOperation:
        async with open_session(place) as session:
            operation = await session.bus.bulk.resume(
                wanted, rate=pace, operator=actor_or_login(operator)
            )
            return await _see_through(session, operation, wait, as_json)

    _conclude(asyncio.run(work()), as_json=as_json, waits=wait)
