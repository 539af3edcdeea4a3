"""Governed batches: batch types, submission, tickets, approvals and limits.

Reading order: `types` (what may be submitted), `items` (what is checked of a request),
`submission` (the transaction that creates), `service` (the verbs), `tickets` (the reads),
`limits`, `governed` (command types that only submissions may bring in), `approvals`, `watch`
(waiting for a change).
"""

from commandbus.database.model import OnBehalf
from commandbus.governance.model import (
    BatchTicket,
    ChildRetry,
    ChildStatus,
    ChildTicket,
    Exemption,
    GovernedType,
    ItemError,
    LimitsStatus,
    LimitState,
    LimitType,
    SentCommand,
    Submission,
    TicketAction,
    TicketStatus,
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
    "Exemption",
    "Governance",
    "GovernedType",
    "ItemError",
    "LimitState",
    "LimitType",
    "LimitsStatus",
    "OnBehalf",
    "SentCommand",
    "Submission",
    "TicketAction",
    "TicketStatus",
    "UserLimits",
]
