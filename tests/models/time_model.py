"""A small model of expiry and pause: one command whose time runs out, a receive, a worker, and the
chore that ends what has expired; as in `flow_model`, without any one guard something goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.models.flow_model import Steps

GUARDS = {
    "time.begin": "receive_commands: what has expired is not begun, but ended",
    "time.lease": "end_unleased: c.leased_by is null",
    "time.status": "end_unleased: c.status = p_from",
    "time.again": "expire_in: what is leased is looked at again",
    "time.pause": "receive_commands: a paused domain leases nothing",
}


class Expiring(NamedTuple):
    #: pending, leased, completed or expired
    status: str = "pending"
    is_late: bool = False
    is_paused: bool = False
    #: Its row in command_bus_expiry is there.
    is_watched: bool = True
    #: The chore has picked it, and not looked at the command yet.
    is_picked: bool = False
    #: A receive that has begun: "before" or "after" the pause.
    receive: str = ""
    retries: int = 0
    ends: int = 0
    #: What went wrong on the way.
    fault: str = ""

    @property
    def unfinished(self) -> str:
        return "" if self.ends else "it has expired, and waits without end"


def time_steps(without: str) -> Callable[[Expiring], Steps[Expiring]]:
    """Time passes once, somebody pauses for good, a worker retries once."""

    def steps(s: Expiring) -> Steps[Expiring]:
        if not s.is_late:
            yield "its time is over", s._replace(is_late=True)
        if not s.is_paused:
            yield "somebody pauses", s._replace(is_paused=True)
        if not s.receive and (not s.is_paused or without == "time.pause"):
            if s.status == "pending":
                yield (
                    "a receive begins",
                    s._replace(receive="after" if s.is_paused else "before"),
                )
        elif s.receive:
            yield "it receives", _receive(s, without)
        if s.status == "leased":
            yield "the worker completes", s._replace(status="completed", ends=s.ends + 1)
            if s.retries < 1:
                yield "the worker retries", s._replace(status="pending", retries=1)
        if s.is_late and s.is_watched and not s.is_picked:
            yield "the chore picks it", s._replace(is_picked=True)
        if s.is_picked:
            yield "the chore looks", _look(s, without)

    return steps


def _receive(s: Expiring, without: str) -> Expiring:
    after = s._replace(receive="")
    if s.status != "pending":
        return after
    if s.is_late and without != "time.begin":
        return after._replace(status="expired", ends=s.ends + 1)
    fault = "begun after its time" if s.is_late else s.fault
    fault = "leased by a receive that began after the pause" if s.receive == "after" else fault
    return after._replace(status="leased", fault=fault)


def _look(s: Expiring, without: str) -> Expiring:
    after = s._replace(is_picked=False)
    if s.status == "pending" or (s.status == "leased" and without == "time.lease"):
        fault = "ended while a worker has it" if s.status == "leased" else s.fault
        return after._replace(status="expired", ends=s.ends + 1, is_watched=False, fault=fault)
    if s.status == "leased":
        return after._replace(is_watched=without != "time.again")
    again = s.ends + 1 if without == "time.status" else s.ends
    return after._replace(is_watched=False, ends=again)


def time_wrong(s: Expiring) -> str:
    """Begun too late, taken from its worker, or ended twice."""
    return s.fault or ("it has ended twice" if s.ends > 1 else "")
