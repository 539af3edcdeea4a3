"""`batch show` and `batch list`: one batch as a document and as text, batches as a table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any
from uuid import UUID

from commandbus.batches.model import progress_of
from commandbus.cli.batch_watch import BAR_WIDTH, bar, counts_text, hint_of, pace_text, parts_of
from commandbus.cli.frame import Session
from commandbus.cli.output import (
    Column,
    Table,
    console,
    duration,
    escaped,
    is_fancy,
    jsonable,
    moment,
    print_fields,
    say,
    styled_status,
    text_of,
)
from commandbus.loads.model import LoadMetadata, LoadStart
from commandbus.models import BatchMetadata, CommandMetadata, CommandStatus
from commandbus.privacy.redaction import redact_payload

#: Failed, and parked, commands that are looked at to count error codes; more would take long.
ERRORS_LOOKED_AT = 1_000


def batch_json(batch: BatchMetadata) -> dict[str, Any]:
    """A batch as `--json` prints it, secrets masked."""
    return {**jsonable(batch), "custom_data": redact_payload(batch.custom_data)}


def progress_json(batch: BatchMetadata) -> dict[str, Any]:
    """The progress of a batch as `--json` prints it."""
    progress = progress_of(batch)
    return {**dataclasses.asdict(progress), "fraction": progress.fraction}


async def batch_document(
    session: Session, batch: BatchMetadata, load: LoadMetadata | None
) -> dict[str, Any]:
    """One batch as `--json` prints it, with its failures and closing commands."""
    failures = await _failures(session, batch)
    return {
        "batch": batch_json(batch),
        "progress": progress_json(batch),
        "errors": _by_code(failures),
        "errors_are_complete": len(failures) >= batch.failed_count + batch.in_troubleshooting_count,
        "load": None if load is None else load_document(load),
        "closing_commands": await _closings(session, batch),
        "hint": hint_of(batch, load) or None,
    }


def _by_code(failures: list[CommandMetadata]) -> list[dict[str, Any]]:
    """Failed and parked commands by error code, most frequent first."""
    groups: dict[tuple[str, str | None], list[CommandMetadata]] = {}
    for command in failures:
        groups.setdefault((command.status, command.last_error_code), []).append(command)
    return [
        {
            "status": status,
            "code": code,
            "count": len(found),
            "example_command_id": found[0].command_id,
            "example_message": found[0].last_error_msg,
        }
        for (status, code), found in sorted(groups.items(), key=lambda each: -len(each[1]))
    ]


def print_batch(batch: BatchMetadata, load: LoadMetadata | None, document: dict[str, Any]) -> None:
    """Print what `batch_document` has read."""
    named = f"[bold]{escaped(batch.name)}[/]  " if batch.name else ""
    say(f"{named}{batch.batch_id}")
    if is_fancy(console()):
        console().print(bar(batch, min(BAR_WIDTH, console().width - 4)))
    print_fields(_facts(batch, load, document))
    if document["errors"]:
        say()
        _ERRORS.print(document["errors"])
        if not document["errors_are_complete"]:
            say(f"[dim]The first {ERRORS_LOOKED_AT:,} of each status were counted.[/]")


def _facts(
    batch: BatchMetadata, load: LoadMetadata | None, document: dict[str, Any]
) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("domain", batch.domain),
        ("status", styled_status(batch.status)),
        ("progress", counts_text(batch)),
    ]
    if pace := pace_text(progress_of(batch)):
        facts.append(("rate", pace))
    facts.append(("created", batch.created_at))
    if batch.started_at is not None:
        facts.append(("started", batch.started_at))
    if batch.started_at is not None and batch.completed_at is not None:
        took = (batch.completed_at - batch.started_at).total_seconds()
        facts.append(("ended", f"{moment(batch.completed_at)}, after {duration(took)}"))
    if batch.history_since is not None:
        facts.append(("in the history", f"since {moment(batch.history_since)}"))
    if batch.custom_data:
        shown = json.dumps(document["batch"]["custom_data"], ensure_ascii=False)
        facts.append(("custom data", escaped(shown)))
    if load is not None:
        facts.append(("load", _load_text(load)))
    facts += [
        ("closing", f"{each.command_type} {styled_status(each.status)} {each.command_id}")
        for each in document["closing_commands"]
    ]
    if document["actions"]:
        facts.append(("allowed", ", ".join(document["actions"])))
    if document["hint"]:
        facts.append(("next", f"[yellow]{escaped(document['hint'])}[/]"))
    return facts


_ERRORS = Table[dict[str, Any]](
    Column("ERROR", lambda error: text_of(error["code"])),
    Column("COMMANDS", lambda error: error["count"], is_number=True),
    Column("STATUS", lambda error: styled_status(error["status"])),
    Column("FOR EXAMPLE", lambda error: error["example_command_id"]),
    Column("MESSAGE", lambda error: text_of(error["example_message"]), may_fold=True),
)


async def _failures(session: Session, batch: BatchMetadata) -> list[CommandMetadata]:
    counts = {
        CommandStatus.FAILED: batch.failed_count,
        CommandStatus.IN_TROUBLESHOOTING_QUEUE: batch.in_troubleshooting_count,
    }
    return [
        command
        for status, count in counts.items()
        if count
        for command in (
            await session.bus.batches.page_commands(
                batch.domain, batch.batch_id, status=status, limit=ERRORS_LOOKED_AT
            )
        ).items
    ]


async def _closings(session: Session, batch: BatchMetadata) -> list[CommandMetadata]:
    """The commands that the closings of a batch have sent: one for each time it ended."""
    found: list[CommandMetadata] = []
    while True:
        wanted = closing_command_id(batch.batch_id, len(found) + 1)
        command = await session.bus.get_command(batch.domain, wanted)
        if command is None:
            return found
        found.append(command)


def closing_command_id(batch_id: UUID, closing: int) -> UUID:
    """As commandbus.closing_command_id in the database makes it."""
    text = f"{batch_id}/{closing}"
    return UUID(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


def load_document(load: LoadMetadata) -> dict[str, Any]:
    """A load as `--json` prints it."""
    names = (
        "source", "row_format", "start", "status", "checkpoint_size", "rows_committed",
        "checkpoints_done", "rows_dispatched", "last_error", "created_at", "updated_at",
    )  # fmt: skip
    return {name: getattr(load, name) for name in names}


def _load_text(load: LoadMetadata) -> str:
    text = (
        f"{load.status} from {text_of(load.source)}: {load.rows_committed:,} rows in "
        f"{load.checkpoints_done:,} checkpoints"
    )
    if load.start is LoadStart.SEALED and load.rows_dispatched < load.rows_committed:
        text += f", {load.rows_dispatched:,} queued"
    return text


def print_batches(found: list[BatchMetadata]) -> None:
    """Print batches: two short lines each on a terminal, a wide table elsewhere."""
    if found and is_fancy(console()):
        for batch in found:
            named = f"  [bold]{escaped(batch.name)}[/]" if batch.name else ""
            status = styled_status(batch.status)
            say(f"{batch.batch_id}  {status}  {moment(batch.created_at)}{named}")
            say(f"  {counts_text(batch)}")
        return
    _BATCHES.print(found)


def _not_well(batch: BatchMetadata) -> str:
    counts = [f"{count:,} {name}" for name, _, count in parts_of(batch)[1:] if count]
    return ", ".join(counts) or "-"


_BATCHES = Table[BatchMetadata](
    Column("ID", lambda batch: batch.batch_id),
    Column("CREATED", lambda batch: batch.created_at),
    Column(
        "ENDED", lambda each: f"{progress_of(each).ended:,}/{each.total_count:,}", is_number=True
    ),
    Column("STATUS", lambda batch: styled_status(batch.status)),
    Column("NOT WELL", _not_well),
    Column("NAME", lambda batch: text_of(batch.name)),
    empty="No batches.",
)
