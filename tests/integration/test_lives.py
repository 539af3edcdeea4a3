"""One command's life on a real database: its events with the time between, attempts, siblings."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandBus, PermanentCommandError
from commandbus.errors import CommandNotFoundError
from commandbus.models import Viewer
from tests.waiting import until_status, working

Conn = psycopg.AsyncConnection[Any]


async def test_a_life_has_its_attempts_with_stacks_and_what_its_state_allows(
    bus: CommandBus,
) -> None:
    async def fail(command: Any, ctx: Any) -> None:
        if command.data["n"] == 1:
            raise PermanentCommandError("NO_ACCOUNT", "no account 7")

    bus.register_handler("shop", "Work", fail)
    relation = uuid4()
    bad, good, elsewhere = uuid4(), uuid4(), uuid4()
    await bus.send("shop", "Work", bad, {"n": 1}, correlation_id=relation)
    await bus.send("shop", "Work", good, {"n": 2}, correlation_id=relation)
    await bus.send("bank", "Work", elsewhere, {"n": 2}, correlation_id=relation)
    async with working(bus, "shop"):
        await until_status(bus, "shop", bad, "IN_TROUBLESHOOTING_QUEUE")
        await until_status(bus, "shop", good, "COMPLETED")

    life = await bus.troubleshooting.life("shop", bad)
    assert life.sentence.endswith("ago after 1 attempt: NO_ACCOUNT, no account 7")
    assert [step.event.event_type for step in life.steps] == [
        "SENT", "RECEIVED", "FAILED", "MOVED_TO_TROUBLESHOOTING_QUEUE",
    ]  # fmt: skip
    assert life.steps[0].seconds_since_previous is None
    assert all(step.seconds_since_previous is not None for step in life.steps[1:])
    [attempt] = life.attempts
    assert (attempt.number, attempt.outcome, attempt.error_code) == (1, "FAILED", "NO_ACCOUNT")
    assert attempt.stack is not None
    assert attempt.stack["exception"].endswith("PermanentCommandError")
    assert [str(action) for action in life.actions] == [
        "retry", "edit", "cancel", "complete", "note",
    ]  # fmt: skip
    [group] = await bus.troubleshooting.groups("shop")
    assert life.facts.fingerprint == group.fingerprint
    assert {each.command_id for each in life.siblings} == {good, elsewhere}
    near = await bus.troubleshooting.life("shop", bad, domains={"shop"})
    assert [each.command_id for each in near.siblings] == [good]
    done = await bus.troubleshooting.life("shop", good)
    assert done.sentence.startswith("completed ")
    assert [str(action) for action in done.actions] == ["note"]


async def test_of_very_many_events_the_first_and_the_last_are_shown(
    bus: CommandBus, conn: Conn
) -> None:
    command = await bus.send("shop", "Work", uuid4(), {})
    write = (
        "insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, actor)"
        " select 'shop', %s, 'NOTE', now() + n * interval '1 second', n::text"
        " from generate_series(%s::int, %s::int) n"
    )
    await conn.execute(write, (command, 1, 199))
    whole = await bus.troubleshooting.life("shop", command)
    assert (len(whole.steps), whole.left_out, whole.gap_after) == (200, 0, None)
    await conn.execute(write, (command, 200, 200))
    cut = await bus.troubleshooting.life("shop", command)
    assert (len(cut.steps), cut.left_out, cut.gap_after) == (100, 101, 50)
    assert [cut.steps[index].event.actor for index in (1, 49, 50, 99)] == ["1", "49", "151", "200"]
    assert cut.steps[50].seconds_since_previous is None  # nothing is told across the gap
    assert cut.steps[51].seconds_since_previous == 1.0
    await conn.execute(write, (command, 201, 10_300))
    assert (await bus.troubleshooting.life("shop", command)).left_out == -1


async def test_a_life_that_may_not_be_seen_is_not_there(bus: CommandBus, conn: Conn) -> None:
    with pytest.raises(CommandNotFoundError):
        await bus.troubleshooting.life("shop", uuid4())
    command = await bus.send("shop", "Work", uuid4(), {})
    batch = uuid4()
    await conn.execute(
        "insert into commandbus.command_bus_batch (batch_id, domain, batch_type, created_by)"
        " values (%s, 'shop', 'X', 'ann')",
        (batch,),
    )
    await conn.execute("update commandbus.command_bus_command set batch_id = %s", (batch,))
    assert (await bus.troubleshooting.life("shop", command, viewer=Viewer("ann"))).steps
    with pytest.raises(CommandNotFoundError):
        await bus.troubleshooting.life("shop", command, viewer=Viewer("eve"))
