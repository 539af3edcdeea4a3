"""Governed commands that are due later, or wait: who finds them, and who may move them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.http_world import client_of
from tests.security.people import DOMAIN, PEOPLE, World, world_on

API = "/api/v1"
SEERS = {"owner", "operator", "approver", "admin"}


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    async with world_on(dsn) as made:
        yield made


async def _child(world: World) -> UUID:
    """A governed command of ada that nobody has begun."""
    made = await world.bus.governance.submit(PEOPLE["owner"], "ORDERS", [{"n": 7}])
    page = await world.bus.governance.page_children(PEOPLE["owner"], made.ticket.ticket_id)
    return page.items[0].ticket_id


async def _seers(world: World, listing: str, command_id: UUID) -> set[str]:
    found = set()
    for who in PEOPLE:
        async with client_of(world.app, who) as client:
            answer = await client.get(f"{API}/domains/{DOMAIN}/{listing}")
        assert answer.status_code == (404 if who == "other" else 200)
        if str(command_id) in answer.text:
            found.add(who)
    return found


async def test_a_governed_command_that_is_due_later_is_shown_to_those_who_may_see_it(
    world: World,
) -> None:
    child = await _child(world)
    await world.bus.reschedule(DOMAIN, child, delay=600, operator="olga")

    assert await _seers(world, "scheduled", child) == SEERS


async def test_a_governed_command_that_waits_is_shown_to_those_who_may_see_it(
    world: World,
) -> None:
    child = await _child(world)
    await world.bus.pause(DOMAIN, type="PlaceOrder", reason="closed", operator="olga")
    await world.bus._store.receive(DOMAIN, vt_seconds=60, quantity=9, worker="t", limits={})

    assert await _seers(world, "waiting", child) == SEERS


async def test_nobody_but_operators_gives_a_governed_command_another_priority(
    world: World,
) -> None:
    child = await _child(world)
    url = f"{API}/commands/{DOMAIN}/{child}/priority"
    wanted = {"operator": 200, "admin": 200, "other": 404}
    for who in PEOPLE:
        async with client_of(world.app, who) as client:
            answer = await client.post(url, json={"priority": 2})
        assert answer.status_code == wanted.get(who, 403), f"{who}: {answer.text}"
