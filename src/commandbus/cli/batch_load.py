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

from commandbus.cli.batch_load_view import load_view
from commandbus.cli.batch_options import (
    BatchDomain,
    BatchId,
    BatchName,
    By,
    CustomData,
    RowType,
    parse_custom_data,
    refuse_untyped_csv,
    source_of,
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
from commandbus.cli.output import (
    ExitCode,
    jsonable,
    print_error,
    print_fields,
    print_json,
    text_of,
)
from commandbus.loads.model import LoadResult, LoadStart, OnProgress
from commandbus.names import check_uuid
from commandbus.privacy.redaction import redact_text

LoadSource = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A .jsonl, .ndjson, .csv, .parquet or .arrow file; '-' is stdin."
    ),
]


class Start(StrEnum):
    """`--start` in the spelling of a command line."""

    SEALED = "sealed"
    AS_IT_LOADS = "as-it-loads"


def load(  # noqa: PLR0913  (each is an option)
    domain: BatchDomain,
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
    start: Annotated[
        Start,
        typer.Option(help="When workers may begin: once everything is in, or at once."),
    ] = Start.SEALED,
    checkpoint_size: Annotated[
        int | None, typer.Option(metavar="N", help="Rows in one commit. Default: it adapts.")
    ] = None,
    batch_id: Annotated[
        str | None,
        typer.Option(metavar="UUID", help="An id of your own: the same call again goes on."),
    ] = None,
    name: BatchName = None,
    custom_data: CustomData = None,
    by: By = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Create a batch of any size from a file, in checkpoints.

    What is committed survives a crash. Exit code 1 if it stops half-way: it prints the line, the
    reason and the command that goes on.
    """
    place = Place(dsn, data_dir)
    wanted = uuid4() if batch_id is None else check_uuid(batch_id, "--batch-id")
    refuse_untyped_csv(source, command_type, type_column)
    custom = parse_custom_data(custom_data)

    async def work(session: Session, on_progress: OnProgress) -> LoadResult:
        return await session.bus.loads.load(
            domain,
            source_of(source),
            command_type=command_type,
            id_column=id_column,
            type_column=type_column,
            start=LoadStart[start.name],
            checkpoint_size=checkpoint_size,
            batch_id=wanted,
            name=name,
            custom_data=custom,
            created_by=actor_or_login(by),
            on_progress=on_progress,
        )

    _run(place, work, resume_command(place, domain, wanted, source), create=True, as_json=as_json)


def resume(
    domain: BatchDomain,
    batch_id: BatchId,
    source: LoadSource,
    *,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Go on with a load after its last checkpoint.

    SOURCE is the same as before, from its beginning; what is in is passed over. Exit codes as
    those of `batch load`.
    """
    place = Place(dsn, data_dir)
    wanted = check_uuid(batch_id, "batch id")

    async def work(session: Session, on_progress: OnProgress) -> LoadResult:
        batch = await session.find_batch(batch_id, domain)
        return await session.bus.loads.resume(
            batch.domain, batch.batch_id, source_of(source), on_progress=on_progress
        )

    _run(place, work, resume_command(place, domain, wanted, source), create=False, as_json=as_json)


def resume_command(place: Place, domain: str, batch_id: UUID, source: str) -> str:
    """What to type to go on; a password in an address is masked."""
    words = ["commandbus", "batch", "resume", domain, str(batch_id), source]
    if place.dsn is not None:
        words += ["--dsn", redact_text(place.dsn, 2_000)]
    if place.data_dir is not None:
        words += ["--data-dir", str(place.data_dir)]
    return shlex.join(words)


def _run(
    place: Place,
    work: Callable[[Session, OnProgress], Awaitable[LoadResult]],
    next_command: str,
    *,
    create: bool,
    as_json: bool,
) -> None:
    stage = load_view(quiet=as_json)

    async def run() -> LoadResult:
        async with open_session(place, create=create) as session:
            with stage:
                return await work(session, stage.tell)

    try:
        result = asyncio.run(run())
    except KeyboardInterrupt:
        if stage.rows:
            print(f"{stage.rows:,} rows are safe; go on with: {next_command}", file=sys.stderr)
        raise
    _print_result(result, next_command, as_json=as_json)


def _print_result(result: LoadResult, next_command: str, *, as_json: bool) -> None:
    is_partial = result.status == "partial_success"
    next_step = next_command if result.recovery_possible else None
    if as_json:
        print_json({**jsonable(result), "resume": next_step})
    else:
        print_fields(_facts(result))
    if is_partial:
        print_error(f"{result.error}" + (f"; mend it, then: {next_step}" if next_step else ""))
        raise typer.Exit(ExitCode.FAILED)


def _facts(result: LoadResult) -> list[tuple[str, str]]:
    colour = "green" if result.status == "success" else "yellow"
    facts = [
        ("status", f"[{colour}]{result.status}[/]"),
        ("batch_id", str(result.batch_id)),
        ("checkpoints", f"{result.checkpoints:,}"),
        ("tasks_committed", f"{result.tasks_committed:,}"),
    ]
    if result.status == "partial_success":
        facts += [
            ("failed_checkpoint", text_of(result.failed_checkpoint)),
            ("tasks_failed", f"{result.tasks_failed:,}"),
            ("line", text_of(result.line)),
            ("recovery_possible", "yes" if result.recovery_possible else "no"),
        ]
    return facts
