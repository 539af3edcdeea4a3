"""A call of a verb of a bus over several shards: what was given, and how one shard is asked."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any
from uuid import UUID

from commandbus.commands.repeating import PAUSE_SECONDS, check_retry, repeatable, repeated
from commandbus.errors import DatabaseUnavailableError, DomainMovedError, DomainMovingError
from commandbus.loops import Backoff
from commandbus.paging import MISSING
from commandbus.shards.model import Everywhere
from commandbus.shards.nowhere import refuse

if TYPE_CHECKING:
    from commandbus.bus import CommandBus
    from commandbus.shards.bus import ShardedBus


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
        end = self._end()
        pauses = Backoff(*PAUSE_SECONDS)
        has_followed = False
        while True:
            name = self.sharded.shard_of(domain)
            shard = await self._opened(name, end)
            try:
                with named(self.sharded, name):
                    return await self.on(shard, **_left(end))
            except DomainMovedError as error:
                await self.sharded.look_at_maps()
                has_moved = self.sharded.shard_of(domain) != name
                if any(isinstance(each, AsyncIterator | Iterator) for each in self.given.values()):
                    raise _on_its_way(error) from error  # what was read of it is gone
                # The shard that it leaves is told of it first.
                pause = pauses.next()
                if not has_moved or has_followed:
                    if end is None or time.monotonic() + pause >= end:
                        raise _on_its_way(error) from error
                    await asyncio.sleep(pause)
                has_followed = True

    def _end(self) -> float | None:
        """Until when a call is repeated; None: it is not."""
        patience = self.given.get("retry_for")
        check_retry(patience, self.given.get("conn"))
        return None if patience is None else time.monotonic() + patience

    async def _opened(self, name: str, end: float | None) -> CommandBus:
        """The bus of a shard, before anything is written there."""

        async def look() -> CommandBus:
            return await self.sharded.trying(name)

        try:
            if end is None:
                return await look()
            return await repeated(look, end - time.monotonic(), _nobody)
        except DatabaseUnavailableError as error:
            if "retry_for" not in self.given or self.given.get("conn") is not None:
                raise
            wanted = self.given.get("command_id")
            known = repeatable(error, [wanted] if isinstance(wanted, UUID) else [])
            known.shard = error.shard
            raise known from error

    async def at(self, name: str) -> Any:
        """The same call on a shard; at once an error if it is silent."""
        shard = await self.sharded.answering(name)
        with named(self.sharded, name):
            return await self.on(shard)

    async def home(self, *, within: float | None = None) -> Any:
        """The same call on the shard that has what belongs to no domain; in these seconds, if any
        are given, or it is taken for silent.
        """
        name = self.sharded.map.home_shard
        if within is None:
            return await self.at(name)
        try:
            return await self.sharded.leaving.within(within, self.at(name))
        except TimeoutError:
            why = f"shard {name!r}: no answer within {within:g} s"
            self.sharded.silence.begin(name, why)
            error = DatabaseUnavailableError(why)
            error.shard = name
            raise error from None

    async def everywhere(self) -> Everywhere[Any]:
        """The same call on all shards; those that are missing are noted."""
        return await ask_all(self.sharded, self.on)

    async def where_needed(self) -> Everywhere[Any]:
        """The same on the shards of the domains that are wanted: others need not be there."""
        wanted = self.given.get("domains")
        if wanted is None:
            return await self.everywhere()
        names = {self.sharded.find(domain) for domain in wanted} - {None}
        return await ask_all(self.sharded, self.on, names=names) if names else Everywhere({}, {})

    async def first(self, read: Callable[[CommandBus], Awaitable[Any]], what: str) -> str | None:
        """The shard on which `read` finds something; None: none, and all have answered."""
        return await self.sharded.first(read, what)

    def refuse(self, *advice: str) -> Any:
        """It is not possible over shards."""
        refuse(self.path, *advice)


def _left(end: float | None) -> dict[str, float]:
    return {} if end is None else {"retry_for": max(0.0, end - time.monotonic())}


async def _nobody(_: object) -> None:
    """Opening a shard writes nothing that could be known from an earlier try."""


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
