"""`token`: API tokens for the HTTP service."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from commandbus.access.model import ApiToken, Scope
from commandbus.cli.options import (
    AsJson,
    DataDir,
    Dsn,
    Place,
    actor_or_login,
    open_session,
)
from commandbus.cli.output import Column, moment, print_json, print_table, say, text_of
from commandbus.upkeep.retention import parse_age

Operator = Annotated[
    str | None,
    typer.Option("--operator", help="Who acts, for the audit. Default: the login name."),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(no_args_is_help=True, help="API tokens for the HTTP service.")
    group.command("create")(create)
    group.command("list")(list_tokens)
    group.command("revoke")(revoke)
    app.add_typer(group, name="token", rich_help_panel="Run")


def create(
    *,
    user: Annotated[str, typer.Option("--user", "-u", help="Whose token it is.")],
    scope: Annotated[
        list[str],
        typer.Option("--scope", "-s", help=f"May be repeated: {', '.join(Scope)}."),
    ],
    domain: Annotated[
        list[str] | None,
        typer.Option("--domain", "-d", help="Only this domain; may be repeated. Default: all."),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option("--expires-in", metavar="TIME", help="12h, 30d, 8w. Default: never."),
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="What it is for.")] = None,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """Make a token. It is shown once, here, and stored nowhere."""
    place = Place(dsn, data_dir)
    life = None if expires_in is None else parse_age(expires_in)

    async def work() -> Any:
        async with open_session(place) as session:
            return await session.bus.tokens.create(
                user, scope, domains=domain or None, label=label, expires_in=life,
                actor=actor_or_login(operator),
            )  # fmt: skip

    made = asyncio.run(work())
    if as_json:
        print_json(_document(made.token) | {"token": made.text})
        return
    say(f"[bold]{text_of(made.text)}[/]")
    ends = "never" if made.token.expires_at is None else moment(made.token.expires_at)
    say(f"Keep it now: it is not shown again. It expires {ends}; its id is {made.token.token_id}.")


def list_tokens(
    *,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only of this user.")] = None,
    include_ended: Annotated[
        bool, typer.Option("--all", help="Also those that are revoked or have expired.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """List tokens, newest first, without their secrets."""
    place = Place(dsn, data_dir)

    async def work() -> list[ApiToken]:
        async with open_session(place) as session:
            page = await session.bus.tokens.page(
                user_id=user, include_ended=include_ended, limit=limit
            )
            return page.items

    found = asyncio.run(work())
    if as_json:
        print_json({"tokens": [_document(token) for token in found]})
        return
    if not found:
        say("No tokens; `commandbus token create` makes one.")
        return
    titles = ("ID", "USER", "SCOPES", "DOMAINS", "LABEL", "LAST USED", "STATE")
    print_table(
        [Column(title, may_fold=title in {"SCOPES", "DOMAINS", "LABEL"}) for title in titles],
        [_row(token) for token in found],
    )


def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it.")],
    *,
    operator: Operator = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
    data_dir: DataDir = None,
) -> None:
    """End a token. Services that run notice within five seconds."""
    place = Place(dsn, data_dir)

    async def work() -> datetime:
        async with open_session(place) as session:
            return await session.bus.tokens.revoke(token_id, actor=actor_or_login(operator))

    revoked_at = asyncio.run(work())
    if as_json:
        print_json({"token_id": token_id, "revoked_at": revoked_at})
        return
    say(f"Token {text_of(token_id)} is revoked since {moment(revoked_at)}.")


def _state(token: ApiToken) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is None:
        return "good"
    left: timedelta = token.expires_at - datetime.now(UTC)
    return "expired" if left <= timedelta(0) else f"until {moment(token.expires_at)}"


def _row(token: ApiToken) -> list[str]:
    return [
        token.token_id,
        text_of(token.user_id),
        " ".join(sorted(token.scopes)),
        "all" if token.domains is None else " ".join(sorted(token.domains)),
        text_of(token.label),
        "-" if token.last_used_at is None else moment(token.last_used_at),
        _state(token),
    ]


def _document(token: ApiToken) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "user_id": token.user_id,
        "scopes": sorted(token.scopes),
        "domains": None if token.domains is None else sorted(token.domains),
        "label": token.label,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "last_used_at": token.last_used_at,
    }
