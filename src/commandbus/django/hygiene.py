"""Connection hygiene: what Django does around a request, around each handler.

Without it a connection that the server has closed, or that is too old, stays in its thread, and
every command that comes to that thread fails.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.utils import InterfaceError, OperationalError

from commandbus.database.read_only import READ_ONLY, reads_only
from commandbus.errors import DatabaseUnavailableError
from commandbus.handler import Handler
from commandbus.worker.outcomes import ConnectionLostError

#: For workers, where Django's own default opens a connection for each command.
MAX_AGE_SECONDS = 60
#: SQLSTATEs of a connection that is no more, or is to a server that only reads.
_CUT = ("08", "57P01", "57P02", "57P03", "57P05", READ_ONLY)

#: The connections of handler threads, which only their threads know otherwise.
_of_threads: weakref.WeakSet[Any] = weakref.WeakSet()


def around(handler: Handler) -> Handler:
    """A handler with the hygiene around it; for those that are not transactional."""
    call: Any = handler
    if not is_async(handler):

        @functools.wraps(call)
        def in_thread(*given: Any, **named: Any) -> Any:
            tidy()
            try:
                return call(*given, **named)
            except Exception as error:
                leave_readers(error)
                raise_if_lost(error)
                raise
            finally:
                tidy_after()

        return in_thread

    @functools.wraps(call)
    async def on_loop(*given: Any, **named: Any) -> Any:
        # Django works for async code in a thread of its own.
        before, after = (sync_to_async(each, thread_sensitive=True) for each in (tidy, tidy_after))
        await before()
        try:
            return await call(*given, **named)
        except Exception as error:
            if reads_only(error):
                await sync_to_async(leave_readers, thread_sensitive=True)(error)
            raise_if_lost(error)
            raise
        finally:
            await after()

    return on_loop


def is_async(handler: Handler) -> bool:
    """Whether a handler, or what a decorator has put around one, is `async def`."""
    inner: Any = inspect.unwrap(handler)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004  (an object with an async __call__)
    )


def tidy() -> None:
    """Close the connections of this thread that cannot be used, or are too old.

    Not in an atomic block: the transaction would be thrown away, in a test that of the test.
    """
    for wrapper in connections.all(initialized_only=True):
        if not wrapper.in_atomic_block:
            wrapper.close_if_unusable_or_obsolete()


def tidy_after() -> None:
    """The same after a handler; and forget its queries, which are kept with DEBUG."""
    for wrapper in connections.all(initialized_only=True):
        _of_threads.add(wrapper)
        if not wrapper.in_atomic_block:
            wrapper.queries_log.clear()
    tidy()


def leave_readers(error: Exception) -> None:
    """Close the connections of this thread if one is to a server that only reads by now."""
    if reads_only(error):
        for wrapper in connections.all(initialized_only=True):
            if not wrapper.in_atomic_block:
                wrapper.close()


def raise_if_lost(error: Exception) -> None:
    """Raise another error if this one is because of a connection that was lost."""
    if is_lost(error):
        raise ConnectionLostError.during() from error


def is_lost(error: BaseException) -> bool:
    """Whether an error of Django, or of the driver, says that there is no connection."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DatabaseUnavailableError):
            return True
        is_drivers = type(seen).__module__.startswith("psycopg")
        if isinstance(seen, (OperationalError, InterfaceError)) or is_drivers:
            state = getattr(seen, "sqlstate", None)
            if isinstance(state, str):
                return state.startswith(_CUT)
            if is_drivers and type(seen).__name__ in {"OperationalError", "InterfaceError"}:
                return True
        seen = seen.__cause__
    return False


def prepare_worker() -> None:
    """Before the first handler: connections that last, and are looked at before they are used.

    A pool of Django's looks after its connections itself, and forbids an age.
    """
    for settings in connections.settings.values():
        if not settings["ENGINE"].endswith("postgresql"):
            continue
        settings["CONN_HEALTH_CHECKS"] = True
        if settings["CONN_MAX_AGE"] == 0 and not settings["OPTIONS"].get("pool"):
            settings["CONN_MAX_AGE"] = MAX_AGE_SECONDS


def close_all() -> None:
    """Close the connections that handler threads have left; no handler may run any more."""
    for wrapper in list(_of_threads):
        wrapper.inc_thread_sharing()
        try:
            wrapper.close()
        finally:
            wrapper.dec_thread_sharing()
    _of_threads.clear()
