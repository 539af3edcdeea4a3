"""Governed batches: batch types, submission, tickets, approvals and limits.

Reading order: `types` (what may be submitted), `items` (what is checked of a request),
`submission` (the transaction that creates), `service` (the verbs), `tickets` (the reads),
`limits`, `approvals`, `watch` (waiting for a change).
"""

from commandbus.governance.model import (
    BatchTicket,
    ChildRetry,
    ChildStatus,
    ChildTicket,
    Exemption,
    ItemError,
    LimitsStatus,
    LimitState,
    LimitType,
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
    "ItemError",
    "LimitState",
    "LimitType",
    "LimitsStatus",
    "Submission",
    "TicketAction",
    "TicketStatus",
    "UserLimits",
]
