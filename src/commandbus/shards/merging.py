"""How the answers of all shards become one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from commandbus.errors import DatabaseUnavailableError, InvalidInputError, InvalidOperationError
from commandbus.governance.model import LimitsStatus, LimitState
from commandbus.paging import EVERY_LIMIT, Page
from commandbus.shards.call import Call, note
from commandbus.shards.model import Everywhere, not_found
from commandbus.shards.pages import MergedPages, newest, oldest
from commandbus.troubleshooting.model import FailureGroup, GroupList
from commandbus.upkeep.activity import Activity

# -- lists


async def joined(call: Call) -> list[Any]:
    """The items of all shards, or of those that are concerned."""
    seen = await call.where_needed()
    return [each for answer in seen.found.values() for each in answer]


def ordered(key: Callable[[Any], Any], *, reverse: bool = False) -> Callable[[Call], Any]:
    """The items of all shards in the order of each, at most as many as were asked for."""

    async def merge(call: Call) -> list[Any]:
        found = sorted(await joined(call), key=key, reverse=reverse)
        return found[: call.given.get("limit")]

    return merge


async def unique(call: Call) -> list[Any]:
    """What any shard says, once."""
    found: list[Any] = []
    for each in await joined(call):
        if each not in found:
            found.append(each)
    return found


async def known(call: Call, wanted: object) -> list[Any]:
    """What the shards know of an id; that none does is said only if all of them have answered."""
    seen = await call.everywhere()
    found = [each for answer in seen.found.values() for each in answer]
    if not found and seen.missing:
        raise not_found(str(wanted), seen.missing)
    return found


def of_id(name: str) -> Callable[[Call], Any]:
    """The same of an id that is given by this name, each thing once."""

    async def rule(call: Call) -> list[Any]:
        return list(dict.fromkeys(await known(call, call.given[name])))

    return rule


async def of_domains(call: Call) -> list[Any]:
    """One item of each domain: of one that has moved that of the shard where it is now."""
    seen = await call.where_needed()
    rows = [(name, each) for name, answer in seen.found.items() for each in answer]
    return sorted(_where_they_are(call, rows), key=lambda each: each.domain)


async def of_domains_by_name(call: Call) -> dict[str, Any]:
    """The same of answers that are by domain."""
    seen = await call.where_needed()
    rows = [(name, each) for name, answer in seen.found.items() for each in answer.values()]
    return {each.domain: each for each in _where_they_are(call, rows)}


def _where_they_are(call: Call, rows: Iterable[tuple[str, Any]]) -> list[Any]:
    kept: dict[str, Any] = {}
    for name, each in rows:
        if each.domain not in kept or call.sharded.find(each.domain) == name:
            kept[each.domain] = each
    return list(kept.values())


async def added(call: Call) -> dict[Any, int]:
    """Counts by the same names, added."""
    seen = await call.everywhere()
    sums: dict[Any, int] = {}
    for answer in seen.found.values():
        for name, count in answer.items():
            sums[name] = sums.get(name, 0) + count
    return sums


# -- pages


def paged(what: str, key: Callable[..., Any], order: Any = newest) -> Callable[[Call], Any]:
    """A page of a listing of all shards. `key`: of the place of an item, and the item."""

    async def merge(call: Call) -> Page[Any]:
        descending = call.given.get("newest_first")
        sign = order if descending is None else (newest if descending else oldest)
        made = partial(key, sign)
        return await _page(call, what, made, sign)

    return merge


async def _page(call: Call, what: str, key: Callable[[Any, Any], Any], order: Any) -> Page[Any]:
    found = await MergedPages(call.sharded).merged(
        what,
        lambda bus, cursor: call.on(bus, cursor=cursor),
        lambda page, number: key(page.places[number], page.items[number]),
        order,
        call.given["limit"],
        call.given["cursor"],
    )
    note(found.missing)
    if len(found.missing) >= len(call.sharded.map.shards):
        whys = "; ".join(found.missing.values())
        raise DatabaseUnavailableError(f"none of the shards answers: {whys}")
    return Page([each.item for each in found.items], found.next_cursor)


def by_time_and_id(order: Callable[[datetime], float], place: Any, _: Any) -> tuple[Any, ...]:
    """The key of most listings; ids go the way of the times."""
    at, one = place
    number = one.int if hasattr(one, "int") else 0
    return order(at), number if order is oldest else -number


def by_time_then_id(order: Callable[[datetime], float], place: Any, _: Any) -> tuple[Any, ...]:
    """The same where ids go up whatever the times do."""
    at, one = place
    return order(at), one


def by_event(order: Callable[[datetime], float], _: Any, event: Any) -> tuple[Any, ...]:
    """Of events of the audit, whose places are numbers of one shard."""
    return (order(event.ts),)


def by_name(_: Any, place: Any, __: Any) -> tuple[Any, ...]:
    """Of what is sorted by names."""
    return tuple(place)


async def every(read: Callable[..., Any]) -> AsyncIterator[Any]:
    """All items of all shards. What is written to a file must be whole: no shard may be missing."""
    cursor: str | None = None
    while True:
        page = await read(limit=EVERY_LIMIT, cursor=cursor)
        if page.missing:
            whys = "; ".join(page.missing.values())
            raise DatabaseUnavailableError(f"{whys}; what all shards have cannot be read whole")
        for each in page.items:
            yield each.item
        cursor = page.next_cursor
        if cursor is None:
            return


# -- failure groups


async def group_list(call: Call) -> GroupList:
    """The largest groups of all shards."""
    seen = await call.everywhere()
    found = [group for answer in seen.found.values() for group in answer.groups]
    found.sort(key=_size)
    is_cut = any(answer.is_cut for answer in seen.found.values())
    limit = call.given["limit"]
    return GroupList(tuple(found[:limit]), is_cut or len(found) > limit)


async def groups(call: Call) -> list[FailureGroup]:
    """The largest groups of all shards."""
    return sorted(await joined(call), key=_size)[: call.given["limit"]]


def _size(group: FailureGroup) -> int:
    return -group.parked_count


async def one_group(call: Call) -> FailureGroup:
    """The one group that is meant, on whichever shard it is."""
    refusals: list[Exception] = []

    async def look(bus: Any) -> FailureGroup | None:
        try:
            found: FailureGroup = await call.on(bus)
        except InvalidOperationError as error:
            refusals.append(error)
            return None
        return found

    seen: Everywhere[Any] = await call.sharded.everywhere(look)
    note(seen.missing)
    found: list[FailureGroup] = [each for each in seen.found.values() if each is not None]
    if len(found) > 1:
        places = ", ".join(sorted(each.domain for each in found))
        raise InvalidInputError(f"it is a failure group of several domains: {places}; name one")
    if found:
        return found[0]
    if refusals and not seen.missing:
        raise refusals[0]
    whys = "; ".join(seen.missing.values())
    raise DatabaseUnavailableError(
        f"no such failure group on the shards that answered, and others did not: {whys}"
    )


# -- limits of users


async def limits_status(call: Call) -> LimitsStatus:
    """The limits of users and services. Each shard counts by itself: the fullest is shown."""
    answers: list[LimitsStatus] = list((await call.everywhere()).found.values())
    users: dict[str, list[LimitState]] = {}
    for answer in answers:
        for user, states in answer.users:
            users.setdefault(user, []).extend(states)
    return replace(
        answers[0],
        limits=_fullest(state for answer in answers for state in answer.limits),
        exemptions=tuple({e.user_id: e for a in answers for e in a.exemptions}.values()),
        overrides=tuple({o.user_id: o for a in answers for o in a.overrides}.values()),
        users=tuple((user, _fullest(states)) for user, states in users.items()),
    )


def _fullest(states: Iterable[LimitState]) -> tuple[LimitState, ...]:
    found: dict[tuple[str, str], LimitState] = {}
    for each in states:
        key = (each.limit_type, each.scope)
        if key not in found or found[key].current_value < each.current_value:
            found[key] = each
    return tuple(found.values())


# -- somebody who looks again and again


class Looking:
    """`figures.watch` of all shards."""

    def __init__(self, watches: Callable[[Any], Any], ask: Callable[..., Any]) -> None:
        self._watches = watches
        self._ask = ask
        self._open: dict[int, Any] = {}

    async def look(self) -> Activity:
        """Look once more."""
        seen: Mapping[str, Activity] = (await self._ask(self._one)).found
        domains = [each for activity in seen.values() for each in activity.domains]
        workers = [each for activity in seen.values() for each in activity.workers]
        limits = [each for activity in seen.values() for each in activity.limits]
        return Activity(domains, workers, limits)

    def _one(self, bus: Any) -> Any:
        watch = self._open.setdefault(id(bus), None) or self._watches(bus)
        self._open[id(bus)] = watch
        return watch.look()


class Tailing:
    """`search.tail` of all shards: the events of each look by their time."""

    def __init__(self, tails: Callable[[Any], Any], ask: Callable[..., Any], limit: int) -> None:
        self._looking = Looking(tails, ask)
        self._limit = limit
        self._is_first = True

    async def look(self) -> list[Any]:
        """What is new since the last look, oldest first; the first look has the latest events."""
        seen = (await self._looking._ask(self._looking._one)).found
        found = sorted((each for events in seen.values() for each in events), key=lambda e: e.ts)
        if self._is_first:
            found, self._is_first = found[-self._limit :], False
        return found
