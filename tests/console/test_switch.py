"""The switch in the head: one domain, in the address and in links. Finding domains and causes."""

from __future__ import annotations

import re

from commandbus import BatchCommand, Command, CommandBus, HandlerContext, new_id
from commandbus.errors import PermanentCommandError
from commandbus.http.console.registry import registry
from tests.console.world import EVERYTHING, console

NAV = re.compile(r'<li><a href="([^"]+)" data-title')


async def two_domains(bus: CommandBus) -> None:
    for domain in ("payments", "email"):
        await bus.send_many(domain, [BatchCommand(f"Of{domain}", new_id(), {})])


async def test_a_chosen_domain_is_in_every_link_of_the_navigation(bus: CommandBus) -> None:
    await two_domains(bus)
    async with console(bus, *EVERYTHING) as browser:
        plain = await browser.text("/batches")
        assert "<option>email</option>" in plain
        assert not any("domain=" in each for each in NAV.findall(plain))

        chosen = await browser.text("/batches", domain="email", status="PENDING")
        assert "<option selected>email</option>" in chosen
        assert all(each.endswith("?domain=email") for each in NAV.findall(chosen))
        assert (
            '<input type="hidden" name="status" value="PENDING">' in chosen
        )  # another domain, same filter

        about_all = await browser.text("/tokens", domain="email")
        assert re.search(r'<select id="switch"[^>]* disabled', about_all)
        assert all(each.endswith("?domain=email") for each in NAV.findall(about_all))

        unknown = await browser.text("/batches", domain="nowhere")
        assert not any("domain=" in each for each in NAV.findall(unknown))


async def test_each_screen_with_a_switch_shows_one_domain_or_all(bus: CommandBus) -> None:
    await two_domains(bus)
    places = {each.domain_page for each in registry().screens if each.domain_page}
    assert len(places) == 10
    async with console(bus, *EVERYTHING) as browser:
        for name in places:
            path = registry().path(name, {})
            for domain in ("", "email"):  # a form without a script sends the empty choice too
                answer = await browser.client.get(f"/console{path}?domain={domain}")
                assert answer.status_code == 200, (path, domain)
        overview = await browser.text("/", domain="email")
        assert "/domains/email" in overview
        assert 'href="/console/domains/payments"' not in overview


async def test_the_switch_offers_only_what_the_caller_reaches(bus: CommandBus) -> None:
    await two_domains(bus)
    async with console(bus, "read", domains=("email",)) as browser:
        page = await browser.text("/")
        assert "<option>email</option>" in page
        assert "payments" not in page
        assert (await browser.get("/", domain="payments")).status_code == 404
        assert "payments" not in await browser.text("/find", q="pay")


async def test_domains_and_beginnings_of_fingerprints_are_found(bus: CommandBus) -> None:
    async def fail(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("NO", "no such account")

    bus.register_handler("payments", "Debit", fail)
    await bus.send_many("payments", [BatchCommand("Debit", new_id(), {})])
    await bus.send_many("email", [BatchCommand("Send", new_id(), {})])
    await bus.run_worker("payments", until_empty=True)
    (group,) = await bus.troubleshooting.groups("payments")
    async with console(bus, *EVERYTHING) as browser:
        assert 'href="/console/domains/email"' in await browser.text("/find", q="Emai")
        answer = await browser.get("/find", q=group.fingerprint[:6])
        assert answer.status_code == 303
        assert answer.headers["location"].endswith(f"/groups/{group.fingerprint}")
        assert "Nothing is called so" in await browser.text("/find", q="zzz")
    async with console(bus, "read", domains=("email",)) as browser:
        assert (await browser.get("/find", q=group.fingerprint[:6])).status_code == 200
