"""The guide of governed batches over HTTP: its curl lines work, and every endpoint has one."""

from __future__ import annotations

from typing import Any

import httpx2

from commandbus import CommandBus
from commandbus.access.model import EVERYTHING, Caller
from commandbus.demo import vms
from commandbus.http import HttpSettings
from tests.docs.markdown import GUIDES
from tests.docs.test_http_guide import OPERATION, calls, template_of, values_of
from tests.http_server import served
from tests.integration.http_farm import is_governed
from tests.security.parking import parking

GUIDE = GUIDES / "http-governed.md"


async def prepare(bus: CommandBus) -> dict[str, str]:
    await vms.setup(bus)
    made = await bus.tokens.create("petra", ["read", "approve"], actor="test")
    return {"OTHER": f"Authorization: Bearer {made.text}", "EDITED": await edited(bus)}


async def edited(bus: CommandBus) -> str:
    """A batch with one child, which has failed, and whose edit waits."""
    app = Caller("app", EVERYTHING)
    submitted = await bus.governance.submit(app, "BATCH_CREATE", [{"name": "old-1"}])
    (lease,) = await bus._store.receive("vms", vt_seconds=60, quantity=1, worker="test", limits={})
    await bus._store.settle("vms", [parking(lease)])
    await bus.troubleshooting.retry(
        "vms", lease.command_id, payload={"name": "new-1"}, operator="olga"
    )
    return str(submitted.ticket.ticket_id)


def test_every_curl_line_works_and_every_governed_endpoint_has_one(dsn: str) -> None:
    with served(dsn, prepare, HttpSettings(port=0), workers=True) as service:
        values = values_of(service)
        document = httpx2.get(f"{service.url}/openapi.json", timeout=60).json()
        tried: set[OPERATION] = set()
        for call in calls(GUIDE):
            answer = call.send(values)
            assert answer.status_code == call.status, f"{call.words}: {answer.text}"
            path = str(answer.request.url).removeprefix(service.url).partition("?")[0]
            tried.add(template_of(document, str(answer.request.method), path))
            if path.endswith("/review"):
                values["DIGEST"] = answer.json()["content_digest"]
            if answer.status_code == 202 and not path.endswith("/retry"):
                remember(values, answer.json())
                finish(service.url, values, answer.json())

    every = {
        (path, method)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if is_governed(operation)
    }
    assert every <= tried


def remember(values: dict[str, str], body: dict[str, Any]) -> None:
    """What the guide calls $BATCH, $WAITING, $WAITING_2, $WAITING_3 and $APPROVAL."""
    match body["batch_type"]:
        case "BATCH_DELETE":
            names = ("WAITING", "WAITING_2", "WAITING_3")
            values[next(name for name in names if name not in values)] = body["batch_id"]
        case "BATCH_APPROVE":
            values["APPROVAL"] = body["batch_id"]
        case _:
            values.setdefault("BATCH", body["batch_id"])


def finish(url: str, values: dict[str, str], body: dict[str, Any]) -> None:
    """Wait until what later lines build upon is done."""
    if body["status"] == "IN_PROGRESS":
        name, _, value = values["AUTH"].partition(": ")
        headers = {name: value, "Prefer": "wait=20"}
        ended = httpx2.get(f"{url}{body['status_url']}", headers=headers, timeout=30)
        assert ended.json()["status"] == "COMPLETED"
