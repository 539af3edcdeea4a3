"""`token`: API tokens for the HTTP service."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from commandbus.access.model import ApiToken, Scope
from commandbus.access.peppers import NAME as PEPPER
from commandbus.cli.frame import Frame, View, command, page_view
from commandbus.cli.options import LongListing, Operator, ReasonWhy
from commandbus.cli.output import Column, Table, jsonable, moment, say, text_of
from commandbus.keys import Keys
from commandbus.upkeep.retention import parse_age

token = typer.Typer(no_args_is_help=True, help="API tokens for the HTTP service.")


@command(token, "create")
async def create(
    frame: Frame,
    *,
    user: Annotated[str, typer.Option("--user", "-u", help="Whose token it is.")],
    scope: Annotated[
        list[str], typer.Option("--scope", "-s", help=f"May be repeated: {', '.join(Scope)}.")
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
) -> View:
    """Make a token. It is shown once, here, and not stored."""
    life = None if expires_in is None else parse_age(expires_in)
    was_missing = not _has_pepper()
    async with frame.open() as session:
        made = await session.bus.tokens.create(
            user, scope, domains=domain or None, label=label, expires_in=life,
            actor=operator,
        )  # fmt: skip
    if was_missing and _has_pepper():
        print(_NEW_PEPPER.format(Keys.place(PEPPER)), file=sys.stderr)
    ends = "never" if made.token.expires_at is None else moment(made.token.expires_at)
    text = (
        f"[bold]{text_of(made.text)}[/]\n"
        f"Keep it now: it is not shown again. It expires {ends}; its id is {made.token.token_id}."
    )
    return View({**jsonable(made.token), "token": made.text}, lambda: say(text))


@command(token, "list")
async def list_tokens(
    frame: Frame,
    *,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only of this user.")] = None,
    include_ended: Annotated[
        bool, typer.Option("--all", help="Also those that are revoked or have expired.")
    ] = False,
    listing: LongListing,
) -> View:
    """List tokens, newest first, without their secrets."""
    async with frame.open() as session:
        page = await session.bus.tokens.page(
            user_id=user, include_ended=include_ended, **listing.of_page
        )
    return page_view(page, "tokens", _TOKENS.print)


@command(token, "rotate")
async def rotate(
    frame: Frame,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it.")],
    *,
    overlap: Annotated[
        str | None,
        typer.Option("--overlap", metavar="TIME", help="How long the old one stays good: 10m, 1h."),
    ] = None,
    operator: Operator = None,
) -> View:
    """Give a token another secret: a new token with the same rights, in place of this one."""
    life = timedelta(0) if overlap is None else parse_age(overlap)
    async with frame.open() as session:
        made = await session.bus.tokens.rotate(token_id, overlap=life, actor=operator)
    ends = f"in {overlap}" if overlap else "now"
    text = (
        f"[bold]{text_of(made.text)}[/]\n"
        f"Keep it now: it is not shown again. Its id is {made.token.token_id}; the old one ends "
        f"{ends}."
    )
    return View({**jsonable(made.token), "token": made.text}, lambda: say(text))


@command(token, "revoke")
async def revoke(
    frame: Frame,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it.")],
    *,
    reason: ReasonWhy = None,
    operator: Operator = None,
) -> View:
    """End a token. Services that run notice within five seconds."""
    async with frame.open() as session:
        revoked_at = await session.bus.tokens.revoke(token_id, reason=reason, actor=operator)
    text = f"Token {text_of(token_id)} is revoked since {moment(revoked_at)}."
    return View.line(text, token_id=token_id, revoked_at=revoked_at)


def _has_pepper() -> bool:
    return Path(Keys.place(PEPPER)).exists()


_NEW_PEPPER = (
    "note: the pepper of API tokens was made, {}. Keep it: without it no token works. Other "
    "machines that make or check tokens of this database need a copy."
)


def _state(found: ApiToken) -> str:
    if found.revoked_at is not None:
        return "revoked"
    if found.expires_at is None:
        return "good"
    is_over = found.expires_at <= datetime.now(UTC)
    return "expired" if is_over else f"until {moment(found.expires_at)}"


def _domains(found: ApiToken) -> str:
    return "all" if found.domains is None else " ".join(sorted(found.domains))


_TOKENS = Table[ApiToken](
    Column("ID", lambda each: each.token_id),
    Column("USER", lambda each: text_of(each.user_id)),
    Column("SCOPES", lambda each: " ".join(sorted(each.scopes)), may_fold=True),
    Column("DOMAINS", _domains, may_fold=True),
    Column("LABEL", lambda each: text_of(each.label), may_fold=True),
    Column("LAST USED", lambda each: each.last_used_at),
    Column("STATE", _state),
    empty="No tokens; `commandbus token create` makes one.",
)
