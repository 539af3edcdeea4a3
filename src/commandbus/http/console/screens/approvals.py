"""Approvals: what waits for a decision, exactly what it is, and decisions about what was seen."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.errors import CommandBusError, InvalidOperationError
from commandbus.governance import fold_items
from commandbus.governance.approvals import BATCH_APPROVE
from commandbus.governance.model import BatchTicket, TicketStatus, Undecided
from commandbus.http.console.forms import Fields, Form
from commandbus.http.console.headers import REGIONS_HEADER
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.screens.limits import meter_of
from commandbus.http.console.view import Show, View
from commandbus.http.problems import Kind, Problem
from commandbus.http.schemas.base import MAX_PAGE, Limit, PageOf50
from commandbus.http.schemas.governed import OwnerFilter, TypeFilter
from commandbus.names import new_id
from commandbus.privacy.values import MASK

#: What waits that is counted for the navigation.
COUNTED = 100
#: Seconds that a page waits for the preview of a batch type; over HTTP it has more.
PREVIEW_SECONDS = 1.0

ShowQuery = Annotated[
    Literal["waiting", "requests"], Query(description="What waits, or all requests.")
]
CursorQuery = Annotated[str | None, Query(max_length=1_000)]


async def _waiting_for(view: View) -> int | None:
    """How much waits for a decision that this caller may take."""
    if not view.may(Scope.APPROVE):
        return None
    governance = view.bus.governance
    page = await governance.page_undecided(view.caller, limit=COUNTED)
    return sum(governance.why_not_decide(view.caller, each) is None for each in page.items)


screen = Screen(
    "approvals", "Approvals", order=70, group=Group.WORK, icon="stamp", shortcut="a",
    alternatives=(Scope.APPROVE,), count=_waiting_for,
)  # fmt: skip


@screen.page("/approvals", live=1.8, personal=True)
async def show(
    view: Show,
    paging: PageOf50,
    show: ShowQuery = "waiting",
    status: TicketStatus | None = None,
    batch_type: TypeFilter = None,
    created_by: OwnerFilter = None,
) -> Page:
    """What waits for a decision, oldest first; or requests, newest first."""
    governance = view.bus.governance
    values: dict[str, Any] = {"show": show, "state": status}
    if show == "waiting" and view.may(Scope.APPROVE):
        page: Any = await governance.page_undecided(view.caller, **paging)
        values["rows"] = [(x, governance.why_not_decide(view.caller, x)) for x in page.items]
        values["dangerous"] = {each.name for each in governance.types.all() if each.is_dangerous}
        template = "approvals/waiting.html"
    else:
        if show == "waiting":
            status = TicketStatus.PENDING_APPROVAL
        page = await governance.page(
            view.caller, batch_type=batch_type, status=status, created_by=created_by, **paging
        )
        values["tickets"] = page.items
        template = "approvals/requests.html"
    return view.page(
        template,
        "Approvals",
        **values,
        batch_type=batch_type,
        created_by=created_by,
        cursor=paging["cursor"] or "",
        request_id=new_id(),
        next=view.here_with(cursor=page.next_cursor) if page.next_cursor else None,
        first=view.here_with() if paging["cursor"] else None,
    )


@screen.page("/approvals/{batch_id}", name="approvals.ticket", live=1.8, personal=True)
async def ticket(
    view: Show, batch_id: UUID, limit: Limit = 100, cursor: CursorQuery = None
) -> Page:
    """One request: every item, what was decided before, and the form of the decision."""
    return await _ticket_page(view, batch_id, limit=limit, cursor=cursor)


async def _ticket_page(
    view: View, batch_id: UUID, *, limit: int = 100, cursor: str | None = None, conflict: str = ""
) -> Page:
    governance = view.bus.governance
    values: dict[str, Any] = {"mask": MASK, "conflict": conflict, "considered": None}
    # What is to be approved does not change while somebody looks: only its state lives.
    if view.is_shared or REGIONS_HEADER in view.request.headers:
        found = await _state_of(view, batch_id)
    else:
        seen = await governance.examine(
            view.caller, batch_id, limit=limit, cursor=cursor, preview_seconds=PREVIEW_SECONDS
        )
        found, considered, review = seen.ticket, seen.consideration, seen.review
        states = () if considered is None else considered.limits
        after = None if review is None else review.next_cursor
        values |= {
            "considered": considered,
            "review": review,
            "folded": None if review is None else fold_items(review.children),
            "edits": [] if review is None else [each for each in review.children if each.edit],
            "states": [meter_of(each) for each in states if each.scope == "user"],
            "next": view.url("approvals.ticket", batch_id=batch_id, limit=limit, cursor=after)
            if after else None,
            "first": view.url("approvals.ticket", batch_id=batch_id) if cursor else None,
            "changes": seen.changes,
            "preview_problem": seen.preview_problem,
        }  # fmt: skip
    declared = governance.types.get(found.batch_type)
    values |= {
        "ticket": found,
        "allowed": governance.allowed_actions(view.caller, found),
        "is_dangerous": declared is not None and declared.is_dangerous,
        "description": "" if declared is None else declared.description,
    }
    status = 409 if conflict else 200
    is_final = not found.is_open and not found.edit_count
    return view.page(
        "approvals/ticket.html", found.batch_type, status=status, final=is_final, **values
    )


async def _state_of(view: View, batch_id: UUID) -> BatchTicket:
    governance = view.bus.governance
    if view.may(Scope.READ):
        return await governance.require(view.caller, batch_id)
    return (await governance.consider(view.caller, batch_id)).ticket


# -- one decision


@screen.action("/approvals/{batch_id}/decide", scope=Scope.APPROVE)
async def decide(view: Show, batch_id: UUID, form: Fields) -> Response | Page:
    """Approve or reject what was shown."""
    governance, approve = view.bus.governance, _is_approval(form)
    if approve:
        found = (await governance.consider(view.caller, batch_id)).ticket
        declared = governance.types.get(found.batch_type)
        if declared is not None and declared.is_dangerous:
            _demand_count(form, found.child_count)
    try:
        after = await governance.decide(
            view.caller, batch_id,
            approve=approve, reason=form.text("reason") or None, digest=form.text("digest") or None,
        )  # fmt: skip
    except InvalidOperationError as error:
        return await _too_late(view, batch_id, error)
    word = "approved" if approve else "rejected"
    return view.to("approvals.ticket", f"{after.batch_type} is {word}.", batch_id=batch_id)


@screen.action("/approvals/{batch_id}/decide-edit", scope=Scope.APPROVE)
async def decide_edit(view: Show, batch_id: UUID, form: Fields) -> Response | Page:
    """Approve or reject the edit of one item, as it was shown."""
    sequence_no = form.number("sequence_no") or 0
    approve = _is_approval(form)
    try:
        await view.bus.governance.decide_edit(
            view.caller, batch_id, sequence_no,
            approve=approve, reason=form.text("reason") or None, digest=form.text("digest") or None,
        )  # fmt: skip
    except InvalidOperationError as error:
        return await _too_late(view, batch_id, error)
    word = "approved: the item is sent again" if approve else "rejected"
    return view.to(
        "approvals.ticket", f"The edit of item {sequence_no} is {word}.", batch_id=batch_id
    )


async def _too_late(view: View, batch_id: UUID, error: CommandBusError) -> Page:
    """Nothing was decided: the page as it is now, and what is different from what was seen."""
    details = {"action": view.page_name, "path": view.request.url.path, "refused": str(error)}
    await view.console.note(view.actor, view.request, details, is_refused=True)
    return await _ticket_page(view, batch_id, conflict=str(error))


def _is_approval(form: Form) -> bool:
    decision = form.required("decision", "Decision")
    if decision not in {"approve", "reject"}:
        raise Problem(Kind.INVALID_REQUEST, "a decision is to approve or to reject")
    return decision == "approve"


def _demand_count(form: Form, count: int) -> None:
    if form.number("typed") != count:
        raise Problem(
            Kind.INVALID_REQUEST,
            f"this type is marked as dangerous: type the number of items, which is {count:,}, "
            "to approve it. Nothing was decided",
        )


# -- several decisions, which are a batch of their own


@screen.action("/approvals-chosen", scope=Scope.APPROVE, audited=False)
async def ask_several(view: Show, form: Fields) -> Page:
    """The page before decisions about several at once."""
    chosen = await _chosen(view, form)
    approve = _is_approval(form)
    items = sum(each.child_count if each.editor is None else 1 for each in chosen)
    verb = f"{'Approve' if approve else 'Reject'} {_requests(len(chosen))}"
    carried = "a worker of the domain approvals carries them out, one by one"
    return view.page(
        "approvals/several.html",
        verb,
        verb=verb,
        action=view.url("approvals.decide_several"),
        back=view.url("approvals"),
        chosen=[(each, _value(each)) for each in chosen],
        fields={
            "decision": form.text("decision"),
            "cursor": form.text("cursor"),
            "request_id": form.text("request_id"),
        },
        happens=[
            f"The decisions become a BATCH_APPROVE with a ticket of its own; {carried}.",
            f"{items:,} items then {'go to the workers' if approve else 'are canceled'}.",
            "Each decision holds for exactly what was listed: what changed since is refused.",
        ],
        stays=["What somebody else decides first stays as they decided."],
        typed=f"{items}" if approve and _is_dangerous(view, chosen) else "",
        look="primary" if approve else "danger sure",
    )


@screen.action("/approvals-chosen/decide", scope=Scope.APPROVE)
async def decide_several(view: Show, form: Fields) -> Response:
    """Submit the decisions. The id is in the form: a second click submits nothing."""
    approve = _is_approval(form)
    chosen = await _chosen(view, form)
    if approve and _is_dangerous(view, chosen):
        _demand_count(form, sum(x.child_count if x.editor is None else 1 for x in chosen))
    reason = form.required("reason", "Reason")
    items = [_item(each, form.text("decision"), reason) for each in chosen]
    made = await view.bus.governance.submit(
        view.caller, BATCH_APPROVE, items,
        request_id=_uuid(form.required("request_id")), reason=reason,
    )  # fmt: skip
    done = f"{_requests(len(chosen))}: the decisions are submitted."
    return view.to("approvals.ticket", done, batch_id=made.ticket.ticket_id)


async def _chosen(view: View, form: Form) -> list[Undecided]:
    """What was chosen of the page that was shown; what has changed since is refused."""
    wanted = form.many("chosen")
    if not wanted:
        raise Problem(Kind.INVALID_REQUEST, "choose at least one request")
    if len(wanted) > (most := view.bus.governance.types.require(BATCH_APPROVE).max_size):
        raise Problem(Kind.INVALID_REQUEST, f"choose at most {most}; these are {len(wanted):,}")
    page = await view.bus.governance.page_undecided(
        view.caller, limit=MAX_PAGE, cursor=form.text("cursor") or None
    )
    there = {_value(each): each for each in page.items}
    gone = [each for each in wanted if each not in there]
    if gone:
        raise Problem(
            Kind.CONFLICT,
            f"{len(gone):,} of {_requests(len(wanted))} were decided or have changed since you "
            "looked; open the list again. Nothing was decided",
        )
    return [there[each] for each in wanted]


def _requests(count: int) -> str:
    return f"{count:,} {'request' if count == 1 else 'requests'}"


def _is_dangerous(view: View, chosen: list[Undecided]) -> bool:
    found = (view.bus.governance.types.get(each.batch_type) for each in chosen)
    return any(each is not None and each.is_dangerous for each in found)


def _value(waiting: Undecided) -> str:
    """What names one thing that waits, as it was shown."""
    return f"{waiting.ticket_id}/{waiting.sequence_no or ''}/{waiting.digest or ''}"


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Problem(Kind.INVALID_REQUEST, "the form is not whole; open the list again") from None


def _item(waiting: Undecided, decision: str, reason: str) -> dict[str, Any]:
    item: dict[str, Any] = {
        "ticket_id": str(waiting.ticket_id), "decision": decision, "reason": reason,
    }  # fmt: skip
    if waiting.digest is not None:
        item["digest"] = waiting.digest
    if waiting.sequence_no is not None:
        item["sequence_no"] = waiting.sequence_no
    return item
