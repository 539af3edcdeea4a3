"""Seals of the audit: what is in one, what is signed, and with which key.

Everything that is signed is built here, outside the database, from plain values: the database's
owner can replace its functions, but not these.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from commandbus.errors import InvalidSettingError
from commandbus.keys import Key, Keys
from commandbus.upkeep.heads import Head

#: The name of the key that signs. A former one is known by this name, `_` and its fingerprint.
KEY_NAME = "seal_key"
#: What stands for the digest of the seal before the first.
NOTHING_BEFORE = bytes(32)
#: Bytes of a digest of one row or one removal: too many to find another row with the same.
DIGEST_BYTES = 16

_ENTRY = struct.Struct(f">i{DIGEST_BYTES}s")
_REMOVAL = struct.Struct(f">q{DIGEST_BYTES}s")
_NUMBERS = struct.Struct(">qqqi")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: Names what is signed, so that no signature can be taken for one of something else.
_PURPOSE = b"commandbus audit seal 1\0"


@dataclass(frozen=True, slots=True)
class Seal:
    """One seal without its signature: a closed range of the audit, and what it held."""

    seal_number: int
    first_id: int
    last_id: int
    row_count: int
    #: The oldest time of its events; None: there are none.
    oldest_ts: datetime | None
    entries_digest: bytes
    #: Number and digest of each removal that it signs.
    removals: bytes
    #: The digest of the seal before.
    previous: bytes
    sealed_at: datetime
    key_id: str

    @property
    def signed_bytes(self) -> bytes:
        """All of it, each part of a fixed length but the last."""
        oldest = b"\0" if self.oldest_ts is None else b"\1" + _micros(self.oldest_ts)
        return b"".join(
            [
                _PURPOSE,
                _NUMBERS.pack(self.seal_number, self.first_id, self.last_id, self.row_count),
                oldest,
                self.entries_digest,
                hashlib.sha256(self.removals).digest(),
                self.previous,
                _micros(self.sealed_at),
                self.key_id.encode(),
            ]
        )

    @property
    def digest(self) -> bytes:
        """What the next seal refers to."""
        return hashlib.sha256(self.signed_bytes).digest()

    def signature(self, key: bytes) -> bytes:
        """The proof that somebody with the key made it."""
        return hmac.digest(key, self.signed_bytes, "sha256")

    def head(self, key: bytes) -> Head:
        """This seal as it is known outside the database."""
        return Head(
            self.seal_number, self.last_id, self.digest.hex(), self.signature(key).hex(),
            self.key_id, f"{self.sealed_at:%Y-%m-%dT%H:%M:%S.%fZ}",
        )  # fmt: skip


class Removal(NamedTuple):
    """The record of a lawful removal, with times as the database prints their seconds."""

    removal_number: int
    domain: str
    #: Ranges, as PostgreSQL prints a multirange.
    ids: str
    row_count: int
    sealed_to: int
    rows_digest: bytes
    before: str
    keep_seconds: int | None
    actor: str | None
    removed_at: str
    sealed_by: int | None

    @property
    def digest(self) -> bytes:
        """Of all its values but the seal that signs it; each with its length."""
        values = (*self[:5], self.rows_digest.hex(), *self[6:10])
        texts = ("-" if each is None else f"{len(str(each))}:{each}" for each in values)
        return hashlib.sha256("".join(texts).encode()).digest()[:DIGEST_BYTES]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First and last id of each range, in order."""
        pairs = [part.split(",") for part in self.ids.strip("{}").split("),") if part]
        return [(int(low.strip("[")), int(high.strip(")")) - 1) for low, high in pairs]


def entries_of(packed: bytes, first_id: int) -> list[tuple[int, bytes]]:
    """Id and digest of each row of a seal, in order; raises ValueError if it is none."""
    try:
        return [(first_id + place, digest) for place, digest in _ENTRY.iter_unpack(packed)]
    except struct.error:
        raise ValueError("not whole") from None


def pack_removals(removals: Sequence[Removal]) -> bytes:
    """Number and digest of each removal, as a seal has them."""
    return b"".join(_REMOVAL.pack(each.removal_number, each.digest) for each in removals)


def removals_of(packed: bytes) -> dict[int, bytes]:
    """The digests of the removals that a seal signs, by number."""
    return dict(_REMOVAL.iter_unpack(packed)) if len(packed) % _REMOVAL.size == 0 else {}


def _micros(moment: datetime) -> bytes:
    return struct.pack(">q", (moment - _EPOCH) // _MICROSECOND)


class SealKeys:
    """The keys that this process has: the one that signs, and former ones to verify with."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder or None
        self._ids: dict[bytes, str] = {}

    def find(self, *, allow_create: bool = False) -> Key | None:
        """The key that signs; made if there is none and it may be made."""
        return Keys.load(KEY_NAME, folder=self._folder, allow_create=allow_create)

    def id_of(self, key: Key) -> str:
        """The fingerprint of a key, computed once: that is slow on purpose."""
        if key not in self._ids:
            self._ids[key] = key.fingerprint
        return self._ids[key]

    def by_id(self, key_id: str) -> Key | None:
        """The key with this fingerprint, if it is here: the present one or a former one."""
        names = [KEY_NAME]
        if len(key_id) == 16 and set(key_id) <= set("0123456789abcdef"):
            names.append(f"{KEY_NAME}_{key_id}")
        for name in names:
            found = Keys.load(name, folder=self._folder, allow_create=False)
            if found is not None and self.id_of(found) == key_id:
                return found
        return None

    def replace(self, key_id: str | None) -> Key:
        """The key to go on with. If the one that is here has this id, it becomes a former one."""
        found = self.find(allow_create=True)
        if found is None or self.id_of(found) != key_id:
            return self._made(found)
        place = Path(self.place)
        if not place.is_absolute():  # a variable
            raise InvalidSettingError(
                f"{self.place} still has the key {key_id}, which signed so far; set it to a new one"
                f" first, and keep the old one in COMMANDBUS_{KEY_NAME.upper()}_{key_id.upper()}"
            )
        place.rename(place.with_name(f"{KEY_NAME}_{key_id}.key"))
        return self._made(self.find(allow_create=True))

    @property
    def place(self) -> str:
        """Where the key that signs is looked for, to be shown to people."""
        return Keys.place(KEY_NAME, folder=self._folder)

    @property
    def folder(self) -> Path:
        """The folder of keys, where the last head is kept too."""
        return Path(Keys.place("seal_head", folder=self._folder, environ=_without_heads())).parent

    @staticmethod
    def _made(key: Key | None) -> Key:
        if key is None:
            raise InvalidSettingError("there is no key to seal with")
        return key


def _without_heads() -> dict[str, str]:
    import os  # noqa: PLC0415  (only here)

    return {name: value for name, value in os.environ.items() if "SEAL_HEAD" not in name}


def as_ranges(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of ids that follow each other, from sorted ones."""
    start = last = None
    for each in ids:
        if start is None or last is None:
            start = each
        elif each != last + 1:
            yield start, last
            start = each
        last = each
    if start is not None and last is not None:
        yield start, last
