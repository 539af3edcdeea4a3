"""Who may do what. Every verb of governance asks here; faces decide nothing. Who may see what is
in `visibility`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.access.model import Caller, Scope
from commandbus.access.visibility import is_visible, owns
from commandbus.errors import PermissionDeniedError, TicketNotFoundError

if TYPE_CHECKING:
    from commandbus.governance.model import BatchTicket
    from commandbus.governance.types import BatchType


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


def demand_sending(caller: Caller, domain: str) -> None:
    """Raise PermissionDeniedError unless the caller may send commands in this domain."""
    demand(caller, Scope.SEND, "sending a command")
    if not caller.reaches(domain):
        raise PermissionDeniedError(Scope.SEND.value, f"sending in domain {domain!r}")


def demand_removal(caller: Caller, domain: str) -> None:
    """Raise PermissionDeniedError unless the caller may say what is governed in this domain."""
    demand(caller, Scope.ADMIN, "changing what is governed")
    if not caller.reaches(domain):
        raise PermissionDeniedError(
            Scope.ADMIN.value, f"changing what is governed in domain {domain!r}"
        )


def demand_load(caller: Caller, created_by: str | None) -> None:
    """Raise PermissionDeniedError unless the caller may go on with this load.

    Its rows are compared with those that are there: to everybody else that would tell whether a
    guess of their content is right.
    """
    if created_by != caller.user_id:
        demand(caller, Scope.OPERATE, "going on with the load of somebody else")


def may_act(caller: Caller, ticket: BatchTicket, permission: Scope) -> bool:
    """Whether the caller may retry or cancel: its owner, who may submit such, or an operator."""
    return is_visible(caller, ticket) and (
        caller.may(Scope.OPERATE) or (owns(caller, ticket) and caller.may(permission))
    )


def demand_action(caller: Caller, ticket: BatchTicket, permission: Scope, what: str) -> None:
    """Raise unless the caller may act on the ticket."""
    if not is_visible(caller, ticket):
        raise TicketNotFoundError(ticket.ticket_id)
    if not may_act(caller, ticket, permission):
        demand(caller, permission if owns(caller, ticket) else Scope.OPERATE, what)


def may_create_domain(caller: Caller, domain: str) -> bool:
    """Whether the caller may use a domain that does not exist yet: the first use creates queues."""
    return caller.may(Scope.ADMIN) or (caller.domains is not None and domain in caller.domains)
