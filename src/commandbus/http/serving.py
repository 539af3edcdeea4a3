"""Serving: a socket, uvicorn on it, a graceful end. The program that starts it handles signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from commandbus.errors import InvalidSettingError
from commandbus.http.connections import Connections, PatientProtocol
from commandbus.http.peers import HostOfProxies, PrefixOfProxies
from commandbus.http.platform import Platform
from commandbus.http.settings import HttpSettings

#: Connections that are taken in one go: each costs some work, and other requests wait for it.
ACCEPTED_AT_ONCE = 16
#: Connections that the operating system keeps until they are taken.
BACKLOG = 2_048
#: Files that a process needs for other things than connections of clients.
OTHER_FILES = 200

_log = logging.getLogger("commandbus.http")


def bind(host: str, port: int) -> socket.socket:
    """Take the address, so that a mistake is reported before anything else is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio sets TCP_NODELAY only then, and a response in two packets
    # would wait 40 ms for the client's acknowledgement.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _probe_peers(sock)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise InvalidSettingError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with "
            "--host or --port"
        ) from None
    return sock


def _probe_peers(sock: socket.socket) -> None:
    """Notice clients that vanished without a word. Connections take it over from their listener."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class HttpServer:
    """Serves an app until it is told to stop."""

    def __init__(self, app: FastAPI, settings: HttpSettings, sock: socket.socket) -> None:
        self._sock = sock
        self._app = app
        self._connections = Connections(
            _affordable(settings.max_connections), settings.trusted_proxies,
            settings.send_timeout_seconds,
        )  # fmt: skip
        known: ASGIApp = app
        if settings.trusted_proxies:
            inner: Any = app  # the types of uvicorn's messages are narrower than Starlette's
            proxied: Any = ProxyHeadersMiddleware(inner, trusted_hosts=settings.trusted_proxies)
            named = HostOfProxies(proxied, self._connections.is_proxy)
            known = PrefixOfProxies(named, self._connections.is_proxy)
        self._server = _Server(_config(known, settings, self._connections))

    @property
    def url(self) -> str:
        """The address under which it can be reached."""
        host, port = self._sock.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def console_url(self) -> str | None:
        """The address of the console; None: there is none."""
        if not hasattr(self._app.state, "commandbus_console"):
            return None
        platform: Platform = self._app.state.commandbus
        return f"{self.url}{platform.prefix}/console/"

    async def run(self, on_started: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`; requests that have arrived by then are still served.

        Fires schedules meanwhile, and ends what is over: that goes on as long as any worker or
        service lives.
        """
        platform: Platform = self._app.state.commandbus
        async with platform.bus.schedules.firing():
            await self._serve(on_started)

    async def _serve(self, on_started: Callable[[], None]) -> None:
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._sock]))
        sweeping = asyncio.ensure_future(self._connections.sweep())
        try:
            while not self._server.started and not serving.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # uvicorn has no event for it
            if self._server.started:
                self._sock.listen(BACKLOG)  # more than asyncio takes in one go
                on_started()
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.abort()
            await serving
            raise
        finally:
            sweeping.cancel()

    def stop(self) -> None:
        """Accept no more requests, finish those that are being served, then end."""
        platform: Platform = self._app.state.commandbus
        platform.polls.close()
        console = getattr(self._app.state, "commandbus_console", None)
        if console is not None:
            console.streams.close()
        self._server.should_exit = True

    def abort(self) -> None:
        """End at once; requests that are being served are cut off."""
        self._server.should_exit = self._server.force_exit = True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program: workers may have to stop on them too."""
        yield


def _affordable(wanted: int) -> int:
    """As many connections as the process may have files, which it asks to have more of."""
    try:
        import resource  # noqa: PLC0415  (not on every system)
    except ModuleNotFoundError:  # pragma: no cover
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft < needed:
            _log.warning(
                "this process may open %d files, too few for %d connections (max_connections)",
                soft, wanted,
            )  # fmt: skip
            return max(2, soft - OTHER_FILES)
    return wanted


def _config(app: ASGIApp, settings: HttpSettings, connections: Connections) -> uvicorn.Config:
    class Protocol(PatientProtocol):
        deadline_seconds = settings.receive_timeout_seconds
        register = connections

    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",  # the app owns nothing that must be opened
        log_config=None,
        access_log=False,
        backlog=ACCEPTED_AT_ONCE,
        server_header=False,
        proxy_headers=False,  # they are read, of trusted proxies, by what is around the app
        timeout_keep_alive=max(1, round(settings.keep_alive_seconds)),
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_seconds)),
        h11_max_incomplete_event_size=settings.max_header_bytes,
    )
