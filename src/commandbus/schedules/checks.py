"""What a schedule may be called, and say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from commandbus.errors import InvalidInputError, InvalidNameError
from commandbus.names import check_text
from commandbus.settings import check_number

MAX_NAME_LENGTH = 100
#: Seconds that the command of a tick may be delayed by jitter, or take to begin.
MAX_JITTER_SECONDS = 86_400
MAX_EXPIRES_SECONDS = 366 * 86_400
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


def check_spec(spec: Mapping[str, Any]) -> None:
    """Raise InvalidInputError if these cannot be the columns of a schedule."""
    check_number(spec["missed_cap"], "missed_cap", 1, MAX_MISSED_CAP, is_whole=True)
    jitter, expires_in = spec["jitter_seconds"], spec["expires_in_seconds"]
    check_number(jitter, "jitter", 0, MAX_JITTER_SECONDS)
    if expires_in is not None:
        check_number(expires_in, "expires_in", 1, MAX_EXPIRES_SECONDS)
        if expires_in <= jitter:
            raise InvalidInputError(
                f"expires_in is {expires_in:g} s and jitter {jitter:g} s: a command could expire "
                "before it may begin; use a longer expires_in"
            )
    if spec["ordering_key"] is not None:
        check_text(spec["ordering_key"], "ordering_key", max_length=200)
        if jitter:
            raise InvalidInputError(
                "jitter would change the order of an ordering_key; use one of them"
            )
    if spec["priority"] is not None:
        check_number(spec["priority"], "priority", -2, 2, is_whole=True)
