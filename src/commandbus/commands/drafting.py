"""Drafting: the middleware around sends, and what it adds to commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from commandbus.meta import check_meta
from commandbus.middleware.base import Draft, Drafts, Middleware
from commandbus.middleware.chain import overrides, sending
from commandbus.models import NewCommand


class Drafting:
    """The middleware of a bus, as far as it is around sends."""

    def __init__(self, middleware: tuple[Middleware, ...] = ()) -> None:
        #: Empty, nearly always: then nothing of this is on the way of a send.
        self.middleware = tuple(each for each in middleware if overrides(each, "sending"))

    @contextmanager
    def around(
        self, domain: str, count: int | None = 1, *, is_many: bool = False
    ) -> Iterator[Drafts | None]:
        """Around one send; None: there is no middleware, and nothing to do for each command."""
        if not self.middleware:
            yield None
            return
        drafts = Drafts(domain, count, is_many)
        with sending(self.middleware, drafts):
            yield drafts


def drafted(domain: str, command: NewCommand, drafts: Drafts | None) -> NewCommand:
    """A command with what middleware let travel with it."""
    if drafts is None:
        return command
    draft = Draft(domain, command.command_type, command.command_id, dict(command.meta or {}))
    drafts.apply(draft)
    meta = check_meta(draft.meta)
    return command if meta == command.meta else replace(command, meta=meta)
