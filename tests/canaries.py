"""Canary secrets: unique texts that must be found nowhere but where payloads are kept."""

from __future__ import annotations

import base64
import html
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus

#: Every canary begins so; whoever finds it in a place for everybody's eyes has found a leak.
MARKER = "cAnArY"


def _in_base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _in_safe_base64(text: str) -> str:
    encoded = base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass"))
    return encoded.decode().rstrip("=")


def _in_hex(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").hex()


#: The forms in which a handler may repeat what it was given.
DERIVED: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper": str.upper,
    "lower": str.lower,
    "repr": lambda text: repr(text)[1:-1],
    "ascii": lambda text: ascii(text)[1:-1],
    "bytes": lambda text: repr(text.encode("utf-8", "surrogatepass"))[2:-1],
    "repr of repr": lambda text: repr(repr(text))[1:-1],
    "json": lambda text: json.dumps(text)[1:-1],
    "json as it is": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json in json": lambda text: json.dumps(json.dumps(text))[1:-1],
    "quoted": lambda text: quote(text, errors="surrogatepass"),
    "quoted wholly": lambda text: quote(text, safe="", errors="surrogatepass"),
    "quoted plus": lambda text: quote_plus(text, errors="surrogatepass"),
    "quoted in lower case": lambda text: quote(text, errors="surrogatepass").lower(),
    "quoted twice": lambda text: quote(quote(text, errors="surrogatepass")),
    "html": html.escape,
    "base64": _in_base64,
    "base64 for addresses": _in_safe_base64,
    "basic": lambda text: _in_base64(f"bob:{text}"),
    "basic of ann": lambda text: _in_base64(f"anna:{text}"),
    "basic and more": lambda text: _in_base64(f"x:{text}:y"),
    "hex": _in_hex,
    "upper hex": lambda text: _in_hex(text).upper(),
    "sql": lambda text: text.replace("'", "''"),
}


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
    #: Under keys in other styles, and deep in a payload.
    styled: str = field(default_factory=lambda: new_canary("styled"))
    #: Under a key that a setting names.
    configured: str = field(default_factory=lambda: new_canary("configured"))


#: The beginning of every canary in the forms that do not show it as it is.
_MARKERS = (
    MARKER.lower(),
    _in_hex(MARKER).lower(),
    *(
        _in_base64("x" * n + MARKER)[(n * 8 + 5) // 6 : (n + len(MARKER)) * 8 // 6]
        for n in range(3)
    ),
)


def assert_hidden(text: str, where: str) -> None:
    """Fail if a canary is in the text, in any form, and say where."""
    lowered = text.lower()
    for form in _MARKERS:
        at = max(text.find(form), lowered.find(form))
        assert at < 0, f"{where} shows a secret: …{text[max(at - 80, 0) : at + 60]}…"


def assert_log_is_clean(log: Path) -> None:
    """Fail if a server has written a canary into its log."""
    for path in (log, log.with_name(f"{log.name}.1")):
        if path.exists():
            assert_hidden(path.read_text(encoding="utf-8", errors="replace"), str(path))
