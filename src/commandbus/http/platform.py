"""What the routes share: the bus, the settings, the budgets, the places to wait, the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header
from starlette.requests import Request
from starlette.responses import Response

from commandbus.bus import CommandBus
from commandbus.http.auth.authenticators import Authenticator
from commandbus.http.auth.revocations import Revocations
from commandbus.http.budgets import Budgets
from commandbus.http.context import info_of
from commandbus.http.metrics import NoMetrics
from commandbus.http.settings import HttpSettings
from commandbus.http.waiting import LongPolls, Work, wait_of

Value = TypeVar("Value")

#: Seconds after which a client should look at something that it has just created.
POLL_HINT = 2


@dataclass(frozen=True, slots=True)
class Platform:
    """The parts of one app."""

    bus: CommandBus
    settings: HttpSettings
    auth: Authenticator
    budgets: Budgets
    polls: LongPolls
    metrics: NoMetrics
    prefix: str
    #: Who must know of tokens that end.
    revocations: Revocations = field(default_factory=Revocations)
    #: Where the app is mounted, as the current request shows it.
    root: str = ""
    #: The current request.
    request: Request | None = None
    #: What is being found out now, for all who ask at the same time.
    running: dict[str, asyncio.Future[str]] = field(default_factory=dict)

    def url(self, path: str) -> str:
        """A path of this app as the client must write it, wherever the app is mounted.

        Never with a host: that would be whatever the client wrote into its Host header.
        """
        return f"{self.root}{self.prefix}{path}"

    def charge_commands(self, number: int) -> None:
        """Charge the caller for commands that it sends outside governed batches."""
        info = None if self.request is None else info_of(self.request.scope)
        if info is not None and info.caller is not None:
            self.budgets.commands.spend(info.caller, number)

    async def wait(self, work: Work[Value], otherwise: Value) -> Value:
        """The result of `work`, for which this request waits; `otherwise` if the service ends."""
        if self.request is None:
            raise RuntimeError("only a request can wait")
        return await self.polls.wait(self.request.scope, self.request.receive, work, otherwise)

    async def shared(self, name: str, work: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """The result of `work`, begun once for all who ask for it at the same time: what everybody
        may ask for must not cost more the more often it is asked.
        """
        running = self.running.get(name)
        if running is None or running.done():
            running = self.running[name] = asyncio.ensure_future(work())
        return await asyncio.shield(running)


def platform_of(request: Request) -> Platform:
    """The parts of the app that serves this request."""
    platform: Platform = request.app.state.commandbus
    return replace(platform, root=root_of(request), request=request)


def root_of(request: Request) -> str:
    """The path that the service is mounted below; empty if it is not."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


#: `here: Here` in the signature of a route.
Here = Annotated[Platform, Depends(platform_of)]


async def _wait_of(
    request: Request,
    prefer: Annotated[
        str | None,
        Header(
            max_length=200,
            description="`wait=N`: respond when it has ended, after N seconds at the latest. With "
            "If-None-Match, where there is such a parameter: when it has changed.",
        ),
    ] = None,
) -> float:
    return wait_of(prefer, platform_of(request).settings.max_wait_seconds)


#: `wait: Wait` in the signature of a route: the seconds that the client wants to wait.
Wait = Annotated[float, Depends(_wait_of)]


def accepted(response: Response, url: str) -> None:
    """Say where to look at what was just created, and when."""
    response.headers["Location"] = url
    response.headers["Retry-After"] = str(POLL_HINT)
