"""Secrets that types of payloads mark, told to the database by who sends.

A worker declares those of its handlers when it starts. What is sent before the first worker runs
can be looked at too, by processes that do not know the type; so a sender that knows it declares
them with its first command.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from commandbus.errors import CommandBusError
from commandbus.privacy.secrets import secret_keys

if TYPE_CHECKING:
    from commandbus.database.store import Store

_log = logging.getLogger("commandbus.sending")

#: Types whose marks are remembered.
_MAX_KNOWN = 1_000


@lru_cache(maxsize=_MAX_KNOWN)
def _keys(kind: Any) -> frozenset[str]:
    try:
        return secret_keys(kind)
    except (NameError, TypeError):
        # Its annotations cannot be read. No handler can be registered with it, and without
        # validation nobody looks at them when it is sent.
        return frozenset()


class Marks:
    """Which marks this process has met, and which of them the database has not been told of."""

    def __init__(self) -> None:
        self._met: set[tuple[str, str, Any]] = set()
        #: By domain and command type. Empty, nearly always: then nothing is on the way of a send.
        self.untold: dict[tuple[str, str], frozenset[str]] = {}

    def meet(self, domain: str, command_type: str, kind: Any) -> None:
        """The payload of a command is of this type."""
        met = (domain, command_type, kind)
        if met in self._met:
            return
        if keys := _keys(kind):
            known = self.untold.get((domain, command_type), frozenset())
            self.untold[domain, command_type] = known | keys
        self._met.add(met)

    async def tell(self, store: Store) -> None:
        """Tell the database, in a transaction of its own: in a caller's, the locks of a first mark
        would last as long as that does.
        """
        for (domain, command_type), keys in list(self.untold.items()):
            await store.ensure_domain(domain)
            await store.declare_secrets(domain, {command_type: keys})
            # Only now: who sends meanwhile must not go on before it is known.
            if self.untold.get((domain, command_type)) == keys:
                del self.untold[domain, command_type]

    async def tell_if_possible(self, store: Store) -> None:
        """The same where a send must not fail for it; then it is told with the next one."""
        try:
            await self.tell(store)
        except CommandBusError as error:
            _log.warning("marks of secrets are not told yet: %s", error)
