"""What PostgreSQL says, in our words: SQLSTATE -> error. One table, one place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from commandbus.database.connections import OutageError, PoolEmptyError
from commandbus.database.deadlines import DeadlineError
from commandbus.database.hosts import reasons_of
from commandbus.database.read_only import READ_ONLY, server_of
from commandbus.database.sessions import UnreadableAnswerError
from commandbus.errors import (
    BatchNotFoundError,
    BulkOperationNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    DatabaseError,
    DatabaseUnavailableError,
    DomainMovedError,
    DomainMovingError,
    DuplicateCommandError,
    GovernedTypeError,
    InvalidInputError,
    InvalidNameError,
    InvalidOperationError,
    InvalidSettingError,
    PayloadLostError,
    SchemaMissingError,
    UniqueKeyHeldError,
)
from commandbus.privacy.redaction import redact_text

_NOT_INSTALLED = {"42883", "42P01", "3F000"}  # no such function, table, schema
_WRONG_LOGIN = {"28P01", "28000"}
# Deadlock, serialization, lock and statement timeouts: nothing was written, and a repeat may work.
_AGAIN = {"40001", "40P01", "55P03", "57014"}
# Connection, shutdown, resources; and a transaction that its process left open for too long.
_GONE = ("08", "57P", "53", "25P03")
# Complaints about the address itself. They quote the part that was not understood, which may well
# be a part of the password, so they are never repeated: not as text, and not as the cause.
_ADDRESS = re.compile(
    r"connection info|connection option|percent-encoded|\bURI\b|port number|[\"'][^\"']*@"
)
# What a server, or a pooler, says that is full. A refused connection has no SQLSTATE to look at.
_FULL = re.compile(
    r"too many (?:clients|connections)|connection slots are reserved|no more connections allowed"
)
# What libpq says of a server that does not fit target_session_attrs.
_READS_ONLY = re.compile(r"session is read-only|server is in hot standby mode")
# What no waiting changes.
_LASTING = re.compile(
    r'(?:database|role) "[^"]*" does not exist|no pg_hba.conf entry|is not permitted to log in|'
    r"password authentication failed|no password supplied"
)
_WRONG_PASSWORD = re.compile(r"password authentication failed|no password supplied")


@contextmanager
def translated(domain: str = "") -> Iterator[None]:
    """Turn errors of the driver into ours, with the cause kept."""
    try:
        yield
    except CommandBusError:
        raise
    except PoolEmptyError as error:
        raise DatabaseUnavailableError(
            f"{error} for too long; look for what holds them, or enlarge the pool (pool_size for "
            "callers, worker_pool_size for workers, or the pool that you gave the bus)"
        ) from error
    except OutageError as error:
        raise unavailable(error) from error
    except (PoolTimeout, TooManyRequests) as error:
        raise DatabaseUnavailableError(
            f"no connection was made in time ({error}); repeat the call"
        ) from error
    except UnreadableAnswerError as error:
        cause = error.__cause__
        raise DatabaseError(
            f"an answer of PostgreSQL could not be read ({type(cause).__name__}: "
            f"{redact_text(str(cause), 200)}); please report this"
        ) from error
    except PoolClosed as error:
        raise _for_good("the bus is closed; open a new one") from error
    except psycopg.Error as error:
        raise translate(error, domain) from (None if _is_about_address(error) else error)
    except Exception as error:
        # SQLAlchemy wraps the driver's error, asyncpg has its own; both carry the SQLSTATE. The
        # wrapper is not kept as the cause: its text shows the parameters, and so the payload.
        inner = _innermost(error)
        state = getattr(inner, "sqlstate", None)
        if state is None:
            raise
        raise _from_state(str(state), _detail(inner), str(inner), domain) from inner


def translate(error: psycopg.Error, domain: str = "") -> CommandBusError:
    """Our error for an error of psycopg."""
    state = error.sqlstate
    message = error.diag.message_primary or str(error)
    if isinstance(error, DeadlineError):
        late = DatabaseUnavailableError(
            f"PostgreSQL did not answer: {redact_text(str(error), 300)}. It is not known whether "
            "the statement was carried out; the setting deadline_seconds says how long to wait"
        )
        late.took_long = True
        return late
    if state is None:
        # No SQLSTATE: the connection could not be made, or was cut.
        if isinstance(error, psycopg.OperationalError) or _is_about_address(error):
            return unavailable(error)
        return DatabaseError(redact_text(message))
    hint = f"; {error.diag.message_hint}" if error.diag.message_hint else ""
    if state == READ_ONLY and (server := server_of(error)) is not None:
        message = f"{server}: {message}"
    return _from_state(state, error.diag.message_detail, message + hint, domain)


def unavailable(error: BaseException) -> DatabaseUnavailableError:
    """The database cannot be reached, and why, without the secrets of the address."""
    if _ADDRESS.search(str(error)):
        return _for_good(
            "cannot reach PostgreSQL: the address cannot be read; check COMMANDBUS_DSN or --dsn, "
            "write special characters of a password as %40 for @, %2F for /, and leave out options "
            "after the ? that PostgreSQL does not have"
        )
    text = redact_text(" ".join(str(error).split()), 400)
    reasons = reasons_of(error)
    if any(map(_FULL.search, reasons)):
        return DatabaseUnavailableError(
            f"PostgreSQL has no connection left ({text}); a larger pool would not help: close "
            "connections that nobody needs, raise max_connections, or put a pooler in front"
        )
    if any(map(_READS_ONLY.search, reasons)):
        return _reads_only(text)
    # While one of several is merely down it may be the next that accepts writes, whatever the
    # others say: a standby that is made anew may lack a rule that the others have.
    found = _for_good if all(map(_LASTING.search, reasons)) else DatabaseUnavailableError
    advice = "check that the server runs, and the address (COMMANDBUS_DSN or --dsn)"
    if all(map(_WRONG_PASSWORD.search, reasons)):
        advice = "check the user and the password (COMMANDBUS_DSN or --dsn)"
    return found(f"cannot reach PostgreSQL: {text}; {advice}")


def _for_good(text: str) -> DatabaseUnavailableError:
    """One that does not pass by itself."""
    error = DatabaseUnavailableError(text)
    error.is_temporary = False
    return error


def _reads_only(text: str) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"no server accepts writes ({text}): it is a standby, or made read-only; name all servers "
        "in the address (host=a,b,c), or use that of the primary. target_session_attrs=any in the "
        "address allows a server whose default_transaction_read_only is on"
    )


def _is_about_address(error: psycopg.Error) -> bool:
    return error.sqlstate is None and _ADDRESS.search(str(error)) is not None


def _innermost(error: BaseException) -> BaseException:
    # SQLAlchemy's asyncpg dialect wraps twice; only the innermost error has the DETAIL.
    inner: BaseException = getattr(error, "orig", None) or error
    cause = inner.__cause__
    return cause if cause is not None and hasattr(cause, "sqlstate") else inner


def _detail(error: object) -> str | None:
    diag = getattr(error, "diag", None)
    return getattr(diag, "message_detail", None) or getattr(error, "detail", None)


def _from_state(state: str, detail: str | None, message: str, domain: str) -> CommandBusError:
    if state == "CB001" and detail:
        return DuplicateCommandError(domain, [UUID(text) for text in json.loads(detail)])
    if state == "CB017" and detail:
        held = json.loads(detail)
        return UniqueKeyHeldError(domain, held["unique_key"], UUID(held["command_id"]))
    if state == "CB002" and detail:
        return CommandNotFoundError(domain, UUID(detail))
    if state == "CB004" and detail:
        return BatchNotFoundError(domain, UUID(detail))
    if state == "CB010" and detail:
        return BulkOperationNotFoundError(UUID(detail))
    if state == "CB011" and detail:
        return GovernedTypeError(redact_text(message), json.loads(detail))
    plain = {
        "CB003": InvalidOperationError,
        "CB005": InvalidNameError,
        "CB006": PayloadLostError,
        "CB007": InvalidSettingError,
        "CB008": InvalidOperationError,
        "CB009": InvalidOperationError,
        "CB012": InvalidInputError,
        "CB018": DomainMovedError,
        "CB019": DomainMovingError,
    }.get(state)
    if plain is not None:
        return plain(redact_text(message))
    if state in _NOT_INSTALLED:
        return SchemaMissingError(
            f"the database is not set up for commandbus ({redact_text(message, 120)}); "
            "run `commandbus db init`, or `commandbus db migrate` if an older version set it up"
        )
    if state == READ_ONLY:
        return _reads_only(f"{state}: {redact_text(message, 120)}")
    if state in _AGAIN:
        again = DatabaseUnavailableError(
            f"PostgreSQL could not finish ({state}: {redact_text(message, 200)}); nothing was "
            "written, repeat the call"
        )
        again.took_long = state == "57014"
        return again
    if state in _WRONG_LOGIN or state.startswith(_GONE):
        return unavailable(Exception(message))
    return DatabaseError(f"PostgreSQL refused ({state}): {redact_text(message)}")
