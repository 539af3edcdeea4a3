"""Deadlines: a connection whose server does not answer is closed here, and another takes its place.

`statement_timeout` runs on the server. One that stands still (a frozen machine, storage that hangs)
ends nothing, keeps its connections open, and answers the keep-alives of TCP. So the time of our
statements is watched on this side too.

One watch for all connections of an event loop, not a timer for each statement: it looks at them
four times a second while any of them waits, and counts how often it has seen the same wait. Time in
which this process itself stood still is not counted.

Halfway it asks the server for a sign of life, on a connection of its own that needs no password. If
there is none until the end, all connections to that server are closed: those that are idle would
cost the next caller the same time again. A server that gives a sign is only slow. Then a statement
has all its time, and no more; a *patient* connection, on which statements of the application or
long ones of ours run, goes on waiting.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg.pq import TransactionStatus

from commandbus.database.hosts import note_silence

#: Seconds between two looks.
TICK_SECONDS = 0.25
#: Seconds that a server has to answer, unless a setting says otherwise.
DEADLINE_SECONDS = 10.0
#: Connections to a server that gives signs of life are left after the deadline, a few in
#: this time; then after twice the deadline, four times, and so on. What is left there may wait on:
#: a commit for a standby that is gone waits for ever, and so would that of each new connection.
LEFT_AT_ONCE = 5
LEFT_SECONDS = 300.0
MOST_TIMES = 32
#: Asks a server whether it takes encrypted connections: it answers with one letter, to anybody.
_SIGN_OF_LIFE = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")

_log = logging.getLogger("commandbus.database")


class DeadlineError(psycopg.OperationalError):
    """The server did not answer in time. Nobody knows whether it has done what it was asked."""

    @classmethod
    def of(cls, conn: object, error: BaseException | None) -> DeadlineError | None:
        """What an error means on a connection that was closed from here; else None."""
        why = getattr(conn, "cut", None)
        if why is None or not isinstance(error, psycopg.OperationalError):
            return None
        return cls(f"{why}; the connection was closed")


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a connection waits for an answer."""

    seconds: float = DEADLINE_SECONDS
    #: As long as it takes, if the server gives a sign of life.
    is_patient: bool = False

    @property
    def looks(self) -> int:
        """The same as a number of looks."""
        return max(2, round(self.seconds / TICK_SECONDS))


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection."""

    family: int
    address: Any

    def __str__(self) -> str:
        if self.family == socket.AF_UNIX:
            return str(self.address) or "the local socket"
        return f"{self.address[0]}:{self.address[1]}"


class Watched(Protocol):
    """A connection, seen from here."""

    #: How often its wait was seen; -1: it was seen that it does not wait.
    looks: int
    #: What `looks` is then.
    idle: int
    #: How often it has begun to wait.
    waits: int
    limit: Limit | None
    #: How long it waited when it was closed from here, and for whom.
    cut: str | None

    @property
    def pgconn(self) -> Any:
        """The connection of libpq."""


def peer_of(conn: Watched) -> Peer | None:
    """The other end of a connection; None if there is no connection any more."""
    try:
        with socket.socket(fileno=os.dup(conn.pgconn.socket)) as copy:
            return Peer(copy.family, copy.getpeername())
    except (OSError, psycopg.Error):
        return None


def cut(conn: Watched, why: str) -> None:
    """End a connection: what waits for it gets an error.

    Not by closing it, which is for those who use it: the driver would not notice.
    """
    conn.cut = why
    try:
        with socket.socket(fileno=os.dup(conn.pgconn.socket)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # it has ended by itself


class _Probe:
    """One question for a sign of life, on its way."""

    def __init__(self, peer: Peer, asked_at: int, seen: dict[Watched, int]) -> None:
        self.asked_at = asked_at
        #: How often each connection had begun to wait by then.
        self.seen = seen
        self.task = asyncio.ensure_future(answers(peer))


class Watch:
    """Watches the connections of one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._all: WeakSet[Any] = WeakSet()
        self._ticks = 0
        self._probes: dict[Peer, _Probe] = {}
        #: When servers gave their last sign of life, as a number of ticks.
        self._alive_at: dict[Peer, int] = {}
        self._peers: WeakKeyDictionary[Any, Peer] = WeakKeyDictionary()
        self.is_ticking = False

    def add(self, conn: Watched) -> None:
        """Watch this one from now on."""
        self._all.add(conn)

    def remove(self, conn: Watched) -> None:
        """Not any more."""
        self._all.discard(conn)

    def begin(self) -> None:
        """Something waits: look at it, again and again."""
        if not self.is_ticking:
            self.is_ticking = True
            self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self.is_ticking = False
        self._ticks += 1
        waiting = [conn for conn in tuple(self._all) if conn.looks >= 0]
        if not waiting:
            self._stand_down()
            return
        self.begin()
        self._hear()
        for conn in waiting:
            limit = conn.limit
            # Answered; or it only listens, or is lost.
            if limit is None or conn.pgconn.transaction_status != TransactionStatus.ACTIVE:
                conn.looks = conn.idle
                continue
            conn.looks += 1
            if conn.looks * 2 >= limit.looks:
                self._consider(conn, limit)

    def _consider(self, conn: Watched, limit: Limit) -> None:
        """It has waited for half of its time, or longer."""
        peer = self._peer(conn)
        if peer is None:
            return
        since_half = conn.looks - limit.looks // 2
        if self._ticks - self._alive_at.get(peer, -limit.looks) <= since_half:
            if limit.is_patient:
                conn.looks = 0  # asked again, after the same time
            elif conn.looks > limit.looks * (times := times_for(peer)):
                why = f"no answer of {peer} in {limit.seconds * times:g} s"
                _note_left(peer)
                _log.warning("%s; the connection is closed, and another takes its place", why)
                cut(conn, why)
            return
        probe = self._probes.get(peer)
        if probe is None:
            seen = {each: each.waits for each in self._all}
            probe = self._probes[peer] = _Probe(peer, self._ticks, seen)
        if conn.looks > limit.looks and (self._ticks - probe.asked_at) * 2 >= limit.looks:
            self._leave(peer, limit)

    def _hear(self) -> None:
        for peer, probe in tuple(self._probes.items()):
            if probe.task.done() or self._has_answered(peer, probe):
                self._alive_at[peer] = self._ticks
                del self._probes[peer]
                probe.task.cancel()

    def _has_answered(self, peer: Peer, probe: _Probe) -> bool:
        """Whether the server has answered a statement since it was asked."""
        return any(
            each.looks < 0
            and each.waits > probe.seen.get(each, each.waits)
            and each.pgconn.transaction_status != TransactionStatus.UNKNOWN
            and self._peer(each) == peer
            for each in self._all
        )

    def _peer(self, conn: Watched) -> Peer | None:
        peer = self._peers.get(conn)
        if peer is None and (peer := peer_of(conn)) is not None:
            self._peers[conn] = peer
        return peer

    def _leave(self, peer: Peer, limit: Limit) -> None:
        """No sign of life: close all connections to a server."""
        self._probes.pop(peer).task.cancel()
        ours = [each for each in self._all if self._peer(each) == peer]
        why = f"no answer of {peer} in {limit.seconds:g} s, and none to a new connection"
        _log.warning("%s; all %d connections to it are closed", why, len(ours))
        note_silence(str(peer))
        for each in ours:
            cut(each, why)

    def _stand_down(self) -> None:
        for probe in self._probes.values():
            probe.task.cancel()
        self._probes.clear()
        self._alive_at.clear()


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, Watch] = WeakKeyDictionary()


def watch_here() -> Watch:
    """The watch of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _watches.get(loop)
    if found is None:
        found = _watches[loop] = Watch()
    return found


#: When connections to servers were left that gave signs of life.
_left_at: dict[Peer, deque[float]] = {}


def times_for(peer: Peer) -> int:
    """How many times the deadline a statement waits for a server that gives signs of life."""
    left_at = _left_at.get(peer, deque())
    while left_at and left_at[0] < time.monotonic() - LEFT_SECONDS:
        left_at.popleft()
    return min(MOST_TIMES, 1 << len(left_at) // LEFT_AT_ONCE)


def _note_left(peer: Peer) -> None:
    _left_at.setdefault(peer, deque()).append(time.monotonic())


class Guest:
    """A connection of a pool that the application owns, while one of our statements runs on it.

    It does not tell that it waits, so it is looked at all the time.
    """

    idle = 0

    def __init__(self, conn: psycopg.AsyncConnection[Any], limit: Limit) -> None:
        self._conn = conn
        self.limit: Limit | None = limit
        self.looks = 0
        self.waits = 0
        self.cut: str | None = None

    @property
    def pgconn(self) -> Any:
        """The connection of libpq."""
        return self._conn.pgconn


# -- signs of life


async def answers(peer: Peer) -> bool:
    """True as soon as a server answers anything at all; a frozen one never does."""
    writer: asyncio.StreamWriter | None = None
    try:
        if peer.family == socket.AF_UNIX:
            reader, writer = await asyncio.open_unix_connection(peer.address)
        else:
            reader, writer = await asyncio.open_connection(*peer.address[:2])
        writer.write(_SIGN_OF_LIFE)
        await reader.read(1)
    except OSError:
        pass  # it refuses: nothing that is frozen does
    finally:
        if writer is not None:
            writer.close()
    return True


def answers_within(peer: Peer, seconds: float) -> bool:
    """The same for a thread that waits."""
    try:
        with socket.socket(peer.family, socket.SOCK_STREAM) as sock:
            sock.settimeout(seconds)
            sock.connect(peer.address)
            sock.sendall(_SIGN_OF_LIFE)
            sock.recv(1)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


# -- threads that wait


def limited(gen: Generator[Any, Any, Any], conn: Watched) -> Generator[Any, Any, Any]:
    """The same dialogue with libpq, for a connection that is not asynchronous, with a deadline.

    The driver comes by ten times a second while nothing can be read or written.
    """
    limit = conn.limit
    if limit is None:
        return (yield from gen)
    begun, is_alive = time.monotonic(), False
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            waited = time.monotonic() - begun
            if not ready and waited >= limit.seconds / 2 and not is_alive:
                is_alive = _gives_sign(conn, limit.seconds / 2)
                if not is_alive:
                    raise _left(conn, limit, ", and none to a new connection")
                if limit.is_patient:
                    begun, is_alive = time.monotonic(), False  # asked again, after the same time
            elif not ready and waited >= limit.seconds and _may_leave(conn, limit, waited):
                raise _left(conn, limit, "")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def _gives_sign(conn: Watched, seconds: float) -> bool:
    peer = peer_of(conn)
    if peer is None or answers_within(peer, seconds):
        return True
    if select.select([conn.pgconn.socket], [], [], 0)[0]:
        return True  # the answer itself has come meanwhile
    note_silence(str(peer))
    return False


def _may_leave(conn: Watched, limit: Limit, waited: float) -> bool:
    peer = peer_of(conn)
    if peer is None:
        return True
    if waited < limit.seconds * times_for(peer):
        return False
    _note_left(peer)
    return True


def _left(conn: Watched, limit: Limit, more: str) -> DeadlineError:
    why = f"no answer in {limit.seconds:g} s{more}"
    _log.warning("%s; the connection of a thread is closed", why)
    conn.pgconn.finish()
    return DeadlineError(f"{why}; the connection was closed")
