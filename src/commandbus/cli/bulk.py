"""`bulk`: operations on many parked commands; and how `tsq retry|cancel|complete` starts one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

import typer

from commandbus.cli.frame import Frame, Session, View, command, page_view
from commandbus.cli.options import (
    DomainFilter,
    GroupFilter,
    Listing,
    OneCommand,
    Operator,
    Rate,
    ReasonWhy,
    Wait,
    parse_rate,
    parse_uuid,
)
from commandbus.cli.output import (
    Column,
    ExitCode,
    Table,
    error_text,
    jsonable,
    print_fields,
    say,
    styled_status,
    text_of,
)
from commandbus.cli.progress import Step, progress_view, rate_text
from commandbus.cli.tsq_choice import Choice
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.names import check_choice_or_none, check_uuid
from commandbus.paging import Page
from commandbus.privacy.redaction import redact_value
from commandbus.troubleshooting.model import (
    BulkFilter,
    BulkItem,
    BulkMatch,
    BulkOperation,
    BulkOutcome,
    BulkStatus,
    BulkVerb,
)
from commandbus.troubleshooting.sentences import bulk_sentence

bulk = typer.Typer(
    help="Decisions for many parked commands at once; `tsq retry|cancel|complete` starts them.",
    no_args_is_help=True,
)

BulkId = Annotated[str, typer.Argument(metavar="ID", help="The id of the bulk operation.")]


async def decide(
    frame: Frame, choice: Choice, verb: BulkVerb, operator: str | None, arguments: dict[str, Any]
) -> View:
    """Decide for what was chosen: count it, act on one command, or start an operation on many."""
    rate = parse_rate(choice.rate)
    wanted = parse_uuid(choice.operation_id, "--id") or uuid4()
    async with frame.open() as session:
        if choice.only_id is not None and not frame.as_json and "edit" not in arguments:
            return await _decide_for_one(session, choice, verb, operator, arguments)
        chosen = await choice.filter(session)
        if choice.dry_run:
            return await _preview(session, chosen, verb)
        operation = await session.bus.bulk.start(
            verb, chosen, rate=rate, operator=operator, operation_id=wanted, everything=choice.yes,
            expected_total=choice.expect, limit=choice.only, start_after=choice.start_after,
            **arguments,
        )  # fmt: skip
        if not frame.as_json:
            if operation.operation_id != wanted:
                say(f"The same decision runs already: {operation.operation_id}")
            count = f"{operation.total:,} commands of {operation.domain}"
            say(f"bulk {verb} {operation.operation_id}: {count}")
        return await _see_through(frame, session, operation, choice.wait)


async def _decide_for_one(
    session: Session, choice: Choice, verb: BulkVerb, operator: str | None, given: dict[str, Any]
) -> View:
    where, wanted = await session.find(OneCommand(str(choice.only_id), choice.domain))
    queue = session.bus.troubleshooting
    verbs: dict[BulkVerb, tuple[Callable[..., Awaitable[Any]], str]] = {
        BulkVerb.RETRY: (queue.retry, "queued again"),
        BulkVerb.CANCEL: (queue.cancel, "canceled"),
        BulkVerb.COMPLETE: (queue.complete, "completed"),
    }
    act, done = verbs[verb]
    arguments = dict(given)
    # Only a cancel takes it along, for the reply; of the others it becomes a note.
    reason = None if verb is BulkVerb.CANCEL else arguments.pop("reason", None)
    await act(where, wanted, operator=operator, **arguments)
    if reason is not None:
        await queue.note(where, wanted, reason, operator=operator)
    return View.line(f"{wanted} is {done}", domain=where, command_id=wanted)


async def _preview(session: Session, chosen: BulkFilter, verb: BulkVerb) -> View:
    preview = await session.bus.bulk.preview(chosen)
    if not preview.total:
        raise InvalidOperationError(f"nothing in troubleshooting of {chosen.domain!r} matches")
    text = f"{preview.total:,} commands of {preview.domain} would be acted on ({verb}); none was."

    def show_matches() -> None:
        _MATCHES.print(preview.groups)
        say(text)

    return View(preview, show_matches)


async def _see_through(
    frame: Frame, session: Session, operation: BulkOperation, waits: bool
) -> View:
    """Act on the commands here if it `waits`; the exit code is 1 if not everything was done."""
    name = operation.operation_id
    if waits:
        if not frame.as_json:
            say(f"Ctrl-C leaves it to the workers; `commandbus bulk stop {name}`")
        with progress_view(quiet=frame.as_json) as view:
            operation = await session.bus.bulk.run(
                name, on_progress=lambda now: view.show(bulk_step(now))
            )
    lines = [f"{styled_status(operation.status)}: {operation.done:,} of {operation.total:,} done"]
    if operation.is_running:
        where = f"`commandbus bulk show {name}` shows how far they are"
        lines = [f"The workers of {operation.domain} act on it; {where}"]
    elif operation.skipped or operation.failed:
        lines.append(f"`commandbus bulk show {name}` shows which were not, and why")
    is_incomplete = operation.failed or (waits and not operation.is_finished)
    code = ExitCode.FAILED if is_incomplete else ExitCode.OK
    return View(bulk_json(operation), lambda: say("\n".join(lines)), code)


@command(bulk, "list")
async def list_operations(
    frame: Frame,
    *,
    domain: DomainFilter = None,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="Only running, stopped or finished ones.")
    ] = None,
    group: GroupFilter = None,
    listing: Listing,
) -> View:
    """List bulk operations, newest first."""
    wanted = check_choice_or_none(BulkStatus, status, "status")
    async with frame.open() as session:
        if group is not None:
            found = await session.bus.troubleshooting.require_group(group, domain)
            domain, group = found.domain, found.fingerprint
        page = await session.bus.bulk.page(domain, status=wanted, group=group, **listing.of_page)
    return page_view(page, "operations", OPERATIONS.print, to_json=bulk_json)


@command(bulk, "show")
async def show(
    frame: Frame,
    operation_id: BulkId,
    *,
    outcome: Annotated[
        str | None,
        typer.Option(
            "--outcome", "-o", help="List items with this outcome: done, skipped, failed."
        ),
    ] = None,
    listing: Listing,
) -> View:
    """Show a bulk operation: how far it is, and which items failed or were skipped."""
    wanted = check_uuid(operation_id, "operation id")
    only = check_choice_or_none(BulkOutcome, outcome, "outcome")
    if listing.cursor is not None and only is None:
        raise InvalidInputError("--cursor needs the --outcome of the listing that it continues")
    async with frame.open() as session:
        operation = await session.bus.bulk.require(wanted)
        page: Page[BulkItem] = Page([], None)
        for each in [BulkOutcome.FAILED, BulkOutcome.SKIPPED] if only is None else [only]:
            found = await session.bus.bulk.page_items(wanted, outcome=each, **listing.of_page)
            page = Page((page.items + found.items)[: listing.limit], only and found.next_cursor)
    items = page_view(page, "items", partial(_print_operation, operation))
    return View({**bulk_json(operation), **items.document}, items.print)


@command(bulk, "stop")
async def stop(frame: Frame, operation_id: BulkId, *, operator: Operator = None) -> View:
    """Stop a bulk operation: no further command is acted on."""
    wanted = check_uuid(operation_id, "operation id")
    async with frame.open() as session:
        operation = await session.bus.bulk.stop(wanted, operator=operator)
    text = f"{wanted} is stopped; {operation.left:,} of {operation.total:,} were not acted on"
    return View(bulk_json(operation), lambda: say(text))


@command(bulk, "resume")
async def resume(
    frame: Frame,
    operation_id: BulkId,
    *,
    rate: Rate = None,
    wait: Wait = True,
    reason: ReasonWhy = None,
    operator: Operator = None,
) -> View:
    """Continue a bulk operation that was stopped, or whose process has ended."""
    wanted, pace = check_uuid(operation_id, "operation id"), parse_rate(rate)
    async with frame.open() as session:
        operation = await session.bus.bulk.resume(
            wanted, rate=pace, reason=reason, operator=operator
        )
        return await _see_through(frame, session, operation, wait)


# -- as a document, and as text


def bulk_json(operation: BulkOperation) -> dict[str, Any]:
    """An operation as `--json` prints it, secrets masked."""
    return {**jsonable(operation), "arguments": redact_value(operation.arguments)}


def counts_text(operation: BulkOperation) -> str:
    """`480 of 500: 470 done, 8 skipped, 2 failed`, as markup."""
    parts = [f"[green]{operation.done:,} done[/]"]
    if operation.skipped:
        parts.append(f"[yellow]{operation.skipped:,} skipped[/]")
    if operation.failed:
        parts.append(f"[red]{operation.failed:,} failed[/]")
    return f"{operation.acted:,} of {operation.total:,}: {', '.join(parts)}"


def bulk_step(operation: BulkOperation) -> Step:
    """How far an operation is."""
    text = f"{counts_text(operation)}  {_pace(operation)}"
    is_last = operation.acted == operation.total
    return Step(text, is_last, operation.verb, operation.acted, operation.total, beside=text)


def _pace(operation: BulkOperation) -> str:
    if operation.per_second is None:
        return ""
    return rate_text(operation.per_second, operation.left / operation.per_second)


_MATCHES = Table[BulkMatch](
    Column("GROUP", lambda each: each.fingerprint),
    Column("TYPE", lambda each: each.command_type),
    Column("MATCHED", lambda each: each.matched, is_number=True),
    Column("ERROR", lambda each: error_text(each.error_code, each.message), may_fold=True),
)

OPERATIONS = Table[BulkOperation](
    Column("ID", lambda each: each.operation_id),
    Column("DOMAIN", lambda each: each.domain),
    Column("VERB", lambda each: each.verb),
    Column("STATUS", lambda each: styled_status(each.status)),
    Column("CREATED", lambda each: each.created_at),
    Column("BY", lambda each: text_of(each.actor)),
    Column("ITEMS", counts_text, may_fold=True),
    empty="There are no bulk operations.",
)

_ITEMS = Table[BulkItem](
    Column("NO", lambda item: str(item.item_no), is_number=True),
    Column("ID", lambda item: item.command_id),
    Column("OUTCOME", lambda item: item.outcome or "to come"),
    Column("WHY", lambda item: text_of(item.detail)),
)


def _print_operation(operation: BulkOperation, items: Sequence[BulkItem]) -> None:
    conditions = operation.conditions
    chosen = ", ".join(f"{name} {conditions[name]}" for name in conditions if name != "command_ids")
    ids = conditions.get("command_ids")
    say(f"[bold]bulk {operation.verb}[/] {operation.operation_id}")
    print_fields(
        [
            ("domain", operation.domain),
            ("status", styled_status(operation.status)),
            ("stands", text_of(bulk_sentence(operation, datetime.now(UTC)))),
            ("items", counts_text(operation)),
            ("chosen", text_of(chosen or (f"{len(ids):,} ids" if ids else "everything"))),
            ("only", text_of(operation.limit and f"the {operation.limit:,} parked longest")),
            ("rate", "no limit" if operation.rate is None else f"{operation.rate:g}/s"),
            ("reason", text_of(operation.reason)),
            ("edits", text_of(", ".join(operation.edited_paths))),
            ("by", text_of(operation.actor)),
            ("created", operation.created_at),
            ("last acted", operation.heartbeat_at),
            ("finished", operation.finished_at),
        ]
    )
    if items:
        say()
        _ITEMS.print(items)
