"""Making two stores comparable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson


def shown(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without times and message numbers: only whether they are there."""
    if row is None:
        return None
    return {
        key: value is not None if key.endswith("_at") or key == "msg_id" else value
        for key, value in row.items()
    }


def shown_envelope(message: Any) -> Any:
    return shown(message) if isinstance(message, dict) else message


def sorted_replies(bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    replies = [shown(body) or {} for body in bodies]
    return sorted(replies, key=lambda body: (body["command_id"], body["outcome"]))


def decoded(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
