"""commandbus: a durable command bus on PostgreSQL and PGMQ.

Here are the names that nearly every program needs. The rest is imported from the folder of its
idea: `commandbus.batches`, `commandbus.loads`, `commandbus.troubleshooting`,
`commandbus.governance`, `commandbus.access`, `commandbus.upkeep`; all errors from
`commandbus.errors`. What a folder lists in `__all__` is public; everything else may change.
"""

from commandbus._version import __version__

#: Type checkers take it for true, and see the names below.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from commandbus.blocking import BlockingBus
    from commandbus.bus import CommandBus
    from commandbus.errors import (
        BatchNotFoundError,
        CommandBusError,
        CommandFailedError,
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
    from commandbus.typed.commands import Returns, command

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
    "command",
    "Returns",
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
    "CommandFailedError",
    "DatabaseError",
    "DatabaseUnavailableError",
    "SchemaVersionError",
    "__version__",
]

# Each is loaded when it is first asked for: a program that needs one part (`commandbus health`
# above all) does not wait for the others. A new name goes into this table, into the imports above
# and into `__all__`; a test compares them.
_MODULES: dict[str, tuple[str, ...]] = {
    "commandbus.blocking": ("BlockingBus",),
    "commandbus.bus": ("CommandBus",),
    "commandbus.errors": (
        "BatchNotFoundError",
        "CommandBusError",
        "CommandFailedError",
        "CommandNotFoundError",
        "DatabaseError",
        "DatabaseUnavailableError",
        "DuplicateCommandError",
        "Fail",
        "HandlerAlreadyRegisteredError",
        "HandlerNotFoundError",
        "InvalidInputError",
        "InvalidNameError",
        "InvalidOperationError",
        "InvalidPayloadError",
        "InvalidSettingError",
        "LeaseLostError",
        "PermanentCommandError",
        "ReplyTimeoutError",
        "SchemaVersionError",
        "TransientCommandError",
    ),
    "commandbus.flow": (
        "Pause",
        "SendOptions",
    ),
    "commandbus.handler": (
        "HandlerContext",
        "HandlerOptions",
    ),
    "commandbus.handlers.router": ("Handlers",),
    "commandbus.ids": ("derive_id",),
    "commandbus.models": (
        "AuditEvent",
        "AuditEventType",
        "BatchCommand",
        "BatchCompletionCallback",
        "BatchMetadata",
        "BatchStatus",
        "Command",
        "CommandMetadata",
        "CommandStatus",
        "ParkReason",
        "Progress",
        "Reply",
        "ReplyError",
        "ReplyOutcome",
        "SendReport",
        "TroubleshootingItem",
    ),
    "commandbus.names": (
        "INBOX",
        "NO_REPLY",
        "new_id",
    ),
    "commandbus.outcomes": (
        "Discard",
        "RetryAfter",
        "Snooze",
    ),
    "commandbus.paging": ("Page",),
    "commandbus.privacy.secrets": ("Secret",),
    "commandbus.retry": (
        "Exponential",
        "RetryPolicy",
    ),
    "commandbus.settings": ("Settings",),
    "commandbus.typed.commands": (
        "Returns",
        "command",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _PLACES:
        value: object = getattr(_load(_PLACES[name]), name)
        globals()[name] = value  # the next one who asks finds it without us
        return value
    if not name.startswith("_"):
        try:
            return _load(f"{__name__}.{name}")  # `commandbus.errors`, after `import commandbus`
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})


def _load(module: str) -> "ModuleType":
    from importlib import import_module  # noqa: PLC0415  (most programs ask for a name at once)

    return import_module(module)
