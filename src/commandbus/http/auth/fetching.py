"""The only outbound request of the service: the key set of the issuer, from the one address that
the settings name. No token and no request can name another.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from dataclasses import dataclass

import h11

from commandbus.errors import InvalidSettingError

#: For the whole request, so that a server that sends a byte a second holds nothing up.
FETCH_SECONDS = 5.0
MAX_DOCUMENT_BYTES = 256 * 1024

# No user, no password, no fragment.
_ADDRESS = re.compile(
    r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(/[!-~]*)?\Z"
)


class FetchError(Exception):
    """The document could not be had; the text says why, without the address."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a document is: https, or http on this machine."""

    is_secure: bool
    host: str
    port: int
    target: str

    @classmethod
    def of(cls, text: str) -> Address:
        """Read `https://host[:port]/path`."""
        match = _ADDRESS.match(text)
        if match is None:
            raise InvalidSettingError("jwt_jwks is no address like https://host/path")
        is_secure, host = match[1] == "https", match[2].strip("[]")
        port = int(match[3] or (443 if is_secure else 80))
        if not is_secure and not _is_loopback(host):
            raise InvalidSettingError(
                "jwt_jwks must begin with https://: who can change the key set on its way can be "
                "anybody"
            )
        return cls(is_secure, host, port, match[4] or "/")


async def fetch(address: Address) -> bytes:
    """The document at an address. No redirect is followed: it would be another address."""
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            context = ssl.create_default_context() if address.is_secure else None
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
            try:
                return await _exchange(address, reader, writer)
            finally:
                writer.transport.abort()  # a polite end could take for ever
    except TimeoutError:
        raise FetchError(f"no answer within {FETCH_SECONDS:g} s") from None
    except (OSError, h11.RemoteProtocolError) as error:
        raise FetchError(f"{type(error).__name__}: {error}") from None


async def _exchange(
    address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bytes:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=16 * 1024)
    host = f"[{address.host}]" if ":" in address.host else address.host
    request = h11.Request(
        method="GET",
        target=address.target,
        headers=[
            ("Host", f"{host}:{address.port}"),
            ("Accept", "application/json, application/jwk-set+json"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
        ],
    )
    writer.write(connection.send(request) or b"")
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    found = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(8_192))
        elif isinstance(event, h11.Response):
            if event.status_code != 200:
                raise FetchError(f"status {event.status_code}")
        elif isinstance(event, h11.Data):
            found += event.data
            if len(found) > MAX_DOCUMENT_BYTES:
                raise FetchError(f"more than {MAX_DOCUMENT_BYTES:,} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return bytes(found)
        elif isinstance(event, h11.ConnectionClosed):
            raise FetchError("the connection was closed")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
