"""HealthFile: the health of a process in a file, for probes where no port may be open.

Written every few seconds by a thread, so that an event loop that is blocked is reported, and not
merely silent. A probe looks at the time of the file first: what is old says nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

from commandbus.errors import InvalidSettingError
from commandbus.monitoring.server import Pages

#: Seconds between two writes.
WRITE_SECONDS = 2.0
#: Seconds that the end waits for the thread.
STOP_SECONDS = 2.0

_log = logging.getLogger("commandbus.cli")


class HealthFile:
    """Writes what the pages say, between `start` and `stop`; then the file is removed."""

    def __init__(self, path: Path, pages: Pages, every_seconds: float = WRITE_SECONDS) -> None:
        self._path = path
        self._pages = pages
        self._every = every_seconds
        self._ended = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(
            target=self._run, name="commandbus-health-file", daemon=True
        )

    def start(self) -> None:
        """Write it once, so that a mistake is reported at once, and go on in a thread."""
        try:
            self._write()
        except OSError as error:
            raise InvalidSettingError(
                f"cannot write {self._path}: {error.strerror or error}; choose another file with "
                "--health-file"
            ) from None
        self._thread.start()

    def stop(self) -> None:
        """Write no more: a process that has ended is not well."""
        self._ended.set()
        self._thread.join(STOP_SECONDS)
        with suppress(OSError):
            self._path.unlink()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self._write()
            except OSError as error:
                if not self._has_failed:  # a full disk is full for long
                    _log.warning("cannot write the health to %s: %s", self._path, error)
                self._has_failed = True
            else:
                self._has_failed = False

    def _write(self) -> None:
        text = "".join(
            f"{path.lstrip('/')}: {reason}\n"
            for path, check in self._pages.checks.items()
            for reason in check() or ["ok"]
        )
        # Whole, or not at all: a probe may read at any moment.
        half = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        half.write_text(text, encoding="utf-8")
        half.replace(self._path)
