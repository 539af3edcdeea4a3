"""Who is alive, and what is decided about a server; the rest runs against real servers."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from commandbus.embedded import processes
from commandbus.embedded.cluster import locale_options
from commandbus.embedded.decision import Decision, decide
from commandbus.embedded.folder import ServerRecord
from commandbus.embedded.processes import (
    Deadline,
    Process,
    is_alive,
    look_up,
    send_signal,
)
from commandbus.errors import EmbeddedServerError

SERVER = Process(100, "1", 1000, ("/usr/bin/postgres", "-D", "/data", "-c", "cluster_name=tag"))
PLAIN = ServerRecord("tag", "/data", 5432, has_tcp=False, settings={"work_mem": "7MB"})
WITH_TCP = ServerRecord("tag", "/data", 5433, has_tcp=True, settings={})


@pytest.mark.parametrize(
    ("running", "pid_in_file", "record", "tcp_port", "settings", "is_alone", "expected"),
    [
        (None, None, None, None, {}, True, Decision.LAUNCH),
        (None, 100, PLAIN, None, {}, False, Decision.LAUNCH),
        (SERVER, 100, PLAIN, None, {}, True, Decision.ADOPT),
        (SERVER, 100, WITH_TCP, None, {}, True, Decision.ADOPT),
        (SERVER, 100, WITH_TCP, 5433, {}, True, Decision.ADOPT),
        (SERVER, 100, PLAIN, None, {"work_mem": "7MB"}, False, Decision.ADOPT),
        (SERVER, 100, PLAIN, None, {"work_mem": "8MB"}, False, Decision.ADOPT),
        (SERVER, 100, PLAIN, None, {"work_mem": "8MB"}, True, Decision.REPLACE),
        (SERVER, 100, WITH_TCP, 5434, {}, True, Decision.REPLACE),
        (SERVER, 99, PLAIN, None, {}, False, Decision.REPLACE),
        (SERVER, None, PLAIN, None, {}, True, Decision.REPLACE),
        (SERVER, 100, None, None, {}, True, Decision.REPLACE),
    ],
)
def test_decision_follows_the_table(
    running: Process | None,
    pid_in_file: int | None,
    record: ServerRecord | None,
    tcp_port: int | None,
    settings: dict[str, str],
    is_alone: bool,
    expected: Decision,
) -> None:
    decision = decide(
        running=running,
        pid_in_file=pid_in_file,
        record=record,
        tcp_port=tcp_port,
        settings=settings,
        is_alone=is_alone,
    )
    assert decision is expected


def test_decision_is_refused_when_others_use_a_server_without_the_port() -> None:
    with pytest.raises(EmbeddedServerError, match="port 5432 and others use it"):
        decide(
            running=SERVER,
            pid_in_file=100,
            record=PLAIN,
            tcp_port=5432,
            settings={},
            is_alone=False,
        )


@pytest.mark.parametrize("has_proc", [True, False])
def test_process_is_dead_when_it_is_a_zombie_or_its_pid_was_reused(
    has_proc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_proc:
        monkeypatch.setattr(processes, "PROC", tmp_path)
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        found = look_up(sleeper.pid)
        assert found is not None
        assert is_alive(found)
        assert not is_alive(Process(found.pid, "another start", found.uid, found.arguments))
        send_signal(found, signal.SIGKILL)
        # Not reaped yet: a zombie keeps its pid but is dead.
        assert Deadline.after(10).wait_until(lambda: not is_alive(found))
        assert look_up(sleeper.pid) is None
        send_signal(found, signal.SIGKILL)


def test_signal_is_no_error_when_the_process_ends_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(processes, "is_alive", lambda process: True)
    monkeypatch.setattr(os, "kill", gone)
    send_signal(SERVER, signal.SIGINT)


def test_deadline_gives_the_condition_a_last_chance_and_then_up() -> None:
    answers = iter([False, True])
    assert not Deadline.after(0.0).wait_until(lambda: next(answers))
    assert next(answers)


@pytest.mark.parametrize(
    ("major", "first"), [(15, "--locale=C.UTF-8"), (18, "--locale-provider=builtin")]
)
def test_locale_is_builtin_where_the_version_has_it(major: int, first: str) -> None:
    assert locale_options(major)[0][0] == first
