"""Commands: sending, replies, search, audit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commandbus.commands.contents import FormerPayload, ReplyState, ShownReply
    from commandbus.commands.ordering import KeyPlace, OnPark, OrderingKey, OrderingKeys
    from commandbus.commands.people import Identified, PersonEvent
    from commandbus.commands.replies import LeasedReply
    from commandbus.commands.search import Search
    from commandbus.commands.tail import AuditTail

__all__ = [
    "AuditTail",
    "FormerPayload",
    "Identified",
    "KeyPlace",
    "LeasedReply",
    "OnPark",
    "OrderingKey",
    "OrderingKeys",
    "PersonEvent",
    "ReplyState",
    "Search",
    "ShownReply",
]

_HOMES = {
    "AuditTail": "tail",
    "Identified": "people",
    "LeasedReply": "replies",
    "PersonEvent": "people",
    "Search": "search",
    **dict.fromkeys(("FormerPayload", "ReplyState", "ShownReply"), "contents"),
    **dict.fromkeys(("KeyPlace", "OnPark", "OrderingKey", "OrderingKeys"), "ordering"),
}


def __getattr__(name: str) -> Any:
    """Import when asked for: everything imports this folder, and few programs need these."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
