"""The verbs of a bus that change when commands start: time, pause, priority."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from commandbus.errors import InvalidInputError
from commandbus.facets import Facets
from commandbus.flow import (
    MAX_DELAY_SECONDS,
    MAX_PAUSE_SECONDS,
    Pause,
    check_priority,
    check_seconds,
    check_time,
)
from commandbus.names import (
    check_command_type,
    check_domain,
    check_operator,
    check_text,
    check_uuid,
)
from commandbus.privacy.reasons import check_reason
from commandbus.privacy.redaction import redact_text

#: Commands that one call reschedules at most.
MAX_RESCHEDULE = 10_000
MAX_REASON_LENGTH = 1_000


class FlowVerbs(Facets):
    """Reschedule, pause, prioritize."""

    async def reschedule(
        self,
        domain: str,
        command_ids: UUID | Sequence[UUID],
        *,
        deliver_at: datetime | None = None,
        delay: float | timedelta | None = None,
        operator: str | None = None,
    ) -> None:
        """Give commands that nobody has begun another time, all of them or none.

        A command that a worker has, that has ended, that would expire before its new time or that
        waits behind others of its ordering key is refused. A time in the past is now.
        """
        if (deliver_at is None) == (delay is None):
            raise InvalidInputError("give deliver_at or delay, one of them; `send_now` needs none")
        seconds = None if delay is None else check_seconds(delay, "delay", 0.0, MAX_DELAY_SECONDS)
        moment = None if deliver_at is None else check_time(deliver_at, "deliver_at")
        await self._store.reschedule(
            check_domain(domain),
            _check_ids(command_ids),
            deliver_at=moment,
            delay_seconds=seconds,
            actor=check_operator(operator),
        )

    async def send_now(
        self, domain: str, command_ids: UUID | Sequence[UUID], *, operator: str | None = None
    ) -> None:
        """Make commands due that are delayed or back off, all of them or none; attempts stay."""
        await self.reschedule(domain, command_ids, delay=0, operator=operator)

    async def pause(
        self,
        domain: str,
        *,
        type: str | None = None,  # noqa: A002  (the word that users know)
        reason: str,
        until: datetime | timedelta | None = None,
        operator: str | None = None,
    ) -> None:
        """Start no more commands of a domain, or of one of its types, until `resume`.

        With `until`, a time or a duration, it is over by itself. What runs goes on; what workers
        have leased and not started goes back within two seconds. Sends are accepted. A second
        pause replaces the reason and the end of the first.
        """
        if isinstance(until, timedelta):
            check_seconds(until, "until", 0.001, MAX_PAUSE_SECONDS)
        elif until is not None:
            until = check_time(until, "until")
        await self._store.pause(
            check_domain(domain),
            None if type is None else check_command_type(type),
            reason=redact_text(check_text(reason, "reason", max_length=MAX_REASON_LENGTH)),
            until=until,
            actor=check_operator(operator),
        )

    async def resume(
        self,
        domain: str,
        *,
        type: str | None = None,  # noqa: A002
        reason: str | None = None,
        operator: str | None = None,
    ) -> bool:
        """End the pause of a domain, or of one of its types; False if there was none."""
        return await self._store.resume(
            check_domain(domain),
            None if type is None else check_command_type(type),
            actor=check_operator(operator),
            reason=check_reason(reason),
        )

    async def set_priority(
        self,
        domain: str,
        command_ids: UUID | Sequence[UUID],
        priority: int,
        *,
        operator: str | None = None,
    ) -> None:
        """Give commands that nobody has begun another level, -2 to 2, all of them or none."""
        ids, level = _check_ids(command_ids), check_priority(priority)
        actor = check_operator(operator)
        await self._store.set_priority(check_domain(domain), ids, level, actor=actor)

    async def set_level_seconds(
        self, domain: str, seconds: float | timedelta, *, operator: str | None = None
    ) -> None:
        """Say how much waiting one level of priority is worth in a domain: 60 seconds at first.

        A command of a lower level goes first once it has waited that much longer for each level
        between the two. With 0 levels are ignored.
        """
        worth = check_seconds(seconds, "seconds", 0.0, MAX_DELAY_SECONDS)
        actor = check_operator(operator)
        await self._store.set_level_seconds(check_domain(domain), worth, actor=actor)

    async def pauses(self, domain: str | None = None) -> list[Pause]:
        """The domains that are paused now: since when, until when, by whom and why."""
        return await self._store.pauses(None if domain is None else [check_domain(domain)])


def _check_ids(command_ids: UUID | Sequence[UUID]) -> list[UUID]:
    if isinstance(command_ids, UUID):
        return [command_ids]
    if not isinstance(command_ids, Iterable):
        raise InvalidInputError(f"give a command id or several, not {command_ids!r}")
    given = list(command_ids)
    if not 1 <= len(given) <= MAX_RESCHEDULE:
        raise InvalidInputError(f"give 1 to {MAX_RESCHEDULE:,} command ids, not {len(given):,}")
    return [check_uuid(each) for each in given]
