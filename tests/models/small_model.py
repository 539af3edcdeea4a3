"""A small model of lease, fence and batch: what the SQL functions do, in plain Python.

Two workers, two operators, two commands, one batch. A transaction is one step, but for those that
read under a lock and write later: these are two, and others may come in between unless a lock
keeps them out. Every guard of the SQL functions is a name in GUARDS; a model without one behaves as
the functions would without it. `search` visits every state that can be reached.

What the database cannot know is kept beside it: `serial` numbers the leases truly, whatever the
epoch says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

OPEN = ("PENDING", "IN_PROGRESS")
ENDED = ("COMPLETED", "CANCELED", "FAILED")
PARKED = "IN_TROUBLESHOOTING_QUEUE"
MAX_ATTEMPTS = 2
MAX_LAPSES = 1
CLASS = {
    "UNSENT": "none", "PENDING": "open", "IN_PROGRESS": "open", PARKED: "tsq",
    "COMPLETED": "completed", "CANCELED": "canceled", "FAILED": "failed",
}  # fmt: skip

#: Without any one of these the search must find a counterexample.
GUARDS = {
    "outcome.lease_epoch": "end_leases: c.lease_epoch = i.lease_epoch",
    "outcome.leased_by": "end_leases: c.leased_by is not null",
    "outcome.only_moved": "the message is deleted only of a command that moved",
    "extend.lease_epoch": "extend_leases: c.lease_epoch = i.lease_epoch",
    "extend.leased_by": "extend_leases: c.leased_by is not null",
    "receive.lock": "read_messages: for update skip locked",
    "receive.status": "receive_commands: c.status in ('PENDING', 'IN_PROGRESS')",
    "receive.msg_id": "receive_commands: c.msg_id = m.msg_id or c.msg_id is null",
    "receive.attempts": "receive_commands: c.attempts + 1 <= c.max_attempts",
    "receive.lapses": "receive_commands: abs(c.lapses) < 10",
    "receive.epoch_grows": "receive_commands: lease_epoch = c.lease_epoch + 1",
    "receive.marked": "receive_commands: c.cancel_requested_at is null",
    "outcome.marked": "end_leases: p_status <> 'PENDING' or c.cancel_requested_at is null",
    "request.leased_by": "request_cancel: c.leased_by is not null",
    "requeue.unmarks": "requeue_commands: cancel_requested_at = null",
    "retry.keeps_epoch": "requeue_commands leaves lease_epoch as it is",
    "cancel.status": "end_unleased: c.status = p_from",
    "cancel.leased_by": "end_unleased: c.leased_by is null",
    "resolve.status": "end_unleased: c.status = p_from",
    "requeue.status": "requeue_commands: c.status = any(p_from)",
    "requeue.lock": "lock_commands: order by c.command_id for update",
    "queue.status": "queue_stored: c.status = 'PENDING'",
    "queue.msg_id": "queue_stored: c.msg_id is null",
    "send.unique": "offer_commands: on conflict do nothing, and take_back",
    "join.open": "join_batch: b.completed_at is null",
    "batch.lock": "move_batch_counters: for update of b",
    "batch.sealed": "move_batch_counters: c.total_sealed",
    "batch.is_done": "move_batch_counters: c.is_done",
    "batch.reopen": "move_batch_counters: status = 'IN_PROGRESS', completed_at = null",
}
#: Each of these is implied by others: the search finds nothing without it. They are kept as a
#: second line of defence, and as the answer to whoever asks for proof.
IMPLIED = {
    "outcome.status": "implied by outcome.leased_by: only an open command is ever leased",
    "batch.close_once": "implied by batch.lock: a closed batch has nothing that could end",
}


class Command(NamedTuple):
    status: str = "UNSENT"
    epoch: int = 0
    #: The number of the lease that holds it; 0: nobody does.
    holder: int = 0
    serial: int = 0
    attempts: int = 0
    lapses: int = 0
    msg: int = 0
    #: Its cancel was requested while a worker had it.
    is_marked: bool = False


class Message(NamedTuple):
    msg: int
    command: int
    is_visible: bool
    #: Somebody else put it there: a copy, or an old one that came back.
    is_stray: bool = False


class Lease(NamedTuple):
    """What a worker remembers."""

    command: int
    msg: int
    epoch: int
    serial: int


class Batch(NamedTuple):
    is_sealed: bool = False
    total: int = 0
    completed: int = 0
    canceled: int = 0
    failed: int = 0
    tsq: int = 0
    is_closed: bool = False
    is_closed_twice: bool = False


class Pending(NamedTuple):
    """The second half of a transaction, and the locks that it holds."""

    what: str
    command: int
    locks: tuple[tuple[str, int], ...]
    detail: tuple[object, ...] = ()


class State(NamedTuple):
    commands: tuple[Command, ...]
    queue: tuple[Message, ...] = ()
    memory: tuple[tuple[Lease, ...], ...] = ((), ())
    #: Of the workers and the operators, in this order.
    pending: tuple[Pending | None, ...] = (None, None, None, None)
    batch: Batch = Batch()
    next_msg: int = 1
    #: What may still happen, in the order of Bounds.
    left: tuple[int, ...] = ()
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may happen; the larger, the more states."""

    commands: int
    #: Acts of operators.
    operators: int = 0
    lapses: int = 0
    #: Messages that somebody else puts into the queue.
    strays: int = 0
    #: The same command sent again.
    resends: int = 0
    #: Workers that forget everything, and answers that are lost.
    crashes: int = 0
    #: Commands that are stored before they are queued, and dispatches of them.
    stored: int = 0
    #: Requests to cancel what a worker has.
    requests: int = 0

    def start(self) -> State:
        left = (
            self.operators, self.lapses, self.strays, self.resends, self.crashes, self.stored,
            self.requests,
        )  # fmt: skip
        return State(commands=(Command(),) * self.commands, left=left)


OPERATE, LAPSE, STRAY, RESEND, CRASH, STORE, REQUEST = range(7)
Step = tuple[str, State]
WORKERS = (0, 1)
OPERATORS = (2, 3)


class Model:
    """The steps that are possible in a state, with some guards missing."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        self._without = without

    def has(self, guard: str) -> bool:
        return guard not in self._without

    def steps(self, s: State) -> Iterator[Step]:
        for n in range(len(s.commands)):
            yield from self._send(s, n)
            yield from self._queue(s, n)
            yield from self._request(s, n)
        if not s.batch.is_sealed and s.batch.total and _free(s, ("batch", 0)):
            sealed = s.batch._replace(is_sealed=True)
            yield "seal", _committed(s, batch=self._closed(sealed, s.commands, is_seal=True))
        yield from self._environment(s)
        for w in WORKERS:
            if (second := s.pending[w]) is not None:
                yield self._finish(s, w, second)
                continue
            yield from self._receive(s, w)
            for lease in s.memory[w]:
                yield from self._outcomes(s, w, lease)
                yield from self._extend(s, w, lease)
        for o in OPERATORS:
            if (second := s.pending[o]) is not None:
                yield self._finish(s, o, second)
            elif s.left[OPERATE]:
                for n in range(len(s.commands)):
                    yield from self._operate(s, o, n)

    # -- producers and the world

    def _send(self, s: State, n: int) -> Iterator[Step]:
        c = s.commands[n]
        is_again = c.status != "UNSENT"
        if (is_again and not s.left[RESEND]) or not _free(s, ("command", n), ("batch", 0)):
            return
        if is_again:
            if self.has("send.unique"):
                return  # refused: nothing changes
            yield (
                f"send {n} again",
                _committed(
                    _spend(s, RESEND),
                    queue=_put(s.queue, Message(s.next_msg, n, is_visible=True)),
                    next_msg=s.next_msg + 1,
                ),
            )
            return
        if s.batch.is_closed and self.has("join.open"):
            return
        if n and s.commands[n - 1].status == "UNSENT":
            return  # in order: it makes no difference which is first
        more = s.batch._replace(total=s.batch.total + 1)
        if s.left[STORE]:
            stored = _with(s.commands, n, Command("PENDING"))
            yield f"store {n}, stored", _committed(_spend(s, STORE), commands=stored, batch=more)
        yield (
            f"send {n} into the batch",
            _committed(
                s,
                commands=_with(s.commands, n, Command("PENDING", msg=s.next_msg)),
                queue=_put(s.queue, Message(s.next_msg, n, is_visible=True)),
                batch=more,
                next_msg=s.next_msg + 1,
            ),
        )

    def _queue(self, s: State, n: int) -> Iterator[Step]:
        """What is stored gets its message."""
        c = s.commands[n]
        if c.status == "UNSENT" or not s.left[STORE] or not _free(s, ("command", n)):
            return
        if (c.msg == 0 or not self.has("queue.msg_id")) and (
            c.status == "PENDING" or not self.has("queue.status")
        ):
            yield (
                f"dispatch {n}",
                _committed(
                    _spend(s, STORE),
                    commands=_with(s.commands, n, c._replace(msg=s.next_msg)),
                    queue=_put(s.queue, Message(s.next_msg, n, is_visible=True)),
                    next_msg=s.next_msg + 1,
                ),
            )

    def _request(self, s: State, n: int) -> Iterator[Step]:
        """What a worker has is marked; what it waits for is canceled, as an operator does."""
        c = s.commands[n]
        if not s.left[REQUEST] or not _free(s, ("message", c.msg), ("command", n)):
            return
        is_leased = c.holder != 0 or not self.has("request.leased_by")
        if c.status in OPEN and is_leased and not c.is_marked:
            wrong = s.wrong if c.holder else "a command that no worker has was marked"
            marked = _with(s.commands, n, c._replace(is_marked=True))
            yield (
                f"cancel of {n} is requested",
                _committed(_spend(s._replace(wrong=wrong), REQUEST), commands=marked),
            )

    def _environment(self, s: State) -> Iterator[Step]:
        for m in s.queue:
            if not m.is_visible and s.left[LAPSE] and _free(s, ("message", m.msg)):
                seen = _put(s.queue, m._replace(is_visible=True))
                yield f"lease of message {m.msg} lapses", _spend(s._replace(queue=seen), LAPSE)
        if s.left[STRAY]:
            for n, c in enumerate(s.commands):
                if c.status != "UNSENT":
                    stray = Message(s.next_msg, n, is_visible=True, is_stray=True)
                    yield (
                        f"stray message of {n}",
                        _spend(
                            s._replace(queue=_put(s.queue, stray), next_msg=s.next_msg + 1), STRAY
                        ),
                    )
        if s.left[CRASH]:
            for w in WORKERS:
                if s.memory[w] and s.pending[w] is None:
                    forgotten = _with(s.memory, w, ())
                    yield f"worker {w} crashes", _spend(s._replace(memory=forgotten), CRASH)

    # -- workers

    def _receive(self, s: State, w: int) -> Iterator[Step]:
        for m in s.queue:
            if not m.is_visible or not _free(s, ("message", m.msg)):
                continue
            locks = (("message", m.msg),) if self.has("receive.lock") else ()
            yield (
                f"worker {w} reads message {m.msg}",
                s._replace(
                    pending=_with(s.pending, w, Pending("receive", m.command, locks, (m.msg,)))
                ),
            )
            break  # the oldest

    def _lease(self, s: State, w: int, p: Pending) -> State:
        (msg,) = p.detail
        assert isinstance(msg, int)
        message = next((m for m in s.queue if m.msg == msg), None)
        if message is None:
            return s  # gone meanwhile
        n, c = p.command, s.commands[p.command]
        is_ours = not self.has("receive.msg_id") or c.msg in {msg, 0}
        is_open = not self.has("receive.status") or c.status in OPEN
        if not is_ours or not is_open:
            return s._replace(queue=_without(s.queue, msg))  # archived
        if c.is_marked and self.has("receive.marked"):
            wrong = s.wrong or ("" if c.holder else "what an operator sent again was canceled")
            ended = self._end(s, n, c._replace(epoch=c.epoch + 1), "CANCELED", msg)
            return ended._replace(wrong=wrong)
        attempts = c.attempts + (c.holder == 0)
        lapses = c.lapses + (c.holder != 0)
        if (self.has("receive.attempts") and attempts > MAX_ATTEMPTS) or (
            self.has("receive.lapses") and lapses > MAX_LAPSES
        ):
            return self._end(s, n, c._replace(epoch=c.epoch + 1), PARKED, msg)
        wrong = s.wrong
        if c.is_marked:
            wrong = "a command was started again whose cancel was requested"
        if c.status not in OPEN:
            wrong = "a command that is not open was leased"
        if c.holder and not message.is_visible:
            wrong = "a lease was taken over that had not lapsed"
        if message.is_stray and c.holder:
            wrong = "a copy of the message took the lease away"
        serial = c.serial + 1
        epoch = c.epoch + 1 if self.has("receive.epoch_grows") else max(c.epoch, 1)
        leased = c._replace(
            status="IN_PROGRESS", epoch=epoch, holder=serial, serial=serial, attempts=attempts,
            lapses=lapses, msg=msg,
        )  # fmt: skip
        # With mark_in_progress off it stays PENDING: the two workers do it differently.
        leased = leased._replace(status="IN_PROGRESS" if w == 0 else "PENDING")
        memory = tuple(sorted({*s.memory[w], Lease(n, msg, epoch, serial)}))
        return s._replace(
            commands=_with(s.commands, n, leased),
            queue=_put(s.queue, message._replace(is_visible=False, is_stray=False)),
            memory=_with(s.memory, w, memory),
            wrong=wrong,
        )

    def _outcomes(self, s: State, w: int, lease: Lease) -> Iterator[Step]:
        n, c = lease.command, s.commands[lease.command]
        if not _free(s, ("message", lease.msg), ("command", n)):
            return
        fits = (
            (c.epoch == lease.epoch or not self.has("outcome.lease_epoch"))
            and (c.holder != 0 or not self.has("outcome.leased_by"))
            and (c.status in OPEN or not self.has("outcome.status"))
        )
        done = _with(s.memory, w, tuple(x for x in s.memory[w] if x != lease))
        for verb, wanted in OUTCOMES.items():
            target = wanted
            if not fits:
                if verb != "complete":
                    continue  # a rejection is the same for all
                rejected = s._replace(memory=done)
                if not self.has("outcome.only_moved"):
                    rejected = rejected._replace(queue=_without(s.queue, lease.msg))
                yield f"worker {w} completes {n} too late", rejected
                continue
            moved = s._replace(memory=done, wrong=_judge(s.wrong, c, lease))
            if c.is_marked and target == "PENDING":
                if self.has("outcome.marked"):
                    target = "CANCELED"
                else:
                    fault = "a command goes back whose cancel was requested"
                    moved = moved._replace(wrong=moved.wrong or fault)
            yield from self._move(moved, w, f"worker {w} {verb}s {n}", n, target, lease.msg)
            if s.left[CRASH] and verb in {
                "complete",
                "retry",
            }:  # the answer is lost, and it says so again
                again = _spend(moved._replace(memory=s.memory), CRASH)
                yield from self._move(again, w, f"worker {w} {verb}s {n}, answer lost", n, target,
                                      lease.msg)  # fmt: skip

    def _extend(self, s: State, w: int, lease: Lease) -> Iterator[Step]:
        c = s.commands[lease.command]
        if not _free(s, ("message", lease.msg), ("command", lease.command)):
            return
        if (c.epoch == lease.epoch or not self.has("extend.lease_epoch")) and (
            c.holder != 0 or not self.has("extend.leased_by")
        ):
            message = next((m for m in s.queue if m.msg == c.msg), None)
            if message is None or (not message.is_visible and c.holder == lease.serial):
                return  # nothing changes
            wrong = s.wrong if c.holder == lease.serial else "a lost lease was extended"
            hidden = _put(s.queue, message._replace(is_visible=False))
            yield f"worker {w} extends {lease.command}", s._replace(queue=hidden, wrong=wrong)

    # -- operators

    def _operate(self, s: State, o: int, n: int) -> Iterator[Step]:
        c = s.commands[n]
        if not _free(s, ("command", n)) or c.status == "UNSENT":
            return
        if c.status == PARKED or (c.status in ENDED and not self.has("resolve.status")):
            for verb, target in (("cancel", "CANCELED"), ("complete", "COMPLETED")):
                wrong = s.wrong if c.status == PARKED else f"an operator moved what is {c.status}"
                yield from self._move(
                    _spend(s._replace(wrong=wrong), OPERATE),
                    o,
                    f"operator {verb}s {n}",
                    n,
                    target,
                    0,
                )
        is_pending = c.status == "PENDING" or not self.has("cancel.status")
        is_free = c.holder == 0 or not self.has("cancel.leased_by")
        if is_pending and is_free and _free(s, ("message", c.msg)):
            wrong = s.wrong
            if c.holder:
                wrong = "a command was canceled under the worker that holds it"
            elif c.status != "PENDING":
                wrong = f"a command that is {c.status} was canceled as if it waited"
            yield from self._move(
                _spend(s._replace(wrong=wrong), OPERATE), o, f"cancel {n}", n, "CANCELED", c.msg
            )
        if c.status in {PARKED, "FAILED"} or not self.has("requeue.status"):
            locks = (("command", n),) if self.has("requeue.lock") else ()
            pending = Pending("requeue", n, locks, (c.status,))
            yield (
                f"operator {o - 1} looks at {n}, to send it again",
                _spend(s, OPERATE)._replace(pending=_with(s.pending, o, pending)),
            )

    def _requeue(self, s: State, p: Pending) -> State:
        n, c = p.command, s.commands[p.command]
        (read,) = p.detail
        if not self.has("requeue.lock"):
            # The new message goes out for what was read; the row is updated if it is still so.
            queue = _put(s.queue, Message(s.next_msg, n, is_visible=True))
            if c.status != read and self.has("requeue.status"):
                return s._replace(queue=queue, next_msg=s.next_msg + 1)
        wrong = s.wrong
        if c.status not in {PARKED, "FAILED"}:
            wrong = f"a command that is {c.status} was sent again"
        epoch = c.epoch if self.has("retry.keeps_epoch") else 0
        fresh = c._replace(
            status="PENDING", msg=s.next_msg, attempts=0, lapses=0, epoch=epoch,
            is_marked=c.is_marked and not self.has("requeue.unmarks"),
        )  # fmt: skip
        moved = s._replace(
            commands=_with(s.commands, n, fresh),
            queue=_put(s.queue, Message(s.next_msg, n, is_visible=True)),
            next_msg=s.next_msg + 1,
            wrong=wrong,
        )
        return moved._replace(batch=self._counted(s.batch, moved.commands, c.status, "PENDING"))

    # -- ends, and the batch

    def _move(self, s: State, who: int, name: str, n: int, target: str, msg: int) -> Iterator[Step]:
        """The first half of a transaction that moves a command: up to the counters of its batch."""
        c = s.commands[n]
        if target == "PENDING":
            yield (
                name,
                _committed(
                    s,
                    commands=_with(s.commands, n, c._replace(status="PENDING", holder=0, lapses=0)),
                    queue=_shown(s.queue, msg),
                ),
            )
            return
        if self.has("batch.lock") and not _free(s, ("batch", 0)):
            return
        moved = s._replace(
            commands=_with(s.commands, n, c._replace(status=target, holder=0, lapses=0)),
            queue=_without(s.queue, msg),
        )
        locks = (("command", n), *([("batch", 0)] if self.has("batch.lock") else []))
        second = Pending("count", n, locks, (c.status, target, s.batch))
        yield name, moved._replace(pending=_with(moved.pending, who, second))

    def _end(self, s: State, n: int, c: Command, target: str, msg: int) -> State:
        """The same in one step, for a receive that parks."""
        ended = c._replace(status=target, holder=0, lapses=0)
        moved = s._replace(commands=_with(s.commands, n, ended), queue=_without(s.queue, msg))
        return moved._replace(batch=self._counted(s.batch, moved.commands, c.status, target))

    def _counted(
        self, batch: Batch, commands: tuple[Command, ...], before: str, after: str
    ) -> Batch:
        b = batch._asdict()
        for name, step in ((CLASS[before], -1), (CLASS[after], 1)):
            if name in b:
                b[name] += step
        return self._closed(Batch(**b), commands)

    def _closed(self, b: Batch, commands: tuple[Command, ...], is_seal: bool = False) -> Batch:
        """Close the batch if it is done; open it again if it is not."""
        is_done = b.completed + b.failed + b.canceled == b.total
        is_sealed = b.is_sealed or not self.has("batch.sealed")
        may_close = not b.is_closed or not self.has("batch.close_once")
        if (is_done or (not self.has("batch.is_done") and not is_seal)) and is_sealed and may_close:
            return b._replace(is_closed=True, is_closed_twice=b.is_closed)
        if not is_done and b.is_closed and self.has("batch.reopen"):
            return b._replace(is_closed=False)
        return b

    def _finish(self, s: State, who: int, p: Pending) -> Step:
        """The second half of a transaction, and its commit."""
        idle = s._replace(pending=_with(s.pending, who, None))
        if p.what == "receive":
            return f"worker {who} leases {p.command}", _committed(self._lease(idle, who, p))
        if p.what == "requeue":
            return f"operator {who - 1} sends {p.command} again", _committed(self._requeue(idle, p))
        before, after, seen = p.detail
        assert isinstance(seen, Batch)
        # Without the lock these are the counters as they were read before.
        read = s.batch if self.has("batch.lock") else seen
        batch = self._counted(read, s.commands, str(before), str(after))
        return f"counters of {p.command}, commit", _committed(idle, batch=batch)


OUTCOMES = {
    "complete": "COMPLETED", "retry": "PENDING", "park": PARKED, "fail": "FAILED",
    "discard": "CANCELED",
}  # fmt: skip


def _judge(wrong: str, c: Command, lease: Lease) -> str:
    if wrong:
        return wrong
    if c.holder == 0:
        return "a second result was accepted for one lease"
    if c.holder != lease.serial:
        return "the result of a lost lease was accepted"
    return ""


# -- small parts


def _with(items: tuple, n: int, item: object) -> tuple:
    return (*items[:n], item, *items[n + 1 :])


def _put(queue: tuple[Message, ...], message: Message) -> tuple[Message, ...]:
    return tuple(sorted([*(m for m in queue if m.msg != message.msg), message]))


def _without(queue: tuple[Message, ...], msg: int) -> tuple[Message, ...]:
    return tuple(m for m in queue if m.msg != msg)


def _shown(queue: tuple[Message, ...], msg: int) -> tuple[Message, ...]:
    return tuple(m._replace(is_visible=True) if m.msg == msg else m for m in queue)


def _spend(s: State, kind: int) -> State:
    return s._replace(left=_with(s.left, kind, s.left[kind] - 1))


def _free(s: State, *locks: tuple[str, int]) -> bool:
    return not any(lock in p.locks for p in s.pending if p is not None for lock in locks)


def _committed(s: State, **changes: object) -> State:
    """After a commit."""
    return s._replace(**changes)  # type: ignore[arg-type]


# -- what must hold


def broken(s: State) -> str:
    """What is wrong in this state; nothing, if it is well."""
    if s.wrong:
        return s.wrong
    if any(p is not None for p in s.pending):
        return ""
    queued = {m.msg: m for m in s.queue}
    for n, c in enumerate(s.commands):
        if c.status in OPEN and c.msg and c.msg not in queued:
            return f"command {n} is open and has no message: it is lost"
        if c.attempts > MAX_ATTEMPTS:
            return f"command {n} has {c.attempts} attempts of {MAX_ATTEMPTS}"
        if c.lapses > MAX_LAPSES:
            return f"command {n} was delivered after {c.lapses} lapses"
    for m in s.queue:
        c = s.commands[m.command]
        if not m.is_stray and (c.status not in OPEN or c.msg != m.msg):
            return f"message {m.msg} is an orphan: command {m.command} does not wait for it"
    return _broken_batch(s)


def _broken_batch(s: State) -> str:
    b = s.batch
    counted = {
        name: sum(CLASS[c.status] == name for c in s.commands)
        for name in ("completed", "canceled", "failed", "tsq")
    }
    if counted != {name: getattr(b, name) for name in counted}:
        return f"the counters of the batch are {b}, a recount gives {counted}"
    has_ended = b.is_sealed and all(c.status in (*ENDED, "UNSENT") for c in s.commands)
    if b.is_closed_twice:
        return "the batch was closed twice for one end"
    if b.total and b.is_closed != has_ended:
        return f"the batch is {'closed' if b.is_closed else 'open'}, and should not be"
    return ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to: how many states, and the way to the first one that is broken."""

    states: int
    problem: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{n:3}. {step}" for n, step in enumerate(self.trace, 1)]
        return "\n".join([f"{self.problem or 'nothing'} ({self.states} states)", *lines])


def search(
    model: Model,
    bounds: Bounds,
    check: Callable[[State], str] = broken,
    most_states: int | None = None,
) -> Found:
    """All states, breadth first, so that a counterexample is as short as can be."""
    start = bounds.start()
    came_from: dict[State, tuple[State | None, str]] = {start: (None, "")}
    todo = deque([start])
    while todo:
        state = todo.popleft()
        for name, after in model.steps(state):
            if after in came_from:
                continue
            came_from[after] = (state, name)
            problem = check(after)
            if problem:
                return Found(len(came_from), problem, _trace(came_from, after))
            if most_states is not None and len(came_from) >= most_states:
                return Found(len(came_from))
            todo.append(after)
    return Found(len(came_from))


def _trace(came_from: dict[State, tuple[State | None, str]], state: State) -> tuple[str, ...]:
    steps: list[str] = []
    at: State | None = state
    while at is not None:
        at, name = came_from[at]
        if name:
            steps.append(name)
    return tuple(reversed(steps))
