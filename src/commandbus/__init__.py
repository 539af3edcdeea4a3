"""commandbus: a durable command bus on PostgreSQL and PGMQ.

What is listed in __all__ is public; everything else may change.
"""

from commandbus._version import __version__
from commandbus.batches.batch import BatchProgress, progress_of
from commandbus.batches.coordination import DispatchMode, DispatchResult, DispatchStatus
from commandbus.blocking import BlockingBus
from commandbus.bulks import (
    BulkFilter,
    BulkItem,
    BulkMatch,
    BulkOperation,
    BulkOutcome,
    BulkPreview,
    BulkStatus,
    BulkVerb,
    FailureGroup,
)
from commandbus.bus import CommandBus
from commandbus.errors import (
    BatchNotFoundError,
    BatchSizeExceededError,
    BulkOperationNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    DatabaseError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    EmbeddedServerError,
    HandlerAlreadyRegisteredError,
    HandlerError,
    HandlerNotFoundError,
    InvalidBatchRequestError,
    InvalidCommandIdError,
    InvalidInputError,
    InvalidNameError,
    InvalidOperationError,
    InvalidPayloadError,
    InvalidSettingError,
    LeaseLostError,
    PayloadLostError,
    PermanentCommandError,
    PermissionDeniedError,
    PgmqError,
    RateLimitExceededError,
    ReplyTimeoutError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
    SchemaVersionError,
    SourceError,
    TicketNotFoundError,
    TransientCommandError,
)
from commandbus.governance.batch_types import BatchType, BatchTypes
from commandbus.governance.service import Governance
from commandbus.governed import (
    BatchTicket,
    Caller,
    ChildPage,
    ChildRetry,
    ChildStatus,
    ChildTicket,
    Exemption,
    ItemError,
    LimitsStatus,
    LimitState,
    LimitType,
    Scope,
    Submission,
    TicketPage,
    TicketStatus,
    UserLimits,
)
from commandbus.handler import HandlerContext
from commandbus.loads import LoadMetadata, LoadProgress, LoadResult, LoadStart, LoadStatus
from commandbus.marks import Secret
from commandbus.models import (
    AuditEvent,
    AuditEventType,
    BatchCommand,
    BatchCompletionCallback,
    BatchMetadata,
    BatchStatus,
    Command,
    CommandMetadata,
    CommandStatus,
    ParkReason,
    Reply,
    ReplyError,
    ReplyOutcome,
    TroubleshootingItem,
)
from commandbus.naming import INBOX, NO_REPLY
from commandbus.ops.doctor import Diagnosis, Finding, Repair
from commandbus.ops.findings import Severity
from commandbus.ops.retention import PruneResult
from commandbus.ops.search import AuditPage, CommandPage
from commandbus.pgmq.remote import RemoteQueue
from commandbus.policies import RetryPolicy
from commandbus.settings import Settings
from commandbus.store.dispatching import RecoveryReport
from commandbus.store.upkeep import RetentionRule

__all__ = [
    "INBOX",
    "NO_REPLY",
    # What comes back
    "AuditEvent",
    "AuditEventType",
    "AuditPage",
    "BatchCommand",
    "BatchCompletionCallback",
    "BatchMetadata",
    # Errors
    "BatchNotFoundError",
    "BatchProgress",
    "BatchSizeExceededError",
    "BatchStatus",
    "BatchTicket",
    "BatchType",
    "BatchTypes",
    # The bus
    "BlockingBus",
    # Bulk operations
    "BulkFilter",
    "BulkItem",
    "BulkMatch",
    "BulkOperation",
    "BulkOperationNotFoundError",
    "BulkOutcome",
    "BulkPreview",
    "BulkStatus",
    "BulkVerb",
    "Caller",
    "ChildPage",
    "ChildRetry",
    "ChildStatus",
    "ChildTicket",
    # Handlers
    "Command",
    "CommandBus",
    "CommandBusError",
    "CommandMetadata",
    "CommandNotFoundError",
    "CommandPage",
    "CommandStatus",
    "DatabaseError",
    "DatabaseUnavailableError",
    # The doctor
    "Diagnosis",
    # Dispatch
    "DispatchMode",
    "DispatchResult",
    "DispatchStatus",
    "DuplicateCommandError",
    "EmbeddedServerError",
    "Exemption",
    "FailureGroup",
    "Finding",
    "Governance",
    "HandlerAlreadyRegisteredError",
    "HandlerContext",
    "HandlerError",
    "HandlerNotFoundError",
    "InvalidBatchRequestError",
    "InvalidCommandIdError",
    "InvalidInputError",
    "InvalidNameError",
    "InvalidOperationError",
    "InvalidPayloadError",
    "InvalidSettingError",
    "ItemError",
    "LeaseLostError",
    "LimitState",
    "LimitType",
    "LimitsStatus",
    "LoadMetadata",
    "LoadProgress",
    "LoadResult",
    "LoadStart",
    "LoadStatus",
    "ParkReason",
    "PayloadLostError",
    "PermanentCommandError",
    "PermissionDeniedError",
    "PgmqError",
    "PruneResult",
    "RateLimitExceededError",
    "RecoveryReport",
    "RemoteQueue",
    "Repair",
    "Reply",
    "ReplyError",
    "ReplyOutcome",
    "ReplyTimeoutError",
    "RetentionRule",
    "RetryPolicy",
    "SchemaMissingError",
    "SchemaTooNewError",
    "SchemaTooOldError",
    "SchemaVersionError",
    "Scope",
    "Secret",
    "Settings",
    "Severity",
    "SourceError",
    "Submission",
    "TicketNotFoundError",
    "TicketPage",
    "TicketStatus",
    "TransientCommandError",
    "TroubleshootingItem",
    "UserLimits",
    "__version__",
    "progress_of",
]
