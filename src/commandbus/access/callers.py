"""Who may see and do what. Every verb of governance asks here; faces decide nothing."""

from __future__ import annotations

from commandbus.errors import PermissionDeniedError, TicketNotFoundError
from commandbus.governance.model import BatchTicket, Caller, Scope
from commandbus.governance.types import BatchType

#: Whoever has one of these sees the tickets of others, in the domains that it reaches.
_SEES_ALL = (Scope.OPERATE, Scope.APPROVE)


def demand(caller: Caller, scope: Scope, what: str) -> None:
    """Raise PermissionDeniedError unless the caller has the scope."""
    if not caller.may(scope):
        raise PermissionDeniedError(scope.value, what)


def demand_submission(caller: Caller, batch_type: BatchType) -> None:
    """Raise PermissionDeniedError unless the caller may submit batches of this type.

    That a type exists is no secret, so another domain is a lack of permission, and said so.
    """
    demand(caller, batch_type.permission, f"submitting {batch_type.name}")
    if not caller.reaches(batch_type.domain):
        raise PermissionDeniedError(
            batch_type.permission.value,
            f"submitting {batch_type.name} in domain {batch_type.domain!r}",
        )


def sees_all(caller: Caller) -> bool:
    """Whether the caller sees the tickets of others."""
    return any(caller.may(scope) for scope in _SEES_ALL)


def is_visible(caller: Caller, ticket: BatchTicket) -> bool:
    """Whether the caller may know of this ticket (decision C42)."""
    is_his = ticket.created_by == caller.user_id
    return caller.reaches(ticket.domain) and (is_his or sees_all(caller))


def demand_action(caller: Caller, ticket: BatchTicket, permission: Scope, what: str) -> None:
    """Only its owner, who may submit such batches, or an operator may act on a ticket."""
    if not is_visible(caller, ticket):
        raise TicketNotFoundError(ticket.ticket_id)
    is_his = ticket.created_by == caller.user_id
    if not (caller.may(Scope.OPERATE) or (is_his and caller.may(permission))):
        demand(caller, permission if is_his else Scope.OPERATE, what)
