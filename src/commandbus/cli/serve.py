"""`serve`: the HTTP service, until it is stopped."""

from __future__ import annotations

import enum
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.bus import CommandBus
from commandbus.cli.apps import open_app
from commandbus.cli.frame import WAIT_SECONDS, Frame, Place, WaitForServer
from commandbus.cli.logs import Logs
from commandbus.cli.output import say
from commandbus.cli.worker import run_until_signal, run_until_stopped, spare_the_collector
from commandbus.errors import CommandBusError, InvalidSettingError
from commandbus.extras import extra
from commandbus.upkeep.findings import Severity

if TYPE_CHECKING:
    from commandbus.http import Authenticator
    from commandbus.http.auth.session import SessionToken
    from commandbus.http.serving import HttpServer
    from commandbus.http.settings import HttpSettings

#: For how long known tokens are accepted while the shard that has them is down.
OUTAGE_SECONDS = 900.0

_log = logging.getLogger("commandbus.cli")


class AuthKind(enum.StrEnum):
    """How callers prove who they are."""

    TOKEN = "token"  # noqa: S105  (the name of a kind)
    JWT = "jwt"
    NONE = "none"


Host = Annotated[
    str | None, typer.Option("--host", help="The address to listen on. Default: 127.0.0.1.")
]
Port = Annotated[
    int | None, typer.Option("--port", "-p", min=0, max=65_535, help="The port, 0 for a free one.")
]


NoConsole = Annotated[
    bool, typer.Option("--no-console", help="Without the console, the web page under /console.")
]


def serve(
    *,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:ATTRIBUTE",
            help="The app whose batch types and marks the service should know.",
        ),
    ] = None,
    host: Host = None,
    port: Port = None,
    auth: Annotated[
        AuthKind | None, typer.Option("--auth", help="How callers prove who they are.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Before every path, for example /bus.")] = "",
    no_console: NoConsole = False,
    wait: WaitForServer = WAIT_SECONDS,
    logs: Logs,
    place: Place,
) -> None:
    """Serve the bus over HTTP, until Ctrl-C or SIGTERM.

    Without authentication (`--auth none`) it listens on this machine only. The first signal lets
    running requests finish; the second does not.
    """
    logs.start()
    settings = http_settings(host, port, auth)

    async def work() -> bool:
        async with _opened(app, place, wait) as bus:
            console = False if no_console else None
            server = http_server(bus, settings, prefix=prefix, console=console)
            await warn(bus, settings)
            return await run_until_signal(bus, [], server, partial(_greet, server))

    run_until_stopped(work)


def _greet(server: HttpServer) -> None:
    spare_the_collector()
    say(f"[bold green]commandbus serves[/] {server.url}")
    if server.console_url is not None:
        say(f"Console: {server.console_url} (`commandbus open` signs you in)")
    say("Stop with Ctrl-C.")
    sys.stdout.flush()


@asynccontextmanager
async def _opened(app: str | None, place: Place, wait: float) -> AsyncIterator[CommandBus]:
    if app is not None:
        async with open_app(app, place, wait) as bus:
            yield bus
        return
    async with Frame(place=place).open(wait_seconds=wait) as session:
        yield session.bus


# -- shared with `up`


def http_settings(host: str | None, port: int | None, auth: AuthKind | None) -> HttpSettings:
    """The settings of the environment, with what was given here; refused if they are not safe."""
    with extra("api", "the HTTP service"):
        from commandbus.http.serving import HttpServer  # noqa: F401  (imports all that is needed)
        from commandbus.http.settings import HttpSettings
    given: dict[str, Any] = {"host": host, "port": port, "auth": auth and auth.value}
    settings = HttpSettings.from_env(
        **{name: value for name, value in given.items() if value is not None}
    )
    if settings.auth == "none" and not settings.is_loopback:
        raise InvalidSettingError(
            f"--auth none on {settings.host} would let anybody do anything; use --auth token "
            "(`commandbus token create` makes one), or --host 127.0.0.1"
        )
    return settings


async def warn(bus: CommandBus, settings: HttpSettings | None = None) -> None:
    """Log what is weak about the set-up, so that nobody is surprised later."""
    from commandbus.http.weaknesses import weaknesses_of

    for text in [] if settings is None else weaknesses_of(settings):
        _log.warning("%s", text)
    if settings is not None and settings.auth != "token":
        return
    findings = []
    with suppress(CommandBusError):  # the doctor says it too, and nobody has to wait for it
        findings = await bus.tokens.findings()
    for each in findings:
        level = logging.INFO if each.severity is Severity.NOTICE else logging.WARNING
        examples = ", ".join(each.examples)
        _log.log(level, "%s: %s (%s); %s", each.code, each.meaning, examples, each.advice)


def http_server(
    bus: CommandBus,
    settings: HttpSettings,
    *,
    prefix: str = "",
    session: SessionToken | None = None,
    is_demo: bool = False,
    console: bool | None = None,
) -> HttpServer:
    """The service of a bus, on its address already. `session`: a token that it accepts too."""
    from commandbus.http.app import create_app
    from commandbus.http.routes import demo
    from commandbus.http.serving import HttpServer, bind

    app = create_app(
        bus,
        auth=_authenticator(bus, settings, session),
        settings=settings,
        prefix=prefix,
        routers=(demo.router,) if is_demo else (),
        console=console,
    )
    return HttpServer(app, settings, bind(settings.host, settings.port))


def _authenticator(
    bus: CommandBus, settings: HttpSettings, session: SessionToken | None
) -> Authenticator:
    from commandbus.http import JwtAuth, NoAuth, TokenAuth
    from commandbus.http.auth.session import SessionAuth

    seconds = settings.token_cache_seconds
    if session is not None:
        return SessionAuth(session, bus.tokens, cache_seconds=seconds)
    match settings.auth:
        case "jwt":
            return JwtAuth.of(settings)
        case "none":
            return NoAuth()
        case _:
            from commandbus.shards.spanning import SpanningBus

            # The work of the others goes on without the shard that has the tokens.
            outage = OUTAGE_SECONDS if isinstance(bus, SpanningBus) else 0.0
            return TokenAuth(bus.tokens, cache_seconds=seconds, outage_seconds=outage)
