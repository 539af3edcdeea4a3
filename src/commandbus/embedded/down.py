"""Bringing the server of a data folder down: first those `up`s that run on it, then the server."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commandbus.embedded import server, sockets
from commandbus.embedded.processes import Deadline, Process, is_alive, send_signal
from commandbus.embedded.standing import Holder, Standing
from commandbus.errors import EmbeddedServerError, InvalidOperationError

#: Beyond the grace of handlers: for the HTTP service, the last commits and the server itself.
MORE_SECONDS = 15.0
#: For a process that was told to stop at once.
ABORT_SECONDS = 10.0
TURN_SECONDS = 60.0
FEW = 5


@dataclass(frozen=True, slots=True)
class WentDown:
    """What was ended."""

    ups: tuple[int, ...]
    was_running: bool


def bring_down(
    standing: Standing,
    *,
    grace_seconds: float,
    force: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> WentDown:
    """Ask each `up` of the folder to end, wait for it, and stop the server.

    Others that hold the server, or are connected to it, are named and left alone, unless `force`
    cuts them off. A server that is cut off loses nothing: it is shut down in order.
    """
    was_running = standing.running is not None
    holders = standing.holders()
    ups = [holder.process for holder in holders if holder.is_up]
    if not force:
        _refuse_holders([holder for holder in holders if not holder.is_up], standing)
    for process in ups:
        tell(f"stopping `up` (process {process.pid}); its running handlers may finish")
        send_signal(process, signal.SIGTERM)
    _wait_for(ups, grace_seconds + MORE_SECONDS, force=force)
    with standing.folder.deciding(Deadline.after(TURN_SECONDS)):
        _stop_server(standing, force=force)
    return WentDown(tuple(process.pid for process in ups), was_running)


def _wait_for(ups: Sequence[Process], seconds: float, *, force: bool) -> None:
    def are_gone() -> bool:
        return not any(is_alive(process) for process in ups)

    if force and not Deadline.after(ABORT_SECONDS).wait_until(are_gone):
        for process in ups:
            send_signal(process, signal.SIGTERM)  # the second signal: what runs goes back
    if not Deadline.after(ABORT_SECONDS if force else seconds).wait_until(are_gone):
        pids = ", ".join(str(process.pid) for process in ups if is_alive(process))
        raise EmbeddedServerError(
            f"`up` (process {pids}) has not ended; wait for its handlers, or say --force"
        )


def _stop_server(standing: Standing, *, force: bool) -> None:
    # Under the decision lock nobody can begin to use the server; the lock of its users tells.
    users = standing.folder.open_lock(standing.folder.users_lock)
    try:
        if not users.try_exclusive() and not force:
            raise _held(standing.holders() or ["a process that cannot be seen from here"])
        running, record = standing.running, standing.record
        if running is None:
            return
        if not force and (clients := standing.clients()):
            raise _held([f"{name} (connected)" for name in clients])
        server.stop_server(running)
        if record is not None:
            sockets.remove_socket_directory(standing.folder, record)
    finally:
        users.close()


def _refuse_holders(holders: Sequence[Holder], standing: Standing) -> None:
    if holders and standing.running is not None:
        raise _held(holders)


def _held(by: Sequence[object]) -> InvalidOperationError:
    shown = ", ".join(str(each) for each in by[:FEW])
    more = f" and {len(by) - FEW} more" if len(by) > FEW else ""
    return InvalidOperationError(
        f"the server is in use by {shown}{more}; end that first, or cut it off with --force"
    )
