"""Serving: a socket, uvicorn on it, a graceful end. The program that starts it handles signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from commandbus.errors import InvalidSettingError
from commandbus.http.platform import Platform
from commandbus.http.settings import HttpSettings

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def bind(host: str, port: int) -> socket.socket:
    """Take the address, so that a mistake is reported before anything else is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio sets TCP_NODELAY only then, and a response in two packets
    # would wait 40 ms for the client's acknowledgement.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise InvalidSettingError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with "
            "--host or --port"
        ) from None
    return sock


class HttpServer:
    """Serves an app until it is told to stop."""

    def __init__(self, app: FastAPI, settings: HttpSettings, sock: socket.socket) -> None:
        self._sock = sock
        self._app = app
        self._server = _Server(_config(app, settings))

    @property
    def url(self) -> str:
        """The address under which it can be reached."""
        host, port = self._sock.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self, on_started: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`; requests that have arrived by then are still served."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._sock]))
        try:
            while not self._server.started and not serving.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # uvicorn has no event for it
            if self._server.started:
                on_started()
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.abort()
            await serving
            raise

    def stop(self) -> None:
        """Accept no more requests, finish those that are being served, then end."""
        platform: Platform = self._app.state.commandbus
        platform.polls.close()
        self._server.should_exit = True

    def abort(self) -> None:
        """End at once; requests that are being served are cut off."""
        self._server.should_exit = self._server.force_exit = True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program: workers may have to stop on them too."""
        yield


def _config(app: FastAPI, settings: HttpSettings) -> uvicorn.Config:
    class Protocol(PatientProtocol):
        deadline_seconds = settings.receive_timeout_seconds

    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",  # the app owns nothing that must be opened
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies or None,
        timeout_keep_alive=max(1, round(settings.keep_alive_seconds)),
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_seconds)),
        h11_max_incomplete_event_size=settings.max_header_bytes,
    )


class PatientProtocol(H11Protocol):
    """uvicorn waits for the headers of a request without limit; this one closes the connection
    after `deadline_seconds`.
    """

    deadline_seconds = 10.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: the headers of its first request must arrive before the deadline."""
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """A part of a request: its headers must be complete before the deadline."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """A part of the next request may have arrived with this one."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: there is nothing to wait for."""
        self._disarm()
        super().connection_lost(exc)

    def _watch(self) -> None:
        is_partial = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if is_partial:
            self._arm()
        else:
            self._disarm()

    def _arm(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.deadline_seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()
