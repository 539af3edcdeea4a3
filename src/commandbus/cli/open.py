"""`open`: the console in a browser, signed in with a code that is good once, for a minute."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from commandbus.access.model import EVERYTHING
from commandbus.access.sessions import LONGEST
from commandbus.cli.frame import Frame, View
from commandbus.cli.options import Operator, actor_or_login
from commandbus.cli.output import say, text_of
from commandbus.cli.session import is_terminal
from commandbus.errors import InvalidSettingError
from commandbus.extras import extra


async def open_console(
    frame: Frame,
    *,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Of the service. Default: where `commandbus serve` listens."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", "-s", help="May be repeated. Default: all but bypass-governance."),
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the address, and open nothing.")
    ] = False,
    operator: Operator = None,
) -> View:
    """Open the console in a browser, signed in.

    It makes a token for you that ends after twelve hours and that nobody knows, and a code for
    it in the address, behind the #, where no server and no log sees it.
    """
    address = _address(url)
    user = actor_or_login(operator) or "commandbus"
    async with frame.open() as session:
        tokens = session.bus.tokens
        made = await tokens.create(
            user, scope or sorted(EVERYTHING), expires_in=LONGEST,
            label="commandbus open", actor=user,
        )  # fmt: skip
        code = await tokens.sessions.new_code(made.token)
    target = f"{address}/console/sign-in#{code}"
    is_open = not print_only and webbrowser.open(target)
    shown = target if print_only or (not is_open and is_terminal()) else f"{address}/console/"

    def tell() -> None:
        if is_open:
            say(f"Opened {text_of(shown)} as {text_of(user)}.")
        else:
            say(f"Open within a minute: {text_of(shown)}")

    return View({"url": shown, "user_id": user, "token_id": made.token.token_id}, tell)


def _address(url: str | None) -> str:
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise InvalidSettingError(f"--url is {url!r}; write it like https://bus.example")
        return url.rstrip("/")
    with extra("api", "the HTTP service"):
        from commandbus.http.settings import HttpSettings
    settings = HttpSettings.from_env()
    host = settings.host if settings.is_loopback else "127.0.0.1"
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
