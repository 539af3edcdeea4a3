"""Metrics and limits in headers: closed labels, counters that only grow, one question for many."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

from commandbus.errors import RateLimitExceededError
from commandbus.governance.model import ChildStatus, LimitState, LimitType
from commandbus.governance.types import BatchType, BatchTypes
from commandbus.http.context import limit_headers
from commandbus.http.metrics import (
    GovernedTracker,
    Metrics,
    NoMetrics,
    new_metrics,
)
from commandbus.monitoring.catalogue import MAX_DOMAINS, OTHER
from commandbus.testing import fake_bus
from commandbus.upkeep.figures import DomainFigures, GovernedFigures, LimitFigures, WorkerCount
from tests.http_world import app_of, client_of, problem

NOW = datetime(2026, 11, 16, tzinfo=UTC)
TYPES = BatchTypes()
TYPES.declare(BatchType(name="BATCH_CREATE", domain="shop", command_type="Create", max_size=5))


def a_domain(name: str, **changes: Any) -> DomainFigures:
    values: dict[str, Any] = {
        "domain": name, "ready": 3, "delayed": 2, "oldest_seconds": 1.5, "parked": 4, "workers": 1,
        "concurrency": 10, "in_flight": 2, "heartbeat_seconds": 0.5, "batch_remaining": 9,
        "replies": 4, "replies_refused": 3,
        "dispatch_lag_seconds": 7.5, "pending_retry": 6, "unconfirmed": 5,
        "unconfirmed_seconds": 8.5,
    }  # fmt: skip
    return DomainFigures(**(values | changes))


def a_batch(**changes: Any) -> GovernedFigures:
    values: dict[str, Any] = {
        "batch_id": uuid4(), "batch_type": "BATCH_CREATE", "created_at": NOW, "completed_at": None,
        "succeeded": 0, "failed": 0, "canceled": 0,
    }  # fmt: skip
    return GovernedFigures(**(values | changes))


POOL = {"max": 10, "size": 2, "available": 1, "waiting": 0}


def figures(domains: Any = (), governed: Any = (), at: datetime = NOW) -> Any:
    return (domains, governed, POOL, at)


def line(metrics: NoMetrics, start: str) -> str | None:
    found = [text for text in metrics.text().decode().splitlines() if text.startswith(start + " ")]
    return found[0].rpartition(" ")[2] if found else None


def test_the_figures_of_a_domain_and_the_pool_are_gauges() -> None:
    metrics = Metrics(TYPES)
    metrics.take(*figures([a_domain("shop")]))

    assert line(metrics, 'commandbus_queue_depth{domain="shop",state="ready"}') == "3.0"
    assert line(metrics, 'commandbus_queue_depth{domain="shop",state="delayed"}') == "2.0"
    assert line(metrics, 'commandbus_oldest_age_seconds{domain="shop"}') == "1.5"
    assert line(metrics, 'commandbus_tsq_depth{domain="shop"}') == "4.0"
    assert line(metrics, 'commandbus_in_flight{domain="shop"}') == "2.0"
    assert line(metrics, 'commandbus_worker_heartbeat_seconds{domain="shop"}') == "0.5"
    assert line(metrics, 'commandbus_batch_remaining{domain="shop"}') == "9.0"
    assert line(metrics, 'commandbus_replies_depth{domain="shop"}') == "4.0"
    assert line(metrics, 'commandbus_replies_refused{domain="shop"}') == "3.0"
    assert line(metrics, 'commandbus_dispatch_lag_seconds{domain="shop"}') == "7.5"
    assert line(metrics, 'commandbus_pending_retry{domain="shop"}') == "6.0"
    assert line(metrics, 'commandbus_unconfirmed{domain="shop"}') == "5.0"
    assert line(metrics, 'commandbus_unconfirmed_age_seconds{domain="shop"}') == "8.5"
    assert line(metrics, 'commandbus_db_pool_max{pool="caller"}') == "10.0"


def test_a_domain_that_is_gone_has_no_series_any_more() -> None:
    metrics = Metrics(TYPES)
    metrics.take(*figures([a_domain("shop"), a_domain("old")]))
    metrics.take(*figures([a_domain("shop")]))

    assert 'domain="old"' not in metrics.text().decode()
    assert 'domain="shop"' in metrics.text().decode()


def test_more_domains_than_anybody_has_are_summed() -> None:
    metrics = Metrics(TYPES)
    metrics.take(*figures([a_domain(f"d{n}") for n in range(MAX_DOMAINS + 3)]))

    assert line(metrics, f'commandbus_tsq_depth{{domain="{OTHER}"}}') == "12.0"
    assert metrics.text().decode().count("commandbus_tsq_depth{") == MAX_DOMAINS + 1


def test_labels_take_no_value_that_a_client_wrote() -> None:
    metrics = Metrics(TYPES)
    metrics.submitted("BATCH_CREATE", "accepted")
    metrics.submitted("BATCH_MADE_UP", "invalid")
    metrics.limited("user_cooldown")
    metrics.limited("auth_failures")
    metrics.limited("made_up")
    metrics.answered("BREW", "unmatched", 405, 0.1)

    assert line(metrics, 'batch_submit_total{batch_type="BATCH_CREATE",result="accepted"}') == "1.0"
    assert line(metrics, 'batch_submit_total{batch_type="other",result="invalid"}') == "1.0"
    assert line(metrics, 'rate_limit_rejections_total{limit_type="user_cooldown"}') == "1.0"
    assert line(metrics, 'rate_limit_rejections_total{limit_type="other"}') == "1.0"
    assert line(metrics, 'commandbus_rate_limit_rejected_total{layer="user"}') == "1.0"
    assert line(metrics, 'commandbus_rate_limit_rejected_total{layer="address"}') == "1.0"
    text = metrics.text().decode()
    assert "made_up" not in text.lower()
    assert "BREW" not in text
    with pytest.raises(ValueError, match="no result"):
        metrics.submitted("BATCH_CREATE", "whatever")


def test_governed_batches_become_counters_that_only_grow() -> None:
    metrics = Metrics(TYPES)
    metrics._tracker = GovernedTracker(NOW - timedelta(seconds=1))
    batch = a_batch(succeeded=2, failed=1)
    success = 'batch_child_execution_total{batch_type="BATCH_CREATE",status="SUCCESS"}'
    failed = 'batch_child_execution_total{batch_type="BATCH_CREATE",status="FAILED"}'

    metrics.take(*figures(governed=[batch]))
    assert (line(metrics, success), line(metrics, failed)) == ("2.0", "1.0")
    # A retry takes the failed child back; it succeeds.
    metrics.take(*figures(governed=[replace(batch, failed=0)], at=NOW + timedelta(seconds=5)))
    ended = replace(batch, succeeded=3, failed=0, completed_at=NOW + timedelta(seconds=7))
    for _ in range(2):
        metrics.take(*figures(governed=[ended], at=NOW + timedelta(seconds=10)))

    assert (line(metrics, success), line(metrics, failed)) == ("3.0", "1.0")
    assert line(metrics, "batch_parent_duration_seconds_count") == "1.0"
    assert line(metrics, "batch_parent_duration_seconds_sum") == "7.0"


def test_what_happened_before_the_process_started_is_not_counted() -> None:
    tracker = GovernedTracker(NOW)
    old = a_batch(created_at=NOW - timedelta(hours=1), succeeded=5)

    assert tracker.take([old], NOW) == ({}, [])
    assert tracker.take([replace(old, succeeded=6)], NOW + timedelta(seconds=5)) == (
        {("BATCH_CREATE", ChildStatus.SUCCESS): 1}, [],
    )  # fmt: skip


def test_a_batch_that_ended_long_ago_is_forgotten() -> None:
    tracker = GovernedTracker(NOW - timedelta(hours=3))
    tracker.take([a_batch(created_at=NOW - timedelta(hours=2), completed_at=NOW)], NOW)
    assert len(tracker._seen) == 1

    tracker.take([], NOW + timedelta(hours=2))

    assert tracker._seen == {}


class Asked:
    """Figures that count how often they are asked for."""

    def __init__(self) -> None:
        self.since: list[datetime] = []

    async def domains(self) -> list[DomainFigures]:
        return [a_domain("shop")]

    async def worker_counts(self) -> list[WorkerCount]:
        return [WorkerCount("shop", "Work", "completed", 7, 0.0)]

    async def limits(self) -> list[LimitFigures]:
        return [LimitFigures("shop", "Work", 10, 7)]

    async def governed(self, since: datetime) -> list[GovernedFigures]:
        self.since.append(since)
        return []

    async def shards(self) -> dict[str, bool]:
        return {}

    def pool(self) -> dict[str, int]:
        return POOL


async def test_the_database_is_asked_once_for_many_scrapes() -> None:
    metrics, asked = Metrics(TYPES), Asked()

    for _ in range(5):
        await metrics.refresh(cast("Any", asked), 60)
    assert len(asked.since) == 1
    assert line(metrics, 'commandbus_tsq_depth{domain="shop"}') == "4.0"
    labels = '{domain="shop",outcome="completed",type="Work"}'
    assert line(metrics, f"commandbus_workers_commands_total{labels}") == "7.0"

    for _ in range(2):
        await metrics.refresh(cast("Any", asked), 0)
    assert len(asked.since) == 3


async def test_without_prometheus_client_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)

    metrics = new_metrics(TYPES)

    assert not metrics.is_on
    metrics.answered("GET", "/", 200, 0.1)
    metrics.limited("x")
    metrics.submitted("x", "y")
    await metrics.refresh(cast("Any", Asked()), 0)
    assert metrics.text() == b""


async def test_without_prometheus_client_the_route_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    async with client_of(app_of(fake_bus())) as client:
        answer = await client.get("/metrics")

    assert "commandbus[metrics]" in problem(answer, 503, "UNAVAILABLE")["detail"]


# -- headers


def a_limit(
    kind: LimitType, current: int, most: int | None, reset: int | None = None
) -> LimitState:
    return LimitState(kind, "global", current, most, reset)


def test_limits_are_named_policies_in_two_header_fields() -> None:
    headers = limit_headers(
        [
            a_limit(LimitType.GLOBAL_API_REQUESTS, 2, 1000, 34),
            a_limit(LimitType.USER_PENDING_BATCHES, 5, 3),
            a_limit(LimitType.USER_PENDING_CHILDREN, 5, None),
            a_limit(LimitType.USER_COOLDOWN, 1, 120, 77),
        ]
    )

    assert headers == {
        "RateLimit-Policy": '"global_api_requests";q=1000;w=60, "user_pending_batches";q=3, '
        '"user_cooldown";q=1;w=120',
        "RateLimit": '"global_api_requests";r=998;t=34, "user_pending_batches";r=0, '
        '"user_cooldown";r=0;t=77',
    }


def test_without_limits_there_are_no_headers() -> None:
    assert limit_headers([]) == {}
    assert limit_headers([a_limit(LimitType.USER_COOLDOWN, 0, 0)]) == {}


class Governed:
    """A governance that counts requests, and has had enough after two."""

    is_available = True

    def __init__(self) -> None:
        self.users: list[str] = []
        self.types = BatchTypes()
        self.types.declare(
            BatchType(name="BATCH_ORDER", domain="shop", command_type="Order", max_size=5)
        )

    async def count_request(self, user_id: str) -> LimitState:
        self.users.append(user_id)
        if len(self.users) > 2:
            raise RateLimitExceededError(
                "global_api_requests", "global", 3, 2, 12, contact_admin=False
            )
        return LimitState(LimitType.GLOBAL_API_REQUESTS, "global", len(self.users), 2, 12)


async def test_each_request_of_the_api_is_counted_and_the_answer_says_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = fake_bus()
    governed = Governed()
    monkeypatch.setattr(type(bus), "governance", governed)
    app = app_of(bus)

    async with client_of(app) as client, client_of(app, None) as stranger:
        await client.get("/livez")
        await stranger.get("/api/v1/whoami")
        first = await client.get("/api/v1/whoami")
        refused = await client.get("/api/v1/commands?limit=0")
        limited = await client.get("/api/v1/whoami")

    assert governed.users == ["root"] * 3
    assert first.headers["ratelimit-policy"] == '"global_api_requests";q=2;w=60'
    assert first.headers["ratelimit"] == '"global_api_requests";r=1;t=12'
    assert refused.status_code == 400
    assert refused.headers["ratelimit"] == '"global_api_requests";r=0;t=12'
    body = problem(limited, 429, "RATE_LIMIT_EXCEEDED")
    assert (body["limit_type"], limited.headers["retry-after"]) == ("global_api_requests", "12")
    metrics = app.state.commandbus.metrics
    assert line(metrics, 'rate_limit_rejections_total{limit_type="global_api_requests"}') == "1.0"
