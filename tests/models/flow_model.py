"""Small models of places at a limit, of ordering keys and of ticks: what their SQL does.

As in `small_model`: a transaction that looks and writes later is two steps, and others may come in
between unless a lock keeps them out. Each guard is a name in GUARDS; a world without one behaves as
the functions would without it. `search` visits every state that can be reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

#: Without any one of these the search must find a counterexample.
GUARDS = {
    "gate.lock": "lock_gates: for update skip locked on the rows of the gates",
    "gate.fence": "free_places is called for those commands only whose lease has ended",
    "gate.free": "leave_flow: the end of a lease gives its place back",
    "gate.look": "a receive looks at gates that have both waiters and room",
    "key.send_lock": "claim_keys: a sender has the row of the key until its commit",
    "key.number": "take_numbers: a number is drawn under the lock of the key",
    "key.head": "key_places: only the first of a key of which nothing is open is due",
    "key.turn": "promote_keys: the head must have ended before another has its turn",
    "key.note": "leave_keys: a key that another session has is noted in command_bus_key_due",
    "tick.compare": "lock_firing: s.next_tick_at = g.expected",
}
#: Nothing goes wrong without these: kept as a second line of defence, or for fairness.
IMPLIED = {
    "gate.own": "a command whose lease has lapsed has its place already; else it waits for another",
    "tick.id": "the id of a tick is derived from it: implied by tick.compare",
}

World = TypeVar("World")
Steps = Iterator[tuple[str, World]]


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    states: int
    problem: str = ""
    trace: tuple[str, ...] = ()


def search(
    first: World, steps: Callable[[World], Steps[World]], wrong: Callable[[World], str]
) -> Found:
    """Every state that can be reached, the nearest first; the shortest way to what is wrong."""
    came: dict[World, tuple[World | None, str]] = {first: (None, "")}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        following = list(steps(state))
        problem = wrong(state) or ("" if following else stuck(state))
        if problem:
            trace: list[str] = []
            at: World | None = state
            while at is not None:
                at, name = came[at]
                trace.append(name)
            return Found(len(came), problem, tuple(reversed(trace[:-1])))
        for name, after in following:
            if after not in came:
                came[after] = (state, name)
                waiting.append(after)
    return Found(len(came))


def stuck(state: object) -> str:
    """Nothing more can happen: is all done?"""
    return getattr(state, "unfinished", "")


# -- places


class Holder(NamedTuple):
    """A command at a limit of one."""

    #: due, waiting, leased or done
    status: str = "due"
    epoch: int = 0
    lapses: int = 0


class Gate(NamedTuple):
    commands: tuple[Holder, ...]
    places: frozenset[int] = frozenset()
    #: A receive that has counted the places: the command that it may lease, and whether it has.
    counting: tuple[tuple[int, bool], ...] = ()
    is_locked: bool = False
    #: Late workers: (command, epoch).
    zombies: tuple[tuple[int, int], ...] = ()

    @property
    def unfinished(self) -> str:
        is_done = all(each.status == "done" for each in self.commands)
        return "" if is_done and not self.places else "nobody goes on"


LIMIT = 1


def gate_steps(without: str) -> Callable[[Gate], Steps[Gate]]:
    """Two receives at once at most, one lapse of each command."""

    def steps(s: Gate) -> Steps[Gate]:
        for n, c in enumerate(s.commands):
            can_wait = without != "gate.look"
            is_candidate = c.status == "due" or (c.status == "waiting" and can_wait)
            has_lock = not s.is_locked or without == "gate.lock"
            if is_candidate and has_lock and len(s.counting) < 2 and n not in dict(s.counting):
                is_own = n in s.places and without != "gate.own"
                room = is_own or len(s.places) < LIMIT
                if room or c.status == "due":
                    yield (
                        f"counts for {n}",
                        s._replace(counting=(*s.counting, (n, room)), is_locked=True),
                    )
            if c.status == "leased":
                yield f"{n} ends", _end(s, n, without)
                if c.lapses < 1:
                    lapsed = c._replace(status="due", lapses=1)
                    yield (
                        f"{n} lapses",
                        s._replace(
                            commands=_put(s.commands, n, lapsed), zombies=(*s.zombies, (n, c.epoch))
                        ),
                    )
        for n, has_room in s.counting:
            left = tuple(each for each in s.counting if each[0] != n)
            after = s._replace(counting=left, is_locked=bool(left))
            c = s.commands[n]
            if has_room:
                held = c._replace(status="leased", epoch=c.epoch + 1)
                yield (
                    f"leases {n}",
                    after._replace(commands=_put(s.commands, n, held), places=s.places | {n}),
                )
            else:
                waits = c._replace(status="waiting")
                yield (
                    f"{n} waits",
                    after._replace(commands=_put(s.commands, n, waits), places=s.places - {n}),
                )
        for zombie in s.zombies:
            n, epoch = zombie
            others = tuple(each for each in s.zombies if each != zombie)
            is_fenced = s.commands[n].epoch != epoch or s.commands[n].status != "leased"
            freed = s.places - {n} if without == "gate.fence" and is_fenced else s.places
            yield f"late result of {n}", s._replace(zombies=others, places=freed)

    return steps


def _end(s: Gate, n: int, without: str) -> Gate:
    done = s.commands[n]._replace(status="done")
    places = s.places if without == "gate.free" else s.places - {n}
    return s._replace(commands=_put(s.commands, n, done), places=places)


def gate_wrong(s: Gate) -> str:
    """More than the limit, or a lease without a place."""
    leased = {n for n, c in enumerate(s.commands) if c.status == "leased"}
    if len(leased) > LIMIT:
        return "more are leased than the limit"
    if not leased <= s.places:
        return "a lease has no place"
    return "more places than the limit" if len(s.places) > LIMIT else ""


def _put(items: tuple[Holder, ...], n: int, item: Holder) -> tuple[Holder, ...]:
    return (*items[:n], item, *items[n + 1 :])


# -- keys


class Keyed(NamedTuple):
    #: new, placed (not committed), due, behind, leased, done
    status: str = "new"
    number: int = 0


class Keys(NamedTuple):
    commands: tuple[Keyed, ...]
    #: The command whose turn it is; -1: none.
    head: int = -1
    #: Who has the row of the key: a sender's number + 1; 0: nobody.
    lock: int = 0
    next_number: int = 1
    #: The key is to be looked at again.
    is_noted: bool = False
    started: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()

    @property
    def unfinished(self) -> str:
        return "" if all(c.status == "done" for c in self.commands) else "a command is left behind"


def key_steps(without: str) -> Callable[[Keys], Steps[Keys]]:
    """Senders that look and commit later, one worker for each command, and a look at the key."""

    def steps(s: Keys) -> Steps[Keys]:
        has_lock = without != "key.send_lock"
        for n, c in enumerate(s.commands):
            if c.status == "new" and (not has_lock or not s.lock):
                is_free = s.head == -1 or without == "key.head"
                number, following = s.next_number, s.next_number + 1
                if without == "key.number":
                    # Drawn before the lock: the other way round.
                    number = len(s.commands) - n
                placed = Keyed("placed due" if is_free else "placed behind", number)
                yield (
                    f"sender {n} looks",
                    s._replace(
                        commands=_key(s.commands, n, placed),
                        lock=n + 1 if has_lock else s.lock,
                        next_number=following,
                    ),
                )
            elif c.status.startswith("placed"):
                status = c.status.split()[1]
                yield (
                    f"sender {n} commits",
                    s._replace(
                        commands=_key(s.commands, n, c._replace(status=status)),
                        head=n if status == "due" else s.head,
                        lock=0 if has_lock else s.lock,
                        sent=(*s.sent, n),
                    ),
                )
            elif c.status == "due":
                yield (
                    f"{n} is leased",
                    s._replace(
                        commands=_key(s.commands, n, c._replace(status="leased")),
                        started=(*s.started, n),
                    ),
                )
            elif c.status == "leased":
                ended = s._replace(commands=_key(s.commands, n, c._replace(status="done")))
                if s.lock:
                    yield (
                        f"{n} ends, the key is locked",
                        ended._replace(is_noted=without != "key.note"),
                    )
                else:
                    yield f"{n} ends", _promote(ended, without)
        if without == "key.turn" and not s.lock:
            yield "somebody looks", _promote(s, without)
        if s.is_noted and not s.lock:
            yield "a receive looks", _promote(s._replace(is_noted=False), without)

    return steps


def _promote(s: Keys, without: str) -> Keys:
    if without != "key.turn" and s.head != -1 and s.commands[s.head].status != "done":
        return s
    behind = [n for n, c in enumerate(s.commands) if c.status == "behind"]
    if not behind:
        has_open = any(c.status in {"due", "leased"} for c in s.commands)
        return s if has_open else s._replace(head=-1)
    first = min(behind, key=lambda n: s.commands[n].number)
    turn = s.commands[first]._replace(status="due")
    return s._replace(commands=_key(s.commands, first, turn), head=first)


def key_wrong(s: Keys) -> str:
    """Two at once, or another order than that of the commits."""
    if sum(c.status in {"due", "leased"} for c in s.commands) > 1:
        return "two of a key at once"
    if s.started != s.sent[: len(s.started)]:
        return "another order than that in which they were sent"
    return ""


def _key(items: tuple[Keyed, ...], n: int, item: Keyed) -> tuple[Keyed, ...]:
    return (*items[:n], item, *items[n + 1 :])


# -- ticks


class Ticks(NamedTuple):
    next_tick: int = 0
    sent: tuple[int, ...] = ()
    #: What each process has seen to be due.
    seen: tuple[int, ...] = (-1, -1)

    @property
    def unfinished(self) -> str:
        return "" if self.next_tick >= LAST_TICK else "ticks are left"


LAST_TICK = 3


def tick_steps(without: str) -> Callable[[Ticks], Steps[Ticks]]:
    """Two processes that look, and fire later."""

    def steps(s: Ticks) -> Steps[Ticks]:
        for n, seen in enumerate(s.seen):
            if seen == -1 and s.next_tick < LAST_TICK:
                yield f"{n} looks", s._replace(seen=_tick(s.seen, n, s.next_tick))
            elif seen != -1:
                after = s._replace(seen=_tick(s.seen, n, -1))
                if seen == s.next_tick or without == "tick.compare":
                    is_known = seen in s.sent and without not in {"tick.id", "tick.compare"}
                    sent = s.sent if is_known else (*s.sent, seen)
                    after = after._replace(next_tick=seen + 1, sent=sent)
                yield f"{n} fires {seen}", after
                # Or it dies in between.
                yield f"{n} dies", s._replace(seen=_tick(s.seen, n, -1))

    return steps


def tick_wrong(s: Ticks) -> str:
    """A tick twice, or one that was left out."""
    if len(set(s.sent)) < len(s.sent):
        return "a tick was sent twice"
    return "" if s.sent == tuple(range(len(s.sent))) else "a tick was left out"


def _tick(items: tuple[int, ...], n: int, item: int) -> tuple[int, ...]:
    return (*items[:n], item, *items[n + 1 :])
