"""Histories for the checker: a sound one, and the ways to break it."""

from __future__ import annotations

from typing import Any

from faults.facts import (
    ENDED,
    PARKED,
    Batch,
    Change,
    Claim,
    Death,
    Effect,
    Event,
    Facts,
    Finish,
    Outage,
    Row,
    Send,
    Start,
)

WORKER, OTHER = "host:11:aa", "host:22:bb"


class History:
    """Commands as the bus treats them, written down as logs and tap would have it."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.now = 100.0
        self.state: dict[str, str | None] = {}
        self.epochs: dict[str, int] = {}
        self.holders: dict[str, str | None] = {}

    def event(self, name: str, kind: str) -> None:
        events = self.facts.events
        events.append(Event(len(events) + 1, self.now, name, kind))

    def change(self, name: str, status: str | None, **more: Any) -> None:
        self.now += 0.1
        values = {
            "old_status": self.state.get(name),
            "old_epoch": self.epochs.get(name, 0),
            "new_epoch": self.epochs.get(name, 0),
            "old_holder": self.holders.get(name),
            "new_holder": None,
            "held_until": None,
            **more,
        }
        self.facts.changes.append(
            Change(len(self.facts.changes) + 1, self.now, name, new_status=status, **values)
        )
        self.state[name] = status
        self.epochs[name] = values["new_epoch"]
        self.holders[name] = values["new_holder"]

    def send(self, name: str, outcome: Any = "ok") -> None:
        self.facts.sends.append(Send(name, "unknown", self.now))
        self.facts.sends.append(Send(name, outcome, self.now))
        self.change(name, "PENDING")
        self.event(name, "SENT")

    def claim(self, name: str, worker: str = WORKER, *, early: float = 0.0) -> int:
        epoch = self.epochs[name] + 1
        lapsed = self.holders[name] is not None
        until = self.now + early if lapsed else None
        self.change(name, "IN_PROGRESS", new_epoch=epoch, new_holder=worker, held_until=until)
        if lapsed:
            self.event(name, "LEASE_EXPIRED")
        self.event(name, "RECEIVED")
        self.facts.claims.append(Claim(name, epoch, int(worker.split(":")[1]), self.now))
        return epoch

    def start(self, name: str, worker: str = WORKER) -> None:
        pid, epoch = int(worker.split(":")[1]), self.epochs[name]
        self.facts.starts.append(Start(name, epoch, pid, self.now))
        self.facts.effects.append(Effect(name, epoch, False))

    def finish(self, name: str, worker: str = WORKER) -> None:
        epoch = self.epochs[name]
        self.change(name, "COMPLETED")
        self.event(name, "COMPLETED")
        self.tell(name, epoch, worker, "accepted")
        self.facts.replies.append(name)

    def fail(self, name: str, worker: str = WORKER) -> None:
        epoch = self.epochs[name]
        self.change(name, "PENDING")
        self.event(name, "FAILED")
        self.tell(name, epoch, worker, "accepted")

    def park(self, name: str, worker: str = WORKER) -> None:
        epoch = self.epochs[name]
        self.change(name, PARKED)
        self.event(name, "FAILED")
        self.event(name, "MOVED_TO_TROUBLESHOOTING_QUEUE")
        self.tell(name, epoch, worker, "accepted")

    def tell(self, name: str, epoch: int, worker: str, verdict: Any) -> None:
        pid = int(worker.split(":")[1])
        self.facts.finishes.append(Finish(name, epoch, pid, self.now, verdict))

    def end(self) -> Facts:
        """The rows that these changes leave."""
        for name, status in self.state.items():
            if status is not None:
                self.facts.rows.append(self.row(name, status))
        return self.facts

    def row(self, name: str, status: str, **more: Any) -> Row:
        values: dict[str, Any] = {
            "command_type": "Work",
            "attempts": 1,
            "max_attempts": 3,
            "epoch": self.epochs[name],
            "holder": self.holders.get(name) if status not in {*ENDED, PARKED} else None,
            "msg_id": 1,
            "dispatch_status": "queued",
            "wants_reply": True,
            **more,
        }
        return Row(name, status=status, **values)


def sound() -> History:
    """Done at once, done after a lapse with a zombie, after a failure, parked, an unknown send."""
    history = History()
    for name in ("plain", "lapsed", "failed", "parked", "unknown"):
        history.send(name, "duplicate" if name == "unknown" else "ok")
        history.claim(name)
        history.start(name)
    history.finish("plain")
    history.finish("unknown")
    history.facts.deaths.append(Death(11, history.now, "pause"))
    history.claim("lapsed", OTHER)
    history.start("lapsed", OTHER)
    history.finish("lapsed", OTHER)
    history.tell("lapsed", 1, WORKER, "stale")
    history.event("lapsed", "STALE_RESULT_REJECTED")
    history.fail("failed")
    history.claim("failed")
    history.start("failed")
    history.finish("failed")
    history.park("parked")
    history.facts.batches.append(Batch("batch", (2, 2, 0, 0, 0), (2, 2, 0, 0, 0), True, 2, 1))
    history.facts.batch_samples.extend([0, 0])
    history.facts.outages.append(Outage(1.0, 2.0))
    return history
