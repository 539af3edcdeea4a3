"""Quick processes: a small server that has imported everything and forks on demand.

A worker that starts from nothing spends half a second of a core on imports; a fork takes
milliseconds, so a storm can kill hundreds of them. Each child leads a process group of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Seconds between two looks for children that have ended.
REAP_SECONDS = 0.02
#: Seconds that a process may take to be forked.
FORK_SECONDS = 30.0


class Nursery:
    """The side of the orchestrator."""

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._born: asyncio.Queue[int] = asyncio.Queue()
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start the server; it imports the bus once."""
        # A measurement of coverage does not survive a fork, and would slow the workers down.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", f"import {__name__} as n; n.main()", str(self._log_folder),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True, env=environment,
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read())

    async def fork(self, config: dict[str, Any]) -> int:
        """Start a process in the given role; returns its pid."""
        assert self._process is not None
        assert self._process.stdin is not None
        async with self._turn:
            self._process.stdin.write(json.dumps(config).encode() + b"\n")
            await self._process.stdin.drain()
            return await asyncio.wait_for(self._born.get(), FORK_SECONDS)

    def exit_of(self, pid: int) -> asyncio.Future[int]:
        """Ends with the exit status of a child: negative if by a signal."""
        return self._exits.setdefault(pid, asyncio.get_running_loop().create_future())

    async def stop(self) -> None:
        """End the server; it kills what is left of its children."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word = json.loads(line)
            if "born" in word:
                self._born.put_nowait(word["born"])
            else:
                exit_of = self.exit_of(word["exit"])
                if not exit_of.done():
                    exit_of.set_result(word["status"])


def serve(roles: dict[str, Callable[[dict[str, Any]], None]], log_folder: Path) -> None:
    """Fork a child for each line on stdin; report births and exits on stdout."""
    children: set[int] = set()
    pending = b""
    is_open = True
    while is_open or children:
        ready, _, _ = select.select([0] if is_open else [], [], [], REAP_SECONDS)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                is_open = False
                for pid in children:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                config = json.loads(line)
                pid = _fork(roles[config["role"]], config, log_folder)
                children.add(pid)
                _say(born=pid)
        children -= _reap(children)


def _reap(children: set[int]) -> set[int]:
    ended = set()
    for pid in children:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.add(pid)
            _say(exit=pid, status=os.waitstatus_to_exitcode(status))
    return ended


def _say(**word: int) -> None:
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(word).encode() + b"\n")


def _fork(role: Callable[[dict[str, Any]], None], config: dict[str, Any], log_folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        path = log_folder / f"{config['role']}-{os.getpid()}.log"
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        role(config)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  (the last chance to say why)
        import traceback  # noqa: PLC0415  (only when something is wrong)

        traceback.print_exc()
    finally:
        # Never back into the loop of the parent, whatever has happened.
        os._exit(status)


def main() -> None:
    """Import the roles, and serve."""
    from faults.roles import ROLES  # noqa: PLC0415  (the costly import)

    serve(ROLES, Path(sys.argv[1]))
