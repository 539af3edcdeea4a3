"""ThreadHooks: what an application does where a handler thread begins, and where it ends."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from commandbus.errors import InvalidSettingError
from commandbus.privacy.redaction import redact_text

Hook = Callable[[], object]

_log = logging.getLogger("commandbus.worker")


@dataclass(frozen=True, slots=True)
class ThreadHooks:
    """Functions that are called in each handler thread, in the order in which they were given."""

    starts: tuple[Hook, ...] = ()
    ends: tuple[Hook, ...] = ()

    def with_start(self, hook: Hook) -> ThreadHooks:
        """The same with one more at the beginning of a thread."""
        return ThreadHooks((*self.starts, _checked(hook, "on_thread_start")), self.ends)

    def with_end(self, hook: Hook) -> ThreadHooks:
        """The same with one more at the end."""
        return ThreadHooks(self.starts, (*self.ends, _checked(hook, "on_thread_end")))

    def joined(self, other: ThreadHooks) -> ThreadHooks:
        """Those of both, each once."""
        return ThreadHooks(
            tuple(dict.fromkeys((*self.starts, *other.starts))),
            tuple(dict.fromkeys((*self.ends, *other.ends))),
        )

    def started(self) -> None:
        """A thread begins: called in it."""
        for hook in self.starts:
            _call(hook)

    def ended(self) -> None:
        """A thread ends: called in it, the last first, as contexts are left."""
        for hook in reversed(self.ends):
            _call(hook)


def _call(hook: Hook) -> None:
    try:
        hook()
    except BaseException as error:  # noqa: BLE001  (handlers of all modules share the thread)
        name = getattr(hook, "__qualname__", repr(hook))
        text = redact_text(f"{type(error).__name__}: {error}")
        _log.error("%s, called in a handler thread, failed: %s", name, text)


def _checked(hook: Any, what: str) -> Hook:
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        raise InvalidSettingError(f"{what} takes a `def` function without arguments")
    found: Hook = hook
    return found
