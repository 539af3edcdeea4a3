"""Limits, keys and pauses of two domains that have the same ids, keys and types: the state of the
one changes nothing in the other, wherever it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.sql.helpers import FAILURE, Session
from tests.sql.twin_stories import Story, stops, tell


class FlowStory(Story):
    """Keys, limits, rates, pauses."""

    async def sends_by_key(self) -> None:
        await self.send(0, 3, ordering_key="a")
        await self.send(3, 2, ordering_key="b")

    async def leases_the_heads(self) -> None:
        await self.receive()
        assert self.holds() == [0, 3]

    async def ends_one_and_parks_the_other(self) -> None:
        await self.settle("complete", 0, data=None)
        await self.settle("park", 3, reason="PERMANENT", **FAILURE)
        await self.receive()
        assert self.holds() == [1]

    async def retries_the_blocker(self) -> None:
        await self.call("operator_retry(%s, %s, 'ann', true)", [self.ids[3]])
        await self.receive()
        assert self.holds() == [1, 3]

    async def another_key_is_blocked(self) -> None:
        await self.send(16, 2, ordering_key="c")
        await self.receive()
        await self.settle("park", 16, reason="PERMANENT", **FAILURE)

    async def an_operator_steps_over_it(self) -> None:
        blocker = await self.call("skip_key(%s, 'c', 'ann', 'why')")
        assert blocker == self.ids[16]
        await self.receive()
        await self.settle("complete", 17, data=None)
        assert self.holds() == [1, 3]

    async def steps_over_what_is_parked(self) -> None:
        await self.call("set_key_policy(%s, 'skip', 'ann', 'why')")
        await self.settle("park", 3, reason="PERMANENT", **FAILURE)
        await self.call("cancel_commands(%s, %s, 'why')", [self.ids[2]])
        await self.receive()
        assert self.holds() == [1, 4]
        await self.call("operator_retry(%s, %s, 'ann', true)", [self.ids[3]])

    async def limits_come(self) -> None:
        await self.call("set_limit(%s, p_type => 'Pay', p_max_running => 2)")
        await self.call("set_limit(%s, p_type => 'Pay', p_by_key => true, p_max_running => 1)")
        await self.call("set_limit(%s, p_max_running => 5)")
        await self.send(5, 4, type="Pay", limit_key="x")
        await self.receive()
        assert self.holds() == [1, 4, 5]

    async def others_wait_at_the_limit(self) -> None:
        await self.send(9, 3, type="Pay")
        await self.receive()
        assert self.holds() == [1, 4, 5, 9]
        await self.settle("retry", 5, delay_seconds=0, **FAILURE)
        await self.call("cancel_commands(%s, %s, 'why')", [self.ids[10]])

    async def a_rate_comes(self) -> None:
        await self.call("set_limit(%s, p_type => 'Rate', p_rate => 1, p_per => 3600, p_burst => 2)")
        await self.send(12, 3, type="Rate")
        await self.settle("complete", 1, data=None)
        await self.settle("complete", 4, data=None)
        await self.receive()
        assert {12, 13} <= set(self.holds())
        assert 14 not in self.holds()

    async def a_lease_lapses(self) -> None:
        await self.db.lapse(self.held[self.ids[9]])
        await self.receive()

    async def a_request_to_cancel(self) -> None:
        await self.call("request_cancel(%s, %s, 'stop', 'ann')", [self.ids[12], self.ids[14]])
        await self.settle("retry", 12, delay_seconds=0, **FAILURE)

    async def is_paused(self) -> None:
        await self.call("pause_domain(%s, 'why', null, 'ann')")
        await self.send(15, 1)
        await self.receive()
        assert 15 not in self.holds()

    async def is_resumed(self) -> None:
        assert await self.call("resume_domain(%s, 'bob')")
        assert not await self.call("resume_domain(%s, 'bob')")
        await self.receive()
        assert 15 in self.holds()

    async def loses_its_limits(self) -> None:
        for way in ("p_type => 'Pay'", "p_type => 'Pay', p_by_key => true"):
            await self.call(f"clear_limit(%s, {way})")
        while await self.call("tend_gates(%s)"):
            pass
        await self.receive()


STEPS: tuple[Callable[[FlowStory], Awaitable[None]], ...] = (
    FlowStory.sends_by_key, FlowStory.leases_the_heads, FlowStory.ends_one_and_parks_the_other,
    FlowStory.retries_the_blocker, FlowStory.another_key_is_blocked,
    FlowStory.an_operator_steps_over_it, FlowStory.steps_over_what_is_parked, FlowStory.limits_come,
    FlowStory.others_wait_at_the_limit, FlowStory.a_rate_comes, FlowStory.a_lease_lapses,
    FlowStory.a_request_to_cancel, FlowStory.is_paused, FlowStory.is_resumed,
    FlowStory.loses_its_limits,
)  # fmt: skip


@pytest.mark.parametrize("stops_after", stops([1, 5, 9, 13], [2, 3, 6, 8, 10, 12]))
async def test_a_domain_goes_its_way_whatever_another_with_the_same_ids_has_come_to(
    db: Session, stops_after: int
) -> None:
    await tell(db, FlowStory, STEPS, stops_after)


# -- beside other rules for the same types and keys


async def has_other_limits(there: FlowStory) -> None:
    await there.call("set_limit(%s, p_max_running => 12)")
    await there.call("set_limit(%s, p_type => 'Pay', p_max_running => 1)")
    await there.call("set_limit(%s, p_type => 'Pay', p_by_key => true, p_max_running => 3)")
    await there.call("set_limit(%s, p_type => 'Debit', p_max_running => 4)")
    await there.call("set_limit(%s, p_type => 'Rate', p_rate => 1, p_per => 7200, p_burst => 1)")


async def sends_the_same_ids(there: FlowStory) -> None:
    await there.send(0, 2, ordering_key="a")
    await there.send(2, 1)
    await there.send(3, 3, ordering_key="c")
    await there.send(6, 3, type="Pay", limit_key="x")
    await there.send(9, 3, type="Pay", limit_key="y")
    await there.send(12, 3, type="Rate")
    await there.send(15, 3)
    await there.receive(20)
    assert there.holds() == [0, 2, 3, 6, 12, 15]


async def stands_still(there: FlowStory) -> None:
    """A key is blocked, a lease has lapsed, a token is due, a type is paused."""
    await there.settle("park", 3, reason="PERMANENT", **FAILURE)
    await there.receive()
    await there.settle("retry", 2, delay_seconds=600, **FAILURE)
    await there.call("request_cancel(%s, %s, 'stop', 'ann')", [there.ids[15]])
    await there.call("pause_type(%s, 'Rate', 'why', null, 'ann')")
    await there.db.lapse(there.held[there.ids[6]])
    await there.db.rows(
        "update commandbus.command_bus_gate set ready_at = clock_timestamp() where domain = %s",
        there.db.domain,
    )


async def test_a_domain_goes_its_way_beside_one_with_other_limits(db: Session) -> None:
    elsewhere = (has_other_limits, sends_the_same_ids, stands_still)
    await tell(db, FlowStory, STEPS, 0, elsewhere)


async def test_limits_that_stand_still_leave_others_alone(db: Session) -> None:
    """The same the other way around."""
    steps = (has_other_limits, sends_the_same_ids, stands_still)
    await tell(db, FlowStory, steps, 0, STEPS[:10])
