"""`batch load` and `batch resume`: batches of any size from a file, with progress."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated
from uuid import UUID, uuid4

import typer

from commandbus.cli.batch_create import (
    About,
    Delimiter,
    RowType,
    delimiter_of,
    refuse_untyped_csv,
    source_of,
)
from commandbus.cli.batch_view import batch_json, load_document
from commandbus.cli.batch_watch import counts_text
from commandbus.cli.frame import Frame, Place, Session, View
from commandbus.cli.options import BatchId, By, Domain, OneBatch, parse_uuid
from commandbus.cli.output import ExitCode, jsonable, print_fields, styled_status, text_of
from commandbus.cli.progress import Step, progress_view, rate_text
from commandbus.cli.timing import Start as Timing
from commandbus.loads.model import LoadProgress, LoadResult, LoadStart, OnProgress
from commandbus.names import check_uuid
from commandbus.privacy.redaction import redact_text

LoadSource = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A .jsonl, .ndjson, .json, .csv or .tsv file (also .gz), .parquet or .arrow; "
        "'-' is stdin, with JSON.",
    ),
]
LoadRate = Annotated[
    float | None, typer.Option("--rate", metavar="N", help="Rows queued per second, at most.")
]
#: What becomes of a row in each stage.
_VERBS = {"loading": "stored", "dispatching": "queued"}


class Start(StrEnum):
    """`--start` in the spelling of a command line."""

    SEALED = "sealed"
    AS_IT_LOADS = "as-it-loads"


async def load(  # noqa: PLR0913  (what a row is, how to load, what the batch is called)
    frame: Frame,
    domain: Domain,
    source: LoadSource,
    *,
    command_type: RowType = None,
    id_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column with the command id; else ids are made."),
    ] = None,
    type_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column with the command type.")
    ] = None,
    delimiter: Delimiter = None,
    start: Annotated[
        Start, typer.Option(help="When workers may begin: once everything is in, or at once.")
    ] = Start.SEALED,
    checkpoint_size: Annotated[
        int | None, typer.Option(metavar="N", help="Rows in one commit. Default: it adapts.")
    ] = None,
    rate: LoadRate = None,
    batch_id: Annotated[
        str | None,
        typer.Option(metavar="UUID", help="An id of your own: the same call again continues."),
    ] = None,
    each: Timing,
    about: About,
) -> View:
    """Create a batch of any size from a file, in checkpoints.

    What is committed survives a crash. Exit code 1 if it stops half-way: it prints the line, the
    reason and the command that continues.
    """
    wanted = parse_uuid(batch_id, "--batch-id") or uuid4()
    refuse_untyped_csv(source, command_type, type_column)
    options, start_options = about.options(), each.options()

    async def work(session: Session, on_progress: OnProgress) -> LoadResult:
        return await session.bus.loads.load(
            domain,
            source_of(source),
            command_type=command_type,
            id_column=id_column,
            type_column=type_column,
            delimiter=delimiter_of(delimiter),
            start=LoadStart[start.name],
            checkpoint_size=checkpoint_size,
            dispatch_rate=rate,
            batch_id=wanted,
            on_progress=on_progress,
            **options,
            **start_options,
        )

    next_command = resume_command(frame.place, domain, wanted, source)
    return await _run(frame, work, next_command, creates=True)


async def resume(
    frame: Frame, domain: Domain, batch_id: BatchId, source: LoadSource, *, rate: LoadRate = None
) -> View:
    """Continue a load after its last checkpoint.

    SOURCE is the same as before, from its beginning; rows that were loaded are skipped. Exit codes
    as those of `batch load`.
    """
    wanted = check_uuid(batch_id, "batch id")

    async def work(session: Session, on_progress: OnProgress) -> LoadResult:
        batch = await session.find_batch(OneBatch(batch_id, domain))
        return await session.bus.loads.resume(
            batch.domain,
            batch.batch_id,
            source_of(source),
            dispatch_rate=rate,
            on_progress=on_progress,
        )

    next_command = resume_command(frame.place, domain, wanted, source)
    return await _run(frame, work, next_command, creates=False)


async def seal(frame: Frame, one: OneBatch, *, by: By = None) -> View:
    """End a load that stopped: what was loaded is the whole batch.

    Nothing more can be loaded into it. A batch without commands ends at once.
    """
    async with frame.open() as session:
        found = await session.find_batch(one)
        load = await session.bus.loads.seal(found.domain, found.batch_id, operator=by)
        found = await session.bus.batches.require(found.domain, found.batch_id)
    document = {"batch": batch_json(found), "load": load_document(load)}
    facts = [("status", styled_status(found.status)), ("progress", counts_text(found))]
    return View(
        document, lambda: print_fields([("sealed", f"{load.rows_committed:,} rows"), *facts])
    )


def resume_command(place: Place, domain: str, batch_id: UUID, source: str) -> str:
    """What to type to continue; a password in an address is masked."""
    words = ["commandbus", "batch", "resume", domain, str(batch_id), source]
    if place.dsn is not None:
        words += ["--dsn", redact_text(place.dsn, 2_000)]
    if place.data_dir is not None:
        words += ["--data-dir", str(place.data_dir)]
    if place.map_file is not None:
        words += ["--map", str(place.map_file)]
    return shlex.join(words)


async def _run(
    frame: Frame,
    work: Callable[[Session, OnProgress], Awaitable[LoadResult]],
    next_command: str,
    *,
    creates: bool,
) -> View:
    loaded = 0

    def tell(progress: LoadProgress) -> None:
        nonlocal loaded
        loaded = max(loaded, progress.rows)
        view.show(load_step(progress))

    try:
        async with frame.open(creates=creates) as session:
            with progress_view(quiet=frame.as_json) as view:
                result = await work(session, tell)
    except (KeyboardInterrupt, asyncio.CancelledError):
        if loaded:
            print(f"{loaded:,} rows are safe; go on with: {next_command}", file=sys.stderr)
        raise
    next_step = next_command if result.recovery_possible else None
    document = {**jsonable(result), "resume": next_step}
    if result.error is None:
        return View(document, lambda: print_fields(_facts(result)))
    error = result.error + (f"; fix it, then: {next_step}" if next_step else "")
    return View(document, lambda: print_fields(_facts(result)), ExitCode.FAILED, error)


def load_step(progress: LoadProgress) -> Step:
    """How far a load is; it has a bar for each stage."""
    total = "" if progress.total is None else f" of {progress.total:,}"
    rows, verb = f"{progress.rows:,}{total} rows", _VERBS[progress.stage]
    pace = rate_text(progress.per_second, progress.seconds_left)
    line, beside = f"{rows} {verb}; {pace}", f"{rows}  {pace}"
    is_last = progress.rows == progress.total
    return Step(line, is_last, verb, progress.rows, progress.total, beside)


def _facts(result: LoadResult) -> list[tuple[str, str]]:
    is_whole = result.error is None
    facts = [
        ("status", f"[{'green' if is_whole else 'yellow'}]{result.status}[/]"),
        ("batch_id", str(result.batch_id)),
        ("checkpoints", f"{result.checkpoints:,}"),
        ("tasks_committed", f"{result.tasks_committed:,}"),
    ]
    if is_whole:
        return facts
    return [
        *facts,
        ("failed_checkpoint", text_of(result.failed_checkpoint)),
        ("tasks_failed", f"{result.tasks_failed:,}"),
        ("line", text_of(result.line)),
        ("recovery_possible", "yes" if result.recovery_possible else "no"),
    ]
