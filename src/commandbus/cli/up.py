"""`up`: a database, workers and the HTTP service in one process, for a first look and for small
installations.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.bus import CommandBus
from commandbus.cli.apps import open_app
from commandbus.cli.frame import Place
from commandbus.cli.options import actor_or_login
from commandbus.cli.output import print_fields, say, start_logging, text_of
from commandbus.cli.serve import AuthKind, Host, Port, http_server, http_settings
from commandbus.cli.worker import Level, LogLevel, Workers, run_until_stopped, serve, shell_quoted
from commandbus.errors import CommandBusError, InvalidSettingError
from commandbus.settings import Settings

if TYPE_CHECKING:
    from commandbus.http.serving import HttpServer

#: The application that --demo runs.
DEMO_APP = "commandbus.demo.vms:setup"
#: How long the token of `up` is good, if the process is killed before it can revoke it.
TOKEN_LIFE = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class _Web:
    """The service beside the workers, and the token to use it with."""

    server: HttpServer
    token: str
    user: str
    is_demo: bool


def up(
    app: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="The app, for example myapp:setup."),
    ] = None,
    *,
    demo: Annotated[bool, typer.Option("--demo", help="Run the demo application.")] = False,
    workers: Workers,
    host: Host = None,
    port: Port = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Only the workers.")] = False,
    log_level: Level = LogLevel.INFO,
    place: Place,
) -> None:
    """Start everything: the embedded server, a worker for an app, and the HTTP service.

    Prints the addresses that other processes can use, and a fresh API token, which is revoked when
    `up` ends. The app finds the database in COMMANDBUS_DSN too.
    """
    from commandbus.wiring import DSN_VARIABLE, database, migrate_database

    start_logging(log_level)
    name = _app_name(app, demo)

    async def work() -> bool:
        async with database(place.dsn, place.data_dir) as address:
            folder = place.folder if place.is_embedded else None
            if folder is not None:
                await migrate_database(address, Settings.from_env())
            # An app that brings its own bus has no other way to learn of the embedded server.
            os.environ[DSN_VARIABLE] = address
            async with (
                open_app(name, Place()) as bus,
                nullcontext() if no_http else _web(bus, host, port, demo) as web,
            ):
                greet = partial(_greet, folder, address, name, web)
                return await serve(bus, name, workers, None if web is None else web.server, greet)

    run_until_stopped(work)


def _app_name(app: str | None, demo: bool) -> str:
    if demo and app is not None:
        raise InvalidSettingError("name an app, or ask for the demo with --demo, not both")
    if not demo and app is None:
        raise InvalidSettingError("name the app, for example myapp:setup, or try --demo")
    return DEMO_APP if app is None else app


@asynccontextmanager
async def _web(
    bus: CommandBus, host: str | None, port: int | None, is_demo: bool
) -> AsyncIterator[_Web]:
    from commandbus.access.model import EVERYTHING

    server = _free_server(bus, host, port, is_demo)
    user = actor_or_login(None) or "commandbus"
    made = await bus.tokens.create(
        user, EVERYTHING, label="commandbus up", expires_in=TOKEN_LIFE, actor=user
    )
    try:
        yield _Web(server, made.text, user, is_demo)
    finally:
        with suppress(CommandBusError):  # it ends by itself after TOKEN_LIFE
            await bus.tokens.revoke(made.token.token_id, actor=user)


def _free_server(bus: CommandBus, host: str | None, port: int | None, is_demo: bool) -> HttpServer:
    settings = http_settings(host, port, AuthKind.TOKEN)
    try:
        return http_server(bus, settings, is_demo=is_demo)
    except InvalidSettingError:
        if port is not None:
            raise
        # No port was asked for: any free one will do.
        return http_server(bus, http_settings(host, 0, AuthKind.TOKEN), is_demo=is_demo)


def _greet(
    folder: Path | None, address: str, app: str, web: _Web | None, domains: list[str]
) -> None:
    """Say what runs, and how others can use it. `folder`: the data of the embedded server."""
    where = "as given" if folder is None else f"embedded server, data in {folder}"
    say("[bold green]commandbus is up.[/]")
    fields = [("database", text_of(where)), ("app", text_of(app)), ("domains", ", ".join(domains))]
    if web is not None:
        fields += [("http", web.server.url), ("token", text_of(web.token))]
    print_fields(fields)
    if folder is not None:
        say("For other terminals:")
        say(f"  export COMMANDBUS_DSN={text_of(shell_quoted(address))}")
    if web is not None:
        say("Try next:")
        for line in _suggestions(web):
            say(f"  {line}")
    say("Stop with Ctrl-C; a second Ctrl-C does not wait for running handlers.")
    sys.stdout.flush()


def _suggestions(web: _Web) -> list[str]:
    """What to type next."""
    curl = f'curl -H "Authorization: Bearer {web.token}"'
    api = f"{web.server.url}/api/v1"
    if not web.is_demo:
        return [f"{curl} {api}/domains"]

    def post(path: str, body: dict[str, Any]) -> str:
        data = shlex.quote(json.dumps(body))
        # Escaped: brackets mean something to the console.
        return text_of(f'{curl} -H "Content-Type: application/json" -d {data} {api}/{path}')

    machines = [{"name": "web-1"}, {"name": "web-2"}]
    return [
        f"{curl} {api}/vms",
        post("vms/batch", {"operation": "create", "items": machines}),
        "A second batch has to wait two minutes; with an exemption it need not:",
        post("admin/rate-limits/exemptions", {"user_id": web.user, "reason": "the demo"}),
    ]
