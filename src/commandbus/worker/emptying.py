"""Emptying: how workers end that run until their queues are empty.

Such workers of one bus end together, because the handlers of one domain may send to another. Each
of them must have looked and found nothing after the last commit of any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from commandbus.database.store import Store
from commandbus.errors import DomainPausedError


class Emptying:
    """The workers of one bus that run until nothing is left."""

    def __init__(self) -> None:
        self._members: list[UntilEmpty] = []
        #: Commits of all of them: each may have sent commands to any of the domains.
        self.commits = 0

    def join(self, member: UntilEmpty) -> None:
        """This worker begins."""
        self._members.append(member)

    def leave(self, member: UntilEmpty) -> None:
        """This worker has ended; the others do not wait for it any more."""
        if member in self._members:
            self._members.remove(member)
            self.look()

    def look(self) -> None:
        """End all of them if nothing is left; else have those look again whose look is too old."""
        if all(member.empty_at == self.commits for member in self._members):
            self.stop()
            return
        for member in self._members:
            if member.empty_at not in {None, self.commits}:
                member.wake()

    def stop(self) -> None:
        """End all of them."""
        for member in self._members:
            member.stop()


@dataclass(eq=False)
class UntilEmpty:
    """What one of them knows; its receiver tells it of each look."""

    domain: str
    include_delayed: bool
    group: Emptying
    stop: Callable[[], None]
    #: Set once the worker has its parts.
    wake: Callable[[], None] = lambda: None
    is_quiet: Callable[[], bool] = lambda: False
    #: The commits that were known when a look began that found nothing; None: there was no such
    #: look since the last command.
    empty_at: int | None = None
    #: Why it ended, if not because nothing was left.
    error: DomainPausedError | None = None
    _began_at: int | None = field(default=None, init=False)

    def look_begins(self) -> None:
        """The receiver asks for commands now. It counts only if nothing runs here: what runs may
        send, or come back.
        """
        self._began_at = self.group.commits if self.is_quiet() else None

    def found_work(self) -> None:
        """The look has found commands."""
        self.empty_at = None

    async def found_nothing(self, store: Store) -> None:
        """The look has found nothing: see what is left, and whether this is the end."""
        began_at = self._began_at
        if began_at is None:
            return
        # Asked even so: what was read may all have been turned away, with more behind it.
        left = await store.what_is_left(self.domain, include_delayed=self.include_delayed)
        if left == "paused":
            self.error = DomainPausedError(self.domain)
            self.group.stop()
        elif left is not None:
            self.empty_at = None
        else:
            self.empty_at = began_at
            self.group.look()

    def committed(self, *, is_idle: bool) -> None:
        """Outcomes were committed: all looks before that are too old."""
        self.group.commits += 1
        if is_idle:
            self.wake()
