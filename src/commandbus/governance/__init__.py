"""Governed batches: batch types, submission, tickets, approvals and limits.

Reading order: `types` (what may be submitted), `items` (what is checked of a request),
`submission` (the transaction that creates), `service` (the verbs), `tickets` (the reads),
`review` (what a decision is about), `deciding`, `considering` and `examining` (the verbs of those
who approve), `folding` (items as a table), `limits`, `governed` (command types that only
submissions may bring in), `approvals`, `watch` (waiting for a change).
"""

from commandbus.database.model import OnBehalf
from commandbus.governance.considering import Consideration, ItemChange, Look, Rejected
from commandbus.governance.examining import Examination
from commandbus.governance.folding import Extremes, FoldedItems, fold_items
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
    "Consideration",
    "Edit",
    "Examination",
    "Exemption",
    "Extremes",
    "FoldedItems",
    "Governance",
    "GovernedType",
    "ItemChange",
    "ItemError",
    "LimitState",
    "LimitType",
    "LimitsStatus",
    "Look",
    "OnBehalf",
    "Rejected",
    "Review",
    "ReviewedChild",
    "SentCommand",
    "Submission",
    "TicketAction",
    "TicketStatus",
    "Undecided",
    "UserLimits",
    "fold_items",
]
