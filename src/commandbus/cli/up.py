"""`up`: a database, workers and the HTTP service in one process, for a first look and for small
installations.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.addresses import url
from commandbus.bus import CommandBus
from commandbus.cli.apps import open_app
from commandbus.cli.frame import WAIT_SECONDS, Place
from commandbus.cli.logs import Logs
from commandbus.cli.options import actor_or_login
from commandbus.cli.output import print_fields, say, text_of
from commandbus.cli.serve import AuthKind, Host, NoConsole, Port, http_server, http_settings, warn
from commandbus.cli.session import is_terminal, kept_fresh, new_session, write_token
from commandbus.cli.worker import Workers, run_until_stopped, serve, shell_quoted
from commandbus.errors import InvalidSettingError
from commandbus.settings import Settings

if TYPE_CHECKING:
    from commandbus.http.auth.session import SessionToken
    from commandbus.http.serving import HttpServer

#: The application that --demo runs.
DEMO_APP = "commandbus.demo.vms:setup"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the service was asked to be; None: as it comes."""

    host: str | None
    port: int | None
    console: bool | None


@dataclass(frozen=True, slots=True)
class _Web:
    """The service beside the workers, and the token to use it with."""

    server: HttpServer
    #: None: nobody could see it.
    session: SessionToken | None
    token_file: Path | None
    user: str
    is_demo: bool
    #: Signs in to the console once, within a minute; empty: nobody could see it.
    code: str = ""


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
    no_console: NoConsole = False,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="Write the token to this file, for scripts."),
    ] = None,
    logs: Logs,
    place: Place,
) -> None:
    """Start everything: the embedded server, a worker for an app, and the HTTP service.

    On a terminal it prints the addresses that other processes can use, and a token, which ends with
    `up`; elsewhere no secrets. The app finds the database in COMMANDBUS_DSN too.
    """
    from commandbus.wiring import DSN_VARIABLE, database, migrate_database

    logs.start()
    name = _app_name(app, demo)
    wanted = _Wanted(host, port, False if no_console else None)

    async def work() -> bool:
        async with database(place.one.dsn, place.data_dir) as address:
            folder = place.folder if place.is_embedded else None
            if folder is not None:
                await migrate_database(address, Settings.from_env())
            # An app that brings its own bus has no other way to learn of the embedded server.
            os.environ[DSN_VARIABLE] = address
            async with (
                _told_to_down(folder),
                open_app(name, Place(), WAIT_SECONDS) as bus,
                nullcontext() if no_http else _web(bus, wanted, token_file, demo) as web,
            ):
                greet = partial(_greet, folder, address, name, web)
                return await serve(bus, name, workers, None if web is None else web.server, greet)

    run_until_stopped(work)


@asynccontextmanager
async def _told_to_down(folder: Path | None) -> AsyncIterator[None]:
    """Leave a note that `commandbus down` finds, on an embedded server."""
    from commandbus.embedded.standing import Standing

    standing = None if folder is None else Standing.of(folder)
    with nullcontext() if standing is None else standing.marked_up():
        yield


def _app_name(app: str | None, demo: bool) -> str:
    if demo and app is not None:
        raise InvalidSettingError("name an app, or ask for the demo with --demo, not both")
    if not demo and app is None:
        raise InvalidSettingError("name the app, for example myapp:setup, or try --demo")
    return DEMO_APP if app is None else app


@asynccontextmanager
async def _web(
    bus: CommandBus, wanted: _Wanted, token_file: Path | None, is_demo: bool
) -> AsyncIterator[_Web]:
    user = actor_or_login(None) or "commandbus"
    # One that nobody can see is not made.
    session = new_session(user) if token_file is not None or is_terminal() else None
    web = _Web(_free_server(bus, wanted, session, is_demo), session, token_file, user, is_demo)
    if session is not None and is_terminal() and web.server.console_url is not None:
        web = replace(web, code=await bus.tokens.sessions.new_code(session.token_id))
    await warn(bus)
    if session is None:
        yield web
        return
    async with kept_fresh(session, token_file, _tell_token):
        yield web


def _free_server(
    bus: CommandBus, wanted: _Wanted, session: SessionToken | None, is_demo: bool
) -> HttpServer:
    def build(port: int | None) -> HttpServer:
        settings = http_settings(wanted.host, port, AuthKind.TOKEN)
        return http_server(bus, settings, session=session, is_demo=is_demo, console=wanted.console)

    try:
        return build(wanted.port)
    except InvalidSettingError:
        if wanted.port is not None:
            raise
        return build(0)  # no port was asked for: any free one will do


def _tell_token(text: str) -> None:
    if is_terminal():
        say(f"A new token, instead of the one before: export TOKEN={text_of(text)}")
        sys.stdout.flush()


def _greet(
    folder: Path | None, address: str, app: str, web: _Web | None, domains: list[str]
) -> None:
    """Say what runs, and how others can use it. `folder`: the data of the embedded server."""
    where = "as given" if folder is None else f"embedded server, data in {folder}"
    say("[bold green]commandbus is up.[/]")
    fields = [("database", text_of(where)), ("app", text_of(app)), ("domains", ", ".join(domains))]
    if web is not None:
        fields.append(("http", web.server.url))
        if web.server.console_url is not None:
            # Behind the # the code is seen by the browser only, not by a server or a log.
            code = f"sign-in#{web.code}" if web.code else ""
            fields.append(("console", text_of(f"{web.server.console_url}{code}")))
        if web.session is not None and web.token_file is not None:
            # Only now: who waits for the file may ask at once.
            write_token(web.token_file, web.session.text)
            fields.append(("token", f"in {text_of(web.token_file)}"))
    print_fields(fields)
    # Passwords and tokens are for eyes: what is printed into a file or a pipe stays somewhere.
    if is_terminal() and (lines := _exports(folder, address, web)):
        say("For other terminals:")
        for line in lines:
            say(f"  {line}")
    if web is not None:
        say("Try next:")
        for line in _suggestions(web, folder):
            say(f"  {line}")
    down = "" if folder is None else f", or with `commandbus down{_data_dir(folder)}`"
    say(f"Stop with Ctrl-C{down}; a second Ctrl-C does not wait for running handlers.")
    sys.stdout.flush()


def _data_dir(folder: Path | None) -> str:
    """The option that names the folder, unless it is the one that is used without it."""
    from commandbus.embedded.folder import home_directory

    if folder is None or (folder.parent == home_directory() and folder.name.startswith("pg")):
        return ""
    return f" --data-dir {text_of(shlex.quote(str(folder)))}"


def _exports(folder: Path | None, address: str, web: _Web | None) -> list[str]:
    """What another shell needs; the token is good until this process ends."""
    lines = []
    if folder is not None:
        from commandbus.wiring import address_parts

        lines = [f"export COMMANDBUS_DSN={text_of(shell_quoted(url(address_parts(address))))}"]
    if web is not None and web.session is not None and web.token_file is None:
        lines.append(f"export TOKEN={text_of(web.session.text)}")
    return lines


def _how_to_get_a_token(web: _Web, folder: Path | None) -> list[str]:
    if web.token_file is not None:
        return [f"TOKEN=$(cat {text_of(shlex.quote(str(web.token_file)))})"]
    if web.session is not None:
        return []
    return [
        "No token is printed, because this is no terminal; `up --token-file` writes one. Or:",
        f"commandbus token create --user {text_of(shlex.quote(web.user))} "
        f"--scope {'admin' if web.is_demo else 'read'} --expires-in 1h{_data_dir(folder)}",
    ]


def _suggestions(web: _Web, folder: Path | None) -> list[str]:
    """What to type next."""
    first = _how_to_get_a_token(web, folder)
    curl = 'curl -H "Authorization: Bearer $TOKEN"'
    api = f"{web.server.url}/api/v1"
    if not web.is_demo:
        return [*first, f"{curl} {api}/domains"]

    def post(path: str, body: dict[str, Any]) -> str:
        data = shlex.quote(json.dumps(body))
        # Escaped: brackets mean something to the console.
        return text_of(f'{curl} -H "Content-Type: application/json" -d {data} {api}/{path}')

    machines = [{"name": "web-1"}, {"name": "web-2"}]
    return [
        *first,
        f"{curl} {api}/vms",
        post("vms/batch", {"operation": "create", "items": machines}),
        "A second batch has to wait two minutes; with an exemption it need not:",
        post("admin/rate-limits/exemptions", {"user_id": web.user, "reason": "the demo"}),
    ]
