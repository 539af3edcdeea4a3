"""API tokens in the database: what is stored, what the audit says, and the commands for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from typer.testing import CliRunner

from commandbus import CommandBus, InvalidSettingError
from commandbus.cli.main import app as program
from commandbus.http import TokenAuth, create_app
from tests.http_world import client_of, problem

RUN = CliRunner()


async def rows(conn: AsyncConnection, query: str) -> list[Any]:
    return await (await conn.execute(query.encode())).fetchall()


async def test_a_token_works_until_it_is_revoked_and_the_audit_has_both(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made = await bus.tokens.create(
        "ann", ["read"], domains=["shop"], label="ci", expires_in=timedelta(days=1), actor="root"
    )
    app = create_app(bus, auth=TokenAuth(bus.tokens, cache_seconds=0))

    async with client_of(app, made.text) as client:
        assert (await client.get("/api/v1/whoami")).json() == {
            "user_id": "ann", "scopes": ["read"], "domains": ["shop"],
        }  # fmt: skip
        first = await bus.tokens.revoke(made.token.token_id, actor="bob")
        assert await bus.tokens.revoke(made.token.token_id, actor="eve") == first
        problem(await client.get("/api/v1/whoami"), 401, "UNAUTHENTICATED")

    events = (await bus.search.audit(actor="root")).items + (
        await bus.search.audit(actor="bob")
    ).items
    assert [(e.event_type, e.domain, e.command_id.hex) for e in events] == [
        ("TOKEN_CREATED", "*", made.token.token_id),
        ("TOKEN_REVOKED", "*", made.token.token_id),
    ]
    assert events[0].details is not None
    assert (events[0].details["user_id"], events[0].details["label"]) == ("ann", "ci")
    assert (await bus.search.audit(actor="eve")).items == []


async def test_the_secret_is_in_no_table_and_no_event(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made = await bus.tokens.create("ann", ["read"])
    secret = made.text.split("_", 2)[2]

    (stored,) = await rows(conn, "select t::text from commandbus.command_bus_api_token t")
    audit = await rows(conn, "select a::text from commandbus.command_bus_audit a")

    assert made.token.token_id in stored[0]
    assert secret not in stored[0] + str(audit)


async def test_use_is_written_once_a_minute(bus: CommandBus, conn: AsyncConnection) -> None:
    made = await bus.tokens.create("ann", ["read"])
    query = "select last_used_at, xmin::text from commandbus.command_bus_api_token"
    await bus.tokens.touch(made.token.token_id)
    before = await rows(conn, query)
    assert before[0][0] is not None

    await bus.tokens.touch(made.token.token_id)
    assert await rows(conn, query) == before

    await conn.execute(
        "update commandbus.command_bus_api_token set last_used_at = now() - interval '61 seconds'"
    )
    before = await rows(conn, query)
    await bus.tokens.touch(made.token.token_id)
    assert await rows(conn, query) != before


async def test_two_who_revoke_at_once_write_one_event(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    made = await bus.tokens.create("ann", ["read"])

    times = await asyncio.gather(*(bus.tokens.revoke(made.token.token_id) for _ in range(5)))

    assert len(set(times)) == 1
    found = await rows(
        conn,
        "select count(*) from commandbus.command_bus_audit where event_type = 'TOKEN_REVOKED'",
    )
    assert found == [(1,)]


async def test_ended_tokens_are_listed_only_on_demand(bus: CommandBus) -> None:
    good = await bus.tokens.create("ann", ["read"])
    revoked = await bus.tokens.create("ann", ["read"])
    expired = await bus.tokens.create("bob", ["read"], expires_in=timedelta(microseconds=1))
    await bus.tokens.revoke(revoked.token.token_id)

    async def ids(**options: Any) -> list[str]:
        return [token.token_id for token in (await bus.tokens.page(**options)).items]

    assert await ids() == [good.token.token_id]
    assert await ids(include_ended=True) == [
        expired.token.token_id, revoked.token.token_id, good.token.token_id,
    ]  # fmt: skip
    assert await ids(user_id="bob", include_ended=True) == [expired.token.token_id]


async def test_tokens_are_listed_newest_first_in_pages(bus: CommandBus) -> None:
    made = [(await bus.tokens.create("ann", ["read"])).token for _ in range(3)]

    first = await bus.tokens.page(limit=2)
    rest = await bus.tokens.page(limit=2, cursor=first.next_cursor)

    assert [*first.items, *rest.items] == made[::-1]
    assert rest.next_cursor is None
    with pytest.raises(InvalidSettingError, match="belongs to another search"):
        await bus.tokens.page(user_id="ann", cursor=first.next_cursor)


@pytest.fixture
def command(dsn: str) -> Callable[..., Any]:
    def run(*arguments: str, code: int = 0) -> Any:
        result = RUN.invoke(program, ["token", *arguments, "--dsn", dsn])
        assert result.exit_code == code, result.output + result.stderr
        return result

    return run


def test_the_program_makes_lists_and_revokes_tokens(command: Callable[..., Any]) -> None:
    made = json.loads(
        command(
            "create", "--user", "ann", "--scope", "read", "--scope", "send", "--domain", "shop",
            "--expires-in", "30d", "--label", "ci", "--operator", "root", "--json",
        ).stdout
    )  # fmt: skip
    assert (made["user_id"], made["scopes"], made["domains"]) == ("ann", ["read", "send"], ["shop"])
    assert made["token"].startswith(f"cb_{made['token_id']}_")

    shown = command("list").stdout
    assert made["token_id"] in shown
    assert made["token"].split("_", 2)[2] not in shown
    assert "until" in shown
    (listed,) = json.loads(command("list", "--json").stdout)["tokens"]
    assert "token" not in listed

    assert "is revoked since" in command("revoke", made["token_id"]).stdout
    assert json.loads(command("revoke", made["token_id"], "--json").stdout)["revoked_at"]
    assert "No tokens" in command("list").stdout
    assert "revoked" in command("list", "--all").stdout


def test_a_token_for_people_is_shown_with_a_warning(command: Callable[..., Any]) -> None:
    shown = command("create", "--user", "ann", "--scope", "admin").stdout

    assert "cb_" in shown
    assert "it is not shown again. It expires never" in shown
    assert "good" in command("list").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["create", "--user", "ann", "--scope", "all"], 2),
        (["create", "--user", "ann", "--scope", "read", "--expires-in", "soon"], 2),
        (["revoke", "xyz"], 2),
        (["revoke", "0" * 32], 1),
    ],
)
def test_what_cannot_be_meant_is_refused(
    command: Callable[..., Any], arguments: list[str], code: int
) -> None:
    command(*arguments, code=code)
