"""The screen of the settings: what it shows, and what it never shows."""

from __future__ import annotations

from commandbus import CommandBus
from commandbus.http import HttpSettings
from tests.console.world import console


async def test_settings_show_versions_migrations_and_mask_secrets(bus: CommandBus) -> None:
    settings = HttpSettings(jwt_key="a-very-secret-key-of-32-characters", max_bodies=7)

    async with console(bus, "read", "admin", settings=settings) as browser:
        page = await browser.text("/settings")

    assert "a-very-secret-key" not in page
    assert "[REDACTED]" in page
    assert "COMMANDBUS_HTTP_MAX_BODIES" in page
    assert "PostgreSQL" in page
    assert "0001_" not in page
    assert page.count("<h1") == 1


async def test_the_regions_of_settings_are_those_of_the_whole_page(bus: CommandBus) -> None:
    async with console(bus, "read") as browser:
        page = await browser.text("/settings")
        regions = await browser.regions("/settings")

    assert set(regions) == {"standing"}
    assert regions["standing"].strip() in page


async def test_who_only_reads_does_not_see_how_the_deployment_is_run(bus: CommandBus) -> None:
    role = (await bus.upkeep.standing.read()).role
    for scopes, domains in ((("read",), None), (("read", "admin"), ("shop",))):
        async with console(bus, *scopes, domains=domains) as browser:
            page = await browser.text("/settings")
        assert "COMMANDBUS_" not in page
        assert f"<dd>{role}</dd>" not in page
        assert "for administrators of all domains" in page
