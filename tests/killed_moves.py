"""A process that moves a domain, and is killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, LiteralString

import pytest

from commandbus.database.gateway import Gateway


class Killed(BaseException):
    """The process is gone: no code of it runs any more."""


def kill_at(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> Callable[[], None]:
    """Kill this process after the n-th statement that calls a function has been committed."""
    run = Gateway._run
    seen, is_dead = 0, False

    async def counted(self: Gateway, text: LiteralString, *args: Any) -> Any:
        nonlocal seen, is_dead
        if is_dead:
            raise Killed
        found = await run(self, text, *args)
        seen += name in text
        if seen == times:
            is_dead = True
            raise Killed
        return found

    patch = monkeypatch.setattr
    patch(Gateway, "_run", counted)
    return lambda: patch(Gateway, "_run", run)
