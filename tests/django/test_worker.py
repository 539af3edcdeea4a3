"""`manage.py commandbus worker`: ORM handlers in a process that is stopped, cut off and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from commandbus import BatchCommand, BlockingBus, new_id
from tests.django.sites import PATIENCE, SITE, by_connections, environment, manage
from tests.waiting import until_sync

pytestmark = [pytest.mark.xdist_group("django"), pytest.mark.postgres]


@contextmanager
def working(
    site: str, log: Path, *options: str, database: dict[str, Any] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the project, until the block is left."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "commandbus", "worker", *options], cwd=SITE,
            env=environment(site, database=database), stdout=output, stderr=output,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def query(site: str, text: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(site, autocommit=True) as conn:
        return conn.execute(text, values).fetchall()


def state(site: str, command_id: UUID) -> tuple[str, int]:
    ((status, attempts),) = query(
        site,
        "select status, attempts from commandbus.command_bus_command where command_id = %s",
        command_id,
    )
    return status, attempts


def until_completed(site: str, command_id: UUID) -> None:
    until_sync(lambda: state(site, command_id)[0] == "COMPLETED", timeout=60)


def paid(site: str) -> int:
    return int(query(site, "select coalesce(sum(paid), 0) from shop_order")[0][0])


@pytest.mark.parametrize("database", by_connections())
def test_connections_that_are_cut_between_two_commands_park_nothing_and_cost_no_attempt(
    site: str, tmp_path: Path, database: dict[str, Any]
) -> None:
    log = tmp_path / "log"
    with (
        BlockingBus.connect(site) as bus,
        working(site, log, "-d", "shop", database=database) as one,
    ):
        for number in range(3):
            ids = [
                bus.send("shop", kind, new_id(), {"number": f"{kind}{number}"})
                for kind in ("Pay", "Note", "Count")
            ]
            for command_id in ids:
                until_completed(site, command_id)
                assert state(site, command_id) == ("COMPLETED", 1), log.read_text()
            query(
                site,
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name = 'shop'",
            )
        assert paid(site) == 3
        one.send_signal(signal.SIGTERM)
        assert one.wait(PATIENCE) == 0, log.read_text()
    assert "stopping" in log.read_text()  # under manage.py a worker logs
    assert "failed on attempt" not in log.read_text()


def test_several_processes_set_django_up_by_themselves(site: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        BlockingBus.connect(site) as bus,
        working(site, log, "-d", "shop", "--processes", "2") as parent,
    ):
        until_sync(lambda: log.read_text().count("serves shop") == 2, timeout=PATIENCE)
        until_completed(site, bus.send("shop", "Pay", new_id(), {"number": "1"}))
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(PATIENCE) == 0, log.read_text()
    assert paid(site) == 1


@pytest.mark.parametrize("how", ["loses_connection", "reads_only"])
@pytest.mark.parametrize("kind", ["Pay", "Note"])
def test_a_connection_that_is_cut_or_reads_only_while_a_handler_works_costs_no_attempt(
    site: str, tmp_path: Path, kind: str, how: str
) -> None:
    log = tmp_path / "log"
    with BlockingBus.connect(site) as bus, working(site, log, "-d", "shop"):
        command_id = bus.send("shop", kind, new_id(), {"number": "1", how: True})
        until_completed(site, command_id)
        assert state(site, command_id)[1] == 1, log.read_text()
        trail = bus.get_audit_trail("shop", command_id)
        assert "SNOOZED" in {event.event_type for event in trail}
        assert "DATABASE_UNAVAILABLE" in str([event.details for event in trail])
    assert query(site, "select count(*) from shop_order") == [(1,)]


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_connections_that_are_cut_in_many_handlers_park_nothing_and_cost_no_attempt(
    site: str, tmp_path: Path
) -> None:
    count = int(os.environ.get("DJANGO_CUTS", "200"))
    log = tmp_path / "log"
    with BlockingBus.connect(site) as bus:
        bus.send_many(
            "shop",
            [
                BatchCommand(kind, new_id(), {"number": f"{n}", "loses_connection": True})
                for n, kind in zip(range(count), cycle(("Pay", "Note")), strict=False)
            ],
        )
        with working(site, log, "-d", "shop", "--concurrency", "4"):

            def states() -> list[tuple[Any, ...]]:
                return query(
                    site,
                    "select status, attempts, snoozes, count(*)"
                    " from commandbus.command_bus_command group by 1, 2, 3",
                )

            def is_done() -> bool:
                return {status for status, *_ in states()}.isdisjoint({"PENDING", "IN_PROGRESS"})

            until_sync(is_done, timeout=PATIENCE + count)
    # Each connection was ended by the server while its handler had the command.
    assert states() == [("COMPLETED", 1, 1, count)], log.read_text()[-4_000:]
    assert query(site, "select count(*) from shop_order") == [(count,)]


def test_a_lost_lease_rolls_the_rows_of_the_orm_back(site: str, tmp_path: Path) -> None:
    with BlockingBus.connect(site) as bus, working(site, tmp_path / "log", "-d", "shop"):
        command_id = bus.send("shop", "Pay", new_id(), {"number": "1", "loses_lease": True})

        def is_refused() -> bool:
            trail = bus.get_audit_trail("shop", command_id)
            return "STALE_RESULT_REJECTED" in {event.event_type for event in trail}

        until_sync(is_refused, timeout=PATIENCE)
        assert query(site, "select count(*) from shop_order") == [(0,)]


@pytest.mark.parametrize("database", by_connections())
@pytest.mark.timeout(1_200)
def test_handlers_have_few_connections_however_many_commands_there_are(
    site: str, tmp_path: Path, database: dict[str, Any]
) -> None:
    most = 0
    count = int(os.environ.get("DJANGO_COMMANDS", "200"))
    with BlockingBus.connect(site) as bus:
        bus.send_many(
            "shop", [BatchCommand("Pay", new_id(), {"number": f"{n % 50}"}) for n in range(count)]
        )
        with working(site, tmp_path / "log", "-d", "shop", "--concurrency", "3", database=database):

            def is_done() -> bool:
                nonlocal most
                ((now,),) = query(
                    site,
                    "select count(*) from pg_stat_activity where application_name = 'shop'"
                    " and datname = current_database()",
                )
                most = max(most, int(now))
                ((left,),) = query(
                    site,
                    "select count(*) from commandbus.command_bus_command"
                    " where status <> 'COMPLETED'",
                )
                return left == 0

            until_sync(is_done, timeout=PATIENCE + count / 20)
    assert paid(site) == count
    assert 1 <= most <= 3 + 3


def kill(site: str, times: int) -> None:
    done = subprocess.run(
        [sys.executable, "killing.py", str(times)], cwd=SITE, env=environment(site),
        capture_output=True, text=True, timeout=PATIENCE + 20 * times, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["kills"] == times
    # The others came between two handlers, which happens and is no harm.
    assert found["kills_in_handlers"] >= times // 2, found
    assert found["paid"] == found["completed"] == found["sent"], (found, done.stderr[-2_000:])


def test_rows_and_completions_are_equal_though_workers_are_killed(site: str) -> None:
    kill(site, 8)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_rows_and_completions_are_equal_though_workers_are_killed_often(
    new_site: Callable[[], str],
) -> None:
    # A kill is mostly waiting, for leases to lapse and for suspects to be alone: five at once.
    times = int(os.environ.get("DJANGO_KILLS", "60")) // 5
    with ThreadPoolExecutor(5) as threads:
        for done in [threads.submit(kill, new_site(), times) for _ in range(5)]:
            done.result()


def test_reload_is_refused_without_debug(site: str) -> None:
    done = manage(site, "commandbus", "worker", "--reload")
    assert (done.returncode, "needs DEBUG" in done.stderr) == (2, True)


def test_the_way_back_of_the_migrations_says_what_to_do(site: str) -> None:
    refused = manage(site, "migrate", "commandbus", "zero")
    assert "`manage.py migrate commandbus zero --fake`, then `manage.py commandbus db drop`" in (
        refused.stderr
    )
    faked = manage(site, "migrate", "commandbus", "zero", "--fake")
    assert faked.returncode == 0, faked.stderr
    again = manage(site, "migrate")
    assert (again.returncode, "commandbus.0001_initial... OK" in again.stdout) == (0, True)
