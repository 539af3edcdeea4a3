"""Bulk operations: what one click set off, how far it is, and how to stop it."""

from __future__ import annotations

from uuid import UUID

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.errors import BulkOperationNotFoundError
from commandbus.http.console.formats import now, plural
from commandbus.http.console.forms import Fields
from commandbus.http.console.queries import BulkStatusFilter, DomainFilter, OutcomeFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl, rate_in, rates_for
from commandbus.http.console.view import Show, View
from commandbus.http.routes.operations import reached
from commandbus.http.schemas.base import PageOf50
from commandbus.troubleshooting import (
    BulkOperation,
    BulkStatus,
    bulk_sentence,
)
from commandbus.troubleshooting.sentences import is_silent

#: Running operations that are counted for the navigation.
MAX_COUNTED = 200


async def running_count(view: View) -> int | None:
    """How many run, in the domains that the caller reaches."""
    page = await view.bus.bulk.page(
        domains=view.caller.domains, status=BulkStatus.RUNNING, viewer=view.viewer,
        limit=MAX_COUNTED,
    )  # fmt: skip
    return len(page.items)


screen = Screen(
    "bulk", "Bulk operations", order=40, group=Group.WORK, icon="stack", shortcut="b",
    count=running_count, is_count_shared=True, domain_page="bulk",
)  # fmt: skip


@screen.page("/bulk", live=1.0)
async def show(
    view: Show, paging: PageOf50, domain: DomainFilter = None, status: BulkStatusFilter = None
) -> Page:
    """Operations, newest first."""
    page = await view.bus.bulk.page(
        domains=reached(view.caller, domain), status=status, viewer=view.viewer, **paging
    )
    return view.page(
        "bulk/index.html",
        "Bulk operations",
        final=paging["cursor"] is not None,
        operations=page.items,
        place=domain,
        state=status,
        next_page=None if page.next_cursor is None else view.here_with(cursor=page.next_cursor),
        first_page=None if paging["cursor"] is None else view.here_with(),
    )


@screen.page("/bulk/{operation_id}", live=1.0)
async def operation(
    view: Show, operation_id: UUID, paging: PageOf50, outcome: OutcomeFilter = None
) -> Page:
    """One operation: how far, how fast, when done, what went wrong."""
    found = await _reached(view, operation_id)
    items = await view.bus.bulk.page_items(operation_id, outcome=outcome, **paging)
    group = found.conditions.get("group")
    return view.page(
        "bulk/operation.html",
        f"{found.verb.value.capitalize()} {plural(found.total, 'command')}",
        final=found.is_finished,
        operation=found,
        sentence=bulk_sentence(found, now()),
        is_silent=is_silent(found, now()),
        is_waiting=found.starts_at is not None and found.acted == 0 and found.starts_at > now(),
        items=items.items,
        outcome=outcome,
        group=group,
        conditions=_in_words(found),
        next_page=None if items.next_cursor is None else view.here_with(cursor=items.next_cursor),
        first_page=None if paging["cursor"] is None else view.here_with(),
    )


def _in_words(operation: BulkOperation) -> list[tuple[str, str]]:
    """The filter, each part with its name."""
    words = {
        "group": "Cause", "command_type": "Command type", "error_code": "Error code",
        "batch_id": "Batch", "parked_after": "Parked after", "parked_before": "Parked before",
        "failed_of": "What failed in",
    }  # fmt: skip
    found = [
        (word, str(operation.conditions[name]))
        for name, word in words.items()
        if name in operation.conditions
    ]
    ids = operation.conditions.get("command_ids")
    if ids:
        found.append(("Chosen", plural(len(ids), "command")))
    return found or [("Everything", f"parked in {operation.domain}")]


@screen.action("/bulk/{operation_id}/stop", scope=Scope.OPERATE)
async def stop(view: Show, operation_id: UUID) -> Response:
    """Act on no further item: at once, without a question."""
    await _reached(view, operation_id)
    stopped = await view.bus.bulk.stop(operation_id, operator=view.actor)
    said = (
        f"Stopped. What is done stays done: {stopped.acted:,} of {stopped.total:,} were acted on."
        if stopped.acted
        else "Stopped before its first command. Nothing was changed."
    )
    return view.to("bulk.operation", said, operation_id=operation_id)


@screen.page("/bulk/{operation_id}/resume", name="bulk.ask_resume", scope=Scope.OPERATE)
async def ask_resume(view: Show, operation_id: UUID) -> Page:
    """The page before an operation goes on."""
    found = await _reached(view, operation_id)
    verb = f"Resume with {plural(found.left, 'command')} left"
    path = f"/api/v1/bulk-operations/{operation_id}/resume"
    return view.page(
        "bulk/resume.html",
        verb,
        verb=verb,
        action=view.url("bulk.resume", operation_id=operation_id),
        back=view.url("bulk.operation", operation_id=operation_id),
        happens=[
            f"Workers of {found.domain} go on to {found.verb.value} what is left, as it was frozen."
        ],
        stays=[
            f"What is done stays done: {found.acted:,} of {found.total:,}.",
            "What was parked since it began is no part of it.",
        ],
        look="primary",
        rates=rates_for(found.left, found.rate),
        cli=f"commandbus bulk resume {operation_id} --no-wait --reason why",
        curl=curl(view, "POST", path, {"reason": "why"}),
    )


@screen.action("/bulk/{operation_id}/resume", scope=Scope.OPERATE)
async def resume(view: Show, operation_id: UUID, form: Fields) -> Response:
    """Go on with what is left, at another rate if one is chosen."""
    await _reached(view, operation_id)
    rate = None if form.text("rate") == "same" else rate_in(form)
    await view.bus.bulk.resume(
        operation_id, rate=rate, reason=form.required("reason", "Reason"), operator=view.actor
    )
    return view.to("bulk.operation", "It goes on.", operation_id=operation_id)


async def _reached(view: View, operation_id: UUID) -> BulkOperation:
    found = await view.bus.bulk.require(operation_id, viewer=view.viewer)
    if not view.caller.reaches(found.domain):
        raise BulkOperationNotFoundError(operation_id)
    return found
