"""The transaction of a handler on the ORM: its rows and its completion are one commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import connections, transaction

from commandbus.django.hygiene import tidy, tidy_after

_log = logging.getLogger("commandbus.django")


class DjangoTransaction:
    """`transactional=DjangoTransaction("default")`: what `transactional=True` is in a project.

    Hooks of `transaction.on_commit` run after the commit, and cannot undo the completion.
    """

    def __init__(self, alias: str = "default") -> None:
        self.alias = alias

    def __call__(self) -> AbstractContextManager[Any]:
        """One transaction, on Django's connection of this thread."""
        return self._atomic()

    @contextmanager
    def _atomic(self) -> Iterator[Any]:
        is_committed = False

        def committed() -> None:
            nonlocal is_committed
            is_committed = True

        tidy()
        try:
            with transaction.atomic(using=self.alias):
                transaction.on_commit(committed, using=self.alias)  # the first of all hooks
                yield connections[self.alias]
        except Exception:
            if not is_committed:
                raise
            _log.exception("a hook of on_commit failed; its command is completed all the same")
        finally:
            tidy_after()

    def close_thread(self) -> None:
        """A handler thread ends: its connections end with it."""
        connections.close_all()
