"""Actions: who may, what the audit says, and the token that administrators are asked for again."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from psycopg import AsyncConnection
from starlette.responses import Response

from commandbus import CommandBus
from commandbus.access.model import Scope
from commandbus.errors import InvalidOperationError
from commandbus.http.console.forms import Fields
from commandbus.http.console.registry import Registry, registry
from commandbus.http.console.screen import Page, Screen
from commandbus.http.console.view import Show
from tests.console.test_sessions import events, sign_in, token_of, visiting
from tests.console.world import Browser, console, forms_of
from tests.waiting import until

counted: list[str] = []
done: list[str] = []


async def count(view: Show) -> int:
    counted.append(view.caller.user_id)
    return 1204


probe = Screen("probe", "Probe", order=999, count=count, is_count_shared=True)


@probe.page("/probe", live=1.0)
async def show(view: Show) -> Page:
    return view.page(
        "confirm.html", "Probe", verb="Try 3 things", action=view.url("probe.act"),
        happens=["Three things <b>happen</b>."], stays=["All others."], back=view.url("overview"),
        fields={"ids": "1,2"},
    )  # fmt: skip


@probe.page("/probe/of/{name}", name="probe.named")
async def named(view: Show, name: str) -> Page:
    return view.page(
        "confirm.html", "Named", verb="Try", action=view.url("probe.named-act", name=name),
        happens=[], stays=[], back=view.url("overview"),
    )  # fmt: skip


@probe.action("/probe/of/{name}/act", name="probe.named-act", scope=Scope.OPERATE)
async def act_named(view: Show, name: str) -> Response:
    done.append(name)
    return view.to("probe.named", name=name)


@probe.action("/probe/act", scope=Scope.ADMIN)
async def act(view: Show, form: Fields) -> Response:
    if form.text("ids") == "taken":
        raise InvalidOperationError("bob was quicker: password=hunter2")
    done.append(f"{view.actor} {form.text('ids')} {form.required('reason', 'Reason')}")
    return view.to("probe", "It is done, <ann>.")


@pytest.fixture(autouse=True)
def _probed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Registry.of((*registry().screens, probe))
    monkeypatch.setattr("commandbus.http.console.console.registry", lambda: found)
    done.clear()


async def test_an_action_is_done_once_said_once_and_written_with_actor_and_reason(
    bus: CommandBus,
) -> None:
    async with console(bus, "admin") as browser:
        answer = await browser.submit("/probe", "/probe/act", reason="because, token=s3cret")
        first = await browser.text("/probe")
        second = await browser.text("/probe")

    assert (answer.status_code, answer.headers["location"]) == (303, "/console/probe")
    assert done == ["ann 1,2 because, token=s3cret"]
    assert "It is done, &lt;ann&gt;." in first
    assert "It is done" not in second
    assert "<b>happen" not in first
    [(event, actor, details)] = await events(bus)
    assert (event, actor) == ("CONSOLE_ACTION", "ann")
    assert details["action"] == "probe.act"
    assert details["via"] == "console"
    assert "because" in details["reason"]
    assert "s3cret" not in str(details)


async def test_whoever_was_slower_is_told_and_it_is_written(bus: CommandBus) -> None:
    async with console(bus, "admin") as browser:
        answer = await browser.submit("/probe", "/probe/act", ids="taken", reason="x")

    assert answer.status_code == 409
    assert "bob was quicker" in answer.text
    assert "hunter2" not in answer.text
    [(event, _, details)] = await events(bus)
    assert event == "CONSOLE_REFUSED"
    assert "hunter2" not in str(details)


async def test_an_action_needs_its_scope_and_its_reason(bus: CommandBus) -> None:
    async with console(bus, "read", "operate") as browser:
        denied = await browser.submit("/probe", "/probe/act", reason="x")
    async with console(bus, "admin") as browser:
        empty = await browser.submit("/probe", "/probe/act")

    assert denied.status_code == 403
    assert "admin" in denied.text
    assert empty.status_code == 400
    assert "Reason" in empty.text
    assert not done


async def test_an_administrator_is_asked_for_the_token_again_after_ten_minutes(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made, other = await token_of(bus, "admin"), await token_of(bus, "admin")
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        await browser.submit("/probe", "/probe/act", reason="now")
        await conn.execute(
            "update commandbus.command_bus_console_session"
            " set proved_at = now() - interval '11 minutes'"
        )
        await conn.commit()
        asked = await browser.submit("/probe", "/probe/act", reason="later")
        wrong = await browser.submit(asked.text, "/probe/act", proof=other.text)
        right = await browser.submit(asked.text, "/probe/act", proof=made.text)
        then = await browser.submit("/probe", "/probe/act", reason="at once")

    assert (asked.status_code, wrong.status_code) == (403, 403)
    assert (right.status_code, then.status_code) == (303, 303)
    assert done == ["ann 1,2 now", "ann 1,2 later", "ann 1,2 at once"]
    assert "proof" not in forms_of(asked.text)[-1]["fields"]


async def test_a_live_region_for_several_people_has_nobody_s_form_token(bus: CommandBus) -> None:
    """What is rendered once for all has marks in place of tokens, which are put in for each."""
    async with console(bus, "admin") as browser:
        page = await browser.text("/probe")
        app = browser.client._transport.app  # type: ignore[attr-defined]
        placeholders = app.state.commandbus_console.placeholders
        mark = placeholders.of("/console/probe/act")

    [token] = [
        each["fields"]["csrf"] for each in forms_of(page) if each["action"].endswith("/probe/act")
    ]

    class Tokens:
        def of(self, action: str) -> str:
            return f"token of {action}"

    assert token not in mark
    assert not placeholders.fits("/console/probe/act", mark)
    assert placeholders.filled(f'"{mark}"', Tokens()) == '"token of /console/probe/act"'


async def test_a_form_fits_its_path_whatever_its_name_contains(bus: CommandBus) -> None:
    name = 'nightly: 50% of "a&b"?#+ü'
    async with console(bus, "read", "operate", prefix="/a/b") as browser:
        page = await browser.text(f"/probe/of/{quote(name, safe='')}")
        answer = await browser.submit(page, "/act", reason="x")

    assert answer.status_code == 303
    assert done == [name]


async def test_the_number_of_a_screen_is_counted_once_for_all_with_the_same_rights(
    bus: CommandBus,
) -> None:
    counted.clear()
    async with console(bus, "read", "operate") as browser:
        app = browser.client._transport.app  # type: ignore[attr-defined]
        await until(lambda: _shown(browser))
        for _ in range(3):
            await browser.text("/probe")
        numbers = list(app.state.commandbus_console._counts.values())

    assert set(counted) == {""}  # of nobody in particular
    assert [number for _, number in numbers].count(1204) == 1


async def _shown(browser: Browser) -> bool:
    return 'id="count-probe">1,204<' in await browser.text("/probe")
