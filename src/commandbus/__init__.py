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
from commandbus.naming import NO_REPLY
from commandbus.policies import RetryPolicy
from commandbus.settings import Settings

__all__ = [
    # The bus
    "BlockingBus",
    "CommandBus",
    "NO_REPLY",
    "Settings",
    "__version__",
    # Handlers
    "Command",
    "HandlerContext",
    "PermanentCommandError",
    "RetryPolicy",
    "TransientCommandError",
    # What comes back
    "AuditEvent",
    "AuditEventType",
    "BatchCommand",
    "BatchCompletionCallback",
    "BatchMetadata",
    "BatchStatus",
    "CommandMetadata",
    "CommandStatus",
    "ParkReason",
    "Reply",
    "ReplyError",
    "ReplyOutcome",
    "TroubleshootingItem",
    # Errors
    "BatchNotFoundError",
    "CommandBusError",
    "CommandNotFoundError",
    "DatabaseError",
    "DatabaseUnavailableError",
    "DuplicateCommandError",
    "EmbeddedServerError",
    "HandlerAlreadyRegisteredError",
    "HandlerError",
    "HandlerNotFoundError",
    "InvalidCommandIdError",
    "InvalidInputError",
    "InvalidNameError",
    "InvalidOperationError",
    "InvalidPayloadError",
    "InvalidSettingError",
    "LeaseLostError",
    "PayloadLostError",
    "PgmqError",
    "ReplyTimeoutError",
    "SchemaMissingError",
    "SchemaTooNewError",
    "SchemaTooOldError",
    "SchemaVersionError",
]
