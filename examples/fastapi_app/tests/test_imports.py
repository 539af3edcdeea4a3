"""An import from the request to its last row."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from shop.database import Import, Product, sessions
from sqlalchemy import func, select, text

pytestmark = pytest.mark.asyncio


async def finished(client: httpx2.AsyncClient, import_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            found: dict[str, Any] = (await client.get(f"/imports/{import_id}")).json()
            if found["is_finished"]:
                return found
            await asyncio.sleep(0.05)


async def start(client: httpx2.AsyncClient, name: str, products: list[dict[str, str]]) -> str:
    answer = await client.post("/imports", json={"name": name, "products": products})
    assert answer.status_code == 202, answer.text
    return str(answer.json())


async def test_an_import_adds_its_products_and_says_how_far_it_is(
    client: httpx2.AsyncClient,
) -> None:
    products = [{"sku": f"A-{n}", "price": "2.50"} for n in range(50)]
    import_id = await start(client, "spring", products)

    found = await finished(client, import_id)

    assert found == {
        "name": "spring", "status": "COMPLETED", "total": 50, "added": 50, "refused": 0,
        "is_finished": True,
    }  # fmt: skip
    async with sessions() as session:
        added = select(func.count()).select_from(Product).where(Product.sku.startswith("A-"))
        assert await session.scalar(added) == 50


async def test_a_product_that_is_refused_is_counted_and_has_no_row(
    client: httpx2.AsyncClient,
) -> None:
    products = [{"sku": "B-1", "price": "1"}, {"sku": "B-2", "price": "0"}]
    found = await finished(client, await start(client, "sale", products))

    assert (found["status"], found["added"], found["refused"]) == ("COMPLETED_WITH_FAILURES", 1, 1)
    async with sessions() as session:
        assert await session.get(Product, "B-1") is not None
        assert await session.get(Product, "B-2") is None


async def test_a_request_that_fails_leaves_neither_an_import_nor_a_batch(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("sqlalchemy.ext.asyncio.AsyncSession.commit", fail)
    body = {"name": "lost", "products": [{"sku": "C-1", "price": "1"}]}
    with pytest.raises(RuntimeError, match="disk is full"):
        await client.post("/imports", json=body)
    monkeypatch.undo()

    # A later one has ended, so a command of the former one would have been handled too.
    await finished(client, await start(client, "later", [{"sku": "C-2", "price": "1"}]))
    async with sessions() as session:
        lost = select(func.count()).select_from(Import).where(Import.name == "lost")
        assert await session.scalar(lost) == 0
        assert await session.get(Product, "C-1") is None
        batches = "select count(*) from commandbus.command_bus_batch where name = 'lost'"
        assert await session.scalar(text(batches)) == 0


async def test_products_that_do_not_fit_are_refused_by_the_route(
    client: httpx2.AsyncClient,
) -> None:
    body = {"name": "typo", "products": [{"sku": "D-1", "prize": "1"}]}
    assert (await client.post("/imports", json=body)).status_code == 422


async def test_an_unknown_import_is_not_found(client: httpx2.AsyncClient) -> None:
    unknown = "00000000-0000-7000-8000-000000000000"
    assert (await client.get(f"/imports/{unknown}")).status_code == 404


async def test_the_service_of_the_bus_asks_for_a_token(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/bus/readyz")).status_code == 200
    assert (await client.get("/bus/api/v1/domains")).status_code == 401
