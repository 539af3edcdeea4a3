"""Sentry's integration of Django and our middleware together: nothing is said twice."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.django.sites import PATIENCE, SITE, environment

pytestmark = [pytest.mark.xdist_group("django"), pytest.mark.postgres]

SENTRY = "commandbus.middleware.sentry.Sentry"


def reported(site: str, *middleware: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "reporting.py"], cwd=SITE, capture_output=True, text=True,
        env=environment(site, bus={"MIDDLEWARE": middleware}), timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_task_that_fails_is_one_event_in_the_trace_and_its_send_one_span(site: str) -> None:
    found = reported(site, SENTRY)
    (event,) = [each for each in found["kept"] if each.get("type") != "transaction"]
    assert [each["value"] for each in event["exception"]["values"]] == ["no good"]
    assert event["fingerprint"] == [
        "commandbus", "tasks", "shop.tasks.fails", "TRANSIENT", "ValueError",
    ]  # fmt: skip
    assert event["tags"]["commandbus.outcome"] == "parked"
    assert event["tags"]["commandbus.attempt"] == "2"
    assert event["contexts"]["command"]["command_id"] == found["made"]["fails"]
    assert event["contexts"]["trace"]["trace_id"] == found["trace_id"]

    (request,) = [each for each in found["kept"] if each.get("type") == "transaction"]
    submitted = [
        each["description"] for each in request["spans"] if each["op"] == "queue.submit.django"
    ]
    # Since Django 6; sentry-sdk does not know the tasks of the package django-tasks.
    wanted = [f"shop.tasks.{name}" for name in ("fails", "add", "attempts")]
    assert submitted in (wanted, [])
    assert len({each["span_id"] for each in request["spans"]}) == len(request["spans"])


def test_without_the_middleware_the_log_of_django_is_the_event(site: str) -> None:
    found = reported(site)
    (event,) = [each for each in found["kept"] if each.get("type") != "transaction"]
    assert event["logger"] in {"django.tasks", "django_tasks"}
    assert "commandbus.domain" not in (event.get("tags") or {})
