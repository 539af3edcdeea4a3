"""Opening: something that must be closed again, without a generator that could be left half-way.

`async with` opens and closes it, and so do `__aenter__` and `__aexit__` by hand, in any task.
A generator would have to be ended where it was begun, and complains if it is not.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Generic, TypeVar

from commandbus.errors import InvalidOperationError
from commandbus.privacy.redaction import redact_text

Opened = TypeVar("Opened")

_log = logging.getLogger("commandbus.opening")


class Opening(AbstractAsyncContextManager[Opened], Generic[Opened]):
    """Opens with `begin`, which puts what undoes each step on a stack; closes by the stack."""

    def __init__(self, begin: Callable[[AsyncExitStack], Awaitable[Opened]]) -> None:
        self._begin = begin
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Opened:
        """Open; what was opened before an error, or a cancel, is closed again."""
        if self._stack is not None:
            raise InvalidOperationError("this is open already; leave it before you enter it again")
        self._stack = AsyncExitStack()
        try:
            return await self._begin(self._stack)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; a second time does nothing. An error of the block is not hidden by one of this."""
        stack, self._stack = self._stack, None
        if stack is None:
            return
        try:
            await stack.aclose()
        except Exception as closing:
            if error is None:
                raise
            _log.warning("closing failed too: %s", redact_text(str(closing)))

    def __del__(self) -> None:
        """Say that it was forgotten: only an event loop could close it."""
        if self._stack is not None:
            warnings.warn(
                "opened and never closed; use `async with`", ResourceWarning, stacklevel=1
            )
