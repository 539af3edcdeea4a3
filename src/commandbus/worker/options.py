"""WorkerOptions: how one worker runs; and the name that it gets."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How one worker runs."""

    domain: str
    concurrency: int
    vt_seconds: int
    use_notify: bool
    #: Whether it ends once nothing is due, and nothing that it would wait for is delayed.
    until_empty: bool = False
    include_delayed: bool = False


def new_worker_id() -> str:
    """Host, process and a random part: a restarted container of the same name is another one."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
