"""Bulk operations as text: a table, one operation with its items, and progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commandbus.cli.output import (
    error_text,
    folding,
    jsonable,
    moment,
    number,
    print_fields,
    print_table,
    say,
    styled_status,
    text_of,
)
from commandbus.cli.progress import Step, rate_text
from commandbus.privacy.redaction import redact_value
from commandbus.troubleshooting.model import BulkItem, BulkOperation, BulkPreview


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
    counts, pace = counts_text(operation), _pace(operation)
    return Step(
        line=f"{counts}  {pace}",
        is_last=operation.acted == operation.total,
        bar=operation.verb,
        done=operation.acted,
        total=operation.total,
        beside=f"{counts}  {pace}",
    )


def _pace(operation: BulkOperation) -> str:
    if operation.started_at is None or operation.heartbeat_at is None:
        return ""
    seconds = (operation.heartbeat_at - operation.started_at).total_seconds()
    if seconds <= 0 or not operation.acted:
        return ""
    per_second = operation.acted / seconds
    return rate_text(per_second, (operation.total - operation.acted) / per_second)


def print_preview(preview: BulkPreview, verb: str) -> None:
    """What a filter matches, by group."""
    print_table(
        ["GROUP", "TYPE", number("MATCHED"), folding("ERROR")],
        [
            [
                match.fingerprint,
                match.command_type,
                f"{match.matched:,}",
                error_text(match.error_code, match.message),
            ]
            for match in preview.groups
        ],
    )
    say(f"{preview.total:,} commands of {preview.domain} would be acted on ({verb}); none was.")


def print_operations(operations: Sequence[BulkOperation]) -> None:
    """A table of bulk operations."""
    print_table(
        ["ID", "DOMAIN", "VERB", "STATUS", "CREATED", "BY", folding("ITEMS")],
        [
            [
                str(each.operation_id),
                each.domain,
                each.verb,
                styled_status(each.status),
                moment(each.created_at),
                text_of(each.actor),
                counts_text(each),
            ]
            for each in operations
        ],
        empty="There are no bulk operations.",
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
            ("status", styled_status(operation.status)),
            ("items", counts_text(operation)),
            ("chosen", text_of(chosen or (f"{len(ids):,} ids" if ids else "everything"))),
            ("rate", "no limit" if operation.rate is None else f"{operation.rate:g}/s"),
            ("reason", text_of(operation.arguments.get("reason"))),
            ("by", text_of(operation.actor)),
            ("created", moment(operation.created_at)),
            ("last acted", moment(operation.heartbeat_at)),
            ("finished", moment(operation.finished_at)),
        ]
    )
    if items:
        say()
        print_table(
            [number("NO"), "ID", "OUTCOME", "WHY"],
            [
                [
                    str(item.item_no),
                    str(item.command_id),
                    item.outcome or "to come",
                    text_of(item.detail),
                ]
                for item in items
            ],
        )
