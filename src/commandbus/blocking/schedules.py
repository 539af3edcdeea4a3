"""`bus.schedules` of BlockingBus. Written by `make blocking` from those that it waits for: do not edit.

Parameters and types are as there; so is the first line of each description.
"""

# ruff: noqa: A002, D209, E501, F401, I001, PLC0415, PLR0913, RUF100
# fmt: off
from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.blocking.bridge import BlockingFacet
from commandbus.schedules.model import Missed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime, timedelta
    from typing import Any
    from uuid import UUID
    from commandbus.database.model import OnBehalf
    from commandbus.paging import Page
    from commandbus.schedules.model import Overlap, Schedule
    from commandbus.schedules.service import Schedules


class BlockingSchedules(BlockingFacet["Schedules"]):
    """`bus.schedules`: commands that are sent by the clock. Needs PostgreSQL."""

    def put(
        self, domain: str, name: str, command_type: str, data: Mapping[str, Any], *,
        cron: str | None = None, timezone: str | None = None,
        every: timedelta | float | None = None, at: datetime | None = None,
        missed: Missed | str = Missed.ONCE, missed_cap: int = 100,
        overlap: Overlap | str | None = None, jitter: float | timedelta = 0,
        expires_in: float | timedelta | None = None, priority: int | None = None,
        ordering_key: str | None = None, meta: Mapping[str, str] | None = None,
        reply_to: str | None = None, max_attempts: int | None = None, operator: str | None = None,
        on_behalf: OnBehalf | None = None, only_own: bool = False,
    ) -> Schedule:
        """Create a schedule, or replace the one of this name. The same again changes nothing."""
        return self._bridge.run(self._facet.put(
            domain, name, command_type, data, cron=cron, timezone=timezone, every=every, at=at,
            missed=missed, missed_cap=missed_cap, overlap=overlap, jitter=jitter,
            expires_in=expires_in, priority=priority, ordering_key=ordering_key, meta=meta,
            reply_to=reply_to, max_attempts=max_attempts, operator=operator, on_behalf=on_behalf,
            only_own=only_own,
        ))

    def get(self, domain: str, name: str, *, show_data: bool = False) -> Schedule | None:
        """One schedule, or None; with `show_data` also its payload, secrets masked."""
        return self._bridge.run(self._facet.get(domain, name, show_data=show_data))

    def require(self, domain: str, name: str, *, show_data: bool = False) -> Schedule:
        """One schedule; raises ScheduleNotFoundError if there is none."""
        return self._bridge.run(self._facet.require(domain, name, show_data=show_data))

    def list(
        self, domain: str | None = None, *, domains: Collection[str] | None = None,
        limit: int = 100, cursor: str | None = None,
    ) -> Page[Schedule]:
        """Schedules by domain and name, without their payloads; `domains`: of one of these."""
        return self._bridge.run(self._facet.list(
            domain, domains=domains, limit=limit, cursor=cursor,
        ))

    def preview(
        self, domain: str | None = None, name: str | None = None, *, cron: str | None = None,
        timezone: str | None = None, every: timedelta | float | None = None,
        at: datetime | None = None, count: int = 10,
    ) -> Sequence[datetime]:
        """The next ticks of a schedule, or of one that is only thought of."""
        return self._bridge.run(self._facet.preview(
            domain, name, cron=cron, timezone=timezone, every=every, at=at, count=count,
        ))

    def pause(
        self, domain: str, name: str, *, reason: str | None = None, operator: str | None = None,
    ) -> Schedule:
        """Stop its ticks until it is resumed. A second pause has the newer reason."""
        return self._bridge.run(self._facet.pause(domain, name, reason=reason, operator=operator))

    def resume(
        self, domain: str, name: str, *, catch_up: bool = False, reason: str | None = None,
        operator: str | None = None,
    ) -> Schedule:
        """Let it fire again, from now on; with `catch_up` the ticks of the pause are missed
        ones."""
        return self._bridge.run(self._facet.resume(
            domain, name, catch_up=catch_up, reason=reason, operator=operator,
        ))

    def delete(
        self, domain: str, name: str, *, reason: str | None = None, operator: str | None = None,
    ) -> bool:
        """Remove it; False if there is none. The commands that it has sent stay."""
        return self._bridge.run(self._facet.delete(domain, name, reason=reason, operator=operator))

    def trigger(
        self, domain: str, name: str, *, command_id: UUID | None = None, reason: str | None = None,
        operator: str | None = None, on_behalf: OnBehalf | None = None,
    ) -> UUID:
        """Send its command now, also if it is paused; returns the id. No tick is moved."""
        return self._bridge.run(self._facet.trigger(
            domain, name, command_id=command_id, reason=reason, operator=operator,
            on_behalf=on_behalf,
        ))
