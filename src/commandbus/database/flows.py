"""Time and pause on PostgreSQL: what changes when commands start, and who asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import LiteralString
from uuid import UUID

from commandbus.database.gateway import Gateway
from commandbus.flow import Pause

_RESCHEDULE: LiteralString = (
    "select {schema}.reschedule_commands(%s, cast(%s as uuid[]), cast(%s as timestamptz),"
    " cast(%s as float8), cast(%s as text))"
)
# Seconds are counted by the clock of the database.
_PAUSE: LiteralString = (
    "select {schema}.pause_domain(%s, cast(%s as text), coalesce(cast(%s as timestamptz),"
    " clock_timestamp() + make_interval(secs => cast(%s as float8))), cast(%s as text))"
)
_RESUME: LiteralString = "select {schema}.resume_domain(%s, cast(%s as text), cast(%s as text))"
_PAUSE_TYPE: LiteralString = (
    "select {schema}.pause_type(%s, cast(%s as text), cast(%s as text),"
    " coalesce(cast(%s as timestamptz),"
    " clock_timestamp() + make_interval(secs => cast(%s as float8))), cast(%s as text))"
)
_RESUME_TYPE: LiteralString = (
    "select {schema}.resume_type(%s, cast(%s as text), cast(%s as text), cast(%s as text))"
)
_PAUSES: LiteralString = (
    "select p.domain, p.paused_at, p.paused_until, p.paused_by, p.pause_reason"
    ", cast(null as text) from {schema}.paused_domains(cast(%s as text[])) p"
    " union all select p.domain, p.paused_at, p.paused_until, p.paused_by, p.pause_reason,"
    " p.command_type from {schema}.paused_types(cast(%s as text[])) p order by 1, 6 nulls first"
)
_RELEASE: LiteralString = "select {schema}.release_waiting(%s)"
_DUE_IN: LiteralString = "select d.domain, d.seconds from {schema}.due_in(cast(%s as text[])) d"


_SET_PRIORITY: LiteralString = (
    "select {schema}.set_priority(%s, cast(%s as uuid[]), cast(%s as int), cast(%s as text))"
)
_SET_LEVEL_SECONDS: LiteralString = (
    "select {schema}.set_level_seconds(%s, cast(%s as float8), cast(%s as text))"
)
_KEY_POLICY: LiteralString = "select {schema}.key_policy(%s)"
_SET_KEY_POLICY: LiteralString = (
    "select {schema}.set_key_policy(%s, %s, cast(%s as text), cast(%s as text))"
)


class PostgresFlow:
    """The part of commandbus.database.store.Store that is about time and pause."""

    gateway: Gateway

    async def reschedule(
        self,
        domain: str,
        ids: Sequence[UUID],
        *,
        deliver_at: datetime | None,
        delay_seconds: float | None,
        actor: str | None,
    ) -> None:
        params = (domain, list(ids), deliver_at, delay_seconds, actor)
        await self.gateway.rows(_RESCHEDULE, params, domain=domain)

    async def pause(
        self,
        domain: str,
        command_type: str | None,
        *,
        reason: str,
        until: datetime | timedelta | None,
        actor: str | None,
    ) -> None:
        lasts = until.total_seconds() if isinstance(until, timedelta) else None
        params = (reason, None if lasts is not None else until, lasts, actor)
        if command_type is None:
            await self.gateway.rows(_PAUSE, (domain, *params), domain=domain)
        else:
            await self.gateway.rows(_PAUSE_TYPE, (domain, command_type, *params), domain=domain)

    async def resume(
        self,
        domain: str,
        command_type: str | None,
        *,
        actor: str | None,
        reason: str | None = None,
    ) -> bool:
        if command_type is None:
            return bool(await self.gateway.value(_RESUME, (domain, actor, reason), domain=domain))
        params = (domain, command_type, actor, reason)
        was_paused = bool(await self.gateway.value(_RESUME_TYPE, params, domain=domain))
        # In chunks; a chore does the same, should this be interrupted.
        while await self.gateway.value(_RELEASE, (domain,), domain=domain):
            pass
        return was_paused

    async def pauses(self, domains: Sequence[str] | None = None) -> list[Pause]:
        wanted = None if domains is None else list(domains)
        return await self.gateway.rows(_PAUSES, (wanted, wanted), into=Pause)

    async def set_priority(
        self, domain: str, ids: Sequence[UUID], priority: int, *, actor: str | None
    ) -> None:
        params = (domain, list(ids), priority, actor)
        await self.gateway.rows(_SET_PRIORITY, params, domain=domain)

    async def set_level_seconds(self, domain: str, seconds: float, *, actor: str | None) -> None:
        await self.gateway.rows(_SET_LEVEL_SECONDS, (domain, seconds, actor), domain=domain)

    async def key_policy(self, domain: str) -> str:
        return str(await self.gateway.value(_KEY_POLICY, (domain,), domain=domain))

    async def set_key_policy(
        self, domain: str, on_park: str, *, reason: str | None, actor: str | None
    ) -> None:
        await self.gateway.rows(_SET_KEY_POLICY, (domain, on_park, actor, reason), domain=domain)

    async def due_in(self, domains: Sequence[str]) -> dict[str, float]:
        rows = await self.gateway.rows(_DUE_IN, (list(domains),))
        return dict(rows)
