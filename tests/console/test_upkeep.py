"""What is kept how long, which chores were done, and what the doctor's findings lead to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg

from commandbus import CommandBus
from tests.console.world import EVERYTHING, console
from tests.http_world import app_of, caller, client_of
from tests.waiting import until

Conn = psycopg.AsyncConnection[Any]


async def told(conn: Conn, name: str, text: str, *, failed: bool = False) -> None:
    await conn.execute("select commandbus.claim_chore(%s, '5 minutes')", (name,))
    await conn.execute("select commandbus.note_chore(%s, %s::jsonb, %s)", (name, text, failed))


async def test_a_domain_shows_what_it_keeps_and_what_chores_did_there_and_nowhere_else(
    bus: CommandBus, conn: Conn
) -> None:
    for domain in ("shop", "vault"):
        await bus.send(domain, "Work", uuid4(), {})
    await bus.upkeep.set_retention("audit", timedelta(days=90), domain="shop", operator="eve")
    await told(conn, "prune old rows", '{"shop": "12 audit events", "vault": "7 secret things"}')
    await told(conn, "recover dispatch of vault", '{"vault": "3 queued"}')
    await told(conn, "seal the audit", '{"*": "SomeError; its log"}', failed=True)
    await conn.execute("select commandbus.claim_chore('sweep progress', '5 minutes')")
    async with console(bus, domains=("shop",)) as browser:
        page = await browser.text("/domains/shop/upkeep")
        doctor = await browser.text("/doctor")
        assert (await browser.get("/domains/vault/upkeep")).status_code == 404
    async with console(bus) as browser:
        whole = await browser.text("/doctor")

    assert "90 d" in page
    assert "eve" in page
    assert "of all domains" in page  # replies have a rule from the beginning
    assert "removed 12 audit events" in page
    assert "every 5 min" in page
    assert "SomeError; its log" in page
    assert "it does not tell" in page
    for each in (page, doctor):
        assert "vault" not in each
        assert "secret things" not in each
    assert "vault: 7 secret things" in whole

    async with client_of(app_of(bus, clerk=caller("read", domains=("shop",))), "clerk") as client:
        chores = {
            each["name"]: each for each in (await client.get("/api/v1/chores")).json()["items"]
        }
    assert chores["prune old rows"]["told"] == {"shop": "12 audit events"}
    assert chores["prune old rows"]["every_seconds"] == 300
    assert chores["seal the audit"]["has_failed"]
    assert "recover dispatch of vault" not in chores


async def test_findings_lead_to_what_they_name_and_no_finding_says_since_when(
    bus: CommandBus, conn: Conn
) -> None:
    lost = uuid4()
    await bus.send("shop", "Work", lost, {})

    async def run(domain: str | None = None) -> None:
        before = (await bus.upkeep.runs.last()).last
        await bus.upkeep.runs.start(domain=domain, operator="ann")

        async def ended() -> bool:
            last = (await bus.upkeep.runs.last()).last
            return last is not None and (before is None or last.run_id > before.run_id)

        await until(ended)

    await run("shop")
    first = await bus.upkeep.runs.well_since(["shop"])
    await run("shop")
    assert first is not None
    assert await bus.upkeep.runs.well_since(["shop"]) == first
    assert await bus.upkeep.runs.well_since() is None  # nobody has looked at all of it
    await conn.execute("delete from pgmq.q_shop__commands")
    await conn.execute(
        "insert into commandbus.command_bus_worker (worker_id, domain, concurrency, heartbeat_at)"
        " values ('silent-one', 'shop', 1, now() - interval '2 minutes')"
    )
    await run()
    assert await bus.upkeep.runs.well_since(["shop"]) is None
    async with console(bus, *EVERYTHING) as browser:
        page = await browser.text("/doctor")
        found = await browser.get("/find", q=str(lost))
    assert f'href="/console/find?q={lost}"' in page
    assert found.headers["location"] == f"/console/commands/shop/{lost}"
    assert 'href="/console/workers?domain=shop">silent-one' in page

    # As if what was found had been put right long ago, and every look since were without findings.
    await conn.execute(
        "update commandbus.command_bus_check_run set result = result || '{\"findings\": []}',"
        " finished_at = '2026-01-02T03:04:05Z'::timestamptz + run_id * interval '1 hour'"
    )
    since = await bus.upkeep.runs.well_since()
    assert since is not None
    async with console(bus, *EVERYTHING) as browser:
        page = await browser.text("/doctor")
    assert "All is well" in page  # a single look at all of it is no span of time
    await conn.execute("update commandbus.command_bus_check_run set domain = null")
    async with console(bus, *EVERYTHING) as browser:
        page = await browser.text("/doctor")
    async with client_of(app_of(bus)) as client:
        over_http = (await client.get("/api/v1/doctor")).json()["well_since"]
    assert "All well since" in page
    assert over_http < since.isoformat()
