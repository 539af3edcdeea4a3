"""Connections that we open: with a deadline, and to whichever server accepts writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

import psycopg

from commandbus.database.deadlines import Limit, Watch, limited, watch_here
from commandbus.database.hosts import (
    all_failed,
    attempts,
    forget_failure,
    hosts_of,
    note_failure,
    note_good,
    note_silence,
)

Made = TypeVar("Made")

#: Pause before the servers of an address are tried again, in seconds.
AGAIN_SECONDS = 0.2


def _own(conn: Made, kind: type[Made]) -> Made:
    """The same connection, as one of ours.

    Tools that wrap psycopg's `connect` and take that back may leave a method that makes connections
    of its own class, whichever it is called for. No watch could look at such a one.
    """
    if type(conn) in {psycopg.AsyncConnection, psycopg.Connection}:
        conn.__class__ = kind
    return conn


class OurConnection(psycopg.AsyncConnection[Any]):
    """An asynchronous one."""

    #: Behind a pooler whose sessions begin transactions in an unusual way.
    begins_itself = False
    #: statement_timeout for what may take long; None: the session has no other.
    long_timeout: str | None = None
    # See deadlines.Watched.
    limit: Limit | None = Limit()
    looks = idle = -1
    waits = 0
    cut: str | None = None
    _watch: Watch | None = None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Wait for an answer of the server, under the eyes of the watch.

        No coroutine of its own, which each statement would pay for. The watch sees by itself when
        the wait is over.
        """
        watch = self._watch
        if watch is None:
            watch = self._watch = watch_here()
            watch.add(self)
        self.looks = 0
        self.waits += 1
        if not watch.is_ticking:
            watch.begin()
        return super().wait(gen, *args, **kwargs)

    @classmethod
    async def connect(  # type: ignore[override]  # with an argument of our own
        cls, conninfo: str = "", *, leader_seconds: float = 0.0, **kwargs: Any
    ) -> Self:
        """Connect to the server, or to the first of several that takes us.

        If none of several does, they are tried again for `leader_seconds`: soon one of them leads.
        """
        end = time.monotonic() + leader_seconds
        while True:
            try:
                conn = await cls._connect(conninfo, kwargs)
            except psycopg.Error as error:
                note_failure(conninfo, error)
                if time.monotonic() >= end or len(hosts_of(conninfo, kwargs)) == 1:
                    raise
            else:
                forget_failure(conninfo)
                # From now on, also if it is idle: it is closed with the others to its server.
                conn._watch = watch_here()
                conn._watch.add(conn)
                return conn
            await asyncio.sleep(AGAIN_SECONDS)

    @classmethod
    async def _connect(cls, conninfo: str, kwargs: dict[str, Any]) -> Self:
        errors = []
        for host in attempts(conninfo, kwargs):
            try:
                conn = _own(await super().connect(conninfo, **{**kwargs, **host.parts}), cls)
            except psycopg.OperationalError as error:
                if isinstance(error, psycopg.errors.ConnectionTimeout):
                    note_silence(str(host))
                errors.append((host, error))
            else:
                note_good(conninfo, kwargs, host, conn.info.hostaddr)
                return conn
        if errors:
            raise all_failed(errors)
        return _own(await super().connect(conninfo, **kwargs), cls)


class OurBlockingConnection(psycopg.Connection[Any]):
    """One for a thread that waits."""

    limit: Limit | None = Limit()
    looks = idle = -1
    waits = 0
    cut: str | None = None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for an answer of the server, but not for ever."""
        return super().wait(limited(gen, self), *args, **kwargs)

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        """Connect to the server, or to the first of several that takes us."""
        errors = []
        for host in attempts(conninfo, kwargs):
            try:
                conn = _own(super().connect(conninfo, **{**kwargs, **host.parts}), cls)
            except psycopg.OperationalError as error:
                if isinstance(error, psycopg.errors.ConnectionTimeout):
                    note_silence(str(host))
                errors.append((host, error))
            else:
                note_good(conninfo, kwargs, host, conn.info.hostaddr)
                return conn
        if errors:
            raise all_failed(errors)
        return _own(super().connect(conninfo, **kwargs), cls)
