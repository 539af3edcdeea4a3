"""Schedules: `bus.schedules`. Put, look, pause, resume, trigger, delete, preview."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, LiteralString
from uuid import UUID

import orjson

from commandbus.commands.preparing import Preparer
from commandbus.database import encoding
from commandbus.database.model import OnBehalf
from commandbus.database.store import Store
from commandbus.errors import (
    DatabaseError,
    DuplicateCommandError,
    InvalidInputError,
    InvalidPayloadError,
    PermissionDeniedError,
    ScheduleNotFoundError,
)
from commandbus.loops import running
from commandbus.meta import check_meta
from commandbus.names import (
    NO_REPLY,
    check_choice,
    check_domain,
    check_operator,
    check_reach,
    check_uuid,
    new_id,
)
from commandbus.paging import Page, check_page, page_of, position_of
from commandbus.privacy.reasons import check_reason
from commandbus.privacy.redaction import redact_payload
from commandbus.privacy.values import MASK
from commandbus.schedules.checks import check_schedule_name, check_spec
from commandbus.schedules.keepers import keepers_of
from commandbus.schedules.model import Missed, Overlap, Schedule, ScheduleTime
from commandbus.schedules.statements import (
    DATA,
    DELETE,
    FIND,
    PAGE,
    PAUSE,
    PUT,
    RESUME,
    TRIGGER,
)
from commandbus.schedules.ticks import (
    MISSED_AFTER,
    check_time,
    check_zone,
    expression_of,
    next_after,
)
from commandbus.settings import Settings, check_number

#: Ticks that a preview shows at most.
MAX_PREVIEW = 1_000
#: How often a schedule is looked at again if others change it at the same time.
TRIES = 10

#: In the order of Schedule.
SecretKeys = Callable[[str, str], Awaitable[frozenset[str]]]


class Schedules:
    """`bus.schedules`: commands that are sent by the clock. Needs PostgreSQL."""

    def __init__(
        self, store: Store, preparer: Preparer, settings: Settings, secret_keys: SecretKeys
    ) -> None:
        self._store = store
        self._preparer = preparer
        self._settings = settings
        self._secret_keys = secret_keys

    async def put(  # noqa: PLR0913  (each is a column)
        self,
        domain: str,
        name: str,
        command_type: str,
        data: Mapping[str, Any],
        *,
        cron: str | None = None,
        timezone: str | None = None,
        every: timedelta | float | None = None,
        at: datetime | None = None,
        missed: Missed | str = Missed.ONCE,
        missed_cap: int = 100,
        overlap: Overlap | str | None = None,
        jitter: float | timedelta = 0,
        expires_in: float | timedelta | None = None,
        priority: int | None = None,
        ordering_key: str | None = None,
        meta: Mapping[str, str] | None = None,
        reply_to: str | None = None,
        max_attempts: int | None = None,
        operator: str | None = None,
        on_behalf: OnBehalf | None = None,
        only_own: bool = False,
    ) -> Schedule:
        """Create a schedule, or replace the one of this name. The same again changes nothing.

        Due by one of `cron` (in `timezone`, by default UTC), `every` (a timedelta or seconds) and
        `at`. Other times count from now; otherwise it goes on as it stands, also if it is paused.
        `missed` says what becomes of ticks that nobody fired within a minute, `overlap` whether a
        tick is skipped while the last command is open: by default yes, with missed="all" no.
        `jitter` delays each command by up to that many seconds. `meta` travels with each. They
        have no reply unless `reply_to` names a queue. `on_behalf`: for which caller of the HTTP
        service; with `only_own` it may replace only what it has put itself.
        """
        check_domain(domain)
        policy = check_choice(Missed, missed, "policy for missed ticks")
        if overlap is None:
            overlap = Overlap.ALLOW if policy is Missed.ALL else Overlap.SKIP
        command = self._preparer.command(
            domain, command_type, new_id(), data, NO_REPLY if reply_to is None else reply_to,
            None, max_attempts,
        )  # fmt: skip
        if on_behalf is not None and MASK.encode() in command.data:
            # What was read with secrets masked must not be written back so.
            raise InvalidPayloadError(
                f"the payload has {MASK} in it, which stands for a secret; write the secret"
            )
        spec: dict[str, Any] = {
            "command_type": command.command_type,
            "data": orjson.Fragment(command.data),
            "reply_to": command.reply_to,
            "max_attempts": command.max_attempts,
            "missed": policy,
            "missed_cap": missed_cap,
            "overlap": check_choice(Overlap, overlap, "policy for overlaps"),
            "jitter_seconds": jitter,
            "expires_in_seconds": expires_in,
            "priority": priority,
            "ordering_key": ordering_key,
            "meta": check_meta(meta),
        }
        check_spec(spec)
        actor = check_operator(operator)
        for_whom = None if on_behalf is None else encoding.on_behalf(on_behalf)
        place = (domain, check_schedule_name(name))
        given = (cron, timezone, every, at)
        check_time(*given, now=datetime.now(UTC))  # before the domain is created
        await self._store.gateway.ensure_domain(domain)
        await self._preparer.marks.tell(self._store)

        async def attempt() -> bool:
            now, known = await self._find(*place)
            if only_own and known is not None and known.put_for != _user(on_behalf):
                raise PermissionDeniedError("operate", "replacing a schedule of somebody else")
            time = check_time(*given, now=now)
            is_same = known is not None and time.is_same(known.time)
            if not is_same and time.at is not None and time.at < now - MISSED_AFTER:
                raise InvalidInputError(
                    f"at is {time.at.isoformat()}, which is in the past; choose a later time, or "
                    "send the command"
                )
            following = time.at if time.at is not None else next_after(time, now)
            times = {
                "cron": time.cron, "timezone": time.timezone, "every_seconds": time.every_seconds,
                "at": time.at,
            }  # fmt: skip
            verdict = await self._store.gateway.value(
                PUT,
                (
                    *place, new_id(), encoding.dump(spec | times), following, time.counted_from,
                    None if known is None else known.version, actor, for_whom,
                ),
                domain=domain,
            )  # fmt: skip
            return bool(verdict != "stale")

        await _until_settled(attempt, *place)
        return await self.require(*place)

    # -- looking

    async def get(self, domain: str, name: str, *, show_data: bool = False) -> Schedule | None:
        """One schedule, or None; with `show_data` also its payload, secrets masked."""
        _, found = await self._find(check_domain(domain), check_schedule_name(name))
        if found is None or not show_data:
            return found
        return (await self._with_data(domain, [found]))[0]

    async def require(self, domain: str, name: str, *, show_data: bool = False) -> Schedule:
        """One schedule; raises ScheduleNotFoundError if there is none."""
        found = await self.get(domain, name, show_data=show_data)
        if found is None:
            raise ScheduleNotFoundError(domain, name)
        return found

    async def list(
        self,
        domain: str | None = None,
        *,
        domains: Collection[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Schedule]:
        """Schedules by domain and name, without their payloads; `domains`: of one of these."""
        places = check_reach(domain, domains)
        check_page(limit)
        bound = domain if domains is None else (domain, places)
        last_domain, last_name = position_of(cursor, bound, _read_place) or (None, None)
        params = (places, places, last_domain, last_domain, last_name, limit + 1)
        rows = await self._store.gateway.rows(PAGE, params)
        found = [_schedule_of(*row) for row in rows]
        return page_of(found, limit, bound, lambda each: [each.domain, each.name])

    async def preview(
        self,
        domain: str | None = None,
        name: str | None = None,
        *,
        cron: str | None = None,
        timezone: str | None = None,
        every: timedelta | float | None = None,
        at: datetime | None = None,
        count: int = 10,
    ) -> Sequence[datetime]:
        """The next ticks of a schedule, or of one that is only thought of.

        Whether it is paused is not considered, nor what is skipped or delayed.
        """
        check_number(count, "count", 1, MAX_PREVIEW, is_whole=True)
        if domain is not None and name is not None:
            if (cron, timezone, every, at) != (None, None, None, None):
                raise InvalidInputError("give a schedule, or times to try; not both")
            now, found = await self._find(check_domain(domain), check_schedule_name(name))
            if found is None:
                raise ScheduleNotFoundError(domain, name)
            _require_zone(found.time)
            if found.next_tick_at is None:
                return []
            # Of one that is due, or was paused, the planned tick is the first.
            following = expression_of(found.time).after(max(found.next_tick_at, now))
            first = [found.next_tick_at] if found.next_tick_at > now else []
            return [*first, *islice(following, count - len(first))]
        if domain is not None or name is not None:
            raise InvalidInputError("give both the domain and the name of a schedule, or neither")
        check_time(cron, timezone, every, at, now=datetime.now(UTC))
        now, _ = await self._find("", "")
        time = check_time(cron, timezone, every, at, now=now)
        return [*islice(expression_of(time).after(now), count)]

    # -- acting

    async def pause(
        self, domain: str, name: str, *, reason: str | None = None, operator: str | None = None
    ) -> Schedule:
        """Stop its ticks until it is resumed. A second pause has the newer reason."""
        await self._do(PAUSE, domain, name, check_reason(reason), check_operator(operator))
        return await self.require(domain, name)

    async def resume(
        self,
        domain: str,
        name: str,
        *,
        catch_up: bool = False,
        reason: str | None = None,
        operator: str | None = None,
    ) -> Schedule:
        """Let it fire again, from now on; with `catch_up` the ticks of the pause are missed ones.

        A schedule that is not paused stays as it is.
        """
        actor, why = check_operator(operator), check_reason(reason)
        place = (check_domain(domain), check_schedule_name(name))

        async def attempt() -> bool:
            now, found = await self._find(*place)
            if found is None:
                raise ScheduleNotFoundError(*place)
            _require_zone(found.time)
            following = found.next_tick_at
            if following is not None and following <= now:
                following = next(expression_of(found.time).after(max(following, now)), None)
            params = (*place, found.version, following, bool(catch_up), actor, why)
            verdict = await self._store.gateway.value(RESUME, params, domain=domain)
            return bool(verdict != "stale")

        await _until_settled(attempt, *place)
        return await self.require(*place)

    async def delete(
        self, domain: str, name: str, *, reason: str | None = None, operator: str | None = None
    ) -> bool:
        """Remove it; False if there is none. The commands that it has sent stay."""
        place = (check_domain(domain), check_schedule_name(name))
        params = (*place, check_operator(operator), check_reason(reason))
        return bool(await self._store.gateway.value(DELETE, params, domain=domain))

    async def trigger(
        self,
        domain: str,
        name: str,
        *,
        command_id: UUID | None = None,
        reason: str | None = None,
        operator: str | None = None,
        on_behalf: OnBehalf | None = None,
    ) -> UUID:
        """Send its command now, also if it is paused; returns the id. No tick is moved.

        A repeat with the same `command_id` sends nothing. `on_behalf`: for which caller of the
        HTTP service.
        """
        wanted = new_id() if command_id is None else check_uuid(command_id)
        place = (check_domain(domain), check_schedule_name(name))
        for_whom = None if on_behalf is None else encoding.on_behalf(on_behalf)
        params = (*place, wanted, check_operator(operator), for_whom, check_reason(reason))
        verdict = await self._store.gateway.value(TRIGGER, params, domain=domain)
        if verdict is None:
            raise ScheduleNotFoundError(*place)
        if verdict == "known":
            raise DuplicateCommandError(domain, [wanted])
        return wanted

    @asynccontextmanager
    async def firing(self) -> AsyncIterator[None]:
        """Fire what is due, of all domains, while a block runs. Workers do so by themselves.

        Commands that have expired and pauses whose time is over end meanwhile, too.
        """
        if not self._store.has_gateway or not self._settings.maintenance:
            yield  # in memory there is none; and this process was told to leave it to others
            return
        async with running(keepers_of(self._store)):
            yield

    # -- inside

    async def _do(self, statement: LiteralString, domain: str, name: str, *more: Any) -> None:
        params = (check_domain(domain), check_schedule_name(name), *more)
        if not await self._store.gateway.value(statement, params, domain=domain):
            raise ScheduleNotFoundError(domain, name)

    async def _find(self, domain: str, name: str) -> tuple[datetime, Schedule | None]:
        """The time by the clock of the database, and the schedule if there is one."""
        ((now, *row),) = await self._store.gateway.rows(FIND, (domain, name))
        return now, None if row[0] is None else _schedule_of(*row)

    async def _with_data(self, domain: str, found: Sequence[Schedule]) -> Sequence[Schedule]:
        rows = await self._store.gateway.rows(DATA, (domain, [each.name for each in found]))
        payloads: dict[str, Any] = dict(rows)
        return [
            replace(
                each,
                data=redact_payload(
                    payloads.get(each.name), await self._secret_keys(domain, each.command_type)
                ),
            )
            for each in found
        ]


def _user(on_behalf: OnBehalf | None) -> str | None:
    return None if on_behalf is None else on_behalf.user_id


def _require_zone(time: ScheduleTime) -> None:
    if time.timezone is not None:
        check_zone(time.timezone)


async def _until_settled(attempt: Callable[[], Awaitable[bool]], domain: str, name: str) -> None:
    for _ in range(TRIES):
        if await attempt():
            return
    raise DatabaseError(
        f"schedule {name!r} of {domain!r} is changed by others all the time; repeat the call"
    )


def _read_place(domain: Any, name: Any) -> tuple[str, str]:
    return str(domain), str(name)


def _schedule_of(*row: Any) -> Schedule:
    made = Schedule(*row)
    return replace(made, missed=Missed(made.missed), overlap=Overlap(made.overlap))
