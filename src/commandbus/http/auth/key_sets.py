"""Which key a JWT is checked with: one from the settings, or those of a key set (JWKS) in a file or
at an address, which the issuer changes while the service runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from commandbus.errors import InvalidSettingError
from commandbus.http.auth.fetching import MAX_DOCUMENT_BYTES, Address, FetchError, fetch
from commandbus.http.auth.strict_json import read_object

MAX_KEYS = 100
MIN_RSA_BITS = 2_048
#: Seconds between two looks at a file.
FILE_SECONDS = 1.0
#: Seconds after which a key set is fetched anew, beside the requests: keys that the issuer has
#: removed are accepted for about so long.
REFRESH_SECONDS = 300.0
#: Seconds between two fetches, whatever tokens say: made-up key ids must not cause a storm.
INTERVAL_SECONDS = 10.0
#: Seconds that a key set is used if it cannot be fetched anew.
STALE_SECONDS = 86_400.0

_log = logging.getLogger("commandbus.http")


class Keys(Protocol):
    """Finds the key for a token."""

    async def find(self, key_id: str | None) -> Any | None:
        """The key of this id, or None; without an id, the only one there is."""


@dataclass(frozen=True, slots=True)
class OneKey:
    """The key of the settings, whatever id a token names."""

    key: Any

    async def find(self, key_id: str | None) -> Any | None:  # noqa: ARG002
        """The key."""
        return self.key


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of one document."""

    by_id: Mapping[str | None, Any]

    def find(self, key_id: str | None) -> Any | None:
        """The key of this id; for a token that names none, the only one."""
        if key_id is None:
            return next(iter(self.by_id.values())) if len(self.by_id) == 1 else None
        return self.by_id.get(key_id)


class KeySetReader:
    """Reads key sets for one algorithm, which the settings name and a key cannot change."""

    def __init__(self, algorithm: str, from_jwk: Callable[[dict[str, Any]], Any]) -> None:
        self._algorithm = algorithm
        self._kind = {"RS256": "RSA", "ES256": "EC"}[algorithm]
        self._from_jwk = from_jwk

    def read(self, document: bytes) -> KeySet:
        """The keys of a document; ValueError if it is none, or has no key that can be used."""
        if len(document) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"more than {MAX_DOCUMENT_BYTES:,} bytes")
        listed = read_object(document).get("keys")
        if not isinstance(listed, list) or len(listed) > MAX_KEYS:
            raise ValueError(f"it has no list `keys` of at most {MAX_KEYS}")
        found: dict[str | None, Any] = {}
        for entry in listed:
            key = self._key_of(entry) if isinstance(entry, dict) else None
            if key is None:
                continue
            if entry.get("kid") in found:
                raise ValueError("two keys have the same id")
            found[entry.get("kid")] = key
        if not found:
            raise ValueError(f"it has no key that {self._algorithm} can use")
        return KeySet(found)

    def _key_of(self, entry: dict[str, Any]) -> Any | None:
        """The public key; None if it is for something else: issuers list keys of many kinds."""
        uses = entry.get("key_ops")
        if (
            entry.get("kty") != self._kind
            or entry.get("use", "sig") != "sig"
            or entry.get("alg", self._algorithm) != self._algorithm
            or not isinstance(entry.get("kid", ""), str)
            or (uses is not None and "verify" not in uses)
        ):
            return None
        if "d" in entry:
            _log.error("the key set of JWTs contains a private key; it is not used: replace it")
            return None
        try:
            key = self._from_jwk(entry)
            check_public_key(key, self._algorithm)
        except Exception as error:  # noqa: BLE001  (of the libraries; one bad key spoils no other)
            _log.warning("a key of the key set of JWTs is not used: %s", error)
            return None
        return key


def check_public_key(key: Any, algorithm: str) -> None:
    """Refuse a key that is private, short or on another curve. Nothing of it is in the text."""
    if hasattr(key, "private_numbers"):
        raise InvalidSettingError("it is a private key; only the issuer may have it")
    if algorithm == "RS256" and key.key_size < MIN_RSA_BITS:
        raise InvalidSettingError(f"it has {key.key_size} bits; RS256 needs {MIN_RSA_BITS:,}")
    if algorithm == "ES256" and key.curve.name != "secp256r1":
        raise InvalidSettingError(f"it is on the curve {key.curve.name}; ES256 needs P-256")


class KeySetFile:
    """A key set in a file, read again when it changes."""

    def __init__(
        self, path: Path, reader: KeySetReader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._reader = reader
        self._clock = clock
        self._looked_at = clock()
        self._state: tuple[int, ...] = ()
        try:
            self._keys = self._read()
        except (OSError, ValueError) as error:
            raise InvalidSettingError(
                f"jwt_jwks names {path}, which cannot be used ({error})"
            ) from None

    async def find(self, key_id: str | None) -> Any | None:
        """The key of this id."""
        now = self._clock()
        if now - self._looked_at >= FILE_SECONDS:
            self._looked_at = now
            self._look()
        return self._keys.find(key_id)

    def _look(self) -> None:
        try:
            if self._state != self._state_of(self._path.stat()):
                self._keys = self._read()
        except (OSError, ValueError) as error:
            _log.warning("the key set of JWTs is used as it was: cannot read it: %s", error)

    def _read(self) -> KeySet:
        with self._path.open("rb") as file:
            # Of what is open: the file may be replaced meanwhile, and is then read once more.
            self._state = self._state_of(os.fstat(file.fileno()))
            return self._reader.read(file.read(MAX_DOCUMENT_BYTES + 1))

    @staticmethod
    def _state_of(status: os.stat_result) -> tuple[int, ...]:
        return status.st_ino, status.st_mtime_ns, status.st_size


class KeySetAddress:
    """A key set at an address: kept, and fetched anew now and then, or for an id that is new."""

    def __init__(
        self, address: Address, reader: KeySetReader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._reader = reader
        self._clock = clock
        self._keys = KeySet({})
        self._fetched_at = self._asked_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> Any | None:
        """The key of this id; one that is not known may wait for a fetch, together with others."""
        found = self._known(key_id)
        if found is not None:
            if self._clock() - self._fetched_at >= REFRESH_SECONDS:
                self._start()
            return found
        fetching = self._start()
        if fetching is not None:
            await asyncio.shield(fetching)  # others wait for it too
        return self._known(key_id)

    def _known(self, key_id: str | None) -> Any | None:
        if self._clock() - self._fetched_at > STALE_SECONDS:
            return None
        return self._keys.find(key_id)

    def _start(self) -> asyncio.Task[None] | None:
        """The fetch that runs, or a new one; None if the last one is not long ago."""
        if self._fetching is not None and not self._fetching.done():
            return self._fetching
        now = self._clock()
        if now - self._asked_at < INTERVAL_SECONDS:
            return None
        self._asked_at = now
        self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            self._keys = self._reader.read(await fetch(self._address))
        except (FetchError, ValueError) as error:
            host = self._address.host
            _log.warning(
                "the key set of JWTs is used as it was: cannot get it: %s: %s", host, error
            )
            return
        self._fetched_at = self._clock()
