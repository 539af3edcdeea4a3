"""Approvals: a decision about one batch, alone or as a child of a governed batch of decisions.

BATCH_APPROVE is a batch type like any other, with limits, audit and a ticket. Its commands are
carried out by a transactional handler, so that the decision and the completion are one commit. The
approver is the user who submitted that batch, as its row says: no payload can claim another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, LiteralString
from uuid import UUID

from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import is_visible
from commandbus.database.store import Store
from commandbus.errors import (
    CommandBusError,
    DatabaseError,
    InvalidInputError,
    PermanentCommandError,
)
from commandbus.governance.model import BatchTicket, Item, ItemError, TicketStatus
from commandbus.governance.tickets import tickets_by_id
from commandbus.governance.types import BatchType
from commandbus.handler import HandlerContext, HandlerRegistry
from commandbus.models import Command
from commandbus.privacy.redaction import redact_text
from commandbus.retry import RetryPolicy

BATCH_APPROVE = "BATCH_APPROVE"
DOMAIN = "approvals"
DECIDE_TICKET = "DecideTicket"

#: A refused decision fails: its ticket shows the reason, and no operator could fix it.
POLICY = RetryPolicy(max_attempts=5, backoff_schedule=(1.0, 5.0, 30.0), when_exhausted="fail")

_DECIDE: LiteralString = (
    "select {schema}.decide_ticket(cast(%s as text), cast(%s as uuid), cast(%s as text),"
    " cast(%s as text), cast(%s as text), cast(%s as boolean))"
)
_DECISION_MAKER: LiteralString = (
    "select {schema}.decision_maker(cast(%s as text), cast(%s as uuid), cast(%s as text))"
)


@dataclass(frozen=True, slots=True)
class DecisionItem:
    """One item of a BATCH_APPROVE. `reason` may be left out of an approval only."""

    ticket_id: str
    decision: Literal["approve", "reject"]
    reason: str = ""


class Approvals:
    """Decides about tickets, and carries out decisions that come as commands."""

    def __init__(self, store: Store, registry: HandlerRegistry, *, self_approval: bool) -> None:
        self._store = store
        self._registry = registry
        self._self_approval = self_approval
        self.batch_type = BatchType(
            name=BATCH_APPROVE,
            domain=DOMAIN,
            command_type=DECIDE_TICKET,
            max_size=20,
            payload_type=DecisionItem,
            permission=Scope.APPROVE,
            description="Approve or reject batches that wait for it.",
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
        self, ticket: BatchTicket, user_id: str, *, approve: bool, reason: str | None, conn: Any
    ) -> None:
        """Approve or reject a ticket."""
        if not approve and reason is None:
            raise InvalidInputError("a rejection needs a reason; say why")
        decision = "approve" if approve else "reject"
        await self._store.gateway.rows(
            _DECIDE,
            (ticket.domain, ticket.ticket_id, decision, user_id, reason, self._self_approval),
            domain=ticket.domain,
            conn=conn,
        )

    async def _check(self, conn: Any, caller: Caller, items: Sequence[Item]) -> list[ItemError]:
        ids = [_ticket_id(item) for item in items]
        found = await tickets_by_id(
            self._store.gateway, [i for i in ids if i is not None], conn=conn
        )
        tickets = {each.ticket_id: each for each in found if is_visible(caller, each)}
        errors: list[ItemError] = []
        for index, (item, ticket_id) in enumerate(zip(items, ids, strict=True)):
            ticket = None if ticket_id is None else tickets.get(ticket_id)
            field, problem = self._problem(item, ticket, caller.user_id)
            if problem is None and ticket_id in ids[:index]:
                field, problem = "ticket_id", "stands twice in the request"
            if problem is not None:
                errors.append(ItemError(index, field, problem))
        return errors

    def _problem(
        self, item: Item, ticket: BatchTicket | None, user_id: str
    ) -> tuple[str, str | None]:
        if item.get("decision") not in {"approve", "reject"}:
            return "decision", "must be approve or reject"
        if item["decision"] == "reject" and not str(item.get("reason", "")).strip():
            return "reason", "a rejection needs a reason"
        if ticket is None:
            return "ticket_id", "no such batch"
        if ticket.status is not TicketStatus.PENDING_APPROVAL:
            return "ticket_id", f"is {ticket.status.value}, and does not wait for a decision"
        if ticket.created_by == user_id and not self._self_approval:
            return "ticket_id", "was submitted by you; somebody else must decide"
        return "", None

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
        reason = str(command.data.get("reason", "")).strip()
        try:
            await self.decide(
                found[0],
                approver,
                approve=command.data.get("decision") == "approve",
                reason=redact_text(reason) if reason else None,
                conn=ctx.conn,
            )
        except DatabaseError:
            raise  # may pass: tried again
        except CommandBusError as error:
            raise PermanentCommandError("DECISION_REFUSED", str(error)) from error
        return {"ticket_id": str(ticket_id), "decision": command.data.get("decision")}


def _ticket_id(item: Item) -> UUID | None:
    try:
        return UUID(str(item.get("ticket_id")))
    except ValueError:
        return None
