"""Canary secrets: unique texts that must be found nowhere but where payloads are kept."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

#: Every canary begins so; whoever finds it in a place for everybody's eyes has found a leak.
MARKER = "cAnArY"


def new_canary(kind: str) -> str:
    return f"{MARKER}-{kind}-{secrets.token_hex(6)}"


@dataclass(frozen=True)
class Canaries:
    """One for each way in which a secret can get out."""

    #: Under a key of a payload that is known to be secret.
    password: str = field(default_factory=lambda: new_canary("password"))
    #: In a field of a payload that is secret only because its type says so.
    marked: str = field(default_factory=lambda: new_canary("marked"))
    #: In the address of a database.
    dsn: str = field(default_factory=lambda: new_canary("dsn"))
    #: In headers that an error text repeats.
    header: str = field(default_factory=lambda: new_canary("header"))
    #: Under a key that a setting names.
    configured: str = field(default_factory=lambda: new_canary("configured"))


def assert_hidden(text: str, where: str) -> None:
    """Fail if a canary is in the text, and say where."""
    at = text.find(MARKER)
    assert at < 0, f"{where} shows a secret: …{text[max(at - 80, 0) : at + 60]}…"


def assert_log_is_clean(log: Path) -> None:
    """Fail if a server has written a canary into its log."""
    for path in (log, log.with_name(f"{log.name}.1")):
        if path.exists():
            assert_hidden(path.read_text(encoding="utf-8", errors="replace"), str(path))
