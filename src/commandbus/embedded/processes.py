"""Which processes belong to a cluster, and whether one of them still lives.

A pid proves nothing: it may have been reused, even by a thread. So every server carries a
tag in its command line (`cluster_name=<tag>`, which PostgreSQL also shows in the titles of its
children), and a process is remembered as pid *and* kernel start time.

The start time is compared only with itself. The wall-clock time in postmaster.pid is not used:
a clock that is set at boot moves it by years.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
#: Short at first, because a start takes a tenth of a second; longer later, because every
#: refused connection is a line in the server's log.
FIRST_POLL_SECONDS = 0.01
LONGEST_POLL_SECONDS = 0.2

#: pid, uid, state, five words of start time ("Tue Nov 15 21:21:00 2026"), command.
PS_WORDS = 9


@dataclass(frozen=True)
class Process:
    """A live process. Zombies are not listed: they use nothing but their pid any more."""

    pid: int
    #: Opaque: equal if and only if it is the same process.
    started: str
    uid: int = field(compare=False)
    arguments: tuple[str, ...] = field(compare=False)


@dataclass(frozen=True)
class Deadline:
    """A point on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline that many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def remaining_seconds(self) -> float:
        """Never negative."""
        return max(0.0, self.at - time.monotonic())

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Poll until the condition holds (True) or the time is up (False)."""
        pause_seconds = FIRST_POLL_SECONDS
        while not condition():
            if self.remaining_seconds == 0:
                return False
            time.sleep(min(pause_seconds, self.remaining_seconds))
            pause_seconds = min(pause_seconds * 1.5, LONGEST_POLL_SECONDS)
        return True


def find_postmaster(tag: str, uid: int) -> Process | None:
    """The server of the cluster with this tag, whatever its pid file says."""
    found = [process for process in _list_processes(uid) if _is_postmaster(process, tag)]
    # A child that was forked this very moment still shows the command line of its parent.
    return min(found, key=lambda process: (process.started, process.pid), default=None)


def find_backends(tag: str, uid: int) -> list[Process]:
    """The children of that server, which outlive it for a moment when it is killed."""
    title = f"postgres: {tag}: "
    return [
        process
        for process in _list_processes(uid)
        if process.arguments[0].startswith(title) or _is_postmaster(process, tag)
    ]


def look_up(pid: int) -> Process | None:
    """The live process with this pid, if there is one."""
    if PROC.joinpath("self", "stat").exists():
        return _read_proc(pid)
    return next(iter(_read_ps("-p", str(pid))), None)


def is_alive(process: Process) -> bool:
    """Whether this very process still runs, not merely some process with its pid."""
    return look_up(process.pid) == process


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this very process; one that is gone is not an error."""
    if is_alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _is_postmaster(process: Process, tag: str) -> bool:
    program, last = process.arguments[0], process.arguments[-1]
    return program.startswith("/") and program.endswith("/postgres") and last == cluster_name(tag)


def cluster_name(tag: str) -> str:
    """The last argument of every server that we launch."""
    return f"cluster_name={tag}"


def _list_processes(uid: int) -> Iterator[Process]:
    if not PROC.joinpath("self", "stat").exists():
        yield from (process for process in _read_ps("-A") if process.uid == uid)
        return
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            process = _read_proc(int(entry.name))
            if process is not None and process.uid == uid:
                yield process


def _read_proc(pid: int) -> Process | None:
    folder = PROC / str(pid)
    try:
        # The name in parentheses may itself contain spaces and parentheses.
        fields = folder.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()
        command = folder.joinpath("cmdline").read_bytes()
        uid = folder.stat().st_uid
    except OSError:
        return None
    state, started = fields[0], fields[19]
    arguments = tuple(os.fsdecode(command).rstrip("\0").split("\0"))
    # Padded, so that later starts sort after earlier ones.
    return None if state in "ZX" else Process(pid, started.zfill(20), uid, arguments)


def _read_ps(*selection: str) -> list[Process]:
    """The same from `ps`, for systems without /proc."""
    columns = ["-ww", "-o", "pid=", "-o", "uid=", "-o", "stat=", "-o", "lstart=", "-o", "command="]
    listing = subprocess.run(  # noqa: S603 - no shell; fixed arguments
        ["/bin/ps", *selection, *columns],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={"LC_ALL": "C"},
        check=False,
    ).stdout
    return [process for line in listing.splitlines() if (process := _parse_ps_line(line))]


def _parse_ps_line(line: str) -> Process | None:
    words = line.split(None, PS_WORDS - 1)
    if len(words) < PS_WORDS or words[2].startswith("Z"):
        return None
    moment = time.strptime(" ".join(words[4:8]), "%b %d %H:%M:%S %Y")
    # In this form later starts sort after earlier ones.
    started = time.strftime("%Y-%m-%dT%H:%M:%S", moment)
    # `ps` does not quote: the program's path ends where our first option begins.
    program, option, rest = words[8].partition(" -D ")
    arguments = (program, "-D", *rest.split()) if option else (program,)
    return Process(int(words[0]), started, int(words[1]), arguments)
