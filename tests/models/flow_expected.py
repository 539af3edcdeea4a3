"""What limits, keys, pauses, expiry and levels should do, as a dictionary would: the model of the
state machine of flow. It knows no time but "due", "lapsed" and "expired"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

ENDED = ("COMPLETED", "CANCELED", "FAILED")
PARKED = "IN_TROUBLESHOOTING_QUEUE"
#: The type that has a limit or is paused; the other one never has.
GATED = "Pay"
VERY_MANY = 1_000_000


@dataclass
class Command:
    """One row, and its message."""

    name: int
    kind: str
    key: str | None
    level: int
    #: Of its message: they grow with each send and each retry of an operator.
    message: int
    #: Of its key.
    number: int
    #: The moment in which it was queued, and the time that was asked for: seconds after a moment.
    queued: int = 0
    deliver: tuple[int, int] = (0, 0)
    status: str = "PENDING"
    epoch: int = 0
    lapses: int = 0
    is_leased: bool = False
    is_due: bool = True
    is_marked: bool = False
    is_expired: bool = False
    #: Where it stands aside: "key", "gate" or nowhere.
    aside: str = ""

    @property
    def turn(self) -> tuple[int, int, int]:
        """Among those who wait at the gate; a level is worth a minute."""
        seconds, moment = max((0, self.queued), self.deliver)
        return seconds - 60 * self.level, moment, self.message

    @property
    def is_open(self) -> bool:
        return self.status in {"PENDING", "IN_PROGRESS"}

    def shown(self) -> tuple[Any, ...]:
        queued = (self.is_due and not self.aside) if self.is_open else None
        return (self.status, self.is_leased, self.epoch, self.is_marked, self.aside, queued,
                self.level if self.is_open else None)  # fmt: skip


@dataclass
class FlowExpected:
    """A domain, as it should be."""

    on_park: str
    commands: dict[int, Command] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    blocked: dict[str, int] = field(default_factory=dict)
    limit: int | None = None
    is_paused: bool = False
    is_type_paused: bool = False
    #: Who has a place at the limit.
    places: set[int] = field(default_factory=set)
    #: Keys that the next receive looks at, because the policy has changed.
    noted: set[str] = field(default_factory=set)
    #: Some command has or had a level: what is due is taken by its turn, too.
    has_levels: bool = False
    _next: int = 0

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _place_in_key(self, c: Command) -> None:
        if c.key is None:
            return
        if c.key in self.heads:
            c.aside, c.is_due = "key", False
        else:
            self.heads[c.key] = c.name

    def send(self, name: int, kind: str, key: str | None, level: int, delay: int = 0) -> None:
        number = self._number()
        c = Command(name, kind, key, level, number, number, queued=number, is_due=not delay)
        if delay:
            c.deliver = (delay, number)
        self.has_levels |= level != 0
        self.commands[name] = c
        self._place_in_key(c)
        self._look(key)

    def _look(self, key: str | None) -> None:
        """Somebody who has the key looks at it: what is parked is stepped over, if it may be."""
        if key is None or key not in self.heads or self.on_park == "block":
            return
        head = self.heads[key]
        if head in self.commands and self.commands[head].status == PARKED:
            self._promote(key, head)

    # -- the ends of leases and commands

    def _promote(self, key: str | None, name: int) -> None:
        """The turn of this one is over."""
        if key is None or self.heads.get(key) != name:
            return
        self.blocked.pop(key, None)
        behind = [c for c in self.commands.values() if c.key == key and c.aside == "key"]
        if not behind:
            del self.heads[key]
            return
        following = min(behind, key=lambda c: c.number)
        following.aside, following.is_due = "", True
        self.heads[key] = following.name

    def _let_go(self, c: Command) -> None:
        c.is_leased = False
        self.places.discard(c.name)
        if c.aside == "gate":
            c.aside = ""

    def _end(self, c: Command, status: str) -> None:
        self._let_go(c)
        c.status, c.aside = status, ""
        self._promote(c.key, c.name)

    def settle(self, name: int, epoch: int, verb: str) -> bool:
        """False: its lease is lost."""
        c = self.commands[name]
        if not (c.is_leased and c.epoch == epoch):
            return c.epoch == epoch and not c.is_leased
        if c.is_marked and verb in {"retry", "retry later", "release", "snooze"}:
            self._end(c, "CANCELED")
            return True
        if verb in {"complete", "fail", "discard"}:
            self._end(c, {"complete": "COMPLETED", "fail": "FAILED"}.get(verb, "CANCELED"))
        elif verb == "park":
            self._let_go(c)
            c.status = PARKED
            if c.key is not None and self.on_park == "block":
                self.blocked[c.key] = c.name
            else:
                self._promote(c.key, c.name)
        else:
            self._let_go(c)
            c.status, c.is_due, c.lapses = "PENDING", verb != "retry later", 0
        return True

    # -- receiving

    def _is_gated(self, c: Command) -> bool:
        """Whether a gate asks for it. One that must not start passes, to be turned away."""
        has_rule = self.limit is not None or self.is_type_paused
        return c.kind == GATED and has_rule and not c.is_expired and not c.is_marked

    def receive(self) -> list[tuple[int, int]]:
        """All that is to be had; returns (name, epoch)."""
        if self.is_paused:
            return []
        for key in self.noted:
            self._look(key)
        self.noted.clear()
        open_ones = sorted(
            (c for c in self.commands.values() if c.is_open), key=lambda c: c.message
        )
        room = VERY_MANY if self.limit is None else self.limit - len(self.places)
        room = 0 if self.is_type_paused else room
        waiters = sorted((c for c in open_ones if c.aside == "gate"), key=lambda c: c.turn)
        picked = waiters[: max(room, 0)]
        due = [c for c in open_ones if c.is_due and not c.aside]
        if self.has_levels:
            due.sort(key=lambda c: c.turn)
        read = []
        for c in picked:
            c.aside = ""
            read.append(c)
            if self._is_gated(c):
                self.places.add(c.name)
                room -= 1
        is_waited_for = any(c.aside == "gate" for c in waiters)
        for c in due:
            if not self._is_gated(c) or (c.name in self.places and not self.is_type_paused):
                read.append(c)
            elif self.is_type_paused or room <= 0 or is_waited_for:
                self._stop(c)
            else:
                self.places.add(c.name)
                room -= 1
                read.append(c)
        if self.limit is None:
            self.places = set()
        return self._begin(read)

    def _stop(self, c: Command) -> None:
        """It waits at the gate. One whose lease has lapsed has nothing any more."""
        c.aside, c.is_due = "gate", False
        if c.is_leased:
            self._end_lapsed(c)

    def _end_lapsed(self, c: Command) -> None:
        """Its lease has lapsed, and nobody takes it over."""
        c.status, c.is_leased = "PENDING", False
        c.epoch += 1
        c.lapses += 1
        self.places.discard(c.name)

    def _is_left(self, c: Command) -> bool:
        """Whether its lease has lapsed, and no receive comes because it is paused."""
        is_paused = self.is_paused or (self.is_type_paused and c.kind == GATED)
        return is_paused and c.is_leased and c.is_due

    def let_go(self, name: int) -> None:
        """Who ends or moves it ends such a lease first."""
        if self._is_left(self.commands[name]):
            self._end_lapsed(self.commands[name])

    def _begin(self, read: Iterable[Command]) -> list[tuple[int, int]]:
        leases, over = [], []
        for c in sorted(read, key=lambda c: c.message):
            c.epoch += 1
            if c.is_marked or c.is_expired:
                over.append(c)
                continue
            c.lapses = c.lapses + 1 if c.is_leased else c.lapses
            c.is_leased, c.is_due, c.status = True, False, "IN_PROGRESS"
            leases.append((c.name, c.epoch))
        for c in over:
            self._end(c, "CANCELED")
        return leases

    def time_passes(self) -> None:
        """All leases lapse, and all delays are over."""
        for c in self.commands.values():
            c.is_due |= c.is_open and not c.aside

    # -- operators and chores

    def may(self, verb: str, name: int) -> bool:
        c = self.commands.get(name)
        if c is None:
            return False
        if verb in {"retry", "operator cancel", "operator complete"}:
            return c.status == PARKED
        is_waiting = (c.status == "PENDING" and not c.is_leased) or self._is_left(c)
        if verb in {"cancel", "level"}:
            return is_waiting
        if verb == "move":
            return is_waiting and not c.is_expired and c.aside != "key"
        return c.is_open and (c.is_leased or c.status == "PENDING")  # a request

    def operate(self, verb: str, name: int) -> None:
        c = self.commands[name]
        self.let_go(name)
        if verb == "retry":
            is_head = c.key is not None and self.heads.get(c.key) == name
            c.status, c.is_due, c.is_marked, c.is_expired, c.lapses = (
                "PENDING", True, False, False, 0
            )  # fmt: skip
            c.message = c.queued = self._number()
            if is_head:
                self.blocked.pop(str(c.key), None)
            else:
                c.number = c.message
                self._place_in_key(c)
                self._look(c.key)
        elif verb == "request" and c.is_leased:
            c.is_marked = True
        else:
            self._end(c, "COMPLETED" if verb == "operator complete" else "CANCELED")

    def move(self, name: int, delay: int) -> None:
        """Another time: it leaves the limit where it waits, and asks again when it is due."""
        c = self.commands[name]
        self.let_go(name)
        c.aside, c.is_due, c.deliver = "", not delay, (delay, self._number())

    def set_level(self, name: int, level: int) -> None:
        """Another level, and so another turn where it waits."""
        self.let_go(name)
        self.commands[name].level = level
        self.has_levels |= level != 0

    def set_policy(self, on_park: str) -> None:
        """The keys that are blocked go on by the next receive, or by who sends to them."""
        if on_park == "skip" and self.on_park == "block":
            self.noted |= set(self.blocked)
        self.on_park = on_park

    def skip(self, key: str) -> None:
        """An operator steps over what blocks a key."""
        self._promote(key, self.blocked[key])

    def end_expired(self) -> None:
        for name in sorted(self.commands, key=lambda n: self.commands[n].number):
            c = self.commands[name]
            if c.is_expired:
                self.let_go(name)
            if c.status == "PENDING" and not c.is_leased and c.is_expired:
                self._end(c, "CANCELED")

    def set_limit(self, limit: int | None) -> None:
        self.limit = limit
        leased = {c.name for c in self.commands.values() if c.is_leased and c.kind == GATED}
        waits = {c.name for c in self.commands.values() if c.aside == "gate"}
        self.places = set() if limit is None else leased - waits

    def tend(self) -> None:
        """What waits where no rule is any more is due."""
        if self.limit is None and not self.is_type_paused:
            for c in self.commands.values():
                if c.aside == "gate":
                    c.aside, c.is_due = "", True
