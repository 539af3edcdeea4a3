"""Sign-in: a token becomes a session, which is good for a while, here, and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from psycopg import AsyncConnection

from commandbus import CommandBus
from commandbus.access.model import Caller, Scope
from commandbus.errors import DatabaseUnavailableError
from commandbus.http import HttpSettings, TokenAuth, create_app
from tests.console.world import Browser, be_patient, forms_of

HTTPS = "https://bus.example"
LOCAL = "http://127.0.0.1:8080"


@asynccontextmanager
async def visiting(
    bus: CommandBus,
    at: str = LOCAL,
    client: tuple[str, int] = ("127.0.0.1", 4000),
    settings: HttpSettings | None = None,
    **options: Any,
) -> AsyncIterator[Browser]:
    """A browser without credentials, on a service with tokens that are never cached."""
    settings = settings or HttpSettings(token_cache_seconds=0)
    auth = TokenAuth(bus.tokens, cache_seconds=0)
    given: Any = {"auth": auth, "settings": settings, "console": True} | options
    app = create_app(bus, **given)
    be_patient(app)
    transport = httpx2.ASGITransport(app=app, client=client, raise_app_exceptions=False)
    async with httpx2.AsyncClient(
        transport=transport, base_url=at, headers={"Accept": "text/html"}
    ) as opened:
        yield Browser(opened, "/console")


async def token_of(bus: CommandBus, *scopes: str, **options: Any) -> Any:
    return await bus.tokens.create("ann", scopes or ("read",), **options)


async def sign_in(browser: Browser, token: str, **fields: str) -> httpx2.Response:
    return await browser.post("/sign-in", token=token, **fields)


async def events(bus: CommandBus) -> list[tuple[str, str | None, dict[str, Any]]]:
    found = await bus.search.audit(newest_first=True, limit=100)
    return [
        (str(each.event_type), each.actor, dict(each.details or {}))
        for each in found.items
        if str(each.event_type).startswith("CONSOLE")
    ]


async def test_a_token_becomes_a_session_that_opens_pages_and_no_api(bus: CommandBus) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        led = await browser.get("/settings?x=1")
        answer = await sign_in(browser, made.text, next="/console/settings?x=1")
        page = await browser.get("/settings")
        api = await browser.client.get("/api/v1/whoami")

    assert (led.status_code, led.headers["location"]) == (
        303,
        "/console/sign-in?next=/console/settings%3Fx%3D1",
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/settings?x=1")
    assert page.status_code == 200
    assert "ann" in page.text
    assert api.status_code == 401


async def test_the_cookie_is_bound_to_host_and_https_and_hidden_from_scripts(
    bus: CommandBus,
) -> None:
    made = await token_of(bus)
    async with visiting(bus, HTTPS, ("203.0.113.7", 1)) as browser:
        cookie = (await sign_in(browser, made.text)).headers["set-cookie"]
        page = await browser.get("/settings")

    parts = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert cookie.startswith("__Host-commandbus=")
    assert {"httponly", "secure", "samesite=strict", "path=/"} <= parts
    assert not any(part.startswith("domain") for part in parts)
    assert made.text not in cookie
    assert page.status_code == 200


async def test_plain_http_is_for_the_own_machine_only(bus: CommandBus) -> None:
    made = await token_of(bus)
    async with visiting(bus, "http://bus.example", ("203.0.113.7", 1)) as browser:
        answer = await sign_in(browser, made.text)

    assert answer.status_code == 403
    assert "HTTPS" in answer.text
    assert "set-cookie" not in answer.headers


async def test_a_revoked_token_ends_its_sessions(bus: CommandBus) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        assert (await browser.get("/settings")).status_code == 200
        await bus.tokens.revoke(made.token.token_id)

        assert (await browser.get("/settings")).status_code == 303


@pytest.mark.parametrize(
    "change",
    [
        "last_seen_at = now() - interval '31 minutes'",
        "expires_at = now() - interval '1 second'",
        "ended_at = now()",
    ],
)
async def test_a_session_ends_when_idle_when_old_and_when_it_was_ended(
    bus: CommandBus, conn: AsyncConnection, change: str
) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        await conn.execute(f"update commandbus.command_bus_console_session set {change}")
        await conn.commit()

        assert (await browser.get("/settings")).status_code == 303


async def test_a_session_never_outlives_its_token(bus: CommandBus, conn: AsyncConnection) -> None:
    made = await token_of(bus, expires_in=timedelta(hours=1))
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        [session] = await bus.tokens.sessions.list("ann")

    assert session.expires_at == made.token.expires_at


async def test_sign_out_ends_the_session_for_whoever_has_the_cookie(bus: CommandBus) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        stolen = dict(browser.client.cookies)
        answer = await browser.submit("/me", "/sign-out")
        browser.client.cookies.update(stolen)
        again = await browser.get("/settings")

    assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")
    assert again.status_code == 303
    assert [event for event, *_ in await events(bus)] == ["CONSOLE_SIGNED_OUT", "CONSOLE_SIGNED_IN"]


async def test_wrong_tokens_are_counted_as_in_the_api_and_written_redacted(
    bus: CommandBus,
) -> None:
    settings = HttpSettings(max_auth_failures=2, token_cache_seconds=0)
    made = await token_of(bus)
    wrong = made.text[:-4] + "AAAA"
    async with visiting(bus, settings=settings) as browser:
        codes = [(await sign_in(browser, wrong)).status_code for _ in range(3)]
        good = await sign_in(browser, made.text)

    assert codes == [401, 401, 429]
    assert good.status_code == 303
    found = [each for each in await events(bus) if each[0] == "CONSOLE_REFUSED"]
    assert len(found) == 2
    assert all(wrong not in str(each) for each in found)


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/", "/api/v1/x", "/console/\\evil", "x"]
)
async def test_sign_in_leads_nowhere_else(bus: CommandBus, target: str) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        answer = await sign_in(browser, made.text, next=target)

    assert answer.headers["location"] == "/console/"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
async def test_forms_of_other_sites_are_refused_with_the_header_that_differs(
    bus: CommandBus, header: str, value: str
) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        refused = await browser.client.post(
            "/console/sign-in", data={"token": made.text}, headers={header: value}
        )
        await sign_in(browser, made.text)
        page = await browser.text("/settings")
        [theme] = [each for each in forms_of(page) if each["action"].endswith("/theme")]
        late = await browser.client.post(
            theme["action"], data=theme["fields"], headers={header: value}
        )

    assert refused.status_code == late.status_code == 403
    assert header in refused.text
    assert header in late.text


async def test_the_host_that_a_trusted_proxy_names_is_taken(bus: CommandBus) -> None:
    made = await token_of(bus)
    headers = {"Origin": "https://public.example", "X-Forwarded-Host": "public.example"}
    codes = []
    for proxies in ("", "10.0.0.1"):
        settings = HttpSettings(trusted_proxies=proxies, token_cache_seconds=0)
        async with visiting(bus, HTTPS, settings=settings) as browser:
            answer = await browser.client.post(
                "/console/sign-in", data={"token": made.text}, headers=headers
            )
            codes.append(answer.status_code)

    assert codes == [403, 303]


async def test_the_token_of_a_form_is_of_one_session_and_one_form(bus: CommandBus) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser, visiting(bus) as other:
        await sign_in(browser, made.text)
        await sign_in(other, made.text)
        forms = {each["action"]: each["fields"] for each in forms_of(await browser.text("/me"))}
        answers = [
            await other.post("/theme", theme="dark", **forms["/console/theme"]),
            await browser.post("/theme", theme="dark", csrf=forms["/console/sign-out"]["csrf"]),
            await browser.post("/theme", theme="dark", csrf=forms["/console/theme"]["csrf"]),
        ]

    assert [each.status_code for each in answers] == [403, 403, 303]


async def test_a_code_signs_in_once(bus: CommandBus) -> None:
    made = await token_of(bus)
    code = await bus.tokens.sessions.new_code(made.token)
    async with visiting(bus) as browser, visiting(bus) as other:
        first = await browser.post("/sign-in", code=code)
        second = await other.post("/sign-in", code=code)
        page = await browser.get("/settings")

    assert (first.status_code, second.status_code, page.status_code) == (303, 401, 200)


async def test_a_code_is_good_for_a_minute(bus: CommandBus, conn: AsyncConnection) -> None:
    made = await token_of(bus)
    code = await bus.tokens.sessions.new_code(made.token)
    await conn.execute(
        "update commandbus.command_bus_console_code set expires_at = now() - interval '1 second'"
    )
    await conn.commit()
    async with visiting(bus) as browser:
        assert (await browser.post("/sign-in", code=code)).status_code == 401


async def test_the_application_can_say_who_asks(bus: CommandBus) -> None:
    ann = Caller("ann", frozenset({Scope.READ}))

    async def by_cookie(request: Any) -> Caller | None:
        return ann if request.cookies.get("app") == "ann" else None

    async with visiting(bus, console_auth=by_cookie) as browser:
        stranger = await browser.get("/settings")
        browser.client.cookies.set("app", "ann")
        page = await browser.get("/settings")
        form = await browser.get("/sign-in")

    assert stranger.status_code == 401
    assert page.status_code == 200
    assert 'name="token"' not in form.text


async def test_without_authentication_a_browser_on_this_machine_just_works(
    bus: CommandBus,
) -> None:
    async with visiting(bus, auth=None) as browser:
        page = await browser.text("/settings")
        [theme] = [each for each in forms_of(page) if each["action"].endswith("/theme")]
        codes = [
            (
                await browser.client.post(
                    theme["action"], data=theme["fields"], headers={"Origin": origin}
                )
            ).status_code
            for origin in (LOCAL, "http://127.0.0.1:9999", "https://evil.example")
        ]

    assert codes[0] == 303
    assert all(code in {401, 403} for code in codes[1:])


async def test_a_page_that_only_stays_open_does_not_keep_the_session(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        await conn.execute(
            "update commandbus.command_bus_console_session"
            " set last_seen_at = now() - interval '20 minutes'"
        )
        await conn.commit()
        await browser.client.get("/console/settings", headers={"X-Console-Regions": "poll"})
        [idle] = await bus.tokens.sessions.list("ann")
        await browser.get("/settings")
        [used] = await bus.tokens.sessions.list("ann")

    assert used.last_seen_at - idle.last_seen_at > timedelta(minutes=19)


async def test_a_session_is_ended_by_its_owner_only(bus: CommandBus) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
    [session] = await bus.tokens.sessions.list("ann")
    sessions = bus.tokens.sessions

    async def end(owner: str | None, of: UUID = session.session_id) -> bool:
        return await sessions.end(of, actor="bob", owner=owner, details={})

    assert not await end("bob")
    assert await end(None)
    assert not await end(None)


async def test_a_person_uses_the_session_though_a_stream_has_just_asked_for_it(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made = await token_of(bus)
    async with visiting(bus, settings=HttpSettings(token_cache_seconds=5)) as browser:
        await sign_in(browser, made.text)
        await conn.execute(
            "update commandbus.command_bus_console_session"
            " set last_seen_at = now() - interval '20 minutes'"
        )
        await conn.commit()
        await browser.client.get("/console/settings", headers={"X-Console-Regions": "poll"})
        await browser.get("/settings")
        [used] = await bus.tokens.sessions.list("ann")

    assert used.ends_at - datetime.now(UTC) > timedelta(minutes=25)


async def test_without_a_database_a_browser_gets_a_page_that_looks_again(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*given: Any, **named: Any) -> None:
        raise DatabaseUnavailableError("connection refused: password=hunter2")

    made = await token_of(bus)
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        monkeypatch.setattr(bus.tokens.sessions, "use", gone)
        page = await browser.get("/settings")
        stream = await browser.client.get(
            "/console/live/settings", headers={"Accept": "text/event-stream"}
        )

    assert (page.status_code, stream.status_code) == (503, 503)
    assert page.headers["refresh"] == "5"
    assert "the database does not answer" in page.text
    assert "hunter2" not in page.text + stream.text
