"""Heads: the last seal of a chain, kept outside the database.

A chain does not show that its end was cut off. Who knows its last seal notices: the process that
seals keeps it in the folder of keys, and `commandbus seals export` appends it to any file.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from commandbus.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Head:
    """A seal as it is known outside."""

    seal_number: int
    last_id: int
    #: Both in hexadecimal digits.
    digest: str
    signature: str
    key_id: str
    sealed_at: str

    @property
    def line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True) + "\n"


def read_heads(path: Path) -> list[Head]:
    """The heads in a file of JSON lines, as `seals export` writes it."""
    heads = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read the heads in {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            head = Head(**json.loads(line))
            bytes.fromhex(head.digest)
            heads.append(Head(**(asdict(head) | {"seal_number": int(head.seal_number)})))
        except (TypeError, ValueError):
            raise InvalidInputError(f"line {number} of {path} is no head of a seal") from None
    return heads


def append_heads(path: Path, heads: Iterable[Head]) -> None:
    """Add heads to a file, and wait until they are on the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(head.line for head in heads)
        file.flush()
        os.fsync(file.fileno())


class HeadFile:
    """The last head that processes with this folder have seen of one database."""

    def __init__(self, folder: Path, database: str) -> None:
        name = hashlib.sha256(database.encode()).hexdigest()[:16]
        self.path = folder / f"seals_{name}.jsonl"

    def read(self) -> Head | None:
        """The head that was kept; None: none was."""
        with suppress(FileNotFoundError):
            if self.path.stat().st_size:
                return read_heads(self.path)[-1]
        return None

    def keep(self, head: Head) -> None:
        """Remember this one, unless a later one is known."""
        known = self.read()
        if known is not None and known.seal_number >= head.seal_number:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Whole under another name first: a reader never sees a part of it.
        unfinished = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        unfinished.write_text(head.line, encoding="utf-8")
        unfinished.replace(self.path)
