"""What is parked in all domains: counted by domain, listed longest first, page by page."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus import CommandBus, TroubleshootingItem
from tests.integration.looking import Conn
from tests.parking import park


async def all_pages(bus: CommandBus, limit: int, **search: Any) -> list[TroubleshootingItem]:
    found: list[TroubleshootingItem] = []
    cursor: str | None = None
    while True:
        page = await bus.troubleshooting.page(None, limit=limit, cursor=cursor, **search)
        found += page.items
        assert len(page.items) <= limit
        if (cursor := page.next_cursor) is None:
            return found


async def park_some(bus: CommandBus, conn: Conn) -> None:
    for domain in ("mail", "shop", "idle"):
        await bus._store.ensure_domain(domain)
    for domain, kind in (("shop", "Work"), ("mail", "Send"), ("shop", "Work"), ("mail", "Work")):
        await park(conn, 2, domain=domain, command_type=kind, code=f"{domain}_{kind}")


async def test_parked_commands_are_counted_by_domain(bus: CommandBus, conn: Conn) -> None:
    assert await bus.troubleshooting.counts() == {}
    await park_some(bus, conn)

    assert await bus.troubleshooting.counts() == {"mail": 4, "shop": 4}
    assert await bus.troubleshooting.counts("mail") == {"mail": 4}
    assert await bus.troubleshooting.counts("idle") == {}

    [item, *_] = (await bus.troubleshooting.page("shop")).items
    await bus.operator_cancel("shop", item.command_id, "done with")
    assert await bus.troubleshooting.counts() == {"mail": 4, "shop": 3}


async def test_a_listing_of_all_domains_has_each_command_once_longest_first(
    bus: CommandBus, conn: Conn
) -> None:
    await park_some(bus, conn)

    found: list[TroubleshootingItem] = []
    for limit in (1, 3, 8, 100):
        found = await all_pages(bus, limit)
        assert [item.parked_at for item in found] == sorted(item.parked_at for item in found)
        assert len({item.command_id for item in found}) == len(found) == 8
        assert [item.domain for item in found[::2]] == ["shop", "mail", "shop", "mail"]
    assert all(item.data is not None for item in found)  # with the payloads, as in one domain
    assert {item.domain for item in await all_pages(bus, 2, command_type="Send")} == {"mail"}

    [group] = [g for g in await bus.troubleshooting.groups() if g.error_code == "mail_Work"]
    of_group = await all_pages(bus, 1, group=group.fingerprint)
    assert [(item.domain, item.command_type) for item in of_group] == [("mail", "Work")] * 2


async def test_an_id_that_is_parked_in_two_domains_is_listed_twice(
    bus: CommandBus, conn: Conn
) -> None:
    twin = UUID(int=7)
    for domain in ("mail", "shop"):
        await bus.send(domain, "Work", twin, {})
        async with bus.consumer(domain) as consumer:
            [leased] = await consumer.receive()
            await leased.park(ValueError(domain))
    assert [item.domain for item in await all_pages(bus, 1)] == ["mail", "shop"]
