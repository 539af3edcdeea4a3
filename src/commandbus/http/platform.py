"""What the routes share: the bus, the settings, the places for long polls, the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import Depends, Header
from starlette.requests import Request
from starlette.responses import Response

from commandbus.bus import CommandBus
from commandbus.http.auth.revocations import Revocations
from commandbus.http.metrics import NoMetrics
from commandbus.http.settings import HttpSettings
from commandbus.http.waiting import LongPolls, wait_of

#: Seconds after which a client should look at something that it has just created.
POLL_HINT = 2


@dataclass(frozen=True, slots=True)
class Platform:
    """The parts of one app."""

    bus: CommandBus
    settings: HttpSettings
    polls: LongPolls
    metrics: NoMetrics
    prefix: str
    #: Who must know of tokens that end.
    revocations: Revocations = field(default_factory=Revocations)
    #: Where the app is mounted, as the current request shows it.
    root: str = ""

    def url(self, path: str) -> str:
        """A path of this app as the client must write it, wherever the app is mounted.

        Never with a host: that would be whatever the client wrote into its Host header.
        """
        return f"{self.root}{self.prefix}{path}"


def platform_of(request: Request) -> Platform:
    """The parts of the app that serves this request."""
    platform: Platform = request.app.state.commandbus
    return replace(platform, root=request.scope.get("root_path", "").rstrip("/"))


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
