"""What many open pages cost together: one look for each view, whoever looks and however."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from commandbus import CommandBus
from commandbus.http import HttpSettings, create_app
from commandbus.http.console.known import KnownSessions
from commandbus.http.console.live import Live, Look
from commandbus.http.problems import Problem, unavailable
from tests.console.test_sessions import token_of
from tests.console.world import EVERYTHING, be_patient
from tests.http_world import NamedCallers, caller

POLL = {"X-Console-Regions": "poll"}
LOOSE = HttpSettings(max_user_requests=1_000_000, max_address_requests=1_000_000)


@pytest.fixture
def asked(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that were run."""
    found: list[str] = []
    gateway: Any = bus._store.gateway
    real = gateway._run

    async def run(text: str, *more: Any) -> Any:
        found.append(text)
        return await real(text, *more)

    monkeypatch.setattr(gateway, "_run", run)
    return found


async def polled(client: Any, name: str, path: str = "/console/workers") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {name}", **POLL}
    answer = await client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.long
async def test_twenty_tabs_and_fifty_users_without_a_stream_share_one_look(
    bus: CommandBus, asked: list[str]
) -> None:
    people = {f"u{n}": caller(*EVERYTHING, user=f"user {n}") for n in range(50)}
    app = create_app(bus, auth=NamedCallers(**people), settings=LOOSE, console=True)
    be_patient(app)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        await polled(client, "u0")
        one = len(asked)
        assert one > 0
        await asyncio.sleep(5.1)  # as long as pages wait between two polls
        asked.clear()
        tabs = await asyncio.gather(*(polled(client, "u0") for _ in range(20)))
        after_tabs = len(asked)
        users = await asyncio.gather(*(polled(client, name) for name in people))
        after_users = len(asked)
        # What is personal is shared with nobody.
        asked.clear()
        await asyncio.gather(*(polled(client, f"u{n}", "/console/approvals") for n in range(3)))

    assert after_tabs <= one
    assert after_users <= one
    assert {each["as_of"] for each in tabs + users} == {tabs[0]["as_of"]}
    assert len(asked) >= 3


async def test_numbers_that_are_the_same_for_all_are_counted_once_for_fifty_users(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = {f"u{n}": caller(*EVERYTHING, user=f"user {n}") for n in range(50)}
    app = create_app(bus, auth=NamedCallers(**people), settings=LOOSE, console=True)
    be_patient(app)
    console = app.state.commandbus_console
    counted: list[str] = []
    real = console._count

    async def count(key: Any, *more: Any) -> Any:
        counted.append(key[0])
        return await real(key, *more)

    monkeypatch.setattr(console, "_count", count)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for name in people:
            headers = {"Authorization": f"Bearer {name}", "Accept": "text/html"}
            await client.get("/console/help", headers=headers)

    # Once, or twice if the fifty pages took longer than a number is kept.
    for name in ("troubleshooting", "bulk", "doctor"):
        assert counted.count(name) < 10, (name, counted.count(name))


async def test_fifty_sessions_are_renewed_with_one_query(bus: CommandBus, asked: list[str]) -> None:
    made = await token_of(bus)
    sessions = bus.tokens.sessions
    secrets = [(await sessions.begin(made.token.token_id, "ann", None, {}))[0] for _ in range(50)]
    known = KnownSessions(sessions, 5.0)
    first = [await known.find(each, is_used=False) for each in secrets]
    ended = first[0]
    assert ended is not None
    await sessions.end(ended.session_id, actor="ann", owner=None, details={})
    for each in known._known.values():
        each.asked_at -= 3.0
    asked.clear()

    found = await asyncio.gather(
        *(known.find(each, is_used=False, max_age=2.5) for each in secrets)
    )

    assert found[0] is None
    assert all(each is not None for each in found[1:])
    assert len(asked) <= 2  # one for all, one more for the session that is gone


async def test_a_page_without_a_stream_gets_what_the_watcher_of_its_view_saw() -> None:
    live, looks = Live(), 0

    async def look() -> Look:
        nonlocal looks
        looks += 1
        return Look({"x": f"look {looks}"})

    stream = live.follow(
        "view", look, seconds=60, longest=60, personalise=str, is_closing=lambda: False,
        extras=lambda: {"ends": "soon"},
    )  # fmt: skip
    while b"look 1" not in (event := await anext(stream)):
        assert event
    assert b'"ends":"soon"' in event
    seen = [await live.glance("view", look, seconds=1) for _ in range(20)]
    await stream.aclose()  # type: ignore[attr-defined]
    other = await live.glance("view", look, seconds=1)

    assert {each.look.regions["x"] for each in seen} == {"look 1"}
    assert other.look.regions["x"] == "look 2"
    assert looks == 2


async def test_a_view_that_cannot_be_looked_at_is_said_to_pages_without_a_stream_too() -> None:
    live = Live()

    async def look() -> Look:
        raise unavailable("the database does not answer")

    stream = live.follow(
        "view", look, seconds=60, longest=60, personalise=str, is_closing=lambda: False
    )
    while b"event: problem" not in await anext(stream):
        pass
    with pytest.raises(Problem, match="does not answer"):
        await live.glance("view", look, seconds=1)
    await stream.aclose()  # type: ignore[attr-defined]
    with pytest.raises(Problem):
        await live.glance("other", look, seconds=1)
