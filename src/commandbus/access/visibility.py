"""Who may see what: the one rule, for every way to ask.

A governed batch and everything of it (its commands, their failures, its audit, its replies) is for
its owner, and for those who operate or approve in its domain. Everything else of a domain is for
everyone who reads there. What is written of tokens and limits belongs to no domain: it is for
administrators of all domains. Who may not see a thing is told that there is none.

Here is who a caller is to a listing; the database applies it, so that pages are full of what may be
seen (`functions/visibility.sql`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.access.model import Caller, Scope
from commandbus.models import Viewer

if TYPE_CHECKING:
    from commandbus.access.model import ApiToken
    from commandbus.governance.model import BatchTicket


def viewer_of(caller: Caller) -> Viewer:
    """Through whose eyes a search or a listing for this caller looks."""
    return Viewer(
        owner=None if sees_all(caller) else caller.user_id, sees_access=sees_access(caller)
    )


def sees_all(caller: Caller) -> bool:
    """Whether the caller sees the batches of others, in the domains that it reaches."""
    return caller.may(Scope.OPERATE) or caller.may(Scope.APPROVE)


def sees_access(caller: Caller) -> bool:
    """Whether the caller sees what is written of tokens and limits, and the tokens of others."""
    return caller.may(Scope.ADMIN) and caller.domains is None


def is_visible(caller: Caller, ticket: BatchTicket) -> bool:
    """Whether the caller may know of this ticket: its owner, operators, and approvers."""
    return caller.reaches(ticket.domain) and (owns(caller, ticket) or sees_all(caller))


def owns(caller: Caller, ticket: BatchTicket) -> bool:
    """Whether the caller submitted this batch."""
    return ticket.created_by == caller.user_id


def is_token_visible(caller: Caller, token: ApiToken) -> bool:
    """Whether the caller may know of this token: whose it is, and administrators of all domains."""
    return token.user_id == caller.user_id or sees_access(caller)
