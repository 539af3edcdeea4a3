"""The overview: execution limits with who waits, and what came and went in the last hour."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import psycopg

from commandbus import CommandBus
from commandbus.http.console.formats import columns, stacked
from tests.console.world import console

Conn = psycopg.AsyncConnection[Any]


async def sampled(conn: Conn, domain: str, queued: int, removed: int, parked: int = 0) -> None:
    """An hour of samples: so many in and out in each minute."""
    await conn.execute(
        "insert into commandbus.command_bus_tally (domain, since) values (%s, now() - interval"
        " '1 day') on conflict (domain) do update set since = excluded.since",
        (domain,),
    )
    await conn.execute(
        "insert into commandbus.command_bus_sample (seconds, at, domain, queued, removed,"
        " completed, failed, parked, retried)"
        " select 60, date_trunc('minute', now()) - n * interval '1 minute', %s, %s, %s, 0, 0, %s, 0"
        " from generate_series(1, 60) n",
        (domain, queued, removed, parked),
    )


async def test_the_hour_of_all_domains_is_drawn_and_stands_there_as_figures(
    bus: CommandBus, conn: Conn
) -> None:
    for domain in ("bank", "shop"):
        await bus.send(domain, "Work", uuid4(), {})
    async with console(bus) as browser:
        before = await browser.regions("/")
        await conn.execute("select commandbus.sample_domains('0 s')")
        await conn.execute("truncate commandbus.command_bus_sample")
        await sampled(conn, "shop", 100, 40)
        await sampled(conn, "bank", 20, 5, parked=2)
        both = (await browser.regions("/"))["strip"]
        one = (await browser.regions("/", domain="bank"))["strip"]
        page, whole = await browser.text("/domains/shop"), await browser.text("/")
    async with console(bus, domains=("bank",)) as browser:
        reached = (await browser.regions("/"))["strip"]

    assert "svg" not in before["strip"]
    assert "max 120, last 120. Out: min 45" in both
    assert both.count("z") >= 2 * 59
    assert "7,2" in both  # of the whole hour, as a number
    assert re.search(r"Failed or parked: 1(18|20)\.", both)  # the hour has 59 or 60 whole minutes
    assert "fill-parked" in one
    assert "max 20, last 20" in one
    assert "max 20, last 20" in reached
    assert 'id="t-figures"' in page
    assert "#t-figures" in whole


async def test_limits_show_busy_places_who_waits_and_only_in_reach(
    bus: CommandBus, conn: Conn
) -> None:
    await bus.limits.set("shop", "Work", max_running=1, operator="ann", reason="r")
    await bus.limits.set("bank", None, max_running=9, rate=5, operator="ann", reason="r")
    for _ in range(3):
        await bus.send("shop", "Work", uuid4(), {})
    async with bus.consumer("shop") as consumer:
        await consumer.receive(limit=3)
        async with console(bus) as browser:
            shown = (await browser.regions("/"))["limits"]
            one = (await browser.regions("/", domain="bank"))["limits"]
        async with console(bus, domains=("bank",)) as browser:
            reached = await browser.text("/")
    async with console(bus) as browser:
        none = (await browser.regions("/", domain="bank"))["limits"]

    assert "Busy places: 1 of 1" in shown
    assert "2 wait" in shown
    assert shown.index("Work") < shown.index("domain bank")
    assert "5 in 1 s" in one
    assert "of shop" not in one
    assert "of shop" not in reached
    assert none


def test_columns_are_as_high_as_their_share_and_nothing_is_nothing() -> None:
    assert columns([10, None, 0, 5], 10) == "M0 1h4v31h-4zM18 16h4v16h-4z"
    # What is there is seen, however little it is.
    assert columns([1], 100_000) == "M0 31h4v1h-4z"
    assert columns([0, None], 0) == ""


def test_what_failed_is_at_the_outer_end_and_always_seen() -> None:
    assert stacked([10], [0], 10) == ("M0 33h4v31h-4z", "")
    assert stacked([10, 10], [10, None], 10) == ("M6 33h4v31h-4z", "M0 33h4v31h-4z")
    # One of many is seen too, beyond a gap; of nothing there is nothing to see.
    assert stacked([10_000, 0], [1, 5], 10_000) == ("M0 33h4v29h-4z", "M0 63h4v1h-4z")
    # Workers tell it some seconds late: it is never more than all.
    assert stacked([1], [30], 100) == ("", "M0 33h4v1h-4z")
