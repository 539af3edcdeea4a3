"""`batch`: many commands created together: list, show, watch, cancel, retry them."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from typing import Annotated, Any, NoReturn

import typer

from commandbus.batches.actions import BatchActions
from commandbus.cli import batch_create, batch_load
from commandbus.cli.batch_view import (
    batch_document,
    batch_json,
    print_batch,
    print_batches,
    progress_json,
)
from commandbus.cli.batch_watch import counts_text, hint_of, watch
from commandbus.cli.batch_watch_all import watch_all
from commandbus.cli.frame import Frame, Session, View, command, page_view
from commandbus.cli.options import (
    By,
    Domain,
    DomainFilter,
    Listing,
    OneBatch,
    Reason,
    ReasonWhy,
    WithRunning,
    parse_seconds,
)
from commandbus.cli.output import ExitCode, print_fields, say, styled_status
from commandbus.errors import InvalidInputError, InvalidOperationError, ReplyTimeoutError
from commandbus.models import BatchMetadata, BatchStatus, Running
from commandbus.names import check_choice_or_none

batch = typer.Typer(
    help="Batches: many commands created together, counted, and ending once.", no_args_is_help=True
)


command(batch, "create")(batch_create.create)
command(batch, "load")(batch_load.load)
command(batch, "resume")(batch_load.resume)
command(batch, "seal")(batch_load.seal)


# -- show, list, watch


@command(batch, "show")
async def show_batch(frame: Frame, one: OneBatch) -> View:
    """Show a batch: progress, rate, errors by code, closing command."""
    async with frame.open() as session:
        found = await session.find_batch(one)
        actions = await _actions(session, found)
        load = actions.load
        document = await batch_document(session, found, load)
        document["actions"] = actions.allowed
    return View(document, lambda: print_batch(found, load, document))


@command(batch, "list")
async def list_batches(
    frame: Frame,
    domain: Domain,
    *,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="Only this status, for example COMPLETED.")
    ] = None,
    listing: Listing,
) -> View:
    """List the batches of a domain, newest first."""
    wanted = check_choice_or_none(BatchStatus, status and status.upper(), "batch status")
    async with frame.open() as session:
        page = await session.bus.batches.page(domain, status=wanted, **listing.of_page)
    return page_view(page, "batches", print_batches, to_json=batch_json)


@command(batch, "watch")
async def watch_batch(
    frame: Frame,
    batch_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The id; without it, all open batches.")
    ] = None,
    *,
    domain: DomainFilter = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop watching then, exit code 1.")
    ] = None,
) -> View:
    """Watch a batch until it ends; or all open batches, of a domain or of all, until none is open.

    Stop watching whenever you like: nothing happens to a batch.
    Exit code 0 if all commands completed, 1 if some failed or were canceled, or at --timeout.
    With --json and without an ID, each change of a batch is one line.
    """
    seconds = parse_seconds(timeout, "--timeout", 31_536_000)
    async with frame.open() as session:
        if batch_id is None:
            await _watch_all(frame, session, domain, seconds)
        found = await session.find_batch(OneBatch(batch_id, domain))
        try:
            async with asyncio.timeout(seconds):
                ended = await watch(session, found, quiet=frame.as_json)
        except TimeoutError:
            raise ReplyTimeoutError(
                f"batch {found.batch_id} has not ended within {seconds:g} s; it goes on, look "
                f"at it with `commandbus batch show {found.batch_id}`"
            ) from None
    is_complete = ended.completed_count == ended.total_count
    return View(
        {"batch": batch_json(ended), "progress": progress_json(ended)},
        lambda: say(styled_status(ended.status)),
        ExitCode.OK if is_complete else ExitCode.FAILED,
    )


async def _watch_all(
    frame: Frame, session: Session, domain: str | None, seconds: float | None
) -> NoReturn:
    try:
        async with asyncio.timeout(seconds):
            ended = await watch_all(session, domain, as_json=frame.as_json)
    except TimeoutError:
        left = len(await session.bus.batches.list_open(domain))
        raise ReplyTimeoutError(
            f"{left:,} batches have not ended within {seconds:g} s; they go on, look at them with "
            "`commandbus batch list DOMAIN`"
        ) from None
    if not frame.as_json and not ended:
        say("No batch is open.")
    is_complete = all(each.completed_count == each.total_count for each in ended)
    raise typer.Exit(ExitCode.OK if is_complete else ExitCode.FAILED)


# -- cancel, retry


@command(batch, "cancel")
async def cancel_batch(
    frame: Frame,
    one: OneBatch,
    *,
    reason: Reason,
    by: By = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    running: WithRunning = False,
) -> View:
    """Cancel the commands that no worker has leased; running commands continue, unless --running.

    If the batch is still being loaded, nothing more can be loaded after that.
    """
    async with frame.open() as session:
        found = await session.find_batch(one)
        actions = await _actions(session, found)
        actions.require_cancelable(with_running=running)
    if not yes:
        # Between two sessions: no connection is open while the user decides.
        named = f" ({found.name})" if found.name else ""
        then = "are asked to end" if running else "go on"
        going_on = (
            f"; {actions.in_progress:,} are being worked on and {then}"
            if actions.in_progress
            else ""
        )
        going_on += "; its load ends, and cannot be resumed" if actions.is_loading else ""
        _confirm(
            f"Cancel {actions.cancelable:,} of the {found.total_count:,} commands of batch "
            f"{found.batch_id}{named}{going_on}?"
        )
    async with frame.open() as session:
        mode: Running = "request" if running else "refuse"
        canceled = await session.bus.batches.cancel(
            found.domain, found.batch_id, reason, running=mode, operator=by
        )
        was_loading = actions.is_loading
        actions = await _actions(session, found)
    if not canceled and not was_loading:
        actions.require_cancelable()
    what = "canceled, or asked to end" if running else "canceled"
    text = f"{canceled:,} commands are {what}." + (" Its load is too." if was_loading else "")
    return _state_view(actions.batch, text, canceled=canceled)


async def _actions(session: Session, found: BatchMetadata) -> BatchActions:
    load = await session.bus.loads.get(found.domain, found.batch_id)
    return await session.bus.batches.actions(found.domain, found.batch_id, load)


def _confirm(question: str) -> None:
    # Not typer.confirm: it writes to stdout, where a JSON document may be wanted.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    is_main = threading.current_thread() is threading.main_thread()
    # asyncio's own handler would cancel this task and leave `readline` waiting.
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if is_main else None
    try:
        reply = sys.stdin.readline()
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    if not reply:
        print(file=sys.stderr)
        raise InvalidInputError("nobody answered; --yes cancels without asking")
    if reply.strip().lower() not in {"y", "yes"}:
        raise InvalidOperationError("nothing was canceled")


@command(batch, "retry")
async def retry_batch(
    frame: Frame, one: OneBatch, *, reason: ReasonWhy = None, by: By = None
) -> View:
    """Send the commands again that failed or are parked.

    Parked is what waits in troubleshooting. A batch that had ended is open again.
    """
    async with frame.open() as session:
        found = await session.find_batch(one)
        where, wanted = found.domain, found.batch_id
        (await session.bus.batches.actions(where, wanted)).require_retryable()
        retried = await session.bus.batches.retry(where, wanted, reason=reason, operator=by)
        found = await session.bus.batches.require(where, wanted)
    text = f"{retried:,} commands are queued again." if retried else "Nothing to send again."
    return _state_view(found, text, retried=retried)


def _state_view(found: BatchMetadata, text: str, **counts: Any) -> View:
    def show() -> None:
        say(text)
        facts = [("status", styled_status(found.status)), ("progress", counts_text(found))]
        if found.completed_at is None:
            hint = hint_of(found, None) or f"`commandbus batch watch {found.batch_id}` follows it"
            facts.append(("next", hint))
        print_fields(facts)

    return View({"batch": batch_json(found), **counts}, show)
