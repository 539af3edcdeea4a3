"""Bulk operations as text: a table, one operation with its items, and progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commandbus.cli.output import (
    Column,
    Table,
    error_text,
    jsonable,
    print_fields,
    say,
    styled_status,
    text_of,
)
from commandbus.cli.progress import Step, rate_text
from commandbus.privacy.redaction import redact_value
from commandbus.troubleshooting.model import BulkItem, BulkMatch, BulkOperation, BulkPreview


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
    _MATCHES.print(preview.groups)
    say(f"{preview.total:,} commands of {preview.domain} would be acted on ({verb}); none was.")


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
            ("created", operation.created_at),
            ("last acted", operation.heartbeat_at),
            ("finished", operation.finished_at),
        ]
    )
    if items:
        say()
        _ITEMS.print(items)
