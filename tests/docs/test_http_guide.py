"""The HTTP guide: its curl lines work, in their order, and there is one for every endpoint."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from commandbus import CommandBus
from commandbus.access.model import Scope
from commandbus.database.model import Failure, Outcome, OutcomeKind
from commandbus.governance.types import BatchTypes
from commandbus.http import HttpSettings, create_app
from commandbus.http.metrics import Metrics
from commandbus.http.problems import Kind
from commandbus.models import ParkReason
from commandbus.monitoring.catalogue import WORKERS
from commandbus.testing import fake_bus
from tests.docs.markdown import GUIDES, blocks, codes, table_with
from tests.http_server import Served, served

GUIDE = GUIDES / "http.md"
#: A path, and a method in small letters.
OPERATION = tuple[str, str]


@dataclass(frozen=True)
class Curl:
    """One call of the guide."""

    words: list[str]
    status: int

    def send(self, values: dict[str, str]) -> httpx2.Response:
        words = [re.sub(r"\$(\w+)", lambda m: values[m[1]], word) for word in self.words]
        method, headers, data, url = None, {}, None, ""
        rest = iter(words[1:])
        for word in rest:
            match word:
                case "-X":
                    method = next(rest)
                case "-H":
                    name, _, value = next(rest).partition(": ")
                    headers[name] = value
                case "-d":
                    data = next(rest)
                case "-N":
                    pass
                case _:
                    url = word
        method = method or ("POST" if data is not None else "GET")
        return httpx2.request(method, url, headers=headers, content=data, timeout=30)


def calls(guide: Path = GUIDE) -> list[Curl]:
    found = []
    for block in blocks(guide, "sh"):
        text = block.text.replace("\\\n", " ")
        found += [
            Curl(shlex.split(match[1]), int(match[2]))
            for match in re.finditer(r"^(curl .*?)\n# (\d{3})$", text, re.M | re.S)
        ]
        assert text.count("curl ") == len(re.findall(r"^# \d{3}$", text, re.M)), block.name
    return found


FAILURE = Failure("TRANSIENT", "DOWN", "no answer")


async def prepare(bus: CommandBus) -> dict[str, str]:
    """Commands in troubleshooting, a reply, and a load that stopped."""
    parked = [uuid4() for _ in range(5)]
    done = uuid4()
    await bus.send("payments", "DebitAccount", done, {})
    for command_id in parked:
        await bus.send("payments", "DebitAccount", command_id, {"n": 1})
    leases = await bus._store.receive(
        "payments", vt_seconds=600, quantity=10, worker="test", limits={}
    )
    await bus._store.settle(
        "payments",
        [
            Outcome(lease, OutcomeKind.COMPLETE)
            if lease.command_id == done
            else Outcome(lease, OutcomeKind.PARK, reason=ParkReason.EXHAUSTED, failure=FAILURE)
            for lease in leases
        ],
    )
    rows: list[Any] = [{"n": 1}, "nonsense"]
    load = await bus.loads.load("payments", rows, command_type="DebitAccount", checkpoint_size=1)
    token = await bus.tokens.create("tester", ["read"], actor="test")
    [group] = await bus.troubleshooting.groups("payments")
    return {
        "GROUP": group.fingerprint,
        "LOAD": str(load.batch_id), "TOKEN_ID": token.token.token_id,
        "PARKED": str(parked[0]), "PARKED_2": str(parked[1]), "PARKED_3": str(parked[2]),
    }  # fmt: skip


def template_of(document: dict[str, Any], method: str, path: str) -> OPERATION:
    """The operation that a request was answered by."""
    for template, methods in document["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in methods:
            return template, method.lower()
    return path, method.lower()


def test_every_curl_line_works_and_every_endpoint_has_one(dsn: str) -> None:
    with served(dsn, prepare) as service:
        values = values_of(service)
        document = httpx2.get(f"{service.url}/openapi.json").json()
        tried: set[OPERATION] = set()
        for call in calls():
            answer = call.send(values)
            assert answer.status_code == call.status, f"{call.words}: {answer.text}"
            request = answer.request
            path = str(request.url).removeprefix(service.url).partition("?")[0]
            tried.add(template_of(document, str(request.method), path))
            if request.method == "POST" and path.endswith("/command-batches/payments"):
                values["BATCH"] = answer.json()["batch_id"]
            if path.endswith("/ack"):
                assert answer.json() == {"acknowledged": [1], "lost": []}

    every = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert {operation for operation in every if is_described_here(operation)} <= tried


def values_of(service: Served) -> dict[str, str]:
    return {
        "URL": service.url,
        "AUTH": f"Authorization: Bearer {service.token}",
        "JSON": "Content-Type: application/json",
        **service.prepared,
    }


def is_described_here(operation: OPERATION) -> bool:
    """Governed batches have a guide of their own."""
    governed = ("/api/v1/batch", "/api/v1/vms", "/api/v1/approvals", "/api/v1/admin",
                "/api/v1/undecided")  # fmt: skip
    return not operation[0].startswith(governed)


def test_every_problem_is_listed_with_its_status() -> None:
    rows = table_with(GUIDE, "problem", "status", "when")

    assert {codes(row["problem"])[0]: int(row["status"]) for row in rows} == {
        kind.name: kind.status for kind in Kind
    }


def test_every_metric_is_listed_with_its_labels() -> None:
    rows = table_with(GUIDE, "metric", "labels", "meaning")
    documented = {name: codes(row["labels"]) for row in rows for name in codes(row["metric"])}
    registry: Any = Metrics(BatchTypes())._registry
    real: dict[str, list[str]] = {}
    for collector in registry._collector_to_names:
        if not hasattr(collector, "_labelnames"):  # the sums of workers, which are only shown
            real |= {family.name: list(family.labels) for family in WORKERS}
            continue
        name = collector._name + ("_total" if collector._type == "counter" else "")
        real[name] = list(collector._labelnames)

    assert documented == real


def test_every_scope_is_listed() -> None:
    rows = table_with(GUIDE, "scope", "may")

    assert [codes(row["scope"])[0] for row in rows] == list(Scope)


def test_every_setting_of_the_service_is_listed_with_its_variable_and_its_default() -> None:
    rows = table_with(GUIDES / "settings.md", "setting", "variable", "default")
    documented = {
        codes(row["setting"])[0]: (codes(row["variable"])[0], codes(row["default"])[0])
        for row in rows
    }

    assert documented == {
        spec.name: (f"COMMANDBUS_HTTP_{spec.name.upper()}", repr(spec.default))
        for spec in fields(HttpSettings)
    }


def test_the_caps_in_the_text_are_the_defaults() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    settings = HttpSettings()

    for number in (settings.max_json_depth, settings.max_concurrency, settings.max_long_polls):
        assert re.search(rf"\b{number}\b", text)
    assert (settings.max_body_bytes, settings.max_header_bytes) == (1024**2, 16 * 1024)
    assert create_app(fake_bus()).docs_url is None
