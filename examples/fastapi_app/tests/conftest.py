"""A PostgreSQL for these tests, and the application on it, with its worker."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from commandbus.embedded import EmbeddedPostgres

sys.path.insert(0, str(Path(__file__).parent.parent))

from shop.main import create


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # root's server runs as another account
    server = EmbeddedPostgres(folder / "pg", settings={"fsync": "off"})
    server.start()
    yield server.sqlalchemy_url()
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    app = create(url)
    # As a server does it: the state of the lifespan is a part of every request.
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx2.ASGITransport(app=with_state)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as found:
            yield found
