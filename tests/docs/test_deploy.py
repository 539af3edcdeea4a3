"""The unit and the manifests: what they start exists, and their times fit together."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped]

from commandbus import Settings
from commandbus.cli.main import app
from commandbus.http.routes import health
from commandbus.http.settings import HttpSettings
from commandbus.keys import FOLDER_VARIABLE
from commandbus.wiring import DSN_VARIABLE

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "commandbus-worker@.service"
MORE_SECONDS = 15
VARIABLES = {DSN_VARIABLE, FOLDER_VARIABLE} | {
    f"{kind.PREFIX}{spec.name.upper()}"
    for kind in (Settings, HttpSettings)
    for spec in fields(kind)
}


def documents() -> list[dict[str, Any]]:
    paths = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return [each for path in paths for each in yaml.safe_load_all(path.read_text())]


def pods() -> Iterator[dict[str, Any]]:
    for each in documents():
        if each["kind"] in {"Deployment", "Job"}:
            yield each["spec"]["template"]["spec"]


def containers() -> Iterator[dict[str, Any]]:
    for pod in pods():
        yield from pod["containers"]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return {name: each for name, each in found.items() if "build" in each}


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.M):
        found.setdefault(name, []).append(value)
    return found


def refuse_unknown(words: list[str]) -> None:
    """Let the real program read a command line; nothing is run."""
    command: Any = typer.main.get_command(app)
    name = "commandbus"
    while hasattr(command, "commands"):
        name, command, words = f"{name} {words[0]}", command.commands[words[0]], words[1:]
    command.make_context(name, list(words))


def test_every_command_line_is_one_that_the_program_takes() -> None:
    lines = [each["args"] for each in containers()]
    lines += [each["command"] for each in services().values()]
    (start,) = unit()["ExecStart"]
    lines.append(shlex.split(start.replace("%i", "myapp"))[1:])

    assert len(lines) >= 7
    for words in lines:
        refuse_unknown(words)


def test_every_variable_is_a_setting() -> None:
    named = [each["name"] for container in containers() for each in container.get("env", [])]
    named += [name for each in services().values() for name in each["environment"]]
    named += [value.partition("=")[0] for value in unit()["Environment"]]
    text = "".join(path.read_text() for path in (DEPLOY / "kubernetes").glob("*.yaml"))
    named += re.findall(r"from-literal=(\w+)|key: (COMMANDBUS_\w+)", text)[0][:1]

    assert named
    assert set(named) <= VARIABLES


def test_every_path_of_a_probe_exists() -> None:
    known = {route.path for route in health.router.routes}  # type: ignore[attr-defined]
    probes = [
        container[kind]["httpGet"]
        for container in containers()
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
        if kind in container
    ]

    assert probes
    assert {probe["path"] for probe in probes} <= known


def test_a_worker_may_finish_before_it_is_killed() -> None:
    default = Settings().shutdown_grace_seconds
    for pod in pods():
        if "terminationGracePeriodSeconds" in pod:
            (container,) = pod["containers"]
            given = {each["name"]: each["value"] for each in container.get("env", [])}
            grace = float(given.get("COMMANDBUS_SHUTDOWN_GRACE_SECONDS", default))
            assert pod["terminationGracePeriodSeconds"] == grace + MORE_SECONDS
            assert "lifecycle" not in container
    assert float(unit()["TimeoutStopSec"][0]) == default + MORE_SECONDS
    assert f"COMMANDBUS_SHUTDOWN_GRACE_SECONDS={default:g}" in unit()["Environment"]
    for name in ("worker", "api"):
        assert services()[name]["stop_grace_period"] == f"{default + MORE_SECONDS:g}s"


def test_nothing_runs_as_root_or_writes_to_its_image() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in pod["containers"])
    assert all(each["read_only"] for each in services().values())
    assert re.search(r"^USER 10001$", (DEPLOY / "Dockerfile").read_text(), re.M)


def test_workers_are_chosen_and_scaled_by_names_that_exist() -> None:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for each in documents():
        by_kind.setdefault(each["kind"], []).append(each)
    names = {each["metadata"]["name"] for each in by_kind["Deployment"]}
    labels = [
        each["spec"]["template"]["metadata"]["labels"].items() for each in by_kind["Deployment"]
    ]
    for each in by_kind["Deployment"] + by_kind["PodDisruptionBudget"]:
        assert any(each["spec"]["selector"]["matchLabels"].items() <= some for some in labels)
    for each in by_kind["ScaledObject"] + by_kind["HorizontalPodAutoscaler"]:
        assert each["spec"]["scaleTargetRef"]["name"] in names
    (scaled,) = by_kind["ScaledObject"]
    assert "commandbus.scale_metric(" in scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert scaled["spec"]["minReplicaCount"] >= 1


def test_what_monitoring_scrapes_and_shows_is_there() -> None:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    watching = {n: each for n, each in found["services"].items() if "profiles" in each}
    assert watching.keys() == {"exporter", "prometheus", "grafana"}
    assert all(each["profiles"] == ["monitoring"] for each in watching.values())
    for each in found["services"].values():
        for volume in each.get("volumes", []):
            place = volume.partition(":")[0]
            assert (DEPLOY / place).exists() if place[0] == "." else place in found["volumes"]

    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    worker, exporter = scraped["scrape_configs"]
    (names,) = worker["dns_sd_configs"]
    assert names["names"] == ["worker"]
    assert found["services"]["worker"]["command"][-1] == f"0.0.0.0:{names['port']}"
    (target,) = exporter["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert found["services"][host]["command"][-1] == f"0.0.0.0:{port}"

    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    shown = yaml.safe_load((provisioning / "dashboards" / "commandbus.yaml").read_text())
    folder = shown["providers"][0]["options"]["path"]
    mounted = [each.split(":")[1] for each in watching["grafana"]["volumes"]]
    assert f"{folder}/commandbus.json" in mounted
    assert "/etc/grafana/provisioning" in mounted


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")
def test_prometheus_accepts_its_configuration() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_accepts_the_manifests() -> None:
    validating = pytest.importorskip("kubernetes_validate")  # not in the environments of versions
    ours = [each for each in documents() if "keda" not in each["apiVersion"]]
    assert len(ours) >= 5
    for each in ours:
        validating.validate(each, validating.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    # The program is not installed there on this machine.
    copy.write_text(UNIT.read_text().replace("/opt/commandbus/bin/commandbus", "/bin/true"))

    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "commandbus-worker" not in done.stderr
