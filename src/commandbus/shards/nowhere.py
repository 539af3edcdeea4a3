"""The store of a bus that is over several shards: there is no single database behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from commandbus.errors import InvalidOperationError

if TYPE_CHECKING:
    from commandbus.shards.bus import ShardedBus

HOW = "give the address of one shard (--dsn), or in Python use `await bus.sharded.on(domain)`"


def refuse(verb: str, advice: str = HOW) -> NoReturn:
    """Say that a verb is of one database, and what to do."""
    raise InvalidOperationError(
        f"`{verb}` works on one database, and the map of shards has several; {advice}"
    )


class ShardedStore:
    """What a verb that nobody has decided about finds: a refusal, never the answer of one shard."""

    has_gateway = True

    def __init__(self, sharded: ShardedBus) -> None:
        self._sharded = sharded

    async def get_payload(self, domain: str, command_id: UUID) -> Any:
        """The payload of a command, with its secrets."""
        shard = await self._sharded.on(domain)
        return await shard._store.get_payload(domain, command_id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(name)
