"""What PostgreSQL says, in our words."""

from __future__ import annotations

import re
from importlib.resources import files
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from commandbus.database import hosts
from commandbus.database.connections import OutageError, PoolEmptyError
from commandbus.database.hosts import Host, all_failed
from commandbus.database.sessions import UnreadableAnswerError
from commandbus.database.sqlstate import translate, translated, unavailable
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
    LeaseLostError,
    PayloadLostError,
    SchemaMissingError,
    UniqueKeyHeldError,
)
from commandbus.privacy.redaction import redact_text

ID = UUID(int=5)
CANARY = "cAnArY-31"

#: SQLSTATE of ours -> class, and the DETAIL that the SQL functions give with it.
OURS: dict[str, tuple[type[CommandBusError], str | None]] = {
    "CB001": (DuplicateCommandError, f'["{ID}"]'),
    "CB002": (CommandNotFoundError, str(ID)),
    "CB003": (InvalidOperationError, str(ID)),
    "CB004": (BatchNotFoundError, str(ID)),
    "CB005": (InvalidNameError, None),
    "CB006": (PayloadLostError, str(ID)),
    "CB007": (InvalidSettingError, None),
    "CB008": (InvalidOperationError, None),
    "CB009": (InvalidOperationError, None),
    "CB010": (BulkOperationNotFoundError, str(ID)),
    "CB011": (GovernedTypeError, '["ORDERS"]'),
    "CB012": (InvalidInputError, None),
    "CB017": (UniqueKeyHeldError, f'{{"unique_key": "k", "command_id": "{ID}"}}'),
    "CB018": (DomainMovedError, None),
    "CB019": (DomainMovingError, None),
}


class AsyncpgError(Exception):
    """An error as asyncpg has it."""

    def __init__(self, sqlstate: str, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail


class WrappedError(Exception):
    """An error as SQLAlchemy wraps it: with the parameters in its text."""

    def __init__(self, orig: BaseException) -> None:
        super().__init__(f"{orig} [parameters: {CANARY}]")
        self.orig = orig


def caught(error: BaseException, domain: str = "payments") -> CommandBusError:
    with pytest.raises(CommandBusError) as info, translated(domain):  # noqa: PT011  (any of them)
        raise error
    return info.value


@pytest.mark.parametrize("state", OURS)
def test_a_refusal_of_our_functions_becomes_its_class(state: str) -> None:
    kind, detail = OURS[state]
    error = caught(AsyncpgError(state, "refused", detail))
    assert type(error) is kind


def test_every_sqlstate_that_the_sql_raises_is_in_the_table_and_none_else() -> None:
    text = "".join(
        entry.read_text()
        for entry in files("commandbus").joinpath("database/sql/functions").iterdir()
    )
    assert set(re.findall(r"errcode = '(\w+)'", text)) == set(OURS)


def test_a_refusal_carries_domain_and_id() -> None:
    duplicate = caught(AsyncpgError("CB001", "x", f'["{ID}", "{UUID(int=6)}"]'))
    assert isinstance(duplicate, DuplicateCommandError)
    assert duplicate.command_ids == (ID, UUID(int=6))
    assert duplicate.domain == "payments"
    missing = caught(AsyncpgError("CB002", "x", str(ID)))
    assert isinstance(missing, CommandNotFoundError)
    assert missing.command_id == ID


def test_the_detail_is_found_through_the_wrappings_of_sqlalchemy() -> None:
    adapted = AsyncpgError("CB004", "no batch")
    adapted.__cause__ = AsyncpgError("CB004", "no batch", str(ID))
    error = caught(WrappedError(adapted))
    assert isinstance(error, BatchNotFoundError)
    assert error.batch_id == ID


def test_a_wrapped_error_leaves_its_parameters_behind() -> None:
    error = caught(WrappedError(AsyncpgError("22P02", "invalid input")))
    assert CANARY not in str(error)
    cause = error.__cause__
    while cause is not None:
        assert CANARY not in str(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    assert error.__suppress_context__


@pytest.mark.parametrize(
    "error",
    [pg.UndefinedFunction("x"), pg.UndefinedTable("x"), pg.InvalidSchemaName("x"),
     AsyncpgError("42883", "x")],
)  # fmt: skip
def test_a_missing_object_says_to_migrate(error: Exception) -> None:
    found = caught(error)
    assert type(found) is SchemaMissingError
    assert "commandbus db migrate" in str(found)


@pytest.mark.parametrize(
    "error",
    [
        pg.InvalidPassword("password authentication failed for user"),
        pg.InvalidAuthorizationSpecification("x"),
        pg.ConnectionFailure("x"),
        pg.AdminShutdown("x"),
        pg.CannotConnectNow("x"),
        pg.TooManyConnections("x"),
        psycopg.OperationalError("connection refused"),
        AsyncpgError("57P01", "x"),
        AsyncpgError("25P03", "x"),
    ],
)
def test_a_database_that_is_not_there_is_unavailable(error: Exception) -> None:
    found = caught(error)
    assert type(found) is DatabaseUnavailableError
    assert "COMMANDBUS_DSN" in str(found)
    assert found.__cause__ is error


def test_a_wrong_password_says_to_check_the_password() -> None:
    error = unavailable(psycopg.OperationalError('password authentication failed for user "app"'))
    assert "check the user and the password" in str(error)
    error = unavailable(psycopg.OperationalError("fe_sendauth: no password supplied"))
    assert "check the user and the password" in str(error)
    assert "check that the server runs" in str(unavailable(psycopg.OperationalError("refused")))


def _failed(*reasons: str) -> psycopg.OperationalError:
    return all_failed(
        [(Host(f"db{n}", None, None), psycopg.OperationalError(r)) for n, r in enumerate(reasons)]
    )


REFUSED = 'connection to server at "10.0.0.1", port 5432 failed: Connection refused'
NO_RULE = 'connection to server at "10.0.0.2", port 5432 failed: FATAL:  no pg_hba.conf entry for x'
NO_PASSWORD = 'connection to server at "10.0.0.3", port 5432 failed: FATAL:  password authentication failed for user "a"'  # noqa: E501
OF_DRIVER = "Multiple connection attempts failed. All failures were:"


@pytest.mark.parametrize(
    ("error", "is_temporary"),
    [
        (_failed(REFUSED, NO_RULE), True),
        (_failed(NO_RULE, REFUSED), True),
        (_failed(REFUSED, NO_PASSWORD), True),
        (_failed(NO_RULE, NO_PASSWORD), False),
        (_failed(NO_PASSWORD, NO_PASSWORD), False),
        # The driver has tried the addresses of one name, libpq the servers of a service.
        (_failed(NO_RULE, f"{NO_RULE}\n{OF_DRIVER}\n- db: {REFUSED}\n- db: {NO_RULE}"), True),
        (psycopg.OperationalError(f"{NO_RULE}\n{OF_DRIVER}\n- {REFUSED}\n- {NO_RULE}"), True),
        (psycopg.OperationalError(f"{NO_RULE}\n{OF_DRIVER}\n- {NO_RULE}\n- {NO_RULE}"), False),
        (psycopg.OperationalError(f"{REFUSED}\n{NO_RULE}"), True),
        (psycopg.OperationalError(f"{NO_RULE}\n{NO_RULE}, no encryption"), False),
        (psycopg.OperationalError(NO_RULE), False),
        (psycopg.OperationalError(REFUSED), True),
    ],
)
def test_an_outage_lasts_only_if_no_server_may_come_back(
    error: psycopg.Error, is_temporary: bool
) -> None:
    assert unavailable(error).is_temporary is is_temporary


def test_a_pool_without_a_connection_judges_each_server_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(hosts, "_failures", {})
    hosts.note_failure("host=a,b", _failed(REFUSED, NO_RULE))
    why = hosts.failure_since("host=a,b", 0.0)
    assert why is not None
    found = caught(OutageError(why))
    assert isinstance(found, DatabaseUnavailableError)
    assert found.is_temporary
    assert "none of 2 servers" in str(found)
    assert hosts.failure_since("host=c", 0.0) is None


@pytest.mark.parametrize(
    "text",
    [
        f"connection to postgresql://app:{CANARY}@db failed",
        f"failed to resolve host '{CANARY}@db'",
        f'could not translate host name "{CANARY}@db" to address',
    ],
)
def test_what_makes_the_database_unavailable_is_told_without_secrets(text: str) -> None:
    assert CANARY not in str(unavailable(psycopg.OperationalError(text)))


@pytest.mark.parametrize(
    "text",
    [
        f'missing "=" after "{CANARY}" in connection info string',
        f'invalid port number: "{CANARY}"',
        f'invalid integer value "{CANARY}" for connection option "port"',
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_repeated(text: str) -> None:
    found = caught(psycopg.ProgrammingError(text))
    assert type(found) is DatabaseUnavailableError
    assert CANARY not in str(found)
    assert "COMMANDBUS_DSN" in str(found)


def test_a_pool_that_is_empty_says_to_enlarge_it() -> None:
    found = caught(PoolEmptyError("callers", 10))
    assert type(found) is DatabaseUnavailableError
    assert "all 10 connections of the pool callers" in str(found)
    assert "enlarge the pool" in str(found)


@pytest.mark.parametrize("error", [PoolTimeout("x"), TooManyRequests("x")])
def test_a_pool_that_got_no_connection_does_not_ask_for_a_larger_one(error: Exception) -> None:
    found = caught(error)
    assert type(found) is DatabaseUnavailableError
    assert "enlarge" not in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "connection failed: FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'FATAL:  too many connections for role "app"',
        "FATAL:  no more connections allowed (max_client_conn)",
    ],
)
def test_a_server_that_is_full_says_so_and_that_a_larger_pool_would_not_help(text: str) -> None:
    found = caught(psycopg.OperationalError(text))
    assert type(found) is DatabaseUnavailableError
    assert "no connection left" in str(found)
    assert "max_connections" in str(found)


def test_a_server_that_only_reads_says_where_to_write() -> None:
    found = caught(psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT"))
    assert type(found) is DatabaseUnavailableError
    assert "standby" in str(found)
    assert "target_session_attrs=any" in str(found)


def test_an_answer_that_cannot_be_read_is_not_a_bare_error_of_the_driver() -> None:
    error = UnreadableAnswerError(None)
    error.__cause__ = NotImplementedError("can't parse timestamptz")
    found = caught(error)
    assert type(found) is DatabaseError
    assert "NotImplementedError: can't parse timestamptz" in str(found)


def test_a_closed_pool_says_to_open_a_new_bus() -> None:
    found = caught(PoolClosed("x"))
    assert type(found) is DatabaseUnavailableError
    assert "open a new one" in str(found)


def test_any_other_refusal_shows_the_sqlstate_and_a_redacted_text() -> None:
    found = caught(AsyncpgError("22012", f"division by zero, password={CANARY}"))
    assert type(found) is DatabaseError
    assert "22012" in str(found)
    assert CANARY not in str(found)


def test_an_error_without_sqlstate_that_is_no_lost_connection_is_a_database_error() -> None:
    found = translate(psycopg.DataError(f"cannot dump, token={CANARY}"))
    assert type(found) is DatabaseError
    assert CANARY not in str(found)


def test_our_own_errors_pass_untouched() -> None:
    error = LeaseLostError("gone")
    assert caught(error) is error


@pytest.mark.parametrize("error", [KeyError("x"), SimpleNamespace, RuntimeError("y")])
def test_errors_that_are_not_of_a_database_pass_untouched(error: Any) -> None:
    raised = error if isinstance(error, Exception) else AssertionError("z")
    with pytest.raises(type(raised)) as info, translated():
        raise raised
    assert info.value is raised


@pytest.mark.parametrize(
    "error",
    [
        pg.DeadlockDetected("x"),
        pg.SerializationFailure("x"),
        pg.LockNotAvailable("x"),
        pg.QueryCanceled("canceling statement due to statement timeout"),
    ],
)
def test_what_may_work_the_next_time_says_so(error: Exception) -> None:
    found = caught(error)
    assert type(found) is DatabaseUnavailableError
    assert "repeat the call" in str(found)


@pytest.mark.parametrize(
    "reason",
    ["connection refused", "password authentication failed for user", "invalid connection option"],
)
def test_the_advice_about_the_address_is_not_taken_for_a_secret(reason: str) -> None:
    said = str(unavailable(psycopg.OperationalError(reason)))
    assert "--dsn" in said
    assert redact_text(said, 2_000) == said  # as the command line prints it
