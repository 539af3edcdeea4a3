"""Who is at the other end of a connection."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from commandbus.http.problems import Kind, Problem

#: Each of these says that somebody else stands behind the one who connected.
_FORWARDED = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host"}
    | {b"x-forwarded-proto", b"x-forwarded-port", b"x-forwarded-server", b"x-client-ip"}
    | {b"x-forwarded-prefix"}
)
#: Parts of a path, none of them empty or made of dots: `//host` would lead elsewhere.
_PREFIX = re.compile(rb"(?:/(?!\.+(?:/|\Z))[A-Za-z0-9._~-]+)+\Z")
MAX_PREFIX = 200


def address_of(scope: Scope) -> str:
    """The address that a request is charged to; of IPv6 the network, because a client that
    has one address of it has all of them.
    """
    client = scope.get("client")
    return network_of(client[0]) if client else "unknown"


def network_of(address: str) -> str:
    """An IPv4 address as it is; of an IPv6 address its /64."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))


def is_local(scope: Scope) -> bool:
    """Whether the request comes from a process on this machine, as far as can be seen.

    By the address of the peer; a header alone would be the client's word. None, which a Unix
    socket has, is not local: what connects there is nearly always a proxy for others. So is
    a request that was forwarded, whatever address a proxy has put in.
    """
    client = scope.get("client")
    if not client or any(name in _FORWARDED for name, _ in scope["headers"]):
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@dataclass(frozen=True, slots=True)
class HostOfProxies:
    """Pure ASGI. Only a trusted proxy says under which name the browser came. It stands before the
    layer that puts the client's address in place of the proxy's: then nobody knows any more.
    """

    app: ASGIApp
    is_proxy: Callable[[str], bool]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Empty the header of anybody else. It stays: it says that the request was forwarded."""
        client = scope.get("client")
        if scope["type"] == "http" and not (client and self.is_proxy(client[0])):
            headers = [
                (name, b"" if name == b"x-forwarded-host" else value)
                for name, value in scope["headers"]
            ]
            scope = {**scope, "headers": headers}
        await self.app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class PrefixOfProxies:
    """Pure ASGI. A trusted proxy that takes a prefix away from paths says which one, so that links
    lead through it: then the app is mounted there.
    """

    app: ASGIApp
    is_proxy: Callable[[str], bool]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Put the prefix back, as the root of the app. What is no prefix changes nothing."""
        client = scope.get("client")
        if scope["type"] == "http" and client and self.is_proxy(client[0]):
            prefix = _prefix_in(scope)
            if prefix:
                scope = {
                    **scope,
                    "root_path": prefix.decode("ascii"),
                    "path": prefix.decode("ascii") + scope["path"],
                    "raw_path": prefix + scope.get("raw_path", b""),
                }
        await self.app(scope, receive, send)


def _prefix_in(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-forwarded-prefix":
            given: bytes = value.strip().rstrip(b"/")
            return given if len(given) <= MAX_PREFIX and _PREFIX.match(given) else b""
    return b""


@dataclass(frozen=True, slots=True)
class LocalPeersMiddleware:
    """Pure ASGI. Before an app without authentication: this machine only, on every path."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a peer that is not on this machine."""
        if scope["type"] == "http" and not is_local(scope):
            raise Problem(
                Kind.UNAUTHENTICATED,
                "without authentication this service answers processes on its own machine only, "
                "not through a proxy; give it an authenticator",
                {"WWW-Authenticate": 'Bearer realm="commandbus"'},
            )
        await self.app(scope, receive, send)
