"""Limits of execution and paused types, as users and workers live through them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import UUID

import pytest

from commandbus import BatchCommand, Command, CommandBus, CommandStatus, HandlerContext, new_id
from commandbus.errors import CommandBusError, InvalidInputError, InvalidNameError
from commandbus.gates import gatekeeper
from commandbus.gates.gatekeeper import Gatekeeper
from tests.integration.looking import Conn, value
from tests.waiting import until, until_status, working

SLOTS = "select count(*) from commandbus.command_bus_slot"
STARTS = "select extract(epoch from ts)::float8 from commandbus.command_bus_audit where event_type = 'RECEIVED' order by 1"  # noqa: E501


class Counting:
    """Handlers that know how many of them run."""

    def __init__(self, bus: CommandBus, seconds: float, *types: str) -> None:
        self.running = self.most = 0
        self.done: list[UUID] = []

        async def work(command: Command, ctx: HandlerContext) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(seconds)
            self.running -= 1
            self.done.append(command.command_id)

        for each in types:
            bus.register_handler("shop", each, work)


async def send(bus: CommandBus, count: int, kind: str = "Work", **options: Any) -> list[UUID]:
    return await bus.send_many(
        "shop", [BatchCommand(kind, new_id(), {}, **options) for _ in range(count)]
    )


async def test_workers_together_run_no_more_than_a_limit_allows(
    bus: CommandBus, conn: Conn
) -> None:
    counting = Counting(bus, 0.01, "Work")
    await bus.limits.set("shop", "Work", max_running=3)
    ids = await send(bus, 40)
    async with working(bus, "shop", concurrency=5), working(bus, "shop", concurrency=5):
        await until(lambda: len(counting.done) == 40, "all being done")
    assert counting.most == 3
    assert set(counting.done) == set(ids)
    assert await value(conn, SLOTS) == 0


async def test_a_rate_is_kept_and_used(bus: CommandBus, conn: Conn) -> None:
    Counting(bus, 0, "Work")
    await bus.limits.set("shop", "Work", rate=20, burst=2)
    ids = await send(bus, 12)
    began = time.monotonic()
    async with working(bus, "shop"):
        for each in ids:
            await until_status(bus, "shop", each, CommandStatus.COMPLETED)
    assert time.monotonic() - began >= 0.45
    starts = [row[0] for row in await (await conn.execute(STARTS)).fetchall()]
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            assert last - first + 1 <= 20 * (starts[last] - starts[first]) + 2 + 0.001


async def test_a_paused_type_waits_and_others_go_on(bus: CommandBus) -> None:
    counting = Counting(bus, 0, "Work", "Other")
    await send(bus, 1, "Other")
    async with working(bus, "shop"):
        await until(lambda: len(counting.done) == 1, "the first being done")
        await bus.pause("shop", type="Work", reason="bad template", operator="ann")
        (paused,) = await send(bus, 1)
        (other,) = await send(bus, 1, "Other")
        await until_status(bus, "shop", other, CommandStatus.COMPLETED)
        (pause,) = await bus.pauses("shop")
        assert (pause.type, pause.by, pause.reason) == ("Work", "ann", "bad template")
        await until_status(bus, "shop", paused, CommandStatus.PENDING)
        assert await bus.resume("shop", type="Work", operator="ann")
        await until_status(bus, "shop", paused, CommandStatus.COMPLETED)
        assert not await bus.resume("shop", type="Work")
    assert await bus.pauses("shop") == []


async def test_limits_are_listed_and_cleared(bus: CommandBus) -> None:
    await bus.limits.set("shop", max_running=7, operator="ann", reason="why")
    await bus.limits.set("shop", "Work", per_key=True, rate=3, per=60)
    whole, by_key = await bus.limits.list("shop")
    assert (whole.name, whole.rule, whole.updated_by) == ("domain shop", "7 at once", "ann")
    assert (by_key.name, by_key.rule) == ("Work by key", "3 in 60 s, burst 1")
    assert await bus.limits.list("elsewhere") == []
    assert await bus.limits.keys("shop", "Work") == []
    assert await bus.limits.clear("shop", "Work", per_key=True)
    assert not await bus.limits.clear("shop", "Work", per_key=True)
    assert [each.type for each in await bus.limits.list()] == [None]


@pytest.mark.parametrize(
    ("arguments", "values", "kind"),
    [
        (("Shop!",), {"max_running": 1}, InvalidNameError),
        (("shop", "a b"), {"max_running": 1}, InvalidNameError),
        (("shop",), {"max_running": "1"}, InvalidInputError),
        (("shop",), {"max_running": True}, InvalidInputError),
        (("shop",), {"rate": -1}, InvalidInputError),
        (("shop",), {"rate": float("nan")}, InvalidInputError),
        (("shop",), {"rate": 1, "per": 0}, InvalidInputError),
        (("shop",), {"rate": 1, "burst": 0.5}, InvalidInputError),
        (("shop",), {"max_running": 1, "reason": ""}, InvalidInputError),
        (("shop",), {"max_running": 0}, CommandBusError),
        (("shop",), {"max_running": 1, "per": 60}, CommandBusError),
        (("shop", "Work"), {"max_running": 1, "per_key": "no"}, InvalidInputError),
        (("shop",), {}, CommandBusError),
    ],
)
async def test_a_limit_that_cannot_be_is_refused(
    bus: CommandBus, arguments: tuple[str, ...], values: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await bus.limits.set(*arguments, **values)
    assert await bus.limits.list() == []


async def test_a_limit_by_key_of_no_type_cannot_be_removed(bus: CommandBus) -> None:
    with pytest.raises(InvalidInputError, match="needs a command type"):
        await bus.limits.clear("shop", per_key=True)


async def test_the_gatekeeper_lets_go_what_waits_for_nothing_and_says_who_waits(
    bus: CommandBus,
    conn: Conn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = Counting(bus, 0.2, "Work")
    await bus.limits.set("shop", "Work", max_running=1)
    await send(bus, 3)
    async with working(bus, "shop"):
        await until(lambda: counting.running == 1, "one running")
        monkeypatch.setattr(gatekeeper, "REPORT_SECONDS", 0.0)
        keeper = Gatekeeper(bus._store, lambda: ["shop"])
        with caplog.at_level(logging.INFO, "commandbus.gatekeeper"):

            async def has_reported() -> bool:
                await keeper.step()
                return "wait for limit Work (1 at once)" in caplog.text

            await until(has_reported, "a line about those who wait")
    await conn.execute("delete from commandbus.command_bus_flow_rule")
    await conn.execute("delete from commandbus.command_bus_chore")
    await keeper.step()
    assert await value(conn, "select count(*) from commandbus.command_bus_waiting") == 0
