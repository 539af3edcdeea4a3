"""Troubleshooting in the console: causes, the page before a decision, the decision, edits."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg

from commandbus import CommandBus
from commandbus.troubleshooting import BulkOperation, FailureGroup
from tests.console.world import console
from tests.parking import park

OPERATOR = ("read", "operate")
HOSTILE = "<img src=x onerror=alert(1)> & \"quoted\" 'it'"


async def one_group(bus: CommandBus) -> FailureGroup:
    [found] = await bus.troubleshooting.groups("shop")
    return found


async def operations(bus: CommandBus) -> list[BulkOperation]:
    return (await bus.bulk.page("shop")).items


async def test_causes_are_shown_with_counts_note_and_owner_and_escaped(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 12, message=HOSTILE, code="<script>")
    group = await one_group(bus)
    await bus.troubleshooting.note_group("shop", group.fingerprint, f"ask {HOSTILE}")
    await bus.troubleshooting.assign_group("shop", group.fingerprint, "<b>ada</b>")

    async with console(bus, *OPERATOR) as browser:
        index = await browser.text("/troubleshooting")
        page = await browser.text(f"/troubleshooting/shop/groups/{group.fingerprint}")
        regions = await browser.regions("/troubleshooting", search="no such text")
        history = await browser.text(f"/troubleshooting/shop/groups/{group.fingerprint}/history")

    for each in (index, page, history):
        assert "<img src=x" not in each
        assert "<script>" not in each.replace('<script src="', "")
        assert "<b>ada" not in each
    assert "12 parked" in page
    assert "&lt;b&gt;ada&lt;/b&gt;" in index
    assert "No cause matches" in regions["groups"]
    assert "Note: ask" in history


async def test_without_failures_the_page_says_so_and_names_the_last_decision(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    async with console(bus, *OPERATOR) as browser:
        before = await browser.text("/troubleshooting")
        await park(conn, 1)
        group = await one_group(bus)
        where = f"/troubleshooting/shop/decide/cancel?group={group.fingerprint}"
        await browser.submit(where, "/start/cancel", reason="for good")
        [started] = await operations(bus)
        await conn.execute("update commandbus.command_bus_bulk_operation set starts_at = now()")
        await bus.bulk.run(started.operation_id)
        after = await browser.text("/troubleshooting")

    assert "Nothing waits for you" in before
    assert "The last decision: cancel of 1 command by ann." in after


async def test_a_decision_is_confirmed_by_number_and_done_once_with_actor_and_reason(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 12)
    group = await one_group(bus)
    where = f"/troubleshooting/shop/decide/retry?group={group.fingerprint}"

    async with console(bus, *OPERATOR) as browser:
        page = await browser.text(where)
        few = await browser.submit(page, "/start/retry", reason="try", only="10")
        [tried] = await operations(bus)
        await conn.execute("update commandbus.command_bus_bulk_operation set starts_at = now()")
        await bus.bulk.run(tried.operation_id)
        rest = await browser.text(where)
        whole = await browser.submit(
            rest, "/start/retry", reason="bank is back", rate="own", own_rate="2.5"
        )
        again = await browser.submit(
            rest, "/start/retry", reason="bank is back", rate="own", own_rate="2.5"
        )

    for part in ("Retry 12 commands", "What will happen", "What will not", "Reason", "Try 10 first",
                 "100 per second: about", "--expect 12", "$COMMANDBUS_URL"):  # fmt: skip
        assert part in page
    assert few.status_code == whole.status_code == again.status_code == 303
    assert whole.headers["location"] == again.headers["location"] != few.headers["location"]
    second, first = await operations(bus)
    assert (first.limit, first.total, first.reason) == (10, 10, "try")
    assert (second.total, second.rate, second.actor) == (2, 2.5, "ann")
    assert tried.starts_at is not None, "Stop must have time to undo it"
    events = await bus.search.audit(actor="ann")
    kinds = {each.event_type for each in events.items}
    assert {"BULK_STARTED", "CONSOLE_ACTION"} <= kinds
    [*_, noted] = [each.details for each in events.items if each.event_type == "CONSOLE_ACTION"]
    assert noted is not None
    assert (noted["via"], noted["reason"]) == ("console", "try")


async def test_a_group_that_grew_since_it_was_shown_is_not_acted_on(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 2)
    group = await one_group(bus)

    async with console(bus, *OPERATOR) as browser:
        page = await browser.text(f"/troubleshooting/shop/decide/cancel?group={group.fingerprint}")
        await park(conn, 1)
        answer = await browser.submit(page, "/start/cancel", reason="x")
        then = await browser.submit(answer.text, "/start/cancel", reason="x")

    assert answer.status_code == 409
    assert "you confirmed 2, and now 3 match" in answer.text
    assert "Cancel 3 commands" in answer.text
    assert then.status_code == 303
    assert [each.total for each in await operations(bus)] == [3]


async def test_everything_of_a_domain_demands_its_name(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 2)
    async with console(bus, *OPERATOR) as browser:
        page = await browser.text("/troubleshooting/shop/decide/complete")
        wrong = await browser.submit(page, "/start/complete", reason="x", typed="shopp")
        right = await browser.submit(page, "/start/complete", reason="x", typed="shop")

    assert "Type shop to go on" in page
    assert (wrong.status_code, right.status_code) == (400, 303)
    assert len(await operations(bus)) == 1


async def test_whoever_lacks_the_scope_or_the_domain_sees_why_and_can_do_nothing(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 2)
    group = await one_group(bus)
    here = f"/troubleshooting/shop/groups/{group.fingerprint}"
    async with console(bus, "read") as browser:
        page = await browser.text(here)
        denied = await browser.get("/troubleshooting/shop/decide/retry")
        forged = await browser.post("/troubleshooting/shop/start/retry", reason="x")
    async with console(bus, *OPERATOR, domains=("other",)) as browser:
        hidden = await browser.get(here)
        index = await browser.text("/troubleshooting")
    async with console(bus, *OPERATOR, domains=("other", "shop")) as browser:
        choice = await browser.text("/troubleshooting")
    async with console(bus, *OPERATOR) as browser:
        no_token = await browser.post("/troubleshooting/shop/start/retry", reason="x")

    assert "needs the scope operate" in page
    assert "/decide/" not in page
    assert (denied.status_code, forged.status_code, no_token.status_code) == (403, 403, 403)
    assert hidden.status_code == 404
    assert "Nothing waits for you" in index
    assert "domain=shop" in choice
    assert not await operations(bus)


async def test_a_group_is_edited_after_a_look_at_the_difference(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 2)
    group = await one_group(bus)
    where = f"/troubleshooting/shop/edit?group={group.fingerprint}"
    async with console(bus, *OPERATOR, "read-payload") as browser:
        page = await browser.text(where)
        wrong = await browser.submit(page, "/shop/edit", edit="{not json")
        shown = await browser.submit(page, "/shop/edit", edit='{"n": null, "m": "<b>"}')
        done = await browser.submit(shown.text, "/start/retry", reason="new field")
    async with console(bus, *OPERATOR) as browser:
        blind = await browser.submit(where, "/shop/edit", edit='{"m": 1}')

    assert wrong.status_code == 400
    assert "{not json" in wrong.text, "what was typed must not be lost"
    assert "Edit and retry 2 commands" in shown.text
    assert "data.m: &#34;&lt;b&gt;&#34;" in shown.text
    assert done.status_code == 303
    assert "written, and not shown" in blind.text
    assert "&#34;n&#34;" not in blind.text
    [started] = await operations(bus)
    assert set(started.edited_paths) == {"/n", "/m"}


async def test_a_note_and_an_owner_are_kept_and_taken_off(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 1)
    group = await one_group(bus)
    here = f"/troubleshooting/shop/groups/{group.fingerprint}"
    async with console(bus, *OPERATOR) as browser:
        await browser.submit(here, "/note", text="asked the bank")
        await browser.submit(here, "/assign", me="1")
        page = await browser.text(here)
        await browser.submit(page, "/note", text="")
    found = await one_group(bus)

    assert "asked the bank" in page
    assert "ann looks after it" in page
    assert (found.note, found.assignee) == (None, "ann")


async def test_lines_to_copy_do_nothing_but_what_they_say(bus: CommandBus, conn: Any) -> None:
    code = "';rm -rf ~;'"
    await park(conn, 1, code=code)
    async with console(bus, *OPERATOR) as browser:
        page = await browser.text("/troubleshooting/shop/decide/retry", error_code=code)
    from html import unescape
    from shlex import split

    cli, curl = (
        unescape(re.search(f'id="p-same-{kind}">(.*?)</pre>', page, re.S)[1])  # type: ignore[index]
        for kind in ("cli", "curl")
    )
    assert split(cli)[split(cli).index("--code") + 1] == code
    body = json.loads(split(curl)[split(curl).index("-d") + 1])
    assert body["filter"]["error_code"] == code


async def test_the_last_day_of_each_cause_is_there_as_figures(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await park(conn, 2)
    [group] = await bus.troubleshooting.groups("shop")
    await conn.execute(
        "insert into commandbus.command_bus_group_sample (domain, fingerprint, hour, seen, total)"
        " values ('shop', %s, date_trunc('hour', now()) - interval '2 hours', 17, 17)",
        (group.fingerprint,),
    )
    async with console(bus) as browser:
        lines = await browser.text("/troubleshooting")
        figures = (await browser.regions("/troubleshooting", figures="true"))["groups"]
        one = await browser.text(f"/troubleshooting/shop/groups/{group.fingerprint}")
    assert "figures=true" in lines
    assert "0 17 0 0<" in figures
    assert "<svg viewBox" not in figures.partition("pager")[0].partition("Last 24 hours")[2]
    assert '<th scope="row">3 h</th><td class="num">17</td>' in one
