"""Health of a process: what makes it not live, not ready, not started."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from commandbus.monitoring import Health, Monitor
from commandbus.monitoring.health import LAG_SECONDS
from tests.waiting import until


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Workers:
    """Stands for the workers of a process."""

    dead: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    begun: bool = True

    def dead_parts(self) -> list[str]:
        return self.dead

    def stuck_domains(self) -> list[str]:
        return self.stuck

    def has_begun(self) -> bool:
        return self.begun


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    made = Health(clock=clock)
    made.watched = Workers()
    made.beat()
    return made


def test_a_process_that_works_is_live_ready_and_started(health: Health) -> None:
    assert health.not_live() == health.not_ready() == health.not_started() == []


def test_a_loop_that_does_not_turn_is_not_live(health: Health, clock: Clock) -> None:
    clock.now += 10.0
    assert health.not_live() == []
    clock.now += 1.0
    assert health.not_live() == ["the event loop has been blocked for 11 s"]
    assert "the event loop has been blocked for 11 s" in health.not_ready()


def test_a_dead_lease_keeper_is_not_live(health: Health) -> None:
    health.watched = Workers(dead=["the thread that extends leases"])

    assert health.not_live() == ["the thread that extends leases has ended"]


def test_without_heartbeats_it_is_live_and_not_ready(health: Health, clock: Clock) -> None:
    clock.now += 31.0
    health.tick()

    assert health.not_live() == []
    assert health.not_ready() == ["the last heartbeat was committed 31 s ago"]


def test_before_the_first_heartbeat_it_is_not_ready(clock: Clock) -> None:
    assert Health(clock=clock).not_ready() == ["no heartbeat has been committed yet"]


def test_stuck_handlers_a_stop_and_a_foreign_schema_are_not_ready(health: Health) -> None:
    health.watched = Workers(stuck=["shop"])
    health.is_stopping = True
    health.schema_error = "the schema is too new"

    assert health.not_ready() == [
        "it is stopping",
        "the schema is too new",
        "handlers that hang have taken all places of shop",
    ]
    assert health.not_live() == []


def test_once_started_it_stays_started(health: Health) -> None:
    health.watched = Workers(begun=False)
    assert health.not_started() == ["no worker has asked for commands yet"]
    health.watched = Workers()
    assert health.not_started() == []
    health.watched = Workers(begun=False)
    assert health.not_started() == []


def test_the_lag_is_the_worst_of_the_last_seconds(health: Health, clock: Clock) -> None:
    clock.now += 3.0
    assert health.loop_lag == 2.5  # it is blocked at this moment
    health.tick()
    clock.now += 0.5
    health.tick()
    assert health.loop_lag == 2.5
    clock.now += LAG_SECONDS
    health.begin()
    health.tick()
    assert health.loop_lag == 0.0


async def test_a_monitor_notes_the_turns_of_the_loop() -> None:
    import asyncio

    monitor = Monitor()
    watching = asyncio.create_task(monitor.watch_loop())
    await until(lambda: monitor.health._lags, "a turn of the loop")
    watching.cancel()

    assert b"commandbus_loop_lag_seconds" in monitor.metrics.text()
