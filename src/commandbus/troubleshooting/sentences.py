"""How a bulk operation and a failure group stand, each in one sentence: made here for all faces."""

from __future__ import annotations

from datetime import datetime

from commandbus.troubleshooting.model import BulkOperation, BulkStatus, FailureGroup
from commandbus.wording import span

#: Seconds without a sign of an executor, after which something is wrong. Workers look every 5.
SILENT_AFTER = 30.0


def is_silent(operation: BulkOperation, now: datetime) -> bool:
    """Whether it should be going on, and no executor has acted for too long."""
    if not operation.is_running:
        return False
    # At a slow rate there is nothing to do between two items.
    due = SILENT_AFTER + (0.0 if operation.rate is None else 1 / operation.rate)
    return (now - operation.last_sign_at).total_seconds() > due


def bulk_sentence(operation: BulkOperation, now: datetime) -> str:
    """Where an operation stands, and what to do if it does not go on."""
    total, acted = operation.total, operation.acted
    if operation.status is BulkStatus.FINISHED:
        rest = [
            f"{count:,} {word}"
            for count, word in ((operation.skipped, "skipped"), (operation.failed, "failed"))
            if count
        ]
        return f"finished: {operation.done:,} of {total:,} done" + "".join(f", {r}" for r in rest)
    if operation.status is BulkStatus.STOPPED:
        who = f" by {operation.stopped_by}" if operation.stopped_by else ""
        if acted == 0:
            return f"stopped{who} before its first command; nothing was changed"
        return f"stopped{who}: {operation.left:,} of {total:,} were not acted on; the others stay"
    if acted == 0 and operation.starts_at is not None and operation.starts_at > now:
        wait = span((operation.starts_at - now).total_seconds())
        return f"starts in {wait}; until then a stop undoes all of it"
    if is_silent(operation, now):
        silence = span((now - operation.last_sign_at).total_seconds())
        return (
            f"nobody has acted on it for {silence}: start a worker of {operation.domain}, or "
            f"`commandbus bulk resume {operation.operation_id}`"
        )
    left = operation.seconds_left
    end = "" if left is None else f", about {span(left)} left"
    return f"running: {acted:,} of {total:,}{end}"


def group_sentence(group: FailureGroup, now: datetime) -> str:
    """What is known of a cause: how many wait, since when, and whether it came back."""
    if group.parked_count == 0:
        since = "" if group.emptied_at is None else f" for {_ago(group.emptied_at, now)}"
        return f"nothing of it is parked{since}; it was seen {group.total_seen:,} times in all"
    waits = f"{group.parked_count:,} parked, seen {group.total_seen:,} times in all"
    if group.back_at is None or group.back_after is None:
        return f"{waits}, first {_ago(group.first_seen, now)} ago"
    after = span(group.back_after.total_seconds())
    times = "" if group.back_count == 1 else f", for the {_nth(group.back_count)} time"
    return f"{waits}; back {_ago(group.back_at, now)} ago after {after} without it{times}"


def _ago(moment: datetime, now: datetime) -> str:
    return span((now - moment).total_seconds())


def _nth(number: int) -> str:
    ending = (
        "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number:,}{ending}"
