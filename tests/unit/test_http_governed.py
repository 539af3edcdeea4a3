"""The routes that batch types get from their declarations, and the declarations that get none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, SecretStr

from commandbus import InvalidSettingError
from commandbus.access.model import Scope
from commandbus.governance.types import BatchType
from commandbus.http.routes.governed import governed_routers
from commandbus.http.schemas.submissions import item_schema
from tests.http_world import scopes_of


@dataclass
class Part:
    number: int
    of: list[Part] = field(default_factory=list)


class Order(BaseModel):
    article: str
    key: SecretStr
    parts: list[Part] = []


class Opaque:
    """JSON Schema has no words for it."""


@dataclass
class Strange:
    thing: Opaque


def batch_type(name: str, path: str | None = None, **more: Any) -> BatchType:
    values: dict[str, Any] = {"domain": "shop", "command_type": "Work", "max_size": 5} | more
    return BatchType(name=name, path=path, **values)


def app_of(*types: BatchType) -> FastAPI:
    app = FastAPI()
    for router in governed_routers(list(types), ["/api/v1/commands/{domain}"]):
        app.include_router(router)
    return app


def body_of(app: FastAPI, path: str) -> dict[str, Any]:
    content = app.openapi()["paths"][path]["post"]["requestBody"]["content"]
    schema: dict[str, Any] = content["application/json"]["schema"]
    return schema


def test_a_path_of_its_own_brings_submission_status_list_retry_and_cancel() -> None:
    app = app_of(batch_type("ORDERS", "/api/v1/orders"), batch_type("PLAIN"))

    own = {key for key in scopes_of(app) if "orders" in key[0]}
    assert own == {
        ("/api/v1/orders", "POST"),
        ("/api/v1/orders", "GET"),
        ("/api/v1/orders/{batch_id}", "GET"),
        ("/api/v1/orders/{batch_id}/retry", "POST"),
        ("/api/v1/orders/{batch_id}/cancel", "POST"),
    }


def test_a_path_below_another_is_for_submission_only() -> None:
    app = app_of(
        batch_type("ORDERS", "/api/v1/orders"),
        batch_type("RUSH", "/api/v1/orders/rush", permission=Scope.OPERATE),
        batch_type("OTHER", "/api/v1/orders-by-post"),
    )

    scopes = scopes_of(app)
    assert scopes["/api/v1/orders/rush", "POST"] is Scope.OPERATE
    assert scopes["/api/v1/orders", "POST"] is Scope.SUBMIT
    assert ("/api/v1/orders/rush/{batch_id}", "GET") not in scopes
    assert ("/api/v1/orders-by-post/{batch_id}", "GET") in scopes


def test_names_of_operations_are_different_for_different_paths() -> None:
    paths = ["/api/v1/a/b", "/api/v1/a-b", "/api/v1/a_b", "/api/v1/a.b"]
    app = app_of(*(batch_type(f"T{n}", path) for n, path in enumerate(paths)))

    names = [
        operation["operationId"]
        for methods in app.openapi()["paths"].values()
        for operation in methods.values()
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("types", "text"),
    [
        ([batch_type("A", "/orders")], "must begin with /api/v1/"),
        ([batch_type("A", "/api/v1/commands/shop")], "routes of its own"),
        ([batch_type("A", "/api/v1/batches")], "routes of its own"),
        ([batch_type("A", "/api/v1/admin/x")], "routes of its own"),
        (
            [
                batch_type("A", "/api/v1/a", operation="x"),
                batch_type("B", "/api/v1/a", operation="y", permission=Scope.ADMIN),
            ],
            r"A and B share the path /api/v1/a and need different scopes \(admin, submit\)",
        ),
    ],
)
def test_a_path_that_cannot_be_served_fails_the_build(types: list[BatchType], text: str) -> None:
    with pytest.raises(InvalidSettingError, match=text):
        app_of(*types)


def test_the_document_shows_the_items_of_each_operation() -> None:
    app = app_of(
        batch_type("A", "/api/v1/a", operation="buy", payload_type=Order, example={"article": "x"}),
        batch_type("B", "/api/v1/a", operation="sell", payload_type=Part, max_size=7),
        batch_type("C", "/api/v1/c", payload_type=Strange),
        batch_type("D", "/api/v1/d"),
    )
    schemas = app.openapi()["components"]["schemas"]

    assert body_of(app, "/api/v1/a")["discriminator"]["mapping"] == {
        "buy": "#/components/schemas/Submit_A",
        "sell": "#/components/schemas/Submit_B",
    }
    buy, sell = schemas["Submit_A"], schemas["Submit_B"]
    assert buy["examples"] == [{"operation": "buy", "items": [{"article": "x"}]}]
    assert (sell["properties"]["items"]["minItems"], sell["properties"]["items"]["maxItems"]) == (
        1,
        7,
    )
    assert schemas["Part"]["additionalProperties"] is False
    assert set(schemas["Part"]["properties"]) == {"number", "of"}
    for path in ("/api/v1/c", "/api/v1/d"):
        properties = body_of(app, path)["properties"]
        assert properties["items"]["items"]["type"] == "object"
        assert "operation" not in properties
    assert set(body_of(app, "/api/v1/batches")["discriminator"]["mapping"]) == {"A", "B", "C", "D"}


def test_the_schema_of_an_item_is_complete_in_itself() -> None:
    found = item_schema(batch_type("A", payload_type=Order))

    assert found["properties"]["parts"]["items"] == {"$ref": "#/$defs/Part"}
    assert found["$defs"]["Part"]["required"] == ["number"]
    assert item_schema(batch_type("B"))["type"] == "object"
