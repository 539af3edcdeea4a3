"""What a schedule may be called, and say."""

from __future__ import annotations

import re
from typing import Any

from commandbus.errors import InvalidInputError, InvalidNameError
from commandbus.flow import MAX_EXPIRY_SECONDS, check_key, check_priority, check_seconds
from commandbus.settings import check_number

MAX_NAME_LENGTH = 100
#: Seconds that the command of a tick may be delayed by jitter.
MAX_JITTER_SECONDS = 86_400
MAX_MISSED_CAP = 10_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*\Z")


def check_schedule_name(name: Any) -> str:
    """Return the name of a schedule, or raise InvalidNameError."""
    if not isinstance(name, str) or not _NAME.match(name) or len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"schedule name {name!r} is not well formed: use letters, digits and _ . : -, a letter "
            f"or digit first, at most {MAX_NAME_LENGTH} characters (for example 'nightly-report')"
        )
    return name


def check_spec(spec: dict[str, Any]) -> None:
    """Raise InvalidInputError if these cannot be the columns of a schedule; makes them plain."""
    check_number(spec["missed_cap"], "missed_cap", 1, MAX_MISSED_CAP, is_whole=True)
    jitter = check_seconds(spec["jitter_seconds"], "jitter", 0, MAX_JITTER_SECONDS)
    spec["jitter_seconds"] = jitter
    if spec["expires_in_seconds"] is not None:
        expires_in = check_seconds(spec["expires_in_seconds"], "expires_in", 1, MAX_EXPIRY_SECONDS)
        if expires_in <= jitter:
            raise InvalidInputError(
                f"expires_in is {expires_in:g} s and jitter {jitter:g} s: a command could expire "
                "before it may begin; use a longer expires_in"
            )
        spec["expires_in_seconds"] = expires_in
    if spec["ordering_key"] is not None:
        check_key(spec["ordering_key"], "ordering_key")
        if jitter:
            raise InvalidInputError(
                "jitter would change the order of an ordering_key; use one of them"
            )
    if spec["priority"] is not None:
        check_priority(spec["priority"])
