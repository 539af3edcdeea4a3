"""What a service manager is told: that this process is ready, lives, and stops (`Type=notify`).

The protocol is one datagram for each message, to the socket that NOTIFY_SOCKET names. Without that
variable nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

#: How often it is looked whether everything has started, in seconds.
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Manager:
    """The manager of this process, if it has one."""

    address: str | None
    #: Seconds between two signs of life: half of what the manager allows. None: it wants none.
    every_seconds: float | None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Manager:
        """Read what systemd sets. A watchdog that is meant for another process is none of ours."""
        limit = environ.get("WATCHDOG_USEC", "")
        is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        every = int(limit) / 2_000_000 if limit.isdecimal() and int(limit) and is_ours else None
        return cls(environ.get("NOTIFY_SOCKET") or None, every)

    def tell(self, message: str) -> None:
        """Send one message; a manager that is gone is no reason to stop working."""
        if self.address is not None:
            # A name that begins with @ is not in the file system; the kernel writes it with a zero.
            address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), address)

    async def attend(self, is_ready: Callable[[], bool]) -> None:
        """Tell of the start once it is complete, then that the event loop runs: for ever."""
        if self.address is None:
            return
        while not is_ready():  # noqa: ASYNC110  (only while the process starts)
            await asyncio.sleep(LOOK_SECONDS)
        self.tell("READY=1")
        while self.every_seconds is not None:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self.every_seconds)
