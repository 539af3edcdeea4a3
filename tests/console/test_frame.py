"""The frame of the console: addresses, headers, themes, live streams, errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from commandbus import CommandBus
from commandbus.http import HttpSettings, create_app
from commandbus.http.console.registry import registry
from tests.console.world import EVERYTHING, be_patient, console
from tests.http_world import NamedCallers, caller

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types console"
)
LINK = re.compile(r'(?:href|src|action|data-url)="([^"]*)"')


def plain_pages() -> list[str]:
    """The pages that need nothing but an address."""
    return [
        each.path for screen in registry().screens for each in screen.pages if "{" not in each.path
    ]


async def test_every_page_has_the_policy_one_heading_and_no_style(bus: CommandBus) -> None:
    async with console(bus, *EVERYTHING) as browser:
        for path in plain_pages():
            answer = await browser.get(path)

            # Nothing was found that could be fixed: also that is said inside the frame.
            expected = 404 if path == "/doctor/fix" else 200
            assert answer.status_code == expected, (path, answer.text)
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert answer.headers["cache-control"] == "no-store, no-transform"
            assert answer.text.count("<h1") == 1, path
            assert " style=" not in answer.text, path
            assert " on" not in re.sub(r">[^<]*<", "><", answer.text).replace(" once", ""), path


@pytest.mark.parametrize("prefix", ["", "/a/b"])
async def test_every_address_of_a_page_stays_below_the_prefix(bus: CommandBus, prefix: str) -> None:
    async with console(bus, *EVERYTHING, prefix=prefix) as browser:
        page = await browser.text("/settings")
        links = {each for each in LINK.findall(page) if each and not each.startswith("#")}

        assert links
        for each in links:
            assert each.startswith((f"{prefix}/console", f"{prefix}/docs")), each
        for each in sorted(links):
            if each.endswith((".css", ".js", ".svg")):
                found = await browser.client.get(each)
                assert found.status_code == 200, each
                assert "immutable" in found.headers["cache-control"]


async def test_a_mounted_console_links_below_its_root(bus: CommandBus) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    auth = NamedCallers(person=caller("read"))
    inner = create_app(bus, auth=auth, console=True)
    be_patient(inner)
    outer = Starlette(routes=[Mount("/bus", app=inner)])
    transport = httpx2.ASGITransport(app=outer)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        client.headers["Authorization"] = "Bearer person"
        page = (await client.get("/bus/console/settings")).text
        root = await client.get("/bus/", headers={"Accept": "text/html"})

    assert all(
        each.startswith(("/bus/console", "/bus/docs"))
        for each in LINK.findall(page)
        if each[:1] == "/"
    )
    assert root.headers["location"] == "/bus/console/"


async def test_the_root_leads_a_browser_to_the_console_and_nobody_else(bus: CommandBus) -> None:
    async with console(bus) as browser:
        found = await browser.client.get("/")
        other = await browser.client.get("/", headers={"Accept": "application/json"})

    assert (found.status_code, found.headers["location"]) == (307, "/console/")
    assert other.status_code == 404


async def test_the_console_can_be_switched_off(bus: CommandBus) -> None:
    app = create_app(bus, auth=NamedCallers(person=caller("read")), console=False)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        client.headers["Authorization"] = "Bearer person"

        assert (await client.get("/console/settings")).status_code == 404
        assert (await client.get("/", headers={"Accept": "text/html"})).status_code == 404


async def test_how_close_rows_stand_is_chosen_by_a_form_and_kept_in_a_cookie(
    bus: CommandBus,
) -> None:
    async with console(bus) as browser:
        first = await browser.text("/workers")
        answer = await browser.submit(first, "/theme", density="compact")
        second = await browser.text("/workers")
        await browser.submit(second, "/theme", density="none")
        third = await browser.text("/workers")

    assert answer.headers["location"] == "/console/workers"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert ['data-density="compact"' in each for each in (first, second, third)] == [
        False,
        True,
        False,
    ]


async def test_the_theme_is_chosen_by_a_form_and_kept_in_a_cookie(bus: CommandBus) -> None:
    async with console(bus) as browser:
        first = await browser.text("/settings")
        answer = await browser.submit(first, "/theme", theme="dark")
        second = await browser.text("/settings")

    assert 'data-theme="auto"' in first
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/settings")
    assert 'data-theme="dark"' in second


async def test_a_form_without_its_token_is_refused(bus: CommandBus) -> None:
    async with console(bus) as browser:
        for token in ("", "0" * 64):
            answer = await browser.post("/theme", theme="dark", csrf=token)

            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers
            assert "<h1" in answer.text


async def test_an_error_is_a_page_in_the_frame_with_its_code_and_request(bus: CommandBus) -> None:
    async with console(bus) as browser:
        answer = await browser.client.get(
            "/console/commands/not a domain!/x", headers={"X-Request-Id": "abc-1"}
        )

    assert answer.status_code == 400
    assert "INVALID_REQUEST" in answer.text
    assert "abc-1" in answer.text
    assert 'aria-label="Screens"' in answer.text


async def test_the_name_and_colour_of_the_deployment_are_on_every_page(bus: CommandBus) -> None:
    settings = HttpSettings(deployment_name="PRODUCTION <eu>", deployment_colour="red")
    async with console(bus, settings=settings) as browser:
        page = await browser.text("/")

    assert 'class="deployment deployment-red"' in page
    assert "PRODUCTION &lt;eu&gt;" in page
    assert "PRODUCTION <eu>" not in page


# -- live


class Stream:
    """An open stream of events; the client of these tests has no other way to read a part."""

    def __init__(self, app: Any, path: str) -> None:
        self.events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.status = 0
        self._app = app
        self._gone = asyncio.Event()
        target, _, query = path.partition("?")
        self._scope = {
            "type": "http", "method": "GET", "path": target, "raw_path": target.encode(),
            "query_string": query.encode(), "root_path": "", "scheme": "http",
            "headers": [(b"authorization", b"Bearer person"), (b"host", b"127.0.0.1")],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "http_version": "1.1",
            "asgi": {"version": "3.0"},
        }  # fmt: skip

    async def run(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        for block in message.get("body", b"").decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "data" in lines:
                await self.events.put((lines["event"], json.loads(lines["data"])))

    def close(self) -> None:
        self._gone.set()


@asynccontextmanager
async def streaming(app: Any, path: str) -> AsyncIterator[Stream]:
    stream = Stream(app, path)
    task = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        stream.close()
        await asyncio.wait_for(task, 60)


async def test_all_who_look_share_one_watcher_and_it_ends_with_the_last(bus: CommandBus) -> None:
    app = create_app(bus, auth=NamedCallers(person=caller("read", "operate")), console=True)
    be_patient(app)
    shared = app.state.commandbus_console.live
    async with (
        streaming(app, "/console/live/settings") as one,
        streaming(app, "/console/live/settings") as two,
        streaming(app, "/console/live/settings?x=1") as other,
    ):
        for stream in (one, two, other):
            kind, data = await asyncio.wait_for(stream.events.get(), 60)
            while kind in {"beat", "counts"}:
                kind, data = await asyncio.wait_for(stream.events.get(), 60)
            assert kind == "regions"
            assert set(data["regions"]) == {"standing"}
            assert data["as_of"]
        assert shared.watching == 2

    assert shared.watching == 0


async def test_a_page_that_takes_too_long_is_given_up_and_says_so(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def read() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    monkeypatch.setattr(bus.upkeep.standing, "read", read)
    async with console(bus) as browser:
        app = browser.client._transport.app  # type: ignore[attr-defined]
        app.state.commandbus_console.read_seconds = 0.01
        answer = await browser.get("/settings")

    assert ended == [True]
    assert answer.status_code == 503
    assert "UNAVAILABLE" in answer.text
    assert "Try again" in answer.text


async def test_a_view_says_that_the_database_is_gone_and_when_it_is_back(bus: CommandBus) -> None:
    from commandbus.errors import DatabaseUnavailableError
    from commandbus.http.console.live import Live, Look

    is_down = True

    async def look() -> Look:
        if is_down:
            raise DatabaseUnavailableError("gone")
        return Look({"x": "<p>1</p>"}, is_final=True)

    live, events = Live(), []
    follow = live.follow(
        "k", look, seconds=1, longest=60, personalise=str, is_closing=lambda: False
    )
    async for event in follow:
        events.append(event.decode())
        if "event: problem" in events[-1]:
            is_down = False

    text = "".join(events)
    assert text.index("event: problem") < text.index("event: regions") < text.index("event: end")
    assert "the database does not answer" in text
    assert live.watching == 0
