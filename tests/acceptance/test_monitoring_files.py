"""deploy/prometheus and deploy/grafana: names that exist, rules that fire, panels with data."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml  # type: ignore[import-untyped]

from commandbus import CommandBus
from commandbus.cli.probe import ask
from commandbus.monitoring.catalogue import FAMILIES, OWN
from commandbus.monitoring.server import Address, MonitorServer
from tests.acceptance.programs import program
from tests.docs.markdown import DOCS, GUIDES, ROOT, codes, table_with
from tests.waiting import until_status

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "commandbus.json"
NAME = re.compile(r"\bcommandbus_[a-z0-9_]+")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def queries() -> list[tuple[str, str]]:
    """The panels of the dashboard, with each of their queries."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], each["expr"]) for panel in panels for each in panel.get("targets", ())]


def series_of(name: str) -> str:
    """The family of a series."""
    for end in ("_bucket", "_sum", "_count"):
        if name.removesuffix(end) in FAMILIES and name != name.removesuffix(end):
            return name.removesuffix(end)
    return name


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda file: file.name)
def test_every_metric_that_a_file_names_exists(file: Path) -> None:
    used = {series_of(name) for name in NAME.findall(file.read_text())}

    assert len(used) > 10
    assert used - set(FAMILIES) == set()


def test_every_metric_of_a_process_is_in_the_guide() -> None:
    rows = table_with(GUIDES / "monitoring.md", "metric", "labels", "meaning")
    documented = {name: codes(row["labels"]) for row in rows for name in codes(row["metric"])}

    assert documented == {family.name: list(family.labels) for family in OWN}


def test_every_alert_has_its_entry_in_the_runbook() -> None:
    headings = set(re.findall(r"^### (Commandbus\w+)$", (DOCS / "runbook.md").read_text(), re.M))

    assert headings == set(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"


@needs_promtool
def test_the_rules_are_well_formed_and_fire_when_they_should() -> None:
    for arguments in (["check", "rules", RULES.name], ["test", "rules", "rules_test.yml"]):
        run = subprocess.run(
            ["promtool", *arguments], cwd=RULES.parent, capture_output=True, check=False
        )
        assert run.returncode == 0, (run.stdout + run.stderr).decode()


def test_every_alert_is_tested_firing_and_quiet() -> None:
    tests = yaml.safe_load((RULES.parent / "rules_test.yml").read_text())["tests"]
    found = {
        (each["alertname"], bool(each["exp_alerts"])) for test in tests
        for each in test["alert_rule_test"]
    }  # fmt: skip

    assert found == {(name, fires) for name in alerts() for fires in (True, False)}


# -- a real Prometheus

APP = """
from commandbus import PermanentCommandError

def setup(bus):
    @bus.handler("shop", "Work")
    async def work(command, ctx):
        if command.data["number"] % 10 == 0:
            raise PermanentCommandError("OUT_OF_STOCK", "none left")
        ctx.send("shop", "More", __import__("uuid").uuid4(), {})

    @bus.handler("shop", "More")
    async def more(command, ctx):
        pass
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="commandbus-prometheus-"))
    (made / "shop_app.py").write_text(APP)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def free_port() -> int:
    with Address.parse("127.0.0.1:0").bind() as sock:
        return int(sock.getsockname()[1])


def answer_of(port: int, query: str) -> list[Any]:
    text = query.replace("$domain", ".*").replace("$__rate_interval", "10s")
    where = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
    with urllib.request.urlopen(where, timeout=20) as response:
        found: list[Any] = json.load(response)["data"]["result"]
    return [each for each in found if each["value"][1] != "NaN"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
async def test_every_panel_has_data_after_some_traffic(
    dsn: str, bus: CommandBus, folder: Path
) -> None:
    sender = MonitorServer(Address.parse("127.0.0.1:0").bind(), bus.monitor().pages())
    sender.start()
    ports = {"worker": free_port(), "exporter": free_port()}
    targets = [f"127.0.0.1:{port}" for port in ports.values()]
    targets.append(sender.url.removeprefix("http://"))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "all", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    prometheus = free_port()
    server = await asyncio.create_subprocess_exec(
        "prometheus", f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{prometheus}",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    worker = ("worker", "shop_app:setup", "--http", f"127.0.0.1:{ports['worker']}")
    exporter = ("exporter", "--http", f"127.0.0.1:{ports['exporter']}")
    try:
        async with program(folder, *worker, dsn=dsn), program(folder, *exporter, dsn=dsn) as shown:
            await shown.until_logged("metrics of the database are at")
            status, text = await asyncio.to_thread(ask, "127.0.0.1", ports["exporter"], "/metrics")
            assert (status, "commandbus_database_up 1" in text) == (200, True)
            missing = dict(queries())
            number, end = 0, time.monotonic() + 90
            while missing and time.monotonic() < end:
                for _ in range(20):
                    number += 1
                    await bus.send("shop", "Work", uuid4(), {"number": number})
                last = await bus.send("shop", "Work", uuid4(), {"number": 1})
                await until_status(bus, "shop", last, "COMPLETED")
                for title, query in list(missing.items()):
                    try:
                        found = await asyncio.to_thread(answer_of, prometheus, query)
                    except OSError:  # it is not there yet
                        break
                    if found:
                        del missing[title]
            assert missing == {}
            is_up = await asyncio.to_thread(answer_of, prometheus, "up == 1")
            assert len(is_up) == 3
    finally:
        server.terminate()
        await asyncio.wait_for(server.wait(), 20)
        sender.stop()
