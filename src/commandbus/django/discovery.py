"""Which domains have handlers in this project."""

from __future__ import annotations


def domains() -> list[str]:
    """The domains that have handlers."""
    return []
