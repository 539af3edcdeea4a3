"""commandbus: a durable command bus on PostgreSQL and PGMQ.

What is listed in __all__ is public; everything else may change.
"""

from commandbus._version import __version__
from commandbus.blocking import BlockingBus
from commandbus.bus import CommandBus
from commandbus.errors import (
    BatchNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    DatabaseError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    EmbeddedServerError,
    HandlerAlreadyRegisteredError,
    HandlerError,
    HandlerNotFoundError,
    InvalidCommandIdError,
    InvalidInputError,
    InvalidNameError,
    InvalidOperationError,
    InvalidPayloadError,
    InvalidSettingError,
    LeaseLostError,
    PayloadLostError,
    PermanentCommandError,
    PgmqError,
    ReplyTimeoutError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
    SchemaVersionError,
    TransientCommandError,
)
from commandbus.handler import HandlerContext
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
from commandbus.policies import RetryPolicy
from commandbus.settings import Settings

__all__ = [
    "INBOX",
    "NO_REPLY",
    # What comes back
    "AuditEvent",
    "AuditEventType",
    "BatchCommand",
    "BatchCompletionCallback",
    "BatchMetadata",
    # Errors
    "BatchNotFoundError",
    "BatchStatus",
    # The bus
    "BlockingBus",
    # Handlers
    "Command",
    "CommandBus",
    "CommandBusError",
    "CommandMetadata",
    "CommandNotFoundError",
    "CommandStatus",
    "DatabaseError",
    "DatabaseUnavailableError",
    "DuplicateCommandError",
    "EmbeddedServerError",
    "HandlerAlreadyRegisteredError",
    "HandlerContext",
    "HandlerError",
    "HandlerNotFoundError",
    "InvalidCommandIdError",
    "InvalidInputError",
    "InvalidNameError",
    "InvalidOperationError",
    "InvalidPayloadError",
    "InvalidSettingError",
    "LeaseLostError",
    "ParkReason",
    "PayloadLostError",
    "PermanentCommandError",
    "PgmqError",
    "Reply",
    "ReplyError",
    "ReplyOutcome",
    "ReplyTimeoutError",
    "RetryPolicy",
    "SchemaMissingError",
    "SchemaTooNewError",
    "SchemaTooOldError",
    "SchemaVersionError",
    "Settings",
    "TransientCommandError",
    "TroubleshootingItem",
    "__version__",
]
