"""`--reload`: a worker of development that starts again whenever a file of the project changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from django.utils import autoreload

#: Seconds between two looks at the files, and until a stopping worker is ended for good.
LOOK_SECONDS = 1.0
STOP_SECONDS = 30.0


def run_again_and_again(arguments: list[str]) -> int:
    """Run `manage.py …` until it is stopped; returns its exit code.

    A process of its own: handlers that run are given their time, and the signals of a worker need
    the first thread of their process.
    """
    while True:
        worker = subprocess.Popen([sys.executable, *arguments])  # noqa: S603  (this very program)
        try:
            _until_changed(worker)
        except KeyboardInterrupt:
            return worker.wait()  # it got the signal too
        finally:
            _stop(worker)


def _until_changed(worker: subprocess.Popen[bytes]) -> None:
    """Wait for a change. A worker that has ended by itself waits for the change that repairs it."""
    before = _files()
    while _files() == before:
        if worker.poll() is not None and worker.returncode in {0, -signal.SIGTERM}:
            raise SystemExit(0)
        time.sleep(LOOK_SECONDS)
    sys.stderr.write("commandbus: a file has changed; the worker starts again\n")


def _files() -> dict[Path, float]:
    found = {}
    for path in autoreload.iter_all_python_module_files():
        try:
            found[path] = path.stat().st_mtime
        except OSError:
            continue  # being written
    return found


def _stop(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.terminate()
        try:
            worker.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
