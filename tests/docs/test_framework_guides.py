"""The programs in the guides of Flask and Litestar, served to a client of their own.

The frameworks are no dependency: `make test-versions` installs them for this.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import psycopg
import pytest

from commandbus import BlockingBus
from commandbus.testing import drain
from tests.docs.markdown import ROOT, blocks

pytestmark = pytest.mark.postgres
PATIENCE = 30


@pytest.fixture
def orders(dsn: str) -> str:
    """A database with the table of the guides."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "create table orders (id uuid primary key, paid boolean not null default false)"
        )
    return dsn


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The program of a guide, imported as the module that it says it is."""
    pytest.importorskip(request.param)
    (program,) = blocks(ROOT / f"docs/guides/{request.param}.md", "python")
    module = ModuleType("shop")
    sys.modules["shop"] = module  # where annotations are looked up
    try:
        exec(compile(program.text, str(program.path), "exec", dont_inherit=True), vars(module))
        yield module
    finally:
        del sys.modules["shop"]


def paid(dsn: str) -> list[tuple[bool]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute("select paid from orders").fetchall()


@pytest.mark.parametrize("shop", ["flask"], indirect=True)
def test_flask_sends_in_a_transaction_and_looks(shop: Any, orders: str) -> None:
    client = shop.create_app(orders).test_client()
    made = client.post("/orders")
    assert made.status_code == 202
    order = made.get_json()["order"]
    assert client.get(f"/orders/{order}").get_json() == {"status": "PENDING"}
    assert client.get("/orders/00000000-0000-0000-0000-000000000000").status_code == 404
    with BlockingBus.connect(orders, handlers=shop.handlers) as bus:
        assert [each.outcome for each in drain(bus)] == ["completed"]
    assert paid(orders) == [(True,)]
    assert client.get(f"/orders/{order}").get_json() == {"status": "COMPLETED"}


@pytest.mark.parametrize("shop", ["litestar"], indirect=True)
def test_litestar_sends_and_works_in_its_lifespan(shop: Any, orders: str) -> None:
    testing = pytest.importorskip("litestar.testing")

    with testing.TestClient(shop.create_app(orders)) as client:
        made = client.post("/orders")
        assert made.status_code == 202
        order = made.json()["order"]
        assert client.get("/orders/00000000-0000-0000-0000-000000000000").status_code == 404
        ends_at = time.monotonic() + PATIENCE
        while client.get(f"/orders/{order}").json() != {"status": "COMPLETED"}:
            assert time.monotonic() < ends_at
    assert paid(orders) == [(True,)]
