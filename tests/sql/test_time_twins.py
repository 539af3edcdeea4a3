"""Expiry, delays, levels, pauses with an end, keys of sends, progress, cancels and schedules of two
domains that have the same ids and names: neither touches the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tests.sql import schedules
from tests.sql.helpers import FAILURE, Session
from tests.sql.twin_stories import Story, stops, tell

HOUR = 3600


class TimeStory(Story):
    """All that has a time."""

    async def _set(self, table: str, assignment: str, condition: str, *params: Any) -> None:
        await self.db.rows(
            f"update commandbus.command_bus_{table} set {assignment} where domain = %s"
            f" and {condition}", self.db.domain, *params,
        )  # fmt: skip

    async def _expire(self, n: int) -> None:
        ago = "clock_timestamp() - interval '1 second'"
        await self._set("command", f"expires_at = {ago}", "command_id = %s", self.ids[n])
        await self._set("expiry", f"look_at = {ago}", "command_id = %s", self.ids[n])

    async def sends_with_times_and_levels(self) -> None:
        await self.send(0, 3, expires_in_seconds=HOUR)
        await self.send(3, 2, delay_seconds=600)
        await self.send(5, 2, delay_seconds=600, expires_in_seconds=HOUR)
        await self.send(7, 1, priority=2)
        await self.send(8, 1, priority=-1, delay_seconds=60)

    async def leases_what_is_due(self) -> None:
        await self.receive()
        assert self.holds() == [0, 1, 2, 7]

    async def says_how_far_it_is(self) -> None:
        items = [
            self.held[self.ids[n]].item(fraction=n / 4, message=f"{n} of 4") for n in (0, 1, 2)
        ]
        await self.call("record_progress(%s, %s)", Jsonb(items))

    async def is_asked_to_cancel(self) -> None:
        ids = [self.ids[1], self.ids[4]]
        await self.call("request_cancel(%s, %s, 'stop', 'ann')", ids)

    async def moves_what_is_delayed(self) -> None:
        await self.call("reschedule_commands(%s, %s, null, 1200, 'ann')", [self.ids[3]])
        await self.call("set_priority(%s, %s, 1, 'ann')", [self.ids[3], self.ids[8]])
        await self.call("set_level_seconds(%s, 7, 'ann')")

    async def one_expires(self) -> None:
        await self._expire(5)
        await self.db.value("select commandbus.end_expired()")
        assert await self.db.status(self.ids[5]) == "CANCELED"

    async def what_runs_does_not(self) -> None:
        await self._expire(0)
        await self._expire(2)
        await self.settle("complete", 2, data=None)
        await self.db.value("select commandbus.end_expired()")
        assert await self.db.status(self.ids[0]) == "IN_PROGRESS"
        # Looked at again when its lease may have ended.
        await self._set("expiry", "look_at = look_at + interval '1 hour'", "true")

    async def retries_end_what_is_over(self) -> None:
        await self.settle("retry", 1, delay_seconds=0, **FAILURE)
        await self.settle("retry", 0, delay_seconds=600, **FAILURE)
        await self._expire(0)
        await self.db.value("select commandbus.end_expired()")
        assert [await self.db.status(self.ids[n]) for n in (0, 1)] == ["CANCELED"] * 2

    async def is_paused_for_an_hour(self) -> None:
        until = "clock_timestamp() + interval '1 hour'"
        await self.call(f"pause_domain(%s, 'why', {until}, 'ann')")
        await self.call(f"pause_type(%s, 'Pay', 'why', {until}, 'ann')")
        await self.call(f"pause_type(%s, 'Debit', 'why', {until}, 'ann')")
        await self.send(9, 2, type="Pay")
        await self.receive()
        assert self.holds() == [7]

    async def the_domain_goes_on(self) -> None:
        await self._set("flow", "paused_until = clock_timestamp()", "true")
        await self.db.value("select commandbus.keep_pauses()")
        await self.receive()
        assert self.holds() == [7]

    async def a_type_goes_on(self) -> None:
        await self._set("flow_rule", "paused_until = clock_timestamp()", "command_type = 'Pay'")
        await self.db.value("select commandbus.keep_pauses()")
        assert await self.call("resume_type(%s, 'Debit', 'ann')")
        while await self.call("tend_gates(%s)"):
            pass
        await self.receive()
        assert self.holds() == [7, 9, 10]

    async def _unique(self, n: int, key: str, rule: str, on_duplicate: str) -> int:
        found: UUID = await self.call(
            "send_unique(%s, 'Report', %s, %s, %s, %s, %s, '10 minutes')",
            self.ids[n], Jsonb({"n": n}), key, rule, on_duplicate,
        )  # fmt: skip
        return self.ids.index(found)

    async def sends_once_by_key(self) -> None:
        assert await self._unique(11, "u", "open", "skip") == 11
        assert await self._unique(12, "w", "waiting", "replace") == 12
        assert await self._unique(13, "t", "1 hour", "skip") == 13

    async def sends_again_by_key(self) -> None:
        assert await self._unique(14, "u", "open", "skip") == 11
        assert await self._unique(14, "w", "waiting", "replace") == 12
        assert await self._unique(14, "t", "1 hour", "skip") == 13

    async def gives_keys_back(self) -> None:
        await self.call("cancel_commands(%s, %s, 'why')", [self.ids[11]])
        await self._set("unique", "look_at = clock_timestamp()", "true")
        await self.db.value("select commandbus.prune_unique()")
        assert await self._unique(14, "u", "open", "skip") == 14

    async def _fire(self, n: int) -> list[tuple[str, int, int]]:
        fire = schedules.fire_of(await schedules.row(self.db), ids=[str(self.ids[n])])
        return await schedules.fire(self.db, fire)

    async def has_a_schedule(self) -> None:
        assert await schedules.put(self.db) == "created"
        assert await schedules.put(self.db, "y", due=-HOUR) == "created"
        assert await self._fire(15) == [("fired", 1, 0)]

    async def triggers_and_overlaps(self) -> None:
        trigger = "trigger_schedule(%s, 'x', %s, 'ann')"
        assert await self.call(trigger, self.ids[16]) == "sent"
        assert await self.call(trigger, self.ids[16]) == "repeat"
        assert await self.call(trigger, self.ids[3]) == "known"
        await self._set("schedule", "next_tick_at = now(), look_at = now()", "name = 'x'")
        assert await self._fire(17) == [("fired", 0, 1)]

    async def pauses_a_schedule(self) -> None:
        assert await self.call("pause_schedule(%s, 'x', 'why', 'bob')")
        assert not await self.call("pause_schedule(%s, 'z', 'why', 'bob')")

    async def resumes_a_schedule(self) -> None:
        resume = "resume_schedule(%s, 'x', %s, now() + interval '1 hour', false, 'bob')"
        version = (await schedules.row(self.db))["version"]
        assert await self.call(resume, version) == "resumed"
        assert await schedules.put(self.db, version=version + 1, data={"n": 2}) == "changed"

    async def removes_a_schedule(self) -> None:
        assert await self.call("delete_schedule(%s, 'x', 'bob')")
        assert not await self.call("delete_schedule(%s, 'x', 'bob')")

    async def forgets_how_far_it_was(self) -> None:
        await self.settle("complete", 7, data=None)
        await self._set("progress", "at = at - interval '1 hour'", "true")
        await self.db.value("select commandbus.sweep_progress()")


STEPS: tuple[Callable[[TimeStory], Awaitable[None]], ...] = (
    TimeStory.sends_with_times_and_levels, TimeStory.leases_what_is_due,
    TimeStory.says_how_far_it_is, TimeStory.is_asked_to_cancel, TimeStory.moves_what_is_delayed,
    TimeStory.one_expires, TimeStory.what_runs_does_not, TimeStory.retries_end_what_is_over,
    TimeStory.is_paused_for_an_hour, TimeStory.the_domain_goes_on, TimeStory.a_type_goes_on,
    TimeStory.sends_once_by_key, TimeStory.sends_again_by_key, TimeStory.gives_keys_back,
    TimeStory.has_a_schedule, TimeStory.triggers_and_overlaps, TimeStory.pauses_a_schedule,
    TimeStory.resumes_a_schedule, TimeStory.removes_a_schedule, TimeStory.forgets_how_far_it_was,
)  # fmt: skip


@pytest.mark.parametrize("stops_after", stops([3, 7, 9, 15], [1, 4, 5, 10, 12, 17, 20]))
async def test_the_time_of_a_domain_is_its_own(db: Session, stops_after: int) -> None:
    await tell(db, TimeStory, STEPS, stops_after)
