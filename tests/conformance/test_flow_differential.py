"""Any sequence of verbs on commands with times, levels and keys has the same effect on both stores.

All times are multiples of fifty seconds, and those of expiry are not: so no two of them meet, and
the moments that the steps themselves take do not matter. What is due at almost the same moment
has no order that both stores must have; so each receive takes all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from commandbus.flow import SendOptions
from tests.conformance.test_differential import (
    COMMANDS,
    OTHER,
    REPLY_TO,
    STRATEGIES,
    Run,
    Step,
    _receive,
    compare_stores,
    some,
)
from tests.conformance.worlds import DOMAIN, new

#: What each of the commands says about its start.
OPTIONS: list[SendOptions] = [
    {"ordering_key": "a"},
    {"delay": 550},
    {"ordering_key": "a", "expires_in": 725},
    {"ordering_key": "a", "priority": 1},
    {"ordering_key": "b"},
    {"priority": -1, "expires_in": 725},
]


class FlowRun(Run):
    """Its commands are delayed, expire, or belong to keys."""

    def new(self, index: int) -> Any:
        return new(
            "Debit" if index % 2 else "Credit",
            {"n": index},
            command_id=self.ids[index],
            reply_to=REPLY_TO[index % 3],
            correlation_id=self.relation,
            max_attempts=1 + index % 3,
            **OPTIONS[index],
        )


def _reschedule(indexes: Sequence[int], delay: float) -> Step:
    async def step(run: Run) -> None:
        ids = run.pick(indexes)
        await run.world.store.reschedule(
            DOMAIN, ids, deliver_at=None, delay_seconds=delay, actor="ann"
        )

    return step


def _pause(is_paused: bool) -> Step:
    async def step(run: Run) -> Any:
        store = run.world.store
        if not is_paused:
            return await store.resume(DOMAIN, None, actor="bob")
        return await store.pause(DOMAIN, None, reason="r", until=None, actor="ann")

    return step


FLOW_STRATEGIES: dict[str, st.SearchStrategy[Step]] = {
    **STRATEGIES,
    "receive": st.builds(_receive, st.just(100), st.booleans(), st.none() | st.integers(1, 4)),
    "reschedule": st.builds(_reschedule, some, st.sampled_from([0.0, 550.0])),
    "pause": st.builds(_pause, st.sampled_from([True, False, False])),
}
NAMES = [
    *["send"] * 3, *["receive"] * 4, *["settle"] * 4, *["reschedule"] * 2, "pause", *OTHER,
]  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> Step:
    step: Step = draw(FLOW_STRATEGIES[draw(st.sampled_from(NAMES))])
    return step


@pytest.mark.postgres
def test_any_sequence_with_times_levels_and_keys_has_the_same_effect_on_both_stores(
    shared_dsn: str,
) -> None:
    assert len(OPTIONS) == COMMANDS
    compare_stores(shared_dsn, steps(), FlowRun, sequences=60)
