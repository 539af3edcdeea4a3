"""Connections: how many there may be, who has to go if there are too many, and slow ends.

A connection that serves a caller stays. What only waits, was refused, or never said who it is, can
be closed at any time: of the address that has most of it, the oldest first. So a new client
gets a chance to say who it is, even if a thousand others do nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import time
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from commandbus.http.context import info_of
from commandbus.http.peers import network_of

#: Bytes of further requests that a client may send while its first is served.
MAX_PIPELINED = 16 * 1024
#: Seconds between two looks at connections that do not end.
SWEEP_SECONDS = 1.0

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connections:
    """All connections of one server, the oldest first."""

    def __init__(self, limit: int, trusted_proxies: str = "", end_seconds: float = 30.0) -> None:
        self._limit = limit
        self._end_seconds = end_seconds
        self._trusts_all, self._trusted = _networks(trusted_proxies)
        self._open: dict[PatientProtocol, str] = {}
        #: Since when a connection has been closing.
        self._closing: dict[PatientProtocol, float] = {}

    def opened(self, connection: PatientProtocol) -> None:
        """Take a new connection in, at the cost of others if there are too many."""
        address = connection.client[0] if connection.client else "unknown"
        if self.is_proxy(address):
            return  # many clients stand behind it, and it has limits of its own
        self._open[connection] = network_of(address)
        if len(self._open) > self._limit:
            self._make_room()

    def closed(self, connection: PatientProtocol) -> None:
        """A connection is gone."""
        self._open.pop(connection, None)
        self._closing.pop(connection, None)

    def _make_room(self) -> None:
        idle = [each for each in self._open if not each.serves_caller]
        if not idle:
            idle = [next(reversed(self._open))]  # all others are at work
        most, _ = Counter(self._open[each] for each in idle).most_common(1)[0]
        # Some at once, or each new connection would cost a look at all others.
        excess = len(self._open) - self._limit + self._limit // 50
        for each in [each for each in idle if self._open[each] == most][:excess]:
            self._open.pop(each)
            each.transport.abort()

    async def sweep(self) -> None:
        """End connections whose clients do not take what was sent before the end."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for each in list(self._open):
                if not each.transport.is_closing():
                    continue
                if now - self._closing.setdefault(each, now) > self._end_seconds:
                    each.transport.abort()

    def is_proxy(self, address: str) -> bool:
        """Whether the service trusts what comes from this address."""
        if self._trusts_all:
            return True
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._trusted)


def _networks(text: str) -> tuple[bool, list[Any]]:
    """The addresses and networks in a list that is separated by commas, and whether it is `*`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found = []
    for part in parts:
        try:
            found.append(ipaddress.ip_network(part, strict=False))
        except ValueError:
            continue  # a name, or the path of a socket: no connection comes from there
    return "*" in parts, found


class PatientProtocol(H11Protocol):
    """uvicorn waits for the headers of a request without limit; this one closes the connection
    after `deadline_seconds`. It also sees a client go that has sent more than one request.
    """

    deadline_seconds = 10.0
    register = Connections(limit=1_000_000)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: the headers of its first request must arrive before the deadline."""
        super().connection_made(transport)
        self._arm()
        self.register.opened(self)

    @property
    def serves_caller(self) -> bool:
        """Whether the last request is, or was, one of a caller who was let in."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        info = None if cycle is None else info_of(cycle.scope)
        return info is not None and info.is_admitted and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """A part of a request: its headers must be complete before the deadline."""
        super().data_received(data)
        self._watch()
        if self.flow.read_paused and self.conn.their_state is h11.DONE:
            # uvicorn stops reading when a second request comes before the first is answered. Then
            # the end of the connection is not seen either, and a long poll would wait for nobody.
            if len(self.conn.trailing_data[0]) > MAX_PIPELINED:
                self.transport.abort()
            else:
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """A part of the next request may have arrived with this one."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: there is nothing to wait for."""
        self._disarm()
        self.register.closed(self)
        super().connection_lost(exc)

    def _watch(self) -> None:
        is_partial = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if is_partial:
            self._arm()
        else:
            self._disarm()

    def _arm(self) -> None:
        if self._head_timer is None:
            # Not all at the same moment: a thousand that came together would come again together.
            seconds = self.deadline_seconds * random.uniform(0.75, 1.0)  # noqa: S311  (no secret)
            self._head_timer = self.loop.call_later(seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()
