"""What is seen of failure groups and bulk operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from commandbus.cli.batch_view import rate_text
from commandbus.cli.output import (
    Column,
    console,
    is_fancy,
    jsonable,
    moment,
    print_fields,
    print_table,
    say,
    text_of,
)
from commandbus.privacy.redaction import redact_value
from commandbus.troubleshooting.model import (
    BulkItem,
    BulkOperation,
    BulkPreview,
    BulkStatus,
    FailureGroup,
)

_COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow"}


def bulk_json(operation: BulkOperation) -> dict[str, Any]:
    """An operation as it stands in `--json`, secrets masked."""
    return {**jsonable(operation), "arguments": redact_value(operation.arguments)}


def counts_text(operation: BulkOperation) -> str:
    """`480 of 500: 470 done, 8 skipped, 2 failed`, as markup."""
    parts = [f"[green]{operation.done:,} done[/]"]
    if operation.skipped:
        parts.append(f"[yellow]{operation.skipped:,} skipped[/]")
    if operation.failed:
        parts.append(f"[red]{operation.failed:,} failed[/]")
    return f"{operation.acted:,} of {operation.total:,}: {', '.join(parts)}"


def print_groups(groups: Sequence[FailureGroup]) -> None:
    """A table of failure groups."""
    if not groups:
        say("Nothing waits for an operator.")
        return
    print_table(
        [
            Column("GROUP"),
            Column("DOMAIN"),
            Column("TYPE"),
            Column("PARKED", is_number=True),
            Column("FIRST SEEN"),
            Column("LAST SEEN"),
            Column("ERROR", may_fold=True),
        ],
        [
            [
                group.fingerprint,
                group.domain,
                group.command_type,
                f"{group.parked_count:,}",
                moment(group.first_seen),
                moment(group.last_seen),
                f"{text_of(group.error_code)}: {text_of(group.message)}",
            ]
            for group in groups
        ],
    )


def print_preview(preview: BulkPreview, verb: str) -> None:
    """What a filter matches, by group."""
    print_table(
        [
            Column("GROUP"),
            Column("TYPE"),
            Column("MATCHED", is_number=True),
            Column("ERROR", may_fold=True),
        ],
        [
            [
                match.fingerprint,
                match.command_type,
                f"{match.matched:,}",
                f"{text_of(match.error_code)}: {text_of(match.message)}",
            ]
            for match in preview.groups
        ],
    )
    say(f"{preview.total:,} commands of {preview.domain} would be acted on ({verb}); none was.")


def print_operations(operations: Sequence[BulkOperation]) -> None:
    """A table of bulk operations."""
    if not operations:
        say("There are no bulk operations.")
        return
    print_table(
        [
            Column("ID"),
            Column("DOMAIN"),
            Column("VERB"),
            Column("STATUS"),
            Column("CREATED"),
            Column("BY"),
            Column("ITEMS", may_fold=True),
        ],
        [
            [
                str(each.operation_id),
                each.domain,
                each.verb.value,
                styled(each.status),
                moment(each.created_at),
                text_of(each.actor),
                counts_text(each),
            ]
            for each in operations
        ],
    )


def print_operation(operation: BulkOperation, items: Sequence[BulkItem]) -> None:
    """One operation, and those of its items that people look for."""
    conditions = operation.conditions
    chosen = ", ".join(f"{name} {conditions[name]}" for name in conditions if name != "command_ids")
    ids = conditions.get("command_ids")
    say(f"[bold]bulk {operation.verb}[/] {operation.operation_id}")
    print_fields(
        [
            ("domain", operation.domain),
            ("status", styled(operation.status)),
            ("items", counts_text(operation)),
            ("chosen", text_of(chosen or (f"{len(ids):,} ids" if ids else "everything"))),
            ("rate", "no limit" if operation.rate is None else f"{operation.rate:g}/s"),
            ("reason", text_of(operation.arguments.get("reason"))),
            ("by", text_of(operation.actor)),
            *(
                (name, "-" if at is None else moment(at))
                for name, at in (
                    ("created", operation.created_at),
                    ("last acted", operation.heartbeat_at),
                    ("finished", operation.finished_at),
                )
            ),
        ]
    )
    if items:
        say()
        print_table(
            [Column("NO", is_number=True), Column("ID"), Column("OUTCOME"), Column("WHY")],
            [
                [
                    str(item.item_no),
                    str(item.command_id),
                    "to come" if item.outcome is None else item.outcome.value,
                    text_of(item.detail),
                ]
                for item in items
            ],
        )


def styled(status: BulkStatus) -> str:
    """A status in its colour."""
    return f"[{_COLOURS[status]}]{status}[/]"


# -- while it runs


class QuietBulk:
    """Shows nothing."""

    def __enter__(self) -> QuietBulk:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        """End."""

    def tell(self, operation: BulkOperation) -> None:
        """Take note of it."""


class BulkLines(QuietBulk):
    """A line a second, and one at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_line = 0.0

    def tell(self, operation: BulkOperation) -> None:
        """Print a line, if it is time."""
        if self._clock() >= self._next_line or operation.status is not BulkStatus.RUNNING:
            self._next_line = self._clock() + 1.0
            say(f"{counts_text(operation)}  {_pace(operation)}")


class BulkBar(QuietBulk):
    """A bar."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=40, complete_style="cyan", finished_style="green"),
            TextColumn("{task.fields[counts]}  {task.fields[pace]}"),
            console=console(),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> BulkBar:
        self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def tell(self, operation: BulkOperation) -> None:
        """Move the bar."""
        if self._task is None:
            self._task = self._bar.add_task(
                operation.verb.value, total=operation.total, counts="", pace=""
            )
        self._bar.update(
            self._task,
            completed=operation.acted,
            counts=counts_text(operation),
            pace=_pace(operation),
        )


def _pace(operation: BulkOperation) -> str:
    if operation.started_at is None or operation.heartbeat_at is None:
        return ""
    seconds = (operation.heartbeat_at - operation.started_at).total_seconds()
    if seconds <= 0:
        return ""
    per_second = operation.acted / seconds
    return rate_text(per_second, (operation.total - operation.acted) / per_second)


def bulk_view(*, quiet: bool) -> QuietBulk:
    """What suits where the text goes."""
    if quiet:
        return QuietBulk()
    return BulkBar() if is_fancy(console()) else BulkLines()
