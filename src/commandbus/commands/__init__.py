"""Commands: sending, payloads, replies, search, audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commandbus.commands.replies import LeasedReply
    from commandbus.commands.search import Search

__all__ = ["LeasedReply", "Search"]


def __getattr__(name: str) -> Any:
    """Import when asked for: everything imports this folder, and few programs need these."""
    if name == "LeasedReply":
        from commandbus.commands.replies import LeasedReply  # noqa: PLC0415

        return LeasedReply
    if name == "Search":
        from commandbus.commands.search import Search  # noqa: PLC0415

        return Search
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
