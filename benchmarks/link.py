"""The runner's side of the protocol: one adapter process, asked over pipes."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from benchmarks.adapters.base import TALLY_FIELDS, TALLY_SLOTS

ROOT = Path(__file__).resolve().parent.parent
PEERS_PYTHON = Path(
    os.environ.get("BENCH_PEERS_PYTHON", ROOT / "benchmarks" / ".venv-peers" / "bin" / "python")
)
TICKS = os.sysconf("SC_CLK_TCK")


class AdapterError(Exception):
    """An adapter said no, died, or did not answer in time."""


class Board:
    """The memory in which the handlers of all worker processes count themselves."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="bench-tally-")  # noqa: SIM115
        self._file.truncate(8 * TALLY_FIELDS * TALLY_SLOTS)
        self.path = self._file.name
        self._numbers = memoryview(mmap.mmap(self._file.fileno(), 0)).cast("d")

    def clear(self) -> None:
        """Forget everything."""
        for index in range(TALLY_FIELDS * TALLY_SLOTS):
            self._numbers[index] = 0.0

    @property
    def started(self) -> int:
        """Handlers that have started, in all processes."""
        return int(sum(self._numbers[0::TALLY_FIELDS]))

    def have_started(self, processes: int, number: int) -> bool:
        """Whether this number of processes have each started at least that number."""
        return sum(tally >= number for tally in self._numbers[0::TALLY_FIELDS]) >= processes

    @property
    def first_start(self) -> float:
        """When the first of them did."""
        return min(stamp for stamp in self._numbers[1::TALLY_FIELDS] if stamp)

    @property
    def last_start(self) -> float:
        """When the latest did."""
        return max(self._numbers[2::TALLY_FIELDS])


class Link:
    """One adapter process."""

    def __init__(
        self,
        module: str,
        *,
        is_peer: bool,
        log: Path,
        loop: str | None = None,
        source: str | None = None,
    ) -> None:
        python = str(PEERS_PYTHON) if is_peer else sys.executable
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if is_peer:
            environment.pop("PYTHONPATH", None)
        if loop:
            environment["BENCH_LOOP"] = loop
        if source:
            environment["PYTHONPATH"] = source
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.adapters.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env=environment,
            start_new_session=True,  # so that what it starts ends with it
        )
        assert self._process.stdout is not None
        self._answers = self._process.stdout.fileno()
        self._buffer = b""
        self.module = module

    @property
    def pid(self) -> int:
        """For /proc."""
        return self._process.pid

    def post(self, verb: str, **arguments: Any) -> None:
        """Ask, and do not wait for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": verb, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise AdapterError(f"{self.module} has ended; its log is {self._log.name}") from error

    def answer(self, timeout: float = 120.0) -> dict[str, Any]:
        """The answer to the oldest open question."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise AdapterError(f"{self.module} did not answer in {timeout:.0f} s")
            read = os.read(self._answers, 1 << 20)
            if not read:
                raise AdapterError(f"{self.module} has ended: {self._last_words()}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        document: dict[str, Any] = json.loads(line)
        if "error" in document:
            raise AdapterError(f"{self.module}: {document['error']}")
        found: dict[str, Any] = document["ok"]
        return found

    def ask(self, verb: str, *, timeout: float = 120.0, **arguments: Any) -> dict[str, Any]:
        """Ask and wait."""
        self.post(verb, **arguments)
        return self.answer(timeout)

    def _last_words(self) -> str:
        lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def peak_bytes(self) -> int:
        """The most memory that it ever had resident (VmHWM)."""
        return self._status("VmHWM") * 1024

    def resident_bytes(self) -> int:
        """The memory that it has now (VmRSS)."""
        return self._status("VmRSS") * 1024

    def _status(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
        return 0

    def cpu_seconds(self) -> float:
        """User and system time of it and of its children that have ended."""
        return sum(stat_times(self.pid))

    def close(self) -> None:
        """End it, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stat_times(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of its children that have ended."""
    text = Path(f"/proc/{pid}/stat").read_text()
    # The name, in parentheses, may hold spaces: count from behind it.
    fields = text[text.rindex(")") + 2 :].split()
    user, system, child_user, child_system = (int(field) for field in fields[11:15])
    return (user + system) / TICKS, (child_user + child_system) / TICKS


def machine_seconds() -> float:
    """CPU seconds of everything on this machine, also what the host took from it."""
    fields = Path("/proc/stat").read_text().split(maxsplit=9)
    user, nice, system, _idle, _waiting, *interrupts_and_host = (int(f) for f in fields[1:9])
    return (user + nice + system + sum(interrupts_and_host)) / TICKS


def address(conninfo: str) -> dict[str, str]:
    """An address in the two forms that adapters ask for."""
    parts: Mapping[str, Any] = conninfo_to_dict(conninfo)
    user, password = quote(str(parts["user"]), safe=""), quote(str(parts["password"]), safe="")
    host = quote(str(parts["host"]), safe="")
    who, where = f"postgresql://{user}:{password}", f"{parts['dbname']}?host={host}"
    return {
        "conninfo": conninfo,
        # asyncpg prefers the host before the path, sqlx the one behind it, but asks for both.
        "url": f"{who}@/{where}&port={parts['port']}",
        "url_with_host": f"{who}@localhost:{parts['port']}/{where}",
    }
