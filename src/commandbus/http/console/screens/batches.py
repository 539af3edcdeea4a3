"""Batches: how far, when done, what holds one open, what went wrong; retry and cancel."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.access.visibility import sees_all
from commandbus.batches import BatchFacts, batch_sentence, pace_of, progress_of
from commandbus.batches.standing import BatchErrors
from commandbus.errors import TicketNotFoundError
from commandbus.http.console.formats import look_of
from commandbus.http.console.forms import Fields
from commandbus.http.console.headers import REGIONS_HEADER
from commandbus.http.console.queries import DomainFilter
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.view import Show, View
from commandbus.http.problems import Kind, Problem, not_found
from commandbus.http.schemas.base import DomainPath, PageOf50
from commandbus.models import BatchMetadata, BatchStatus, CommandStatus
from commandbus.privacy.redaction import redact_payload

#: Open batches that are looked at, of all domains that the caller reaches.
LOOKED_AT = 50
#: Batches whose counters are remembered, and seconds for which they are.
REMEMBERED, REMEMBERED_SECONDS = 200, 65.0
#: The states of commands by which those of a batch can be looked through, and words for them.
COMMAND_STATES = [
    (None, "all"),
    *((each.value, look_of(each.value).word.lower()) for each in CommandStatus),
]
#: Domains that have a link of their own.
DOMAINS_SHOWN = 12

screen = Screen(
    "batches", "Batches", order=50, group=Group.WORK, icon="box",
    domain_page="batches",
)  # fmt: skip


class Line(NamedTuple):
    """A batch in a list."""

    batch: BatchMetadata
    #: The end of the id: enough to tell fifty rows apart.
    key: str
    percent: str
    parts: list[tuple[str, str, int]]


class Memory:
    """What was seen of batches in the last minute: the database keeps no history of counters."""

    def __init__(self) -> None:
        self._seen: OrderedDict[UUID, deque[tuple[datetime, int]]] = OrderedDict()
        self._errors: OrderedDict[UUID, tuple[tuple[int, int], BatchErrors]] = OrderedDict()

    def look(self, batch: BatchMetadata, now: datetime) -> list[tuple[datetime, int]]:
        """Remember how many have ended by now; returns what was seen before, oldest first."""
        seen = self._seen.setdefault(batch.batch_id, deque())
        self._seen.move_to_end(batch.batch_id)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        while seen and (now - seen[0][0]).total_seconds() > REMEMBERED_SECONDS:
            seen.popleft()
        before = list(seen)
        if not seen or (now - seen[-1][0]).total_seconds() >= 1.0:
            seen.append((now, progress_of(batch, now).ended))
        return before

    async def errors(self, view: View, batch: BatchMetadata) -> BatchErrors:
        """What failed, by code; read again only if a counter says that it is something else."""
        counters = (batch.failed_count, batch.in_troubleshooting_count)
        known = self._errors.get(batch.batch_id)
        if known is not None and known[0] == counters and view.is_shared:
            return known[1]
        found = await view.bus.batches.errors(batch)
        self._errors[batch.batch_id] = (counters, found)
        self._errors.move_to_end(batch.batch_id)
        while len(self._errors) > REMEMBERED:
            self._errors.popitem(last=False)
        return found


_MEMORY = Memory()


@screen.page("/batches", live=1.8)
async def show(
    view: Show, paging: PageOf50, domain: DomainFilter = None, status: BatchStatus | None = None
) -> Page:
    """Batches of a domain, newest first; without one, those of all domains that are open."""
    reach = view.caller.domains
    if domain is None and reach is not None and len(reach) == 1:
        domain = next(iter(reach))
    if domain is not None and not view.caller.reaches(domain):
        raise not_found("no such domain")
    following, is_cut, found = None, False, []
    if domain is not None:
        page = await view.bus.batches.page(domain, status=status, viewer=view.viewer, **paging)
        found, following = list(page.items), page.next_cursor
    elif sees_all(view.caller):  # the list of open ones knows no owners
        looked = await view.bus.batches.list_open(domains=reach, limit=LOOKED_AT)
        is_cut = len(looked) == LOOKED_AT
        found = [each for each in looked if status in {None, each.status}]
    is_live = view.is_shared or REGIONS_HEADER in view.request.headers
    domains = [] if is_live else await view.bus.upkeep.figures.overview(reach)
    return view.page(
        "batches/index.html",
        "Batches",
        lines=[_line(each) for each in found],
        domain=domain,
        state=status,
        domains=domains,
        domain_tabs=[
            (each.domain, view.url("batches", domain=each.domain), each.domain == domain)
            for each in domains[:DOMAINS_SHOWN]
        ],
        sees_all=sees_all(view.caller),
        is_cut=is_cut,
        next=view.here_with(cursor=following) if following else None,
        first=view.here_with() if paging["cursor"] else None,
    )


@screen.page("/batches/{domain}/{batch_id}", name="batches.batch", live=1.0)
async def batch(
    view: Show,
    domain: DomainPath,
    batch_id: UUID,
    paging: PageOf50,
    status: CommandStatus | None = None,
) -> Page:
    """One batch: how far, why it is open, what went wrong, its commands in their order."""
    bus, now = view.bus, datetime.now(UTC)
    found = await bus.batches.require(domain, batch_id, viewer=view.viewer)
    has_ended = found.completed_at is not None
    if has_ended:
        facts, ending = BatchFacts(), await bus.batches.ending(found)
    else:
        facts, ending = await bus.batches.outlook(found)
    load = None if facts.is_sealed else await bus.loads.get(domain, batch_id)
    errors = await _MEMORY.errors(view, found)
    commands = await bus.batches.page_commands(domain, batch_id, status=status, **paging)
    shows = view.may(Scope.READ_PAYLOAD, domain)
    return view.page(
        "batches/batch.html",
        found.name or f"Batch {str(batch_id)[:8]}",
        final=has_ended,
        line=_line(found),
        batch=found,
        facts=facts,
        ending=ending,
        load=load,
        sentence=batch_sentence(found, facts, now, load),
        pace=pace_of(found, now, _MEMORY.look(found, now)),
        open_count=progress_of(found, now).open,
        errors=errors,
        commands=commands.items,
        tabs=[(word, view.here_with(status=code), status == code) for code, word in COMMAND_STATES],
        custom_data=redact_payload(found.custom_data) if shows and found.custom_data else None,
        next=view.here_with(cursor=commands.next_cursor) if commands.next_cursor else None,
        first=view.here_with() if paging["cursor"] else None,
    )


# -- retry and cancel


def _curl(view: View, batch: BatchMetadata, verb: str) -> str:
    path = f"/api/v1/command-batches/{batch.domain}/{batch.batch_id}/{verb}"
    return curl(view, "POST", path, {"reason": "why"})


@screen.page("/batches/{domain}/{batch_id}/retry", scope=Scope.OPERATE)
async def ask_retry(view: Show, domain: DomainPath, batch_id: UUID) -> Page:
    """The page before what failed is sent again."""
    found = await view.bus.batches.require(domain, batch_id, viewer=view.viewer)
    failed, parked = found.failed_count, found.in_troubleshooting_count
    if not failed + parked:
        raise Problem(Kind.CONFLICT, "nothing of this batch failed or is parked any more")
    has_ended = found.completed_at is not None
    verb = f"Retry {_commands(failed + parked)}"
    return view.page(
        "confirm.html",
        verb,
        verb=verb,
        action=view.url("batches.retry", domain=domain, batch_id=batch_id),
        back=view.url("batches.batch", domain=domain, batch_id=batch_id),
        happens=[
            f"{parked:,} in troubleshooting and {failed:,} that failed are sent again, at once.",
            *([f"The {failed:,} that had ended reply again when they end again."] * (failed > 0)),
            *(["The batch is open again; it ends, and calls back, once more."] * has_ended),
            "Of a governed batch, those that were sent as often as their type allows stay.",
        ],
        stays=[
            f"{found.completed_count:,} completed and {found.canceled_count:,} canceled stay.",
            "What is pending or running goes on.",
        ],
        look="primary",
        cli=f"commandbus batch retry {domain} {batch_id}",
        curl=_curl(view, found, "retry"),
    )


@screen.action("/batches/{domain}/{batch_id}/retry", scope=Scope.OPERATE)
async def retry(view: Show, domain: DomainPath, batch_id: UUID, form: Fields) -> Response:
    """Send what failed or is parked again. A second click finds nothing to do."""
    reason = form.required("reason", "Reason")
    await view.bus.batches.require(domain, batch_id, viewer=view.viewer)
    try:
        # A governed batch has one rule for this: as often as its type allows.
        done = await view.bus.governance.retry(view.caller, batch_id, reason=reason)
    except TicketNotFoundError:
        count, kept = (
            await view.bus.batches.retry(domain, batch_id, reason=reason, operator=view.actor),
            0,
        )
    else:
        count, kept = len(done.retried), len(done.exhausted)
    notice = f"{_commands(count)} sent again." if count else "There was nothing left to retry."
    if kept:
        notice += f" {_commands(kept)} had no attempt left."
    return view.to("batches.batch", notice, domain=domain, batch_id=batch_id)


@screen.page("/batches/{domain}/{batch_id}/cancel", scope=Scope.OPERATE)
async def ask_cancel(view: Show, domain: DomainPath, batch_id: UUID) -> Page:
    """The page before the rest is canceled."""
    await view.bus.batches.require(domain, batch_id, viewer=view.viewer)
    load = await view.bus.loads.get(domain, batch_id)
    actions = await view.bus.batches.actions(domain, batch_id, load)
    actions.require_cancelable(with_running=True)
    count, held = actions.cancelable, actions.in_progress
    parked = actions.batch.in_troubleshooting_count
    verb = f"Cancel {_commands(count)}"
    return view.page(
        "batches/cancel.html",
        verb,
        verb=verb,
        action=view.url("batches.cancel", domain=domain, batch_id=batch_id),
        back=view.url("batches.batch", domain=domain, batch_id=batch_id),
        happens=[
            f"{_commands(count)} that no worker has are canceled for good; workers that run may "
            "take some of them before you are done here.",
            "Those who wait for their replies are told so. There is no undo.",
            *(["Its load is ended too: nothing more can be added."] * actions.is_loading),
        ],
        stays=[
            *([f"{_commands(held)} that workers have: as you choose below."] * (held > 0)),
            *([f"{_commands(parked)} in troubleshooting stay there."] * (parked > 0)),
            "What has ended stays as it ended.",
        ],
        in_progress=held,
        choices=[("refuse", "let them go on"), ("request", "ask the workers to end them")],
        cli=f"commandbus batch cancel {domain} {batch_id} --reason '…'",
        curl=_curl(view, actions.batch, "cancel"),
    )


@screen.action("/batches/{domain}/{batch_id}/cancel", scope=Scope.OPERATE)
async def cancel(view: Show, domain: DomainPath, batch_id: UUID, form: Fields) -> Response:
    """Cancel what no worker has; if asked, request the end of what workers have."""
    reason = form.required("reason", "Reason")
    await view.bus.batches.require(domain, batch_id, viewer=view.viewer)
    done = await view.bus.batches.cancel_counted(
        domain, batch_id, reason, operator=view.actor,
        running="request" if form.text("running") == "request" else "refuse",
    )  # fmt: skip
    notice = f"{_commands(done.canceled)} canceled."
    if done.requested:
        notice += f" The end of {_commands(done.requested)} was requested."
    return view.to("batches.batch", notice, domain=domain, batch_id=batch_id)


def _line(batch: BatchMetadata) -> Line:
    progress = progress_of(batch)
    percent = f"{math.floor(progress.fraction * 1_000) / 10:g} %"
    parts = [
        ("done", "completed", batch.completed_count),
        ("failed", "failed", batch.failed_count),
        ("canceled", "canceled", batch.canceled_count),
        ("parked", "in troubleshooting", batch.in_troubleshooting_count),
        ("pending", "to do", progress.open),
    ]
    return Line(batch, batch.batch_id.hex[-12:], percent, parts)


def _commands(count: int) -> str:
    return f"{count:,} {'command' if count == 1 else 'commands'}"
