"""Real worker processes, each in a process group of its own, so that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from commandbus.errors import CommandBusError

#: Seconds that a worker gets to stop by itself.
STOP_SECONDS = 5.0


class WorkerDiedError(CommandBusError):
    """A worker process of the demo ended by itself."""


class WorkerProcess:
    """`commandbus worker` in a process of its own."""

    def __init__(self, app: str, dsn: str, *, concurrency: int, vt_seconds: int) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        # The address goes by the environment: arguments can be read by everybody.
        environment = {**os.environ, "COMMANDBUS_DSN": dsn}
        self._process = subprocess.Popen(  # noqa: S603  (our own program)
            [
                sys.executable, "-m", "commandbus", "worker", app,
                "--concurrency", str(concurrency), "--vt-seconds", str(vt_seconds),
                "--log-level", "error",
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            process_group=0,
            cwd=Path.cwd(),
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def check(self) -> None:
        """Raise if it has ended, with the last line that it wrote."""
        if self._process.poll() is not None:
            self._log.seek(0)
            words = self._log.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise WorkerDiedError(
                f"a worker process ended with code {self._process.returncode}: {words or 'no word'}"
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its whole group; one that is gone is fine."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it at once, with SIGKILL."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def wait(self, deadline: float) -> None:
        """Wait until it has ended, then kill it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        self.kill()


def stop_all(workers: list[WorkerProcess]) -> None:
    """Stop workers gracefully, together; kill what does not."""
    deadline = time.monotonic() + STOP_SECONDS
    try:
        for worker in workers:
            worker.signal(signal.SIGTERM)
        for worker in workers:
            worker.wait(deadline)
    finally:
        # A second Ctrl-C may come in between.
        for worker in workers:
            worker.kill()
