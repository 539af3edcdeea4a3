"""How the program ends after an error: one line without secrets, and an exit code."""

from __future__ import annotations

from commandbus.cli.output import ExitCode
from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    DomainPausedError,
    EmbeddedServerError,
    InvalidInputError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
)
from commandbus.privacy.redaction import redact_text


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that tells a script what kind of error it was."""
    match error:
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case DatabaseUnavailableError() | EmbeddedServerError():
            return ExitCode.UNAVAILABLE
        case SchemaMissingError() | SchemaTooOldError():
            return ExitCode.PENDING_MIGRATIONS
        case SchemaTooNewError():
            return ExitCode.TOO_NEW
        case DomainPausedError():
            return ExitCode.PAUSED
        case InvalidInputError():
            return ExitCode.USAGE
        case _:
            return ExitCode.FAILED


def root_cause(error: BaseException) -> BaseException:
    """The error to show of a group: one of ours if there is one, else the first."""
    while isinstance(error, BaseExceptionGroup):
        ours = error.subgroup(CommandBusError)
        error = (ours or error).exceptions[0]
    return error


def describe_error(error: BaseException) -> str:
    """One line without secrets."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, CommandBusError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error} (`commandbus --debug …` shows where)"
    return " ".join(redact_text(text, 2_000).split())
