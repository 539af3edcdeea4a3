"""The door of the console: proofs, links from elsewhere, cookies, problems, and what is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection

from commandbus import CommandBus
from commandbus.errors import DatabaseUnavailableError
from commandbus.http import HttpSettings
from commandbus.http.connections import Connections
from commandbus.http.peers import HostOfProxies, PrefixOfProxies
from tests.console.test_sessions import events, sign_in, token_of, visiting
from tests.console.world import EVERYTHING, console

LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
OLD = "update commandbus.command_bus_console_session set proved_at = now() - interval '11 minutes'"


async def grow_old(conn: AsyncConnection) -> None:
    """The token was given longer ago than an administrator's act takes."""
    await conn.execute(OLD)
    await conn.commit()


async def test_a_stolen_session_revokes_the_tokens_of_nobody_else(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made = await token_of(bus, *EVERYTHING)
    mine = await token_of(bus, "read")
    other = await bus.tokens.create("bob", ["read"])
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        await grow_old(conn)
        path = f"/tokens/{other.token.token_id}/revoke"
        asked = await browser.submit(path, path, reason="left")
        still = await bus.tokens.find(other.token.token_id)
        own = f"/tokens/{mine.token.token_id}/revoke"
        of_own = await browser.submit(own, own, reason="old")
        done = await browser.submit(asked.text, path, proof=made.text)

    assert asked.status_code == 403
    assert "Your token again" in asked.text
    assert still is not None
    assert still.token.revoked_at is None
    assert of_own.status_code == done.status_code == 303
    ended = await bus.tokens.find(other.token.token_id)
    assert ended is not None
    assert ended.token.revoked_at is not None


async def test_who_came_with_commandbus_open_proves_it_with_a_new_code(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    tokens = bus.tokens
    made = await token_of(bus, *EVERYTHING)
    other = await tokens.create("bob", ["read"])
    of_bob = await tokens.create("bob", list(EVERYTHING))
    weak = await token_of(bus, "read")
    again = await token_of(bus, *EVERYTHING)  # as `commandbus open` makes one each time
    async with visiting(bus) as browser:
        await browser.post("/sign-in", code=await tokens.sessions.new_code(made.token))
        await grow_old(conn)
        path = f"/tokens/{other.token.token_id}/revoke"
        asked = await browser.submit(path, path, reason="left")
        wrong = [
            await browser.submit(asked.text, path, proof=await tokens.sessions.new_code(each.token))
            for each in (of_bob, weak)
        ]
        code = await tokens.sessions.new_code(again.token)
        address = f"http://127.0.0.1:8080/console/sign-in#{code}"
        done = await browser.submit(asked.text, path, proof=address)
        await grow_old(conn)
        asked_again = await browser.post("/nothing")  # any request of this process
        twice = await browser.submit(asked.text, path, proof=code)

    assert "commandbus open --print --operator ann" in asked.text
    assert [each.status_code for each in wrong] == [403, 403]
    assert "nor a new code" in wrong[0].text
    assert done.status_code == 303
    assert asked_again.status_code == 404
    assert twice.status_code != 303  # a code is good once
    refused = [each for each in await events(bus) if each[0] == "CONSOLE_REFUSED"]
    assert any("nor a new code" in each[2].get("refused", "") for each in refused)
    assert all(code not in str(each) for each in await events(bus))


async def test_a_proof_that_another_process_took_is_good_here_at_once(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made = await token_of(bus, *EVERYTHING)
    other = await bus.tokens.create("bob", ["read"])
    async with visiting(bus, settings=HttpSettings(token_cache_seconds=5)) as browser:
        await sign_in(browser, made.text)
        await grow_old(conn)
        path = f"/tokens/{other.token.token_id}/revoke"
        assert (await browser.submit(path, path, reason="left")).status_code == 403
        await conn.execute("update commandbus.command_bus_console_session set proved_at = now()")
        await conn.commit()

        assert (await browser.submit(path, path, reason="left")).status_code == 303


async def test_a_link_from_a_chat_asks_once_more_from_here(bus: CommandBus) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser, visiting(bus) as stranger:
        await sign_in(browser, made.text)
        kept = dict(browser.client.cookies)
        browser.client.cookies.clear()  # as a browser does with strict cookies
        first = await browser.client.get("/console/settings?x=%27%3Ba&y=1", headers=LINK)
        again = await browser.client.get("/console/settings", headers=LINK)
        browser.client.cookies.update(kept)
        same = {**LINK, "Sec-Fetch-Site": "same-origin"}
        page = await browser.client.get("/console/settings?x=1", headers=same)
        form = await stranger.client.get("/console/settings", headers=same)
        frame = await stranger.client.get(
            "/console/settings", headers={**LINK, "Sec-Fetch-Dest": "iframe"}
        )
        elsewhere = await stranger.client.get("/console//evil.example/", headers=LINK)

    assert first.status_code == 200
    assert first.headers["refresh"] == "0; url=/console/settings?x=%27%3Ba&y=1"
    assert "<script" not in first.text
    assert again.status_code == 303, "no loop: the second time it is the form"
    assert page.status_code == 200
    assert "Settings" in page.text
    assert form.status_code == frame.status_code == 303
    assert elsewhere.headers["refresh"].startswith("0; url=/console/")


async def test_no_cookie_makes_a_page_fail(bus: CommandBus) -> None:
    async with console(bus) as browser:
        names = ["commandbus-notice", "commandbus-theme", "commandbus-session-80"]
        for value in ("1.YQ==.\xe9\xff", "\xe9", "..", "1." + "\xff" * 40):
            cookie = "; ".join(f"{name}={value}" for name in names).encode("latin-1")
            answer = await browser.client.get("/console/settings", headers={b"Cookie": cookie})

            assert answer.status_code == 200, (value, answer.text[:200])


async def test_a_bug_and_a_limit_are_pages_with_their_request(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*given: Any, **named: Any) -> None:
        raise RuntimeError("password=hunter2")

    async with console(bus, settings=HttpSettings(max_user_requests=2)) as browser:
        monkeypatch.setattr(bus.tokens.sessions, "list", broken)
        bug = await browser.client.get("/console/tokens", headers={"X-Request-Id": "bug-1"})
        answers = [
            await browser.client.get("/console/settings", headers={"X-Request-Id": f"r-{n}"})
            for n in range(4)
        ]
        api = await browser.client.get("/api/v1/whoami")

    assert (bug.status_code, answers[-1].status_code) == (500, 429)
    for answer, name in ((bug, "bug-1"), (answers[-1], "r-3")):
        assert answer.headers["content-type"].startswith("text/html")
        assert name in answer.text
        assert 'aria-label="Screens"' in answer.text
        assert "hunter2" not in answer.text
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
    assert "retry-after" in answers[-1].headers
    assert api.headers["content-type"] == "application/problem+json"
    assert "bug-1" in caplog.text


async def test_who_may_not_sees_a_page_and_is_in_the_audit(bus: CommandBus) -> None:
    async with console(bus, "read") as reader:
        await reader.post("/domains/payments/pause", reason="x", csrf="0" * 64)
    async with console(bus, "operate", domains=("email",), user="bob") as bob:
        answer = await bob.post("/domains/payments/pause", reason="x", csrf="0" * 64)

    assert answer.status_code == 404
    found = [each for each in await events(bus) if each[0] == "CONSOLE_REFUSED"]
    assert {(who, each["action"]) for _, who, each in found} == {
        ("ann", "workers.pause"), ("bob", "workers.pause"),
    }  # fmt: skip
    assert all(each["refused"] for *_, each in found)


async def test_deployments_below_two_prefixes_of_one_host_keep_their_sessions(
    bus: CommandBus,
) -> None:
    made = await token_of(bus)
    names = set()
    for prefix in ("", "/a", "/b"):
        async with visiting(bus, prefix=prefix) as browser:
            answer = await browser.client.post(
                f"{prefix}/console/sign-in", data={"token": made.text}
            )
            names.add(answer.headers["set-cookie"].partition("=")[0])
            page = await browser.client.get(f"{prefix}/console/settings")
            assert page.status_code == 200

    assert len(names) == 3


async def test_a_sign_in_ends_the_session_that_the_browser_had(bus: CommandBus) -> None:
    made = await token_of(bus)
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        [first] = await bus.tokens.sessions.list("ann")
        await sign_in(browser, made.text)
        [second] = await bus.tokens.sessions.list("ann")

    assert first.session_id != second.session_id


async def test_a_form_without_a_database_is_not_sent_again_as_a_page(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*given: Any, **named: Any) -> None:
        raise DatabaseUnavailableError("connection refused")

    made = await token_of(bus)
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        monkeypatch.setattr(bus.tokens.sessions, "use", gone)
        monkeypatch.setattr(bus.tokens.sessions, "find_many", gone)
        answer = await browser.post("/theme", theme="dark")

    assert answer.status_code == 503
    assert "refresh" not in answer.headers
    assert "Nothing was done" in answer.text


@pytest.mark.parametrize(("peer", "taken"), [("10.0.0.1", "public.example"), ("10.0.0.2", "")])
async def test_only_a_trusted_proxy_says_under_which_name_a_browser_came(
    peer: str, taken: str
) -> None:
    seen: list[dict[bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]))

    async def nothing(*given: Any) -> Any:
        return None

    known = HostOfProxies(app, Connections(10, "10.0.0.1").is_proxy)
    headers = [(b"x-forwarded-host", b"public.example"), (b"host", b"inner")]
    await known({"type": "http", "client": (peer, 1), "headers": headers}, nothing, nothing)

    # The header stays, because it says that somebody else stands behind the peer.
    assert seen == [{b"x-forwarded-host": taken.encode(), b"host": b"inner"}]


@pytest.mark.parametrize(
    ("peer", "prefix", "root"),
    [
        ("10.0.0.1", "/ops/bus", "/ops/bus"),
        ("10.0.0.1", "/ops/bus/", "/ops/bus"),
        ("10.0.0.2", "/ops/bus", ""),
        *(
            ("10.0.0.1", each, "")
            for each in ("", "/", "ops", "//evil.example", "/a//b", "/a/../b", "/a?b", "/a" * 150)
        ),
    ],
)  # fmt: skip
async def test_only_a_trusted_proxy_says_which_prefix_it_has_taken_away(
    peer: str, prefix: str, root: str
) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope.get("root_path", ""), scope["path"], scope["raw_path"]))

    async def nothing(*given: Any) -> Any:
        return None

    known = PrefixOfProxies(app, Connections(10, "10.0.0.1").is_proxy)
    headers = [(b"x-forwarded-prefix", prefix.encode())]
    scope = {"type": "http", "client": (peer, 1), "headers": headers, "path": "/console/",
             "raw_path": b"/console/"}  # fmt: skip
    await known(scope, nothing, nothing)

    assert seen == [(root, f"{root}/console/", f"{root}/console/".encode())]


async def test_regions_tell_the_time_of_the_service_and_the_end_of_the_session(
    bus: CommandBus,
) -> None:
    made = await token_of(bus, expires_in=timedelta(hours=1))
    async with visiting(bus) as browser:
        await sign_in(browser, made.text)
        for path in ("/me", "/workers"):
            answer = await browser.client.get(
                f"/console{path}", headers={"X-Console-Regions": "poll"}
            )
            body = answer.json()
            assert body["as_of"].endswith(("Z", "+00:00"))
            assert body["ends"] == answer.headers["x-session-ends"]
