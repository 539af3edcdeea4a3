"""A real HTTP service on a real database, in a thread of its own: for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from commandbus import CommandBus, Settings
from commandbus.access.model import Scope
from commandbus.http import HttpSettings, TokenAuth, create_app
from commandbus.http.serving import HttpServer, bind

PATIENCE = 120.0

#: No limit that a test of something else could run into.
LOOSE = Settings(
    pool_size=8,
    max_global_api_requests=1_000_000,
    max_global_pending_batches=1_000_000,
    max_user_pending_batches=1_000_000,
    max_user_pending_children=1_000_000,
    user_cooldown_seconds=0,
)

Prepare = Callable[[CommandBus], Awaitable[Any]]


@dataclass(frozen=True)
class Served:
    """Where it is, a token for everything, and what `prepare` returned."""

    url: str
    token: str
    prepared: Any

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@contextmanager
def served(
    dsn: str,
    prepare: Prepare | None = None,
    settings: HttpSettings | None = None,
    workers: bool = False,
    tune: Callable[[Any], None] = lambda app: None,
    prefix: str = "",
) -> Iterator[Served]:
    """Serve until the block ends; `tune` may change the app before it serves."""
    ready: threading.Event = threading.Event()
    box: dict[str, Any] = {}

    async def main() -> None:
        async with CommandBus.connect(dsn, settings=LOOSE) as bus:
            box["prepared"] = await prepare(bus) if prepare is not None else None
            made = await bus.tokens.create("tester", list(Scope), actor="test")
            chosen = settings or HttpSettings(port=0)
            app = create_app(bus, auth=TokenAuth(bus.tokens), settings=chosen, prefix=prefix)
            tune(app)
            server = HttpServer(app, chosen, bind(chosen.host, chosen.port))
            box.update(url=server.url, token=made.text, server=server)
            tasks = [asyncio.create_task(bus.run_worker(name)) for name in bus.domains]
            await server.run(ready.set)
            await bus.stop()
            await asyncio.gather(*(tasks if workers else ()))
            for task in tasks:
                task.cancel()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001  (told to the test)
            box["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="http-service")
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        if "error" in box:
            raise box["error"]
        yield Served(box["url"], box["token"], box["prepared"])
    finally:
        if "server" in box:
            box["server"].stop()
        thread.join(PATIENCE)
    if "error" in box:
        raise box["error"]
