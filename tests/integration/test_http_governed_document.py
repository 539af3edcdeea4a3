"""How governed routes present themselves: addresses wherever the app is, and the document."""

from __future__ import annotations

from fastapi import FastAPI

from tests.http_world import app_of, client_of, scopes_of
from tests.integration.http_farm import CALLERS, VMS, create, farm_on, is_governed


async def test_addresses_are_what_the_client_must_write_wherever_the_app_is(
    dsn: str,
) -> None:
    main = FastAPI()
    async with farm_on(dsn) as farm, client_of(main, "ada") as ada:
        main.mount("/outer", app_of(farm.bus, prefix="/bus", ada=CALLERS["ada"]))
        made = await ada.post(f"/outer/bus{VMS}", json=create("a"))
        shown = await ada.get(made.headers["location"])
        children = await ada.get(made.json()["links"]["children"])
        types = (await ada.get("/outer/bus/api/v1/batch-types")).json()["items"]

    assert made.headers["location"] == f"/outer/bus{VMS}/{made.json()['batch_id']}"
    assert shown.json()["status_url"] == made.json()["status_url"] == made.headers["location"]
    assert children.status_code == 200
    assert f"/outer/bus{VMS}" in {each["submit_url"] for each in types}


async def test_the_document_describes_every_governed_route(dsn: str) -> None:
    async with farm_on(dsn) as farm:
        document, scopes = farm.app.openapi(), scopes_of(farm.app)
    found = {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    served = {(path, method.lower()) for path, method in scopes if path != "/openapi.json"}

    assert served == set(found)
    assert len({operation["operationId"] for operation in found.values()}) == len(found)
    for (path, _), operation in found.items():
        if is_governed(operation):
            assert operation["summary"], path
            assert operation["x-scope"]
            assert "422" not in operation["responses"]
            assert {"400", "401", "403", "404", "429", "500", "503"} <= set(operation["responses"])
    submit = found[VMS, "post"]["responses"]
    assert set(submit["202"]["headers"]) == {"Location", "Retry-After", "Idempotent-Replayed"}
    example = submit["429"]["content"]["application/problem+json"]["example"]
    assert example["code"] == "RATE_LIMIT_EXCEEDED"
    assert {"limit_type", "current_value", "max_value", "retry_after", "contact_admin"} <= set(
        example
    )
    item = document["components"]["schemas"]["Submit_BATCH_CREATE"]["properties"]["items"]
    assert (item["maxItems"], item["items"]["required"]) == (10, ["name"])
