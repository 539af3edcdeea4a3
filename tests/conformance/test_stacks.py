"""Stacks: where in the code a failure was raised is kept with the failure."""

from __future__ import annotations

import pytest

from commandbus.database.model import Failure, Outcome, OutcomeKind
from commandbus.models import ParkReason
from tests.conformance.worlds import DOMAIN, World, new, parked


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.PARK, OutcomeKind.FAIL])
async def test_the_stack_of_a_failure_is_kept_with_it(world: World, kind: OutcomeKind) -> None:
    frames = [f"shop/{'ä' * 60}.py:{line} {'f' * 60}" for line in range(30)]
    stack = {"exception": "KeyError", "frames": frames, "last": frames[-1], "causes": []}
    failure = Failure("TRANSIENT", "DOWN", "no", {"at": None}, stack)
    [lease] = await world.send_and_receive(new())

    await world.settle(Outcome(lease, kind, reason=ParkReason.EXHAUSTED, failure=failure))

    [details] = await world.details(lease.command_id, "FAILED")
    assert details["stack"] == stack
    assert details["details"] == {"at": None}
    waiting = await world.store.list_troubleshooting(DOMAIN, command_type=None, limit=9, offset=0)
    assert [item.stack for item in waiting] == ([stack] if kind is OutcomeKind.PARK else [])


async def test_a_parked_command_has_the_stack_of_its_last_failure_only(world: World) -> None:
    [lease] = await world.send_and_receive(new())
    failure = Failure("TRANSIENT", "DOWN", "no", stack={"exception": "KeyError", "frames": []})
    await world.settle(Outcome(lease, OutcomeKind.RETRY, failure=failure))
    [lease] = await world.receive()

    await world.settle(parked(lease))

    [item] = await world.store.list_troubleshooting(DOMAIN, command_type=None, limit=9, offset=0)
    assert item.stack is None
