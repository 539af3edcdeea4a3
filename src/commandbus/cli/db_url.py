"""`db url`: the address of the database, as other libraries take it."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

import typer

from commandbus.addresses import django_database, sqlalchemy_url, url
from commandbus.cli.db import db
from commandbus.cli.frame import Frame, Place, View, command
from commandbus.cli.output import print_note
from commandbus.errors import EmbeddedServerError, InvalidInputError


@command(db, "url")
async def show_url(
    frame: Frame,
    *,
    sqlalchemy: Annotated[
        bool, typer.Option("--sqlalchemy", help="As SQLAlchemy's create_engine takes it.")
    ] = False,
    driver: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --sqlalchemy: psycopg (default) or asyncpg."),
    ] = None,
    django: Annotated[
        bool, typer.Option("--django", help="As an entry of Django's DATABASES, in JSON.")
    ] = False,
    show_password: Annotated[
        bool, typer.Option("--show-password", help="With the password in place of ***.")
    ] = False,
) -> View:
    """Print the address of the database as a URL. Connects to nothing and starts nothing."""
    if sqlalchemy and django:
        raise InvalidInputError("--sqlalchemy and --django are two forms; use one of them")
    if driver is not None and not sqlalchemy:
        raise InvalidInputError("--driver goes with --sqlalchemy")
    parts = _parts(frame.place)
    if django:
        entry = django_database(parts, show_password=show_password)
        return View({"django": entry}, partial(print, json.dumps(entry, indent=2)))
    if sqlalchemy:
        text = sqlalchemy_url(parts, driver or "psycopg", show_password=show_password)
    else:
        text = url(parts, show_password=show_password)
    return View({"url": text}, partial(print, text))


def _parts(place: Place) -> dict[str, Any]:
    from commandbus.embedded.standing import Standing
    from commandbus.wiring import address_parts, find_dsn

    given = find_dsn(place.one.dsn)
    if given is not None:
        return address_parts(given)
    standing = Standing.of(place.folder)
    if standing is None:
        raise EmbeddedServerError(
            f"there is no server in {place.folder} yet; start it with `commandbus up`"
        )
    if standing.running is None:
        print_note(
            "the server does not run now; the next process that uses it starts it at this address"
        )
    return standing.parts()
