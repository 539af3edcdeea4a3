"""Governed batches: batch types, submission, tickets, approvals and limits.

Reading order: `types` (what may be submitted), `items` (what is checked of a request),
`submission` (the transaction that creates), `service` (the verbs), `tickets` (the reads),
`review` (what a decision is about), `deciding` (the verbs of those who approve), `limits`,
`governed` (command types that only submissions may bring in), `approvals`, `watch` (waiting for a
change).
"""

from commandbus.database.model import OnBehalf
from commandbus.governance.model import (
    BatchTicket,
    ChildRetry,
    ChildStatus,
    ChildTicket,
    Edit,
    Exemption,
    GovernedType,
    ItemError,
    LimitsStatus,
    LimitState,
    LimitType,
    Review,
    ReviewedChild,
    SentCommand,
    Submission,
    TicketAction,
    TicketStatus,
    Undecided,
    UserLimits,
)
from commandbus.governance.service import Governance
from commandbus.governance.types import BatchType, BatchTypes

__all__ = [
    "BatchTicket",
    "BatchType",
    "BatchTypes",
    "ChildRetry",
    "ChildStatus",
    "ChildTicket",
    "Edit",
    "Exemption",
    "Governance",
    "GovernedType",
    "ItemError",
    "LimitState",
    "LimitType",
    "LimitsStatus",
    "OnBehalf",
    "Review",
    "ReviewedChild",
    "SentCommand",
    "Submission",
    "TicketAction",
    "TicketStatus",
    "Undecided",
    "UserLimits",
]
