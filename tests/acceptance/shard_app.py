"""The app of a worker that serves domains of several shards."""

from __future__ import annotations

from commandbus import Command, HandlerContext
from commandbus.handlers.router import Handlers

DOMAINS = ("alpha", "beta", "gamma", "mover")

handlers = Handlers()
for _domain in DOMAINS:
    _routes = Handlers(_domain)

    @_routes.handle("Do")
    async def do(command: Command, context: HandlerContext) -> None:
        """Nothing; that it is done once is what counts."""

    handlers.include(_routes)
