"""Reports: what worker processes tell their parent, and all of it as one.

Each process writes a line of JSON a second into a pipe, from a thread. The parent adds them up, so
that one port, or one file, stands for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from commandbus.monitoring.catalogue import FAMILIES, PROCESSES, RESTARTS
from commandbus.monitoring.exposition import exposition
from commandbus.monitoring.health import LIVE_SECONDS
from commandbus.monitoring.monitor import Monitor
from commandbus.monitoring.samples import Snapshot
from commandbus.monitoring.server import Pages

#: Seconds between two reports.
REPORT_SECONDS = 1.0
#: Seconds that the end waits for the last one.
STOP_SECONDS = 2.0
#: The longest report, in bytes: 200 types with all their series are a tenth of it.
MAX_REPORT = 16 * 1024 * 1024
PAGES = ("/livez", "/readyz", "/startupz")


class Reporter:
    """Writes what a monitor knows into a pipe, until `stop`."""

    def __init__(self, pipe: int, monitor: Monitor, every_seconds: float = REPORT_SECONDS) -> None:
        self._pipe = pipe
        self._monitor = monitor
        self._every = every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commandbus-reports", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the last figures, and no more."""
        self._ended.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self._every)
            line = written(self._monitor)
            try:
                while line:
                    line = line[os.write(self._pipe, line) :]
            except OSError:  # the parent is gone, and ends this process in another way
                return


def written(monitor: Monitor) -> bytes:
    """A report, as one line."""
    checks = monitor.pages().checks
    said = {path: checks[path]() for path in PAGES}
    series = [[family.name, labels, value] for family, labels, value in monitor.metrics.snapshot()]
    return json.dumps({"checks": said, "series": series}).encode() + b"\n"


@dataclass(eq=False)
class _Process:
    """What is known of one process."""

    is_running: bool = False
    #: Why it does not run.
    why: str = "it has not started"
    reported_at: float | None = None
    checks: dict[str, list[str]] = field(default_factory=dict)
    series: Snapshot = field(default_factory=Snapshot)


class Gathered:
    """What all processes of one parent have said; asked from any thread."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._processes = [_Process() for _ in range(count)]
        self._clock = clock
        self._lock = threading.Lock()
        #: What processes have counted that are no more: a sum must not fall when one ends.
        self._gone = Snapshot()
        self._restarts = 0
        self._is_stopping = False

    # -- told by the parent

    def started(self, number: int) -> None:
        """A process was started."""
        with self._lock:
            self._processes[number] = _Process(is_running=True)

    def restarted(self) -> None:
        """One was started again."""
        with self._lock:
            self._restarts += 1

    def said(self, number: int, line: bytes) -> None:
        """A process has reported; what cannot be read is left out."""
        try:
            document = json.loads(line)
            series = Snapshot()
            for name, labels, value in document["series"]:
                series.add(FAMILIES[name], tuple(labels), value)
            checks = {path: [str(each) for each in document["checks"][path]] for path in PAGES}
        except (ValueError, KeyError, TypeError):
            return
        with self._lock:
            process = self._processes[number]
            process.reported_at, process.checks, process.series = self._clock(), checks, series

    def ended(self, number: int, why: str) -> None:
        """A process has ended; what it counted stays."""
        with self._lock:
            self._gone.join(self._processes[number].series, counters_only=True)
            self._processes[number] = _Process(why=why)

    def stopping(self) -> None:
        """All of them are about to end."""
        with self._lock:
            self._is_stopping = True

    # -- asked by anybody

    def pages(self) -> Pages:
        """What a server, or a file, shows of all of them."""
        checks = {"/livez": self.not_live, "/readyz": self.not_ready, "/startupz": self.not_started}
        return Pages(lambda: exposition(self.snapshot()), checks)

    def snapshot(self) -> Snapshot:
        """All figures, added up."""
        made = Snapshot()
        with self._lock:
            made.join(self._gone)
            for process in self._processes:
                made.join(process.series)
            running = sum(process.is_running for process in self._processes)
            made.add(PROCESSES, ("running",), running)
            made.add(PROCESSES, ("down",), len(self._processes) - running)
            made.add(RESTARTS, (), self._restarts)
        return made

    def not_live(self) -> list[str]:
        """One that has ended is started again by the parent, so only those that run count."""
        return self._reasons("/livez", of_down=False)

    def not_ready(self) -> list[str]:
        """All of them must work."""
        reasons = self._reasons("/readyz", of_down=True)
        return ["it is stopping", *reasons] if self._is_stopping else reasons

    def not_started(self) -> list[str]:
        """All of them must have begun."""
        return self._reasons("/startupz", of_down=True)

    def _reasons(self, path: str, *, of_down: bool) -> list[str]:
        found: list[str] = []
        with self._lock:
            for number, process in enumerate(self._processes, 1):
                for reason in self._reasons_of(process, path, of_down=of_down):
                    found.append(f"process {number}: {reason}")  # noqa: PERF401
        return found

    def _reasons_of(self, process: _Process, path: str, *, of_down: bool) -> list[str]:
        if not process.is_running:
            return [process.why] if of_down else []
        if process.reported_at is None:
            return ["it is starting"] if of_down else []
        silence = self._clock() - process.reported_at
        if silence > LIVE_SECONDS:
            return [f"it has said nothing for {silence:.0f} s"]
        return process.checks[path]
