"""Finding what an id is, and the reference of the API."""

from __future__ import annotations

import re
from uuid import uuid4

import httpx2
import pytest

from commandbus import CommandBus
from commandbus.http import create_app
from commandbus.http.console.reference import Reference
from tests.console.world import console
from tests.http_world import NamedCallers, caller
from tests.integration.http_shop import fill


async def test_an_id_leads_to_what_it_is(bus: CommandBus) -> None:
    shop = await fill(bus)
    expected = {
        shop.pending: f"/console/commands/shop/{shop.pending}",
        shop.batch: f"/console/batches/shop/{shop.batch}",
        shop.bulk: f"/console/bulk/{shop.bulk}",
    }
    async with console(bus, "read", "operate") as browser:
        for some_id, address in expected.items():
            answer = await browser.get("/find", q=str(some_id))

            assert (answer.status_code, answer.headers.get("location")) == (303, address)
        nothing = await browser.text("/find", q=str(uuid4()))
        word = await browser.text("/find", q="worker")

    assert "Nothing that you may see has this id" in nothing
    assert "/console/workers" in word


async def test_an_id_of_another_domain_is_not_found(bus: CommandBus) -> None:
    shop = await fill(bus)
    async with console(bus, "read", domains=("bank",)) as browser:
        for some_id in (shop.pending, shop.batch, shop.bulk):
            assert "Nothing that you may see" in await browser.text("/find", q=str(some_id))


async def test_a_text_in_the_field_is_text_in_the_page(bus: CommandBus) -> None:
    hostile = '"><script>alert(1)</script>{{ 7*7 }}'
    async with console(bus) as browser:
        page = await browser.text("/find", q=hostile)

    assert "<script>alert" not in page
    assert "49" not in re.sub(r"[0-9a-f]{8,12}", "", page.split("<main")[1].split("<footer")[0])


@pytest.fixture
def docs_client(bus: CommandBus) -> httpx2.AsyncClient:
    app = create_app(bus, auth=NamedCallers(person=caller("read")), console=True, prefix="/x")
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1")


async def test_the_reference_has_every_route_its_scope_and_every_schema(
    docs_client: httpx2.AsyncClient,
) -> None:
    async with docs_client as client:
        answer = await client.get("/x/docs")
        document = (await client.get("/x/openapi.json")).json()

    page = answer.text
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    for path, methods in document["paths"].items():
        assert f"<code>{path}</code>" in page
        for operation in methods.values():
            assert f'-{operation["operationId"]}"' in page
    for name in document["components"]["schemas"]:
        assert f'id="schema-{name}"' in page
    for target in set(re.findall(r'href="#([^"]+)"', page)):
        assert f'id="{target}"' in page, target
    assert not re.findall(r'(?:href|src)="https?:', page)
    assert " style=" not in page


def test_examples_are_made_of_schemas_that_refer_to_themselves() -> None:
    tree = {"type": "object", "properties": {"child": {"$ref": "#/components/schemas/Tree"}}}
    document = {
        "info": {"title": "t", "version": "1"},
        "paths": {},
        "components": {"schemas": {"Tree": tree, "Odd": {"anyOf": [{"type": "null"}]}}},
    }

    found = {each.name: each for each in Reference(document).schemas}

    assert '"child"' in found["Tree"].example
    assert found["Odd"].kind == "null"
