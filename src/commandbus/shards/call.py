"""A call of a verb of a bus over several shards: what was given, and how one shard is asked."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from commandbus.errors import DatabaseUnavailableError, DomainMovedError, DomainMovingError
from commandbus.paging import MISSING
from commandbus.shards.nowhere import refuse

if TYPE_CHECKING:
    from commandbus.bus import CommandBus
    from commandbus.shards.bus import ShardedBus
    from commandbus.shards.model import Everywhere


def find(bus: object, path: str) -> Any:
    """A verb, or a part, of a bus: `search.commands`."""
    return reduce(getattr, path.split("."), bus)


def arguments_of(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """What was given, by name, with defaults; criteria that are passed on are among them."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name)
    return given


@dataclass(frozen=True, slots=True)
class Call:
    """One call."""

    sharded: ShardedBus
    #: The bus without a database: what needs none is asked there.
    blank: CommandBus
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: Mapping[str, Any]

    async def on(self, shard: CommandBus, **changes: Any) -> Any:
        """The same call on the bus of a shard."""
        return await find(shard, self.path)(*self.args, **{**self.kwargs, **changes})

    async def in_domain(self, domain: str) -> Any:
        """The same call where a domain is. An error of an unavailable database names the shard.

        If it has moved meanwhile nothing was written, and it is called again where it is now.
        """
        name = self.sharded.shard_of(domain)
        try:
            return await self.at(name, waits=True)
        except DomainMovedError as error:
            await self.sharded.look_at_maps()
            if (now := self.sharded.shard_of(domain)) == name:
                raise _on_its_way(error) from error
        try:
            return await self.at(now, waits=True)
        except DomainMovedError as error:
            raise _on_its_way(error) from error  # the shard that it leaves is told of it first

    async def at(self, name: str, *, waits: bool = False) -> Any:
        """The same call on a shard; at once an error if it is silent, unless it `waits`."""
        shard = await (self.sharded.shard if waits else self.sharded.answering)(name)
        with named(self.sharded, name):
            return await self.on(shard)

    async def home(self) -> Any:
        """The same call on the shard that has what belongs to no domain."""
        return await self.at(self.sharded.map.home_shard)

    async def everywhere(self) -> Everywhere[Any]:
        """The same call on all shards; those that are missing are noted."""
        return await ask_all(self.sharded, self.on)

    async def first(self, read: Callable[[CommandBus], Awaitable[Any]], what: str) -> str | None:
        """The shard on which `read` finds something; None: none, and all have answered."""
        return await self.sharded.first(read, what)

    def refuse(self, *advice: str) -> Any:
        """It is not possible over shards."""
        refuse(self.path, *advice)


def _on_its_way(error: DomainMovedError) -> DomainMovingError:
    return DomainMovingError(f"{error}; the move is not over, repeat the call")


class named:  # noqa: N801  (a context manager that reads like one)
    """Errors of an unavailable database inside say which shard it is."""

    def __init__(self, sharded: ShardedBus, name: str) -> None:
        self._sharded = sharded
        self._name = name

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Name the shard."""
        if isinstance(error, DatabaseUnavailableError):
            error.shard = self._name
            is_silent = error.is_temporary and not error.took_long
            if is_silent and not isinstance(error, DomainMovingError):
                self._sharded.silence.begin(self._name, f"shard {self._name!r}: {error}")


async def ask_all(
    sharded: ShardedBus, read: Callable[[CommandBus], Awaitable[Any]], **options: Any
) -> Everywhere[Any]:
    """Ask all shards; raises if none of them answers."""
    seen = await sharded.everywhere(read, **options)
    note(seen.missing)
    if not seen.found:
        whys = "; ".join(seen.missing.values())
        raise DatabaseUnavailableError(f"none of the shards answers: {whys}")
    return seen


def note(missing: Mapping[str, str]) -> None:
    """Remember who is missing in what is answered."""
    noted = MISSING.get()
    if noted is not None:
        noted.update(missing)
