"""Progress: the last word of the lease that holds, for as long as it does."""

from __future__ import annotations

from uuid import uuid4

import pytest

from commandbus import CommandBus, InvalidInputError, InvalidOperationError, Settings
from commandbus.database.model import Lease, Said
from commandbus.database.store import Store
from tests.conformance.worlds import DOMAIN, World, done, new, released


async def shown(world: World, lease: Lease) -> tuple[float, str | None] | None:
    found = (await world.store.progress(DOMAIN, [lease.command_id])).get(lease.command_id)
    return None if found is None else (found.fraction, found.message)


async def test_the_last_word_is_shown_while_the_command_runs(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new())
    assert await shown(world, lease) is None
    await store.record_progress(DOMAIN, [Said(lease, 0.5, "page 5 of 10")])
    assert await shown(world, lease) == (0.5, "page 5 of 10")
    await store.record_progress(DOMAIN, [Said(lease, 0.25, None)])
    assert await shown(world, lease) == (0.25, None)

    await world.settle(done(lease))
    assert await shown(world, lease) is None


async def test_the_word_of_a_lost_lease_is_neither_shown_nor_kept(
    world: World, store: Store
) -> None:
    [lost] = await world.send_and_receive(new())
    await store.record_progress(DOMAIN, [Said(lost, 0.9, "old")])
    await world.lapse()
    [lease] = await world.receive()
    assert await shown(world, lease) is None
    await store.record_progress(DOMAIN, [Said(lease, 0.1, "new")])
    await store.record_progress(DOMAIN, [Said(lost, 0.95, "late")])
    assert await shown(world, lease) == (0.1, "new")


async def test_what_was_given_back_shows_nothing(world: World, store: Store) -> None:
    [lease] = await world.send_and_receive(new())
    await store.record_progress(DOMAIN, [Said(lease, 0.5, None)])
    await world.settle(released(lease))
    assert await shown(world, lease) is None


async def test_many_are_told_and_asked_for_at_once(world: World, store: Store) -> None:
    leases = await world.send_and_receive(*(new() for _ in range(5)))
    said = [Said(lease, n / 10, f"{n}") for n, lease in enumerate(leases)]
    await store.record_progress(DOMAIN, said[1:])
    found = await store.progress(DOMAIN, [*(lease.command_id for lease in leases), uuid4()])
    assert {key: one.fraction for key, one in found.items()} == {
        each.lease.command_id: each.fraction for each in said[1:]
    }
    assert await store.progress("orders", [leases[1].command_id]) == {}


async def test_a_consumer_tells_how_far_it_is_and_learns_of_a_cancel(
    world: World, store: Store
) -> None:
    bus = CommandBus(store=store, settings=Settings(poll_max_seconds=0.05))
    sent = await bus.send(DOMAIN, "Debit", uuid4(), {"password": "h7-secret"})
    async with bus.consumer(DOMAIN) as consumer:
        [leased] = await consumer.receive()
        await leased.progress(0.4, "with h7-secret " + "x" * 900)
        found = (await bus.search.progress(DOMAIN, [sent]))[sent]
        assert found.fraction == 0.4
        assert found.message is not None
        assert "h7-secret" not in found.message
        assert len(found.message) == 500
        for fraction in (-0.1, 1.01, float("nan"), "0.5", None, True):
            with pytest.raises(InvalidInputError, match="use 0 to 1"):
                await leased.progress(fraction)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="must be a text"):
            await leased.progress(0.5, 7)  # type: ignore[arg-type]

        assert not await leased.is_canceled()
        answer = await bus.cancel(DOMAIN, sent, "not needed", running="request")
        assert answer == "requested"
        assert await leased.is_canceled()
        await leased.release()
        with pytest.raises(InvalidOperationError):
            await leased.progress(1)

    assert await world.status(sent) == "CANCELED"
