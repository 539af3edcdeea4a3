"""A domain that has something of everything moves, and every part of it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
import pytest

from commandbus.errors import CommandBusError, InvalidOperationError
from commandbus.names import new_id
from commandbus.settings import Settings
from commandbus.shards import ShardMap, SpanningBus, apply_map, cancel_move, move_domain
from tests.full_domain import DOMAIN, Full, at_work, contents, go_on, rows, run
from tests.killed_moves import Killed, kill_at

pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(600)]

#: What brokers, dispatches, edits of governed children and the history have: others move these.
NOT_HERE = {
    "command_bus_dispatch", "command_bus_edit", "command_bus_unconfirmed",
    "command_bus_history", "command_bus_history_domain",
}  # fmt: skip
#: How the server of tests is set up, and a reply that was archived above.
NOT_OF_DOMAINS = {"DURABILITY_OFF", "AUTOVACUUM_OFF", "REPLIES_REFUSED"}
QUICK = Settings(user_cooldown_seconds=0, max_user_pending_batches=50, poll_max_seconds=0.05)


@asynccontextmanager
async def full_domain(one: str, two: str) -> AsyncIterator[tuple[ShardMap, Full]]:
    """The full domain on shard two; nothing runs."""
    known = ShardMap({"one": one, "two": two}, {DOMAIN: "two"}, "one", 1)
    await apply_map(known)
    async with SpanningBus.over(known, settings=QUICK) as bus:
        full = Full(bus)
        bus.include(full.handlers())
        await full.fill(two)
        yield known, full


async def test_a_domain_with_something_of_everything_moves_and_goes_on(
    dsn: str, empty_dsn: str
) -> None:
    async with full_domain(dsn, empty_dsn) as (known, full):
        before = await contents(empty_dsn)
        untouched = {part for part, (count, _) in before.items() if not count}
        assert untouched <= NOT_HERE, untouched
        await move_domain(known, DOMAIN, "one")
        assert await contents(dsn) == before
        assert {count for count, _ in (await contents(empty_dsn)).values()} == {0}
        await full.bus.sharded.look_at_maps()
        async with at_work(full):
            await go_on(full, dsn)
            seen = await full.bus.sharded.everywhere(lambda bus: bus.upkeep.doctor(full=True))
        findings = {
            name: {each.code for each in one.findings} - NOT_OF_DOMAINS
            for name, one in seen.found.items()
        }
        assert findings == {"one": set(), "two": set()}


#: After which call of what a move is killed, each time in a run from its beginning.
MOVE_DEATHS = [
    (".begin_leaving(", 1), (".begin_arriving(", 1), (".freeze_table(", 10),
    (".put_moved_events(", 1), (".put_moved_rows(", 3), (".close_leases(", 1), (".mark_frozen(", 3),
    (".freeze_table(", 90), (".put_moved_rows(", 20), (".go_past_numbers(", 1), (".note_move(", 4),
    (".note_verified(", 1),
]  # fmt: skip
#: The same of giving up one that was verified.
CANCEL_DEATHS = [
    (".note_move(", 1), (".open_leases(", 1), (".thaw_table(", 3), (".note_move(", 2),
    (".drop_moved_chunk(", 1), (".forget_moved_rows(", 30), (".note_move(", 3), (".thaw_table(", 3),
]  # fmt: skip
LEFT_BEHIND = "select count(*) from pg_trigger where tgname ~ '^commandbus_(frozen|closed|moving)'"


async def test_a_move_that_was_killed_anywhere_and_given_up_leaves_all_as_it_was(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(name: str, times: int, *, cancels: bool = False) -> None:
        revive = kill_at(monkeypatch, name, times)
        try:
            if cancels:
                await cancel_move(known, DOMAIN)
            else:
                await move_domain(known, DOMAIN, "one")
        except Killed:
            return
        finally:
            revive()
        pytest.fail(f"{name} was not called {times} times")

    async def look() -> None:
        assert await contents(empty_dsn) == before
        assert {count for count, _ in (await contents(dsn)).values()} == {0}
        assert await rows(empty_dsn, LEFT_BEHIND) == await rows(dsn, LEFT_BEHIND) == [(0,)]

    async with full_domain(dsn, empty_dsn) as (known, _):
        before = await contents(empty_dsn)
        for death in MOVE_DEATHS:
            await die(*death)
            assert await cancel_move(known, DOMAIN)
            await look()
        await die(".note_verified(", 1)
        for death in CANCEL_DEATHS:
            await die(*death, cancels=True)
        # Given up where it was to come to, and not yet where it is: a new move ends the old one.
        await die(".note_verified(", 1)
        await die(".note_move(", 3, cancels=True)
        await die(".begin_leaving(", 1)
        assert await cancel_move(known, DOMAIN)
        await look()
        await move_domain(known, DOMAIN, "one")
        assert await contents(dsn) == before


async def test_two_processes_that_run_one_move_do_no_harm(dsn: str, empty_dsn: str) -> None:
    async with full_domain(dsn, empty_dsn) as (known, _):
        before = await contents(empty_dsn)
        for _ in range(3):
            both = [move_domain(known, DOMAIN, "one") for _ in range(2)]
            found = await asyncio.gather(*both, return_exceptions=True)
            wrong = [each for each in found if isinstance(each, BaseException)]
            assert all(isinstance(each, CommandBusError) for each in wrong), wrong
            if len(wrong) < len(found):
                break
        else:
            await move_domain(known, DOMAIN, "one")
        assert await contents(dsn) == before
        assert {count for count, _ in (await contents(empty_dsn)).values()} == {0}


@pytest.mark.parametrize("name", ["select", "a" * 30])
async def test_a_domain_moves_to_a_database_that_is_set_otherwise(
    dsn: str, empty_dsn: str, name: str
) -> None:
    for text in (
        "set timezone to 'Asia/Tokyo'", "set datestyle to 'German'", "set bytea_output to 'escape'",
        "set intervalstyle to 'sql_standard'", "set extra_float_digits to -5",
    ):  # fmt: skip
        database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        await run(dsn, f"alter database {database} {text}")
    known = ShardMap({"one": dsn, "two": empty_dsn}, {name: "two"}, "one", 1)
    await apply_map(known)
    async with SpanningBus.over(known, settings=QUICK) as bus:
        with pytest.raises(InvalidOperationError, match="has nothing on shard"):
            await move_domain(known, name, "one")
        shard = await bus.sharded.shard("two")
        await shard._store.ensure_domain(name)  # a domain without rows
        assert (await move_domain(known, name, "one")).counts == {}
        await move_domain(known, name, "two")
        await bus.sharded.look_at_maps()
        await bus.upkeep.set_retention("commands", timedelta(days=400, seconds=7), domain=name)
        await bus.limits.set(name, "Post", rate=1 / 3, per=0.1, burst=3.3)
        await bus.send(name, "Post", new_id(), {"x": 0.1}, ordering_key="ä\\")
        before = await contents(empty_dsn, name)
        await move_domain(known, name, "one")
        assert await contents(dsn, name) == before
