"""`bus.governance` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from commandbus.governance.considering import MAX_ITEMS, PREVIEW_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Any
    from uuid import UUID
    from commandbus.access.model import Caller
    from commandbus.database.model import OnBehalf
    from commandbus.flow import SendOptions
    from commandbus.governance.considering import Consideration, ItemChange
    from commandbus.governance.deciding import Among
    from commandbus.governance.examining import Examination
    from commandbus.governance.model import (
        BatchTicket, ChildRetry, ChildStatus, ChildTicket, Exemption, GovernedType, Item,
        LimitState, LimitsStatus, Review, SentCommand, Submission, TicketAction, TicketStatus,
        Undecided, UserLimits,
    )
    from commandbus.governance.service import Governance
    from commandbus.governance.types import BatchType, BatchTypes
    from commandbus.paging import Page


class BlockingGovernance(BlockingFacet["Governance"]):
    """`bus.governance`: submits governed batches, shows their tickets, and acts on them."""

    @property
    def types(self) -> BatchTypes:
        """As `CommandBus.governance.types`; nothing in it waits."""
        return self._facet.types

    def count_request(self, user_id: str) -> LimitState:
        """Count one API request, whatever becomes of it; RateLimitExceededError if it is too
        many."""
        return self._bridge.run(self._facet.count_request(user_id))

    def limit_states(self, user_id: str) -> tuple[LimitState, ...]:
        """How full the limits are for this user, in the order in which they are checked."""
        return self._bridge.run(self._facet.limit_states(user_id))

    def exempt(
        self, caller: Caller, user_id: str, reason: str, *, expires_at: datetime | None = None,
    ) -> Exemption:
        """Lift the limits per user for this one, until `expires_at` or until it is taken back."""
        return self._bridge.run(self._facet.exempt(caller, user_id, reason, expires_at=expires_at))

    def unexempt(self, caller: Caller, user_id: str) -> bool:
        """Take an exemption back; False if there was none."""
        return self._bridge.run(self._facet.unexempt(caller, user_id))

    def set_user_limits(self, caller: Caller, limits: UserLimits) -> UserLimits:
        """Give a user limits of its own. What is None stays as it is; all None: none any more."""
        return self._bridge.run(self._facet.set_user_limits(caller, limits))

    def limits_status(self, caller: Caller) -> LimitsStatus:
        """The limits in force, how full they are, and who is excepted."""
        return self._bridge.run(self._facet.limits_status(caller))

    @property
    def is_available(self) -> bool:
        """Whether this bus can have governed batches: a bus in memory cannot."""
        return self._facet.is_available

    def declare(self, batch_type: BatchType) -> None:
        """Declare what may be submitted as a governed batch."""
        return self._facet.declare(batch_type)

    def register(self) -> None:
        """Tell the database which types are declared here, unless it has been told."""
        return self._bridge.run(self._facet.register())

    def on_behalf_of(self, caller: Caller, domain: str) -> OnBehalf:
        """For verbs that act in this domain for a caller: what governance refuses is refused."""
        return self._facet.on_behalf_of(caller, domain)

    def send(
        self, caller: Caller, domain: str, command_type: str, command_id: UUID,
        data: Mapping[str, Any], reply_to: str | None = None, correlation_id: UUID | None = None,
        *, max_attempts: int | None = None, options: SendOptions | None = None,
    ) -> SentCommand:
        """Send a command for a caller; `options` are those of `CommandBus.send`."""
        return self._bridge.run(self._facet.send(
            caller, domain, command_type, command_id, data, reply_to, correlation_id,
            max_attempts=max_attempts, options=options,
        ))

    def governed_types(self, domain: str | None = None) -> list[GovernedType]:
        """The command types that are governed, and by which batch types, as the database knows."""
        return self._bridge.run(self._facet.governed_types(domain))

    def remove_governed_type(
        self, caller: Caller, domain: str, command_type: str, batch_type: str,
    ) -> None:
        """Let a batch type that is declared no more cease to govern a command type."""
        return self._bridge.run(self._facet.remove_governed_type(
            caller, domain, command_type, batch_type,
        ))

    def decide(
        self, caller: Caller, ticket_id: UUID, *, approve: bool, reason: str | None,
        digest: str | None = None, conn: Any = None,
    ) -> BatchTicket:
        """Approve or reject a batch that waits for it; a rejection needs a reason."""
        return self._bridge.run(self._facet.decide(
            caller, ticket_id, approve=approve, reason=reason, digest=digest, conn=conn,
        ))

    def decide_edit(
        self, caller: Caller, ticket_id: UUID, sequence_no: int, *, approve: bool,
        reason: str | None, digest: str | None = None, conn: Any = None,
    ) -> BatchTicket:
        """Approve or reject the edit of a child."""
        return self._bridge.run(self._facet.decide_edit(
            caller, ticket_id, sequence_no, approve=approve, reason=reason, digest=digest,
            conn=conn,
        ))

    def review(
        self, caller: Caller, ticket_id: UUID, *, limit: int = 200, cursor: str | None = None,
        among: Among = None,
    ) -> Review:
        """What a decision is about: the ticket, its children, their payloads with secrets
        masked."""
        return self._bridge.run(self._facet.review(
            caller, ticket_id, limit=limit, cursor=cursor, among=among,
        ))

    def page_undecided(
        self, caller: Caller, *, newest_first: bool = False, limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Undecided]:
        """What waits for a decision in the caller's domains: batches and edits together."""
        return self._bridge.run(self._facet.page_undecided(
            caller, newest_first=newest_first, limit=limit, cursor=cursor,
        ))

    def item_type(self, batch_id: UUID) -> type[Any] | None:
        """What the payloads of a batch must fit, if it is governed and declared here."""
        return self._bridge.run(self._facet.item_type(batch_id))

    def consider(self, caller: Caller, ticket_id: UUID) -> Consideration:
        """What was decided before, who has looked, and whether the caller can decide."""
        return self._bridge.run(self._facet.consider(caller, ticket_id))

    def preview(
        self, caller: Caller, ticket_id: UUID, *, after: int = 0, limit: int = MAX_ITEMS,
    ) -> list[ItemChange]:
        """What each item of a ticket that waits would change, as its batch type says; masked."""
        return self._bridge.run(self._facet.preview(caller, ticket_id, after=after, limit=limit))

    def why_not_decide(self, caller: Caller, waiting: Undecided) -> str | None:
        """Why this caller cannot decide about what waits; None: they can. Reads nothing."""
        return self._facet.why_not_decide(caller, waiting)

    def examine(
        self, caller: Caller, ticket_id: UUID, *, limit: int = 100, cursor: str | None = None,
        preview_seconds: float = PREVIEW_SECONDS,
    ) -> Examination:
        """All that the caller may see of a ticket; a preview that is late or fails is left out."""
        return self._bridge.run(self._facet.examine(
            caller, ticket_id, limit=limit, cursor=cursor, preview_seconds=preview_seconds,
        ))

    def submit(
        self, caller: Caller, batch_type: str, items: Sequence[Item], *,
        request_id: UUID | None = None, reason: str | None = None,
    ) -> Submission:
        """Create a governed batch, or nothing."""
        return self._bridge.run(self._facet.submit(
            caller, batch_type, items, request_id=request_id, reason=reason,
        ))

    def get(self, caller: Caller, ticket_id: UUID, *, among: Among = None) -> BatchTicket | None:
        """One ticket, or None if there is none that the caller may see."""
        return self._bridge.run(self._facet.get(caller, ticket_id, among=among))

    def require(self, caller: Caller, ticket_id: UUID, *, among: Among = None) -> BatchTicket:
        """One ticket; TicketNotFoundError if there is none that the caller may see."""
        return self._bridge.run(self._facet.require(caller, ticket_id, among=among))

    def page(
        self, caller: Caller, *, batch_type: str | None = None, status: TicketStatus | None = None,
        created_by: str | None = None, limit: int = 50, cursor: str | None = None,
        among: Among = None,
    ) -> Page[BatchTicket]:
        """Tickets that the caller may see, newest first."""
        return self._bridge.run(self._facet.page(
            caller, batch_type=batch_type, status=status, created_by=created_by, limit=limit,
            cursor=cursor, among=among,
        ))

    def child(self, ticket_id: UUID, command_id: UUID) -> ChildTicket | None:
        """What a command is in the batch that it belongs to, or None if that is not governed."""
        return self._bridge.run(self._facet.child(ticket_id, command_id))

    def page_children(
        self, caller: Caller, ticket_id: UUID, *, status: ChildStatus | None = None,
        limit: int = 100, cursor: str | None = None,
    ) -> Page[ChildTicket]:
        """Children of a ticket, in the order of the request."""
        return self._bridge.run(self._facet.page_children(
            caller, ticket_id, status=status, limit=limit, cursor=cursor,
        ))

    def allowed_actions(self, caller: Caller, ticket: BatchTicket) -> tuple[TicketAction, ...]:
        """What this caller may do with the ticket in its state."""
        return self._facet.allowed_actions(caller, ticket)

    def version(self, ticket: BatchTicket) -> str:
        """A strong ETag of the ticket: another one after every change that can be seen of it."""
        return self._facet.version(ticket)

    def wait(
        self, caller: Caller, ticket_id: UUID, *, seen: str | None, timeout: float,
    ) -> BatchTicket:
        """The ticket as soon as its version is not `seen`; with None: as soon as it has ended."""
        return self._bridge.run(self._facet.wait(caller, ticket_id, seen=seen, timeout=timeout))

    def retry(
        self, caller: Caller, ticket_id: UUID, *, reason: str | None = None, among: Among = None,
    ) -> ChildRetry:
        """Send failed children again, unless they were sent as often as their type allows."""
        return self._bridge.run(self._facet.retry(caller, ticket_id, reason=reason, among=among))

    def cancel(
        self, caller: Caller, ticket_id: UUID, reason: str, *, among: Among = None,
    ) -> BatchTicket:
        """Cancel what is pending; what a worker has goes on. For its owner, and for operators."""
        return self._bridge.run(self._facet.cancel(caller, ticket_id, reason, among=among))

    def register_handlers(self) -> None:
        """Register the handler that carries out approvals which were submitted as a batch."""
        return self._facet.register_handlers()
