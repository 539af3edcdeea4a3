"""What `commandbus up` shows, to whom, and how long it is good for anything."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from starlette.datastructures import Headers

from commandbus import CommandBus, InvalidSettingError, Settings
from commandbus.access.model import Caller, Scope, StoredToken
from commandbus.access.peppers import Peppers
from commandbus.access.tokens import Tokens
from commandbus.cli.session import kept_fresh, new_session, write_token
from commandbus.http.auth.authenticators import NotAuthenticated
from commandbus.http.auth.session import SessionAuth, SessionToken
from commandbus.http.settings import HttpSettings
from commandbus.http.weaknesses import weaknesses_of
from tests.acceptance.programs import Program, program
from tests.waiting import until

TOKEN = re.compile(r"cb_[0-9a-f]{32}_[\w-]{43}")


class Terminal:
    """A terminal on which a program runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.shown = ""

    @property
    def url(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.shown)
        assert found is not None, self.shown
        return found[0]

    @property
    def token(self) -> str:
        (found,) = set(TOKEN.findall(self.shown))
        return str(found)


@asynccontextmanager
async def on_terminal(folder: Path, *arguments: str) -> AsyncIterator[Terminal]:
    """Run `commandbus …` with its output on a terminal; it is killed in the end."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "dumb"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "commandbus", *arguments,
        cwd=folder, env=environment, stdout=its, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    os.close(its)
    terminal = Terminal(process)

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            terminal.shown += os.read(ours, 65_536).decode()

    loop = asyncio.get_running_loop()
    loop.add_reader(ours, read)
    try:
        await until(lambda: "Stop with Ctrl-C" in terminal.shown, "an up that is up")
        yield terminal
    finally:
        loop.remove_reader(ours)
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


def is_up(each: Program) -> bool:
    return "Stop with Ctrl-C" in each.printed


async def status_of(url: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers) as client:
        return (await client.get("/api/v1/domains")).status_code


@pytest.mark.long
@pytest.mark.e2e
async def test_the_token_of_a_terminal_does_not_survive_a_kill(dsn: str, tmp_path: Path) -> None:
    up = ("up", "--demo", "--dsn", dsn, "--port", "0")
    async with on_terminal(tmp_path, *up) as first:
        assert await status_of(first.url, first.token) == 200
    assert first.process.returncode == -signal.SIGKILL

    async with on_terminal(tmp_path, *up) as second:
        assert await status_of(second.url, first.token) == 401
        assert await status_of(second.url, second.token) == 200
    async with CommandBus.connect(dsn) as bus:
        assert (await bus.tokens.page(include_ended=True)).items == []


@pytest.mark.e2e
async def test_into_a_pipe_go_no_secrets_and_a_file_gets_them_if_asked(
    dsn: str, tmp_path: Path
) -> None:
    up = ("up", "--demo", "--dsn", dsn, "--port", "0")
    async with (
        program(tmp_path, *up) as plain,
        program(tmp_path, *up, "--token-file", "t") as asked,
    ):
        for each in (plain, asked):
            await until(partial(is_up, each), "an up that is up")
        file = tmp_path / "t"
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text().strip()
        url = re.search(r"http://127\.0\.0\.1:\d+", asked.printed)
        assert url is not None
        assert await status_of(url[0], token) == 200
        for each in (plain, asked):
            each.signal(signal.SIGTERM)
            assert await each.ended() == 0
    assert "commandbus token create --user" in plain.printed
    for text in (plain.printed, plain.logged, asked.printed, asked.logged):
        assert not TOKEN.search(text)
        assert "password" not in text
    assert not file.exists()


# -- the token itself


async def ask(auth: SessionAuth, text: str) -> Caller:
    return await auth.authenticate(Headers({"Authorization": f"Bearer {text}"}))


class NoTokens(Tokens):
    """As if the database had none."""

    async def find_many(self, token_ids: Collection[str]) -> dict[str, StoredToken]:
        return {}


async def test_a_session_token_ends_after_its_life_and_when_it_is_renewed() -> None:
    now = 0.0
    session = SessionToken("ann", [Scope.READ], timedelta(seconds=10), clock=lambda: now)
    auth = SessionAuth(session, NoTokens(cast("Any", None), Peppers()))
    first = session.text
    assert (await ask(auth, first)).scopes == {Scope.READ}
    assert (await auth.check_again(Headers({"Authorization": f"Bearer {first}"}))).user_id == "ann"
    now = 10.0
    for text in (first, first[:-1], "", "cb_", "é"):
        with pytest.raises(NotAuthenticated):
            await ask(auth, text)
    second = session.renew()
    assert (await ask(auth, second)).user_id == "ann"
    with pytest.raises(NotAuthenticated):
        await ask(auth, first)


def test_the_token_of_up_may_not_pass_governance_by() -> None:
    session = new_session("ann")
    caller = session.caller_of(session.text)
    assert caller is not None
    assert caller.scopes == {scope for scope in Scope if scope.value != "bypass-governance"}


async def test_a_token_is_renewed_in_time_and_its_file_with_it(tmp_path: Path) -> None:
    session = SessionToken("ann", [Scope.READ], timedelta(milliseconds=20))
    first, file = session.text, tmp_path / "token"
    told: list[str] = []
    async with kept_fresh(session, file, told.append):
        await until(lambda: told, "another token")
        assert first not in told
        assert file.read_text().strip() in told
    assert not file.exists()


async def test_the_file_of_another_up_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with kept_fresh(new_session("ann"), file, print):
        write_token(file, new_session("bob").text)
    assert file.exists()


def test_a_file_that_holds_no_token_is_not_replaced(tmp_path: Path) -> None:
    other, link = tmp_path / "notes", tmp_path / "link"
    other.write_text("precious")
    link.symlink_to(other)
    for path in (other, link, tmp_path, Path(os.devnull)):
        with pytest.raises(InvalidSettingError, match="something else"):
            write_token(path, "cb_x")
    assert other.read_text() == "precious"
    with pytest.raises(InvalidSettingError, match="cannot write"):
        write_token(tmp_path / "missing" / "token", "cb_x")


# -- what a service says when it starts


def test_weak_settings_are_said() -> None:
    assert weaknesses_of(HttpSettings()) == []
    for settings, says in {
        HttpSettings(auth="none"): "no authentication",
        HttpSettings(metrics_public=True): "/metrics needs no token",
        HttpSettings(trusted_proxies="10.0.0.1, *"): "taken for a trusted proxy",
        HttpSettings(auth="jwt", jwt_key="k" * 32): "any issuer",
    }.items():
        (text,) = weaknesses_of(settings)
        assert says in text


@pytest.mark.e2e
async def test_serve_says_what_is_weak_about_its_tokens(dsn: str, tmp_path: Path) -> None:
    async with CommandBus.connect(dsn, settings=Settings(token_pepper="p" * 40)) as bus:
        await bus.tokens.create("ann", ["admin"])
    async with program(tmp_path, "serve", "--port", "0", "--dsn", dsn) as served:
        await until(lambda: "Stop with Ctrl-C" in served.printed, "a service")
    assert "WARNING commandbus.cli TOKEN_PEPPER" in served.logged
    assert "INFO commandbus.cli TOKEN_ENDLESS" in served.logged
