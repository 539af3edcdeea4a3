"""The worker: receiver -> executor -> completer, and a thread that keeps the leases."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commandbus.worker.consumer import Consumer, LeasedCommand
    from commandbus.worker.worker import Worker

__all__ = ["Consumer", "LeasedCommand", "Worker"]

_HOMES = {"Consumer": "consumer", "LeasedCommand": "consumer", "Worker": "worker"}


def __getattr__(name: str) -> Any:
    """Import when asked for: these load all parts of a worker."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
