"""commandbus: a durable command bus on PostgreSQL and PGMQ.

Here are the names that nearly every program needs. The rest is imported from the folder of its
idea: `commandbus.batches`, `commandbus.loads`, `commandbus.troubleshooting`,
`commandbus.governance`, `commandbus.access`, `commandbus.upkeep`; all errors from
`commandbus.errors`. What a folder lists in `__all__` is public; everything else may change.
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
    Fail,
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    InvalidInputError,
    InvalidNameError,
    InvalidOperationError,
    InvalidPayloadError,
    InvalidSettingError,
    LeaseLostError,
    PermanentCommandError,
    ReplyTimeoutError,
    SchemaVersionError,
    TransientCommandError,
)
from commandbus.flow import Pause, SendOptions
from commandbus.handler import HandlerContext, HandlerOptions
from commandbus.handlers.router import Handlers
from commandbus.ids import derive_id
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
    Progress,
    Reply,
    ReplyError,
    ReplyOutcome,
    SendReport,
    TroubleshootingItem,
)
from commandbus.names import INBOX, NO_REPLY, new_id
from commandbus.outcomes import Discard, RetryAfter, Snooze
from commandbus.paging import Page
from commandbus.privacy.secrets import Secret
from commandbus.retry import Exponential, RetryPolicy
from commandbus.settings import Settings

__all__ = [  # noqa: RUF022  (in the order in which a reader needs them)
    # The bus
    "CommandBus",
    "BlockingBus",
    "Settings",
    "RetryPolicy",
    "Exponential",
    # Sending
    "new_id",
    "derive_id",
    "SendOptions",
    "BatchCommand",
    "SendReport",
    "BatchCompletionCallback",
    "INBOX",
    "NO_REPLY",
    # Handlers
    "Handlers",
    "Command",
    "HandlerContext",
    "HandlerOptions",
    "Secret",
    "TransientCommandError",
    "PermanentCommandError",
    "Fail",
    "RetryAfter",
    "Snooze",
    "Discard",
    # What comes back
    "CommandMetadata",
    "CommandStatus",
    "BatchMetadata",
    "BatchStatus",
    "TroubleshootingItem",
    "ParkReason",
    "Progress",
    "Reply",
    "ReplyOutcome",
    "ReplyError",
    "AuditEvent",
    "AuditEventType",
    "Page",
    "Pause",
    # Errors that callers handle; commandbus.errors has all of them
    "CommandBusError",
    "DuplicateCommandError",
    "CommandNotFoundError",
    "BatchNotFoundError",
    "InvalidOperationError",
    "InvalidInputError",
    "InvalidPayloadError",
    "InvalidNameError",
    "InvalidSettingError",
    "HandlerAlreadyRegisteredError",
    "HandlerNotFoundError",
    "LeaseLostError",
    "ReplyTimeoutError",
    "DatabaseError",
    "DatabaseUnavailableError",
    "SchemaVersionError",
    "__version__",
]
