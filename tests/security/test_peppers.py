"""The pepper of API tokens: kept by default, shared, changed, lost; and tokens of before."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import AsyncConnection
from starlette.datastructures import Headers
from typer.testing import CliRunner

from commandbus import CommandBus, InvalidSettingError, Settings
from commandbus.access.model import Caller, Scope
from commandbus.access.peppers import Peppers
from commandbus.cli.main import app as program
from commandbus.http import TokenAuth
from commandbus.http.auth.authenticators import NotAuthenticated

ONE, OTHER = "1" * 40, "2" * 40
SECRET = "S" * 43


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
async def machine(dsn: str, folder: Path) -> AsyncIterator[CommandBus]:
    """A process with the defaults, on a machine whose folder of keys is empty."""
    async with CommandBus.connect(dsn, settings=Settings(keys_folder=str(folder))) as bus:
        yield bus


def files_of(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()] if folder.exists() else []


async def accepts(bus: CommandBus, text: str) -> bool:
    headers = Headers({"Authorization": f"Bearer {text}"})
    try:
        await TokenAuth(bus.tokens, cache_seconds=0).authenticate(headers)
    except NotAuthenticated:
        return False
    return True


async def insert_unmarked(conn: AsyncConnection, pepper: str) -> str:
    """A token as releases of before stored it, or as somebody does who can write the table."""
    token_id = uuid4().hex
    hashed = hmac.new(pepper.encode(), SECRET.encode(), hashlib.sha256).digest()
    await conn.execute(
        "select commandbus.create_api_token(%s, 'ann', array['admin'], null, null, %s, null)",
        (token_id, hashed),
    )
    return f"cb_{token_id}_{SECRET}"


async def test_a_pepper_is_made_with_the_first_token_and_kept(
    dsn: str, machine: CommandBus, folder: Path
) -> None:
    assert files_of(folder) == []
    made = await machine.tokens.create("ann", ["read"])
    assert files_of(folder) == ["token_pepper.key"]

    async with CommandBus.connect(dsn, settings=Settings(keys_folder=str(folder))) as later:
        assert await accepts(later, made.text)


async def test_a_token_is_not_stored_as_it_would_be_without_a_pepper(
    machine: CommandBus, conn: AsyncConnection
) -> None:
    made = await machine.tokens.create("ann", ["read"])
    cursor = await conn.execute("select secret_hash from commandbus.command_bus_api_token")
    ((stored,),) = await cursor.fetchall()
    secret = made.text.split("_", 2)[2].encode()
    assert hmac.new(b"", secret, hashlib.sha256).digest() not in bytes(stored)


async def test_a_check_makes_no_pepper_but_finds_one_that_is_made_later(
    dsn: str, machine: CommandBus, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not await accepts(machine, f"cb_{uuid4().hex}_{SECRET}")
    assert files_of(folder) == []
    async with CommandBus.connect(dsn, settings=Settings(keys_folder=str(folder))) as other:
        made = await other.tokens.create("ann", ["read"])
    monkeypatch.setattr("commandbus.access.peppers.LOOK_SECONDS", 0)
    assert await accepts(machine, made.text)


@pytest.mark.parametrize("former", ["", ONE])
async def test_tokens_of_before_stay_valid(dsn: str, conn: AsyncConnection, former: str) -> None:
    text = await insert_unmarked(conn, former)
    for settings in (
        Settings(token_pepper=ONE),
        Settings(token_pepper=OTHER, token_pepper_old=ONE),
    ):
        async with CommandBus.connect(dsn, settings=settings) as bus:
            assert await accepts(bus, text)


async def test_tokens_of_before_can_be_refused(dsn: str, conn: AsyncConnection) -> None:
    forged, peppered = await insert_unmarked(conn, ""), await insert_unmarked(conn, ONE)
    strict = Settings(token_pepper=ONE, unpeppered_tokens=False)
    async with CommandBus.connect(dsn, settings=strict) as bus:
        assert not await accepts(bus, forged)
        assert await accepts(bus, peppered)
        assert not [f for f in await bus.tokens.findings() if f.code == "TOKEN_UNPEPPERED"]


async def test_who_writes_the_table_cannot_make_a_token_under_the_mark_of_a_pepper(
    dsn: str, conn: AsyncConnection
) -> None:
    """The mark is no secret: with it, the hash must be of its pepper and no other."""
    async with CommandBus.connect(dsn, settings=Settings(token_pepper=ONE)) as bus:
        text = await insert_unmarked(conn, "")
        mark = Peppers(Settings(token_pepper=ONE)).hashed(SECRET)[:8]
        await conn.execute(
            "update commandbus.command_bus_api_token set secret_hash = %s || secret_hash", (mark,)
        )
        assert not await accepts(bus, text)


@pytest.mark.parametrize("stored", [b"", b"x", bytes(32), bytes(40), bytes(1_000)])
async def test_a_hash_that_is_none_is_refused(
    machine: CommandBus, conn: AsyncConnection, stored: bytes
) -> None:
    made = await machine.tokens.create("ann", ["admin"])
    await conn.execute("update commandbus.command_bus_api_token set secret_hash = %s", (stored,))
    assert not await accepts(machine, made.text)
    assert await machine.tokens.findings()


async def test_a_pepper_is_changed_while_the_former_one_is_accepted(dsn: str) -> None:
    async with CommandBus.connect(dsn, settings=Settings(token_pepper=ONE)) as bus:
        made = await bus.tokens.create("ann", ["read"])
    both = Settings(token_pepper=OTHER, token_pepper_old=f"x, {ONE}")
    async with CommandBus.connect(dsn, settings=both) as bus:
        assert await accepts(bus, made.text)
        new = await bus.tokens.create("ann", ["read"])
        assert await bus.tokens.findings() == []
    async with CommandBus.connect(dsn, settings=Settings(token_pepper=OTHER)) as bus:
        assert not await accepts(bus, made.text)
        assert await accepts(bus, new.text)


async def test_another_pepper_is_said_in_the_log_once_and_by_the_doctor(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with CommandBus.connect(dsn, settings=Settings(token_pepper=ONE)) as bus:
        made = await bus.tokens.create("ann", ["read"])
    with caplog.at_level(logging.WARNING, "commandbus.access"):
        async with CommandBus.connect(dsn, settings=Settings(token_pepper=OTHER)) as bus:
            for _ in range(3):
                assert not await accepts(bus, made.text)
            found = {f.code: f for f in (await bus.upkeep.doctor()).findings}
    assert len(caplog.messages) == 1
    assert "give every process that makes or checks tokens the same" in caplog.text
    assert ONE not in caplog.text
    assert OTHER not in caplog.text
    assert found["TOKEN_PEPPER"].found == 1


async def test_a_machine_with_another_pepper_makes_no_token_and_no_pepper(
    dsn: str, machine: CommandBus, folder: Path
) -> None:
    async with CommandBus.connect(dsn, settings=Settings(token_pepper=ONE)) as bus:
        made = await bus.tokens.create("ann", ["read"])
    with pytest.raises(InvalidSettingError, match=r"has no pepper .*token_pepper\.key") as caught:
        await machine.tokens.create("bob", ["read"])
    assert ONE not in str(caught.value)
    assert files_of(folder) == []

    await machine.tokens.revoke(made.token.token_id)  # the pepper is lost, and a new one begins
    assert await accepts(machine, (await machine.tokens.create("bob", ["read"])).text)


async def test_a_pepper_that_others_can_read_refuses_tokens_but_not_those_of_before(
    dsn: str,
    machine: CommandBus,
    conn: AsyncConnection,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, former = await machine.tokens.create("ann", ["read"]), await insert_unmarked(conn, "")
    (folder / "token_pepper.key").chmod(0o644)
    async with CommandBus.connect(dsn, settings=Settings(keys_folder=str(folder))) as bus:
        assert not await accepts(bus, made.text)
        assert await accepts(bus, former)
        await bus.tokens.revoke(made.token.token_id)
        with pytest.raises(InvalidSettingError, match="chmod 600"):
            await bus.tokens.create("ann", ["read"])
    assert "other accounts can read" in caplog.text


async def test_the_doctor_names_tokens_that_may_do_everything_for_ever(
    machine: CommandBus, conn: AsyncConnection
) -> None:
    endless = await machine.tokens.create("ann", ["admin"])
    await insert_unmarked(conn, "")
    codes = {f.code: f for f in (await machine.upkeep.doctor()).findings}
    assert endless.token.token_id in codes["TOKEN_ENDLESS"].examples
    assert codes["TOKEN_ENDLESS"].found == 2
    assert codes["TOKEN_UNPEPPERED"].found == 1


def test_the_program_says_why_it_makes_no_token(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["token", "create", "--user", "ann", "--scope", "read", "--dsn", dsn]
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "one"))
    made = CliRunner().invoke(program, arguments)
    assert made.exit_code == 0
    assert f"{tmp_path}/one/token_pepper.key" in made.stderr  # once: where it is, and to keep it
    assert "pepper" not in CliRunner().invoke(program, arguments).stderr
    monkeypatch.setenv("COMMANDBUS_KEYS_FOLDER", str(tmp_path / "other"))
    refused = CliRunner().invoke(program, arguments)
    assert refused.exit_code == 2
    assert "[REDACTED]" not in refused.output
    assert "COMMANDBUS_TOKEN_PEPPER" in refused.output


def test_a_pepper_that_could_be_guessed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Peppers(Settings(token_pepper=ONE))
    assert caplog.messages == []
    Peppers(Settings(token_pepper="s3cret"))
    assert "is short" in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_send_makes_no_pepper_and_does_not_fail_for_one(
    machine: CommandBus, folder: Path
) -> None:
    caller, command_id = Caller("ann", frozenset({Scope.SEND, Scope.ADMIN})), uuid4()
    for is_repeat in (False, True):
        sent = await machine.governance.send(caller, "payments", "Debit", command_id, {"amount": 1})
        assert sent.is_repeat == is_repeat
    assert files_of(folder) == []


def test_a_derived_key_is_that_of_the_pepper_or_of_the_process_alone(folder: Path) -> None:
    one, same, other = (Peppers(Settings(token_pepper=text)) for text in (ONE, ONE, OTHER))
    assert one.derived("cursors") == same.derived("cursors") != other.derived("cursors")
    assert one.derived("cursors") != one.derived("seals")
    lonely = Peppers(Settings(keys_folder=str(folder)))
    assert lonely.derived("cursors") == lonely.derived("cursors")
    assert lonely.derived("x") != Peppers(Settings(keys_folder=str(folder))).derived("x")
    assert files_of(folder) == []
