"""`batch`: many commands created together: look at them, watch them, cancel them, retry them."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from commandbus.batches.model import progress_of
from commandbus.cli import batch_create, batch_load
from commandbus.cli.batch_options import BatchDomain, BatchId, By, DomainOfBatch
from commandbus.cli.batch_show import BatchView, print_batches
from commandbus.cli.batch_view import (
    Look,
    Speed,
    batch_json,
    counts_text,
    hint_of,
    open_count,
    progress_document,
    watcher,
)
from commandbus.cli.options import (
    AsJson,
    DataDir,
    Dsn,
    Place,
    Session,
    actor_or_login,
    open_session,
)
from commandbus.cli.output import ExitCode, print_fields, print_json, say, styled_status
from commandbus.errors import InvalidInputError, InvalidOperationError, ReplyTimeoutError
from commandbus.loads.model import LoadStatus
from commandbus.models import BatchMetadata, BatchStatus, CommandStatus

#: Seconds between two looks at a batch that is watched.
WATCH_SECONDS = 0.25

batch = typer.Typer(
    help="Batches: many commands created together, counted, and ending once.",
    no_args_is_help=True,
)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(batch, name="batch", rich_help_panel="Send and look")


batch.command("create")(batch_create.create)
batch.command("load")(batch_load.load)
batch.command("resume")(batch_load.resume)


# -- show, list, watch


@batch.command("show")
def show(
    batch_id: BatchId,
    *,
    domain: DomainOfBatch = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Show a batch: progress, rate, errors by code, closing command."""
    place = Place(dsn, data_dir)

    async def work() -> BatchView:
        async with open_session(place) as session:
            return await BatchView.read(session, await session.find_batch(batch_id, domain))

    view = asyncio.run(work())
    if as_json:
        print_json(view.document())
    else:
        view.print()


@batch.command("list")
def list_batches(
    domain: BatchDomain,
    *,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="Only this status, for example COMPLETED.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 20,
    offset: Annotated[int, typer.Option("--offset", help="Leave out so many first.")] = 0,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """List the batches of a domain, newest first."""
    place = Place(dsn, data_dir)
    wanted = None if status is None else status.upper()

    async def work() -> list[BatchMetadata]:
        async with open_session(place) as session:
            return await session.bus.list_batches(domain, status=wanted, limit=limit, offset=offset)

    found = asyncio.run(work())
    if as_json:
        print_json({"batches": [batch_json(each) for each in found]})
    else:
        print_batches(found)


@batch.command("watch")
def watch(
    batch_id: BatchId,
    *,
    domain: DomainOfBatch = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Give up after so long, exit code 1.")
    ] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Watch a batch until it ends.

    Stop watching whenever you like: nothing happens to the batch.
    Exit code 0 if all its commands completed, 1 if some failed or were canceled, or at --timeout.
    """
    place = Place(dsn, data_dir)
    if timeout is not None and not 0 < timeout <= 31_536_000:
        raise InvalidInputError(f"--timeout is {timeout:g}; use seconds from 0 to 31,536,000")

    async def work() -> BatchMetadata:
        async with open_session(place) as session:
            found = await session.find_batch(batch_id, domain)
            try:
                async with asyncio.timeout(timeout):
                    return await _watch(session, found, quiet=as_json)
            except TimeoutError:
                raise ReplyTimeoutError(
                    f"batch {found.batch_id} has not ended within {timeout:g} s; it goes on, look "
                    f"at it with `commandbus batch show {found.batch_id}`"
                ) from None

    ended = asyncio.run(work())
    if as_json:
        print_json({"batch": batch_json(ended), "progress": progress_document(progress_of(ended))})
    else:
        say(styled_status(ended.status))
    if ended.status != BatchStatus.COMPLETED:
        raise typer.Exit(ExitCode.FAILED)


async def _watch(session: Session, found: BatchMetadata, *, quiet: bool) -> BatchMetadata:
    where, wanted, speed = found.domain, str(found.batch_id), Speed()
    load = await session.bus.loads.get(where, found.batch_id)
    with watcher(quiet=quiet) as stage:
        while True:
            stage.show(Look(found, speed.see(found), hint_of(found, load)))
            if found.completed_at is not None:
                return found
            await asyncio.sleep(WATCH_SECONDS)
            if load is not None and load.status is not LoadStatus.SEALED:
                load = await session.bus.loads.get(where, found.batch_id)
            found = await session.find_batch(wanted, where)


# -- cancel, retry


@batch.command("cancel")
def cancel(
    batch_id: BatchId,
    *,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it is kept and replied.")],
    by: By = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    domain: DomainOfBatch = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Cancel what nobody works on; what a worker holds goes on."""
    place = Place(dsn, data_dir)
    if not yes:
        # Between two sessions: Ctrl-C must work while the question stands.
        _confirm(asyncio.run(_cancel_question(place, batch_id, domain)))

    async def work() -> tuple[BatchMetadata, int]:
        async with open_session(place) as session:
            found = await session.find_batch(batch_id, domain)
            _refuse_finished(found)
            canceled = await session.bus.batches.cancel(
                found.domain, found.batch_id, reason, operator=actor_or_login(by)
            )
            if not canceled:
                raise _nothing_to_cancel(found)
            return await session.find_batch(batch_id, found.domain), canceled

    found, canceled = asyncio.run(work())
    if as_json:
        print_json({"batch": batch_json(found), "canceled": canceled})
        return
    say(f"{canceled:,} commands are canceled.")
    _print_state(found)


async def _cancel_question(place: Place, batch_id: str, domain: str | None) -> str:
    async with open_session(place) as session:
        found = await session.find_batch(batch_id, domain)
        _refuse_finished(found)
        held = len(
            await session.bus.list_batch_commands(
                found.domain, found.batch_id, status=CommandStatus.IN_PROGRESS, limit=10_000
            )
        )
    cancelable = open_count(found) - held
    if cancelable <= 0:
        raise _nothing_to_cancel(found)
    named = f" ({found.name})" if found.name else ""
    going_on = f"; {held:,} are being worked on and go on" if held else ""
    return (
        f"Cancel {cancelable:,} of the {found.total_count:,} commands of batch "
        f"{found.batch_id}{named}{going_on}?"
    )


def _nothing_to_cancel(found: BatchMetadata) -> InvalidOperationError:
    parked = found.in_troubleshooting_count
    return InvalidOperationError(
        f"batch {found.batch_id} has nothing to cancel: {open_count(found):,} commands are being "
        f"worked on, and {parked:,} wait in troubleshooting, where `commandbus tsq cancel` ends "
        "them one by one"
    )


def _confirm(question: str) -> None:
    # Not typer.confirm: it writes to stdout, where a JSON document may be wanted.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
        raise InvalidInputError("nobody answered; --yes cancels without asking")
    if answer.strip().lower() not in {"y", "yes"}:
        raise InvalidOperationError("nothing was canceled")


def _refuse_finished(found: BatchMetadata) -> None:
    if found.completed_at is not None:
        raise InvalidOperationError(
            f"batch {found.batch_id} has ended ({found.status}); there is nothing to cancel"
        )


@batch.command("retry")
def retry(
    batch_id: BatchId,
    *,
    by: By = None,
    domain: DomainOfBatch = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Send again what failed or is parked.

    Parked is what waits in troubleshooting. A batch that had ended is open again.
    """
    place = Place(dsn, data_dir)

    async def work() -> tuple[BatchMetadata, int]:
        async with open_session(place) as session:
            found = await session.find_batch(batch_id, domain)
            retried = await session.bus.batches.retry(
                found.domain, found.batch_id, operator=actor_or_login(by)
            )
            if not retried and found.completed_at is not None:
                raise InvalidOperationError(
                    f"batch {found.batch_id} has ended ({found.status}) and nothing of it failed; "
                    "what was canceled is not sent again, create a new batch for it"
                )
            return await session.find_batch(batch_id, found.domain), retried

    found, retried = asyncio.run(work())
    if as_json:
        print_json({"batch": batch_json(found), "retried": retried})
        return
    say(f"{retried:,} commands are queued again." if retried else "Nothing to send again.")
    _print_state(found)


def _print_state(found: BatchMetadata) -> None:
    is_open = found.completed_at is None
    hint = hint_of(found, None) or f"`commandbus batch watch {found.batch_id}` follows it"
    print_fields(
        [("status", styled_status(found.status)), ("progress", counts_text(found))]
        + ([("next", hint)] if is_open else [])
    )
