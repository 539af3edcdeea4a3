"""One batch as a document and as text, and batches as a table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from typing import Any
from uuid import UUID

from commandbus.batches.model import progress_of
from commandbus.cli.batch_watch import (
    BAR_WIDTH,
    bar,
    counts_text,
    hint_of,
    pace_text,
    parts_of,
)
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
from commandbus.privacy.redaction import redact_value

#: Failed, and parked, commands that are looked at to count error codes; more would take long.
ERRORS_LOOKED_AT = 1_000


def batch_json(batch: BatchMetadata) -> dict[str, Any]:
    """A batch as `--json` prints it, secrets masked."""
    return {**jsonable(batch), "custom_data": redact_value(batch.custom_data)}


def progress_json(batch: BatchMetadata) -> dict[str, Any]:
    """The progress of a batch as `--json` prints it."""
    progress = progress_of(batch)
    return {**dataclasses.asdict(progress), "fraction": progress.fraction}


@dataclasses.dataclass(frozen=True, slots=True)
class BatchView:
    """What there is to see of one batch."""

    batch: BatchMetadata
    load: LoadMetadata | None
    failures: list[CommandMetadata]
    closings: list[CommandMetadata]

    @classmethod
    async def read(cls, session: Session, batch: BatchMetadata) -> BatchView:
        """Read it."""
        return cls(
            batch,
            await session.bus.loads.get(batch.domain, batch.batch_id),
            await _failures(session, batch),
            await _closings(session, batch),
        )

    @property
    def hint(self) -> str:
        """What it waits for, and what to do about it."""
        return hint_of(self.batch, self.load)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Failed and parked commands by error code, most frequent first."""
        examples: dict[tuple[str, str | None], CommandMetadata] = {}
        counts: Counter[tuple[str, str | None]] = Counter()
        for command in self.failures:
            key = (command.status, command.last_error_code)
            counts[key] += 1
            examples.setdefault(key, command)
        return [
            {
                "status": key[0],
                "code": key[1],
                "count": count,
                "example_command_id": examples[key].command_id,
                "example_message": examples[key].last_error_msg,
            }
            for key, count in counts.most_common()
        ]

    @property
    def has_more_errors(self) -> bool:
        """Whether there are more failures than were counted."""
        return len(self.failures) < self.batch.failed_count + self.batch.in_troubleshooting_count

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "batch": batch_json(self.batch),
            "progress": progress_json(self.batch),
            "errors": self.errors,
            "errors_are_complete": not self.has_more_errors,
            "load": None if self.load is None else _load_document(self.load),
            "closing_commands": self.closings,
            "hint": self.hint or None,
        }

    def print(self) -> None:
        """Print it for people."""
        named = f"[bold]{escaped(self.batch.name)}[/]  " if self.batch.name else ""
        say(f"{named}{self.batch.batch_id}")
        if is_fancy(console()):
            console().print(bar(self.batch, min(BAR_WIDTH, console().width - 4)))
        print_fields(self._facts())
        if self.failures:
            say()
            self._print_errors()

    def _facts(self) -> list[tuple[str, object]]:
        batch, load = self.batch, self.load
        facts: list[tuple[str, object]] = [
            ("domain", batch.domain),
            ("status", styled_status(batch.status)),
            ("progress", counts_text(batch)),
        ]
        if pace := pace_text(progress_of(self.batch)):
            facts.append(("rate", pace))
        facts.append(("created", batch.created_at))
        if batch.started_at is not None:
            facts.append(("started", batch.started_at))
        if batch.started_at is not None and batch.completed_at is not None:
            took = (batch.completed_at - batch.started_at).total_seconds()
            facts.append(("ended", f"{moment(batch.completed_at)}, after {duration(took)}"))
        if batch.custom_data:
            shown = json.dumps(jsonable(redact_value(batch.custom_data)), ensure_ascii=False)
            facts.append(("custom data", escaped(shown)))
        if load is not None:
            facts.append(("load", _load_text(load)))
        facts += [
            ("closing", f"{each.command_type} {styled_status(each.status)} {each.command_id}")
            for each in self.closings
        ]
        if self.hint:
            facts.append(("next", f"[yellow]{escaped(self.hint)}[/]"))
        return facts

    def _print_errors(self) -> None:
        _ERRORS.print(self.errors)
        if self.has_more_errors:
            say(f"[dim]The first {ERRORS_LOOKED_AT:,} of each status were counted.[/]")


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


def _load_document(load: LoadMetadata) -> dict[str, Any]:
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
