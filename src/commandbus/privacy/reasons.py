"""Reasons: why somebody did something, as it is stored: checked, and with secrets masked."""

from __future__ import annotations

from commandbus.names import check_text
from commandbus.privacy.redaction import redact_text

#: Characters of a reason that are taken.
MAX_REASON = 2_000


def check_reason(reason: str | None, *, max_length: int = MAX_REASON) -> str | None:
    """Return a reason for the audit, secrets masked; None if none was given."""
    if reason is None:
        return None
    return redact_text(check_text(reason, "reason", max_length=max_length))
