"""A domain that moves to another shard takes the history of its commands along."""

from __future__ import annotations

from datetime import timedelta

import pytest

from commandbus.errors import DuplicateCommandError
from commandbus.models import BatchCommand
from commandbus.names import new_id
from commandbus.shards import SpanningBus, move_domain
from tests.integration.test_shard_move import amounts, posting, rows, told

pytestmark = pytest.mark.postgres

DAY = timedelta(days=1)
HISTORY = (
    "select to_jsonb(h) from commandbus.command_bus_history h where domain = 'mail'"
    " order by history_no"
)


async def end_and_move(bus: SpanningBus, dsn: str, count: int) -> None:
    """Commands that ended, alone and in a batch, and are in the history."""
    for number in range(count):
        await bus.send("mail", "Post", new_id(), {"n": number})
    await bus.create_batch("mail", [BatchCommand("Post", new_id(), {})])
    await bus.run_worker("mail", until_empty=True)
    await bus.sharded.look_at_maps()
    there = await bus.sharded.on("mail")
    await there.upkeep.set_retention("history", 700 * DAY, domain="mail")
    await there.upkeep.prune(domain="mail", older_than=timedelta(0), kinds=["commands"])


async def test_history_moves_with_its_domain_and_goes_on_there(dsn: str, empty_dsn: str) -> None:
    known = await told(dsn, empty_dsn)
    async with SpanningBus.over(known, handlers=posting()) as bus:
        await end_and_move(bus, empty_dsn, 5)
        await rows(
            empty_dsn,
            "update commandbus.command_bus_setting set value = '4'"
            " where name = 'history_part_rows' returning 1",
        )
        await end_and_move(bus, empty_dsn, 6)
        # the other side has one of another domain
        await bus.send("payments", "Charge", new_id(), {})
        before, history = await amounts(empty_dsn), await rows(empty_dsn, HISTORY)
        assert len(history) == 13
        old = history[0][0]["command_id"]

        report = await move_domain(known, "mail", "one")

        assert report.counts["command_bus_history"] == 13
        assert await amounts(dsn) == before
        assert set((await amounts(empty_dsn)).values()) == {0}
        assert await rows(dsn, HISTORY) == history
        assert await rows(empty_dsn, "select count(*) from commandbus.history_parts()") == [(0,)]
        await bus.sharded.look_at_maps()
        with pytest.raises(DuplicateCommandError):
            await bus.send("mail", "Post", old, {"n": 0})
        assert len((await bus.search.commands(domain="mail", history=True)).items) == 13
        await end_and_move(bus, dsn, 2)
        numbers = await rows(dsn, HISTORY)
        assert [each["history_no"] for (each,) in numbers] == list(range(1, 17))


async def test_move_of_history_that_was_cut_off_goes_on(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commandbus.shards import copying

    known = await told(dsn, empty_dsn)
    monkeypatch.setattr(copying, "CHUNK_ROWS", 3)
    async with SpanningBus.over(known, handlers=posting()) as bus:
        await end_and_move(bus, empty_dsn, 10)
        history = await rows(empty_dsn, HISTORY)
        told_of = 0

        def cut(text: str) -> None:
            nonlocal told_of
            told_of += text.startswith("command_bus_history:")
            if told_of == 2:
                told_of += 1
                raise KeyboardInterrupt

        monkeypatch.setattr(copying, "_TELL_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            await move_domain(known, "mail", "one", tell=cut)
        await move_domain(known, "mail", "one")
        assert await rows(dsn, HISTORY) == history
