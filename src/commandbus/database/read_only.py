"""Servers that only read by now: a former primary, or one whose provider stopped its writes.

They may keep their connections open. So what a statement is told there (25006) is taken for a lost
connection: it is closed from here, and the next one is to a server that accepts writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg

#: The SQLSTATE of a write on a server, or in a transaction, that only reads.
READ_ONLY = "25006"


def states_of(error: BaseException | None) -> Iterator[str]:
    """The SQLSTATEs of an error, and of those that it came from."""
    while error is not None:
        state = getattr(error, "sqlstate", None)
        if isinstance(state, str):
            yield state
        error = error.__cause__ or error.__context__


def reads_only(error: BaseException | None) -> bool:
    """Whether an error says that a write met a server that only reads."""
    return any(state == READ_ONLY for state in states_of(error))


def note_server(error: BaseException, info: psycopg.ConnectionInfo) -> None:
    """Remember in an error which server it is about."""
    with suppress(psycopg.Error, AttributeError):
        vars(error)["server"] = f"{info.host or info.hostaddr}:{info.port}"


def server_of(error: BaseException) -> str | None:
    """The server that an error is about, if it was remembered."""
    return vars(error).get("server")


def leave_reader(driver: Any, error: BaseException) -> None:
    """Close a connection of a driver if that is what its error says, and the server kept it open.

    In the middle of its transaction, and so by its owner: afterwards somebody else may have it.
    """
    if not reads_only(error):
        return
    with suppress(Exception):  # whatever a driver has against it: it is closed already
        if isinstance(driver, psycopg.AsyncConnection | psycopg.Connection):
            driver.pgconn.finish()
        elif hasattr(driver, "terminate"):
            driver.terminate()
