"""Watching: built-in middleware that see what a worker does by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from commandbus.database.model import Lease
from commandbus.handler import HandlerEntry
from commandbus.middleware.base import WorkerMiddleware

Watchers = tuple[WorkerMiddleware, ...]


def watchers_of(entries: Iterable[HandlerEntry]) -> Watchers:
    """Those around any of these handlers, each once; nearly always none."""
    found: dict[WorkerMiddleware, None] = {}
    for entry in entries:
        for each in () if entry.layers is None else entry.layers.observers:
            if isinstance(each, WorkerMiddleware):
                found[each] = None
    return tuple(found)


@contextmanager
def own_work(watchers: Watchers) -> Iterator[None]:
    """Around all that a worker does."""
    with ExitStack() as stack:
        for each in watchers:
            stack.enter_context(each.own_work())
        yield


def tell_received(watchers: Watchers, leases: Sequence[Lease], seconds: float) -> None:
    """Tell them what a receive has brought."""
    if leases:
        metas = [lease.meta for lease in leases]
        for each in watchers:
            each.received(leases[0].domain, metas, seconds)
