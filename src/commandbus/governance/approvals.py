"""Approvals: a decision about one batch or edit, alone or as a child of a batch of decisions.

BATCH_APPROVE is a batch type like any other, with limits, audit and a ticket. Its commands are
carried out by a transactional handler, so that the decision and the completion are one commit. The
approver is the user who submitted that batch, as its row says: no payload can claim another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, LiteralString
from uuid import UUID

import orjson

from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import is_visible
from commandbus.database.store import Store
from commandbus.errors import (
    CommandBusError,
    DatabaseError,
    InvalidInputError,
    InvalidOperationError,
    PermanentCommandError,
)
from commandbus.governance.model import BatchTicket, Item, ItemError
from commandbus.governance.tickets import tickets_by_id
from commandbus.governance.types import BatchType, BatchTypes
from commandbus.handler import HandlerContext
from commandbus.handlers.registry import HandlerRegistry
from commandbus.models import Command
from commandbus.privacy.redaction import redact_text
from commandbus.retry import RetryPolicy
from commandbus.typed.codec import check_fits

BATCH_APPROVE = "BATCH_APPROVE"
DOMAIN = "approvals"
DECIDE_TICKET = "DecideTicket"

_DIGEST = re.compile(r"[0-9a-fA-F]{64}\Z")

#: A refused decision fails: its ticket shows the reason, and no operator could fix it.
POLICY = RetryPolicy(max_attempts=5, backoff_schedule=(1.0, 5.0, 30.0), when_exhausted="fail")

_DECIDE: LiteralString = (
    "select {schema}.decide_ticket(cast(%s as text), cast(%s as uuid), cast(%s as text),"
    " cast(%s as text), cast(%s as text), cast(%s as boolean), cast(%s as text))"
)
_DECIDE_EDIT: LiteralString = (
    "select {schema}.decide_edit(cast(%s as text), cast(%s as uuid), cast(%s as text),"
    " cast(%s as text), cast(%s as text), cast(%s as text), cast(%s as boolean))"
)
_EDITS: LiteralString = "select * from {schema}.waiting_edits(cast(%s as uuid[]))"
_COMMAND_TYPE: LiteralString = (
    "select c.command_type from {schema}.command_bus_command c"
    " where c.batch_id = %s and c.domain is not distinct from %s limit 1"
)
_DECISION_MAKER: LiteralString = (
    "select {schema}.decision_maker(cast(%s as text), cast(%s as uuid), cast(%s as text))"
)


@dataclass(frozen=True, slots=True)
class DecisionItem:
    """One item of a BATCH_APPROVE. `reason` may be left out of an approval only.

    With `sequence_no` it is about the edit of that child, and an approval needs its `digest`.
    Without, `digest` may be that of the batch.
    """

    ticket_id: str
    decision: Literal["approve", "reject"]
    reason: str = ""
    digest: str | None = None
    sequence_no: int | None = None


@dataclass(frozen=True, slots=True)
class _WaitingEdit:
    """An edit that waits: a row of waiting_edits."""

    ticket_id: UUID
    sequence_no: int
    domain: str
    command_id: UUID
    command_type: str
    batch_type: str
    editor: str
    digest: str
    data: str


class Approvals:
    """Decides about tickets, and carries out decisions that come as commands."""

    def __init__(
        self, store: Store, registry: HandlerRegistry, types: BatchTypes, *, self_approval: bool
    ) -> None:
        self._store = store
        self._registry = registry
        self._types = types
        self._self_approval = self_approval
        self.batch_type = BatchType(
            name=BATCH_APPROVE,
            domain=DOMAIN,
            command_type=DECIDE_TICKET,
            max_size=20,
            payload_type=DecisionItem,
            permission=Scope.APPROVE,
            description="Approve or reject batches, and edits of their children, that wait for it.",
            path="/api/v1/approvals/batch",
            example={
                "ticket_id": "6f1d6a0e-6f0b-4b0b-8a53-0d7f3c1f9a01",
                "decision": "reject",
                "reason": "not during the release",
            },
            check=self._check,
        )

    def register_handlers(self) -> None:
        """Register the handler of DecideTicket."""
        self._registry.register(
            DOMAIN,
            DECIDE_TICKET,
            self._handle,
            retry_policy=POLICY,
            transactional=True,
            payload_type=DecisionItem,
        )

    async def decide(
        self,
        ticket: BatchTicket,
        user_id: str,
        *,
        approve: bool,
        reason: str | None,
        digest: str | None,
        conn: Any,
    ) -> None:
        """Approve or reject a ticket."""
        params = (
            ticket.domain, ticket.ticket_id, _decision(reason, approve=approve), user_id, reason,
            self._self_approval, _digest(digest),
        )  # fmt: skip
        await self._store.gateway.rows(_DECIDE, params, domain=ticket.domain, conn=conn)

    async def decide_edit(
        self,
        ticket: BatchTicket,
        sequence_no: int,
        user_id: str,
        *,
        approve: bool,
        reason: str | None,
        digest: str | None,
        conn: Any,
    ) -> None:
        """Approve or reject the edit of a child."""
        decision = _decision(reason, approve=approve)
        found = await self._edits([ticket.ticket_id], conn)
        edit = found.get((ticket.ticket_id, sequence_no))
        if edit is None:
            raise InvalidOperationError(
                f"no edit of child {sequence_no} of batch {ticket.ticket_id} waits for a decision; "
                "it was decided, dropped by an operator, or has expired"
            )
        declared = self._types.get(edit.batch_type)
        if approve and declared is not None and declared.payload_type is not None:
            check_fits(declared.payload_type, orjson.loads(edit.data))
        params = (
            edit.domain, edit.command_id, decision, user_id, reason, _digest(digest),
            self._self_approval,
        )  # fmt: skip
        await self._store.gateway.rows(_DECIDE_EDIT, params, domain=edit.domain, conn=conn)

    async def command_type(self, ticket: BatchTicket) -> str:
        """Of the children of a ticket."""
        params = (ticket.ticket_id, ticket.domain)
        return str(await self._store.gateway.value(_COMMAND_TYPE, params))

    async def _edits(
        self, ticket_ids: Sequence[UUID], conn: Any
    ) -> dict[tuple[UUID, int], _WaitingEdit]:
        rows = await self._store.gateway.rows(
            _EDITS, (list(ticket_ids),), into=_WaitingEdit, conn=conn
        )
        return {(row.ticket_id, row.sequence_no): row for row in rows}

    async def _check(self, conn: Any, caller: Caller, items: Sequence[Item]) -> list[ItemError]:
        ids = [_ticket_id(item) for item in items]
        found = await tickets_by_id(
            self._store.gateway, [i for i in ids if i is not None], conn=conn
        )
        tickets = {each.ticket_id: each for each in found if is_visible(caller, each)}
        edits = await self._edits(list(tickets), conn)
        errors: list[ItemError] = []
        seen: set[tuple[UUID | None, Any]] = set()
        for index, (item, ticket_id) in enumerate(zip(items, ids, strict=True)):
            ticket = None if ticket_id is None else tickets.get(ticket_id)
            what = (ticket_id, item.get("sequence_no"))
            if ticket is None or what[1] is None:
                field, problem = self._problem(item, ticket, caller.user_id)
            else:
                edit = edits.get((ticket.ticket_id, what[1]))
                field, problem = self._edit_problem(item, ticket, edit, caller.user_id)
            if problem is None and what in seen:
                field, problem = "ticket_id", "stands twice in the request"
            seen.add(what)
            if problem is not None:
                errors.append(ItemError(index, field, problem))
        return errors

    def _problem(
        self, item: Item, ticket: BatchTicket | None, user_id: str
    ) -> tuple[str, str | None]:
        field, problem = _form_problem(item)
        if problem is not None:
            return field, problem
        if ticket is None:
            return "ticket_id", "no such batch"
        if not ticket.is_undecided:
            return "ticket_id", f"is {ticket.status.value}, and does not wait for a decision"
        if ticket.created_by == user_id and not self._self_approval:
            return "ticket_id", "was submitted by you; somebody else must decide"
        return _digest_problem(item, ticket.content_digest)

    def _edit_problem(
        self, item: Item, ticket: BatchTicket, edit: _WaitingEdit | None, user_id: str
    ) -> tuple[str, str | None]:
        field, problem = _form_problem(item)
        if problem is not None:
            return field, problem
        if edit is None:
            return "sequence_no", "no edit of this child waits for a decision"
        if edit.editor == user_id:
            return "sequence_no", "was edited by you; somebody else must decide"
        if ticket.created_by == user_id and not self._self_approval:
            return "ticket_id", "was submitted by you; somebody else must decide"
        if item["decision"] == "approve" and item.get("digest") is None:
            return "digest", "an approval of an edit needs its digest"
        return _digest_problem(item, edit.digest)

    async def _handle(self, command: Command, ctx: HandlerContext) -> dict[str, Any]:
        gateway = self._store.gateway
        approver: str | None = await gateway.value(
            _DECISION_MAKER, (command.domain, command.command_id, BATCH_APPROVE), conn=ctx.conn
        )
        if approver is None:
            raise PermanentCommandError(
                "NOT_SUBMITTED", f"only a child of a {BATCH_APPROVE}, as it was submitted, decides"
            )
        ticket_id = _ticket_id(command.data)
        ids = [] if ticket_id is None else [ticket_id]
        found = await tickets_by_id(gateway, ids, conn=ctx.conn)
        if not found:
            raise PermanentCommandError("TICKET_NOT_FOUND", "the batch is not there any more")
        try:
            await self._carry_out(found[0], approver, command.data, ctx.conn)
        except DatabaseError:
            raise  # may pass: tried again
        except CommandBusError as error:
            raise PermanentCommandError("DECISION_REFUSED", str(error)) from error
        return {"ticket_id": str(ticket_id), "decision": command.data.get("decision")}

    async def _carry_out(
        self, ticket: BatchTicket, approver: str, item: Mapping[str, Any], conn: Any
    ) -> None:
        reason = str(item.get("reason", "")).strip()
        options: Any = {
            "approve": item.get("decision") == "approve",
            "reason": redact_text(reason) if reason else None,
            "digest": item.get("digest"),
            "conn": conn,
        }
        sequence_no = item.get("sequence_no")
        if sequence_no is None:
            await self.decide(ticket, approver, **options)
        else:
            await self.decide_edit(ticket, sequence_no, approver, **options)


def _decision(reason: str | None, *, approve: bool) -> str:
    if not approve and reason is None:
        raise InvalidInputError("a rejection needs a reason; say why")
    return "approve" if approve else "reject"


def _digest(digest: Any) -> str | None:
    if digest is not None and not (isinstance(digest, str) and _DIGEST.match(digest)):
        raise InvalidInputError("a digest has 64 hexadecimal digits; give it as it was shown")
    return digest


def _form_problem(item: Item) -> tuple[str, str | None]:
    if item.get("decision") not in {"approve", "reject"}:
        return "decision", "must be approve or reject"
    if item["decision"] == "reject" and not str(item.get("reason", "")).strip():
        return "reason", "a rejection needs a reason"
    return "", None


def _digest_problem(item: Item, digest: str | None) -> tuple[str, str | None]:
    given = item.get("digest")
    if given is not None and str(given).lower() != digest:
        return "digest", "is not that of what is there; look at it again"
    return "", None


def _ticket_id(item: Item) -> UUID | None:
    try:
        return UUID(str(item.get("ticket_id")))
    except ValueError:
        return None
