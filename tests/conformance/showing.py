"""Making two stores comparable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import orjson

#: A time within a text, such as why a command has expired.
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def shown(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without times and message numbers: only whether they are there."""
    if row is None:
        return None
    return {key: _shown_value(key, value) for key, value in row.items()}


def _shown_value(key: str, value: Any) -> Any:
    if key.endswith("_at") or key == "msg_id":
        return value is not None
    if isinstance(value, str):
        return TIME.sub("<time>", value)
    # What the details of an event have of a lease that ran out, and the error of a reply.
    return shown(value) if key in {"details", "error"} and isinstance(value, dict) else value


def shown_envelope(message: Any) -> Any:
    return shown(message) if isinstance(message, dict) else message


def sorted_replies(bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    replies = [shown(body) or {} for body in bodies]
    return sorted(replies, key=lambda body: (body["command_id"], body["outcome"]))


def decoded(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
