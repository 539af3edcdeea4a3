"""What PostgreSQL says, in our words: SQLSTATE -> error. One table, one place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from commandbus.errors import (
    BatchNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    DatabaseError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    InvalidNameError,
    InvalidOperationError,
    InvalidSettingError,
    PayloadLostError,
    SchemaMissingError,
)
from commandbus.redaction import redact_text

_NOT_INSTALLED = {"42883", "42P01", "3F000"}  # no such function, table, schema
_WRONG_LOGIN = {"28P01", "28000"}
_GONE = ("08", "57P", "53")  # connection, shutdown, resources


@contextmanager
def translated(domain: str = "") -> Iterator[None]:
    """Turn errors of the driver into ours, with the cause kept."""
    try:
        yield
    except CommandBusError:
        raise
    except (PoolTimeout, TooManyRequests) as error:
        raise DatabaseUnavailableError(
            "no connection was free in time; enlarge the pool, or look for what holds them"
        ) from error
    except PoolClosed as error:
        raise DatabaseUnavailableError("the bus is closed; open a new one") from error
    except psycopg.Error as error:
        raise translate(error, domain) from error
    except Exception as error:
        # SQLAlchemy wraps the driver's error, asyncpg has its own; both carry the SQLSTATE.
        inner = getattr(error, "orig", error)
        state = getattr(inner, "sqlstate", None)
        if state is None:
            raise
        raise _from_state(str(state), _detail(inner), str(inner), domain) from error


def translate(error: psycopg.Error, domain: str = "") -> CommandBusError:
    """Our error for an error of psycopg."""
    state = error.sqlstate
    message = error.diag.message_primary or str(error)
    if state is None:
        # No SQLSTATE: the connection could not be made, or was cut.
        if isinstance(error, psycopg.OperationalError):
            return unavailable(error)
        return DatabaseError(redact_text(message))
    hint = f"; {error.diag.message_hint}" if error.diag.message_hint else ""
    return _from_state(state, error.diag.message_detail, message + hint, domain)


def unavailable(error: BaseException) -> DatabaseUnavailableError:
    """The database cannot be reached, and why, without the secrets of the address."""
    text = redact_text(" ".join(str(error).split()), 300)
    advice = "check that the server runs and that COMMANDBUS_DSN or --dsn is right"
    if "password authentication failed" in text or "no password supplied" in text:
        advice = "check the user and the password in COMMANDBUS_DSN or --dsn"
    return DatabaseUnavailableError(f"cannot reach PostgreSQL: {text}; {advice}")


def _detail(error: object) -> str | None:
    diag = getattr(error, "diag", None)
    return getattr(diag, "message_detail", None) or getattr(error, "detail", None)


def _from_state(state: str, detail: str | None, message: str, domain: str) -> CommandBusError:
    if state == "CB001" and detail:
        return DuplicateCommandError(domain, [UUID(text) for text in json.loads(detail)])
    if state == "CB002" and detail:
        return CommandNotFoundError(domain, UUID(detail))
    if state == "CB004" and detail:
        return BatchNotFoundError(domain, UUID(detail))
    plain = {
        "CB003": InvalidOperationError,
        "CB005": InvalidNameError,
        "CB006": PayloadLostError,
        "CB007": InvalidSettingError,
    }.get(state)
    if plain is not None:
        return plain(redact_text(message))
    if state in _NOT_INSTALLED:
        return SchemaMissingError(
            f"the database is not set up for commandbus ({redact_text(message, 120)}); "
            "run `commandbus db init`"
        )
    if state in _WRONG_LOGIN or state.startswith(_GONE):
        return unavailable(Exception(message))
    return DatabaseError(f"PostgreSQL refused ({state}): {redact_text(message)}")
