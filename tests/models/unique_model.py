"""A small model of unique keys: three senders with one key, workers, and the command that holds it;
as in `flow_model`, without any one guard something goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.models.flow_model import Steps

GUARDS = {
    "unique.claim": "claim_unique: the row of the key is locked until the sender commits",
    "unique.holds": "unique_holders: a command that waits, or is open, holds its key",
    "unique.ended": "unique_holders: one that has ended holds it no more",
    "unique.still": "lock_waiting: what a worker has leased meanwhile is not replaced",
    "unique.message": "lock_waiting: no worker leases the holder before the sender commits",
    "unique.give": "give_unique: who is sent holds the key from then on",
    "unique.drop": "drop_unique: only keys that nobody holds are given back",
}
#: The number of senders; each sends once, with `waiting` and `replace`, but the last: it has `open`
#: and `skip`.
SENDERS = 3
SKIPS = SENDERS - 1


class Sent(NamedTuple):
    #: none, waiting, leased or done
    status: str = "none"
    #: Whose payload it has.
    payload: int = -1


class Unique(NamedTuple):
    commands: tuple[Sent, ...] = (Sent(),) * SENDERS
    #: new, looked (what it found, or -1), done
    senders: tuple[tuple[str, int], ...] = (("new", -1),) * SENDERS
    #: Which command has the key; -1: none.
    holder: int = -1
    #: Who has the row of the key, and who the message of the holder: a sender + 1.
    key_lock: int = 0
    message_lock: int = 0
    #: What was open when the sender looked that has the key.
    open_at_look: frozenset[int] = frozenset()
    #: In which order the senders have committed.
    order: tuple[int, ...] = ()
    fault: str = ""

    @property
    def unfinished(self) -> str:
        if any(what != "done" for what, _ in self.senders):
            return "a sender waits without end"
        is_done = all(each.status in {"none", "done"} for each in self.commands)
        return "" if is_done else "a command is left behind"


def unique_steps(without: str) -> Callable[[Unique], Steps[Unique]]:
    """Senders look, then lock what waits, then commit; a worker leases and ends."""

    def steps(s: Unique) -> Steps[Unique]:
        for n, (what, found) in enumerate(s.senders):
            if what == "new" and (not s.key_lock or without == "unique.claim"):
                seen = s.holder if s.holder != -1 and _holds(s, n, without) else -1
                locked = s._replace(
                    key_lock=n + 1,
                    senders=_put(s.senders, n, ("looked", seen)),
                    open_at_look=frozenset(
                        m for m, c in enumerate(s.commands) if c.status in {"waiting", "leased"}
                    ),
                )
                yield f"sender {n} looks", locked
            elif what == "looked" and found == -1:
                yield f"sender {n} sends", _send(s, n, without)
            elif what == "looked" and n == SKIPS:
                yield f"sender {n} skips", _skip(s, n, found)
            elif what == "looked":
                # The message is locked by a statement after the look: a worker may have been first.
                is_still = s.commands[found].status == "waiting" or without == "unique.still"
                if is_still and not s.message_lock:
                    yield (
                        f"sender {n} locks the message of {found}",
                        s._replace(
                            message_lock=0 if without == "unique.message" else n + 1,
                            senders=_put(s.senders, n, ("locked", found)),
                        ),
                    )
                elif not is_still:
                    yield (
                        f"sender {n} finds {found} leased",
                        s._replace(senders=_put(s.senders, n, ("looked", -1))),
                    )
            elif what == "locked":
                yield f"sender {n} replaces {found}", _replace(s, n, found, without)
        for n, c in enumerate(s.commands):
            if c.status == "waiting" and not (s.message_lock and s.holder == n):
                yield f"{n} is leased", s._replace(commands=_with(s, n, "leased", c.payload))
            elif c.status == "leased":
                yield f"{n} ends", s._replace(commands=_with(s, n, "done", c.payload))

    return steps


def _holds(s: Unique, n: int, without: str) -> bool:
    if without == "unique.holds":
        return False
    status = s.commands[s.holder].status
    is_open = status in {"waiting", "leased"} or without == "unique.ended"
    return is_open if n == SKIPS else status == "waiting"


def _skip(s: Unique, n: int, holder: int) -> Unique:
    fault = "skipped for a command that had ended" if s.commands[holder].status == "done" else ""
    # It may have ended since the look: then it was open when this sender asked.
    if holder in s.open_at_look:
        fault = ""
    return s._replace(senders=_put(s.senders, n, ("done", -1)), key_lock=0, fault=s.fault or fault)


def _send(s: Unique, n: int, without: str) -> Unique:
    waiting = any(each.status == "waiting" for each in s.commands)
    after = s._replace(
        commands=_with(s, n, "waiting", n),
        senders=_put(s.senders, n, ("done", -1)),
        order=(*s.order, n),
        key_lock=0,
        holder=s.holder if without == "unique.give" else n,
    )
    return after._replace(fault="two of a key wait") if waiting else after


def _replace(s: Unique, n: int, holder: int, without: str) -> Unique:
    c = s.commands[holder]
    fault = s.fault
    if c.status != "waiting":
        fault = "a payload was given to a command that had begun: it is lost"
    after = s._replace(
        commands=_with(s, holder, c.status, n),
        senders=_put(s.senders, n, ("done", -1)),
        order=(*s.order, n),
        key_lock=0,
        message_lock=0,
        fault=fault,
    )
    return after._replace(holder=-1) if without == "unique.drop" else after


def unique_wrong(s: Unique) -> str:
    """Two that wait, or a payload that nobody will ever see."""
    if s.fault:
        return s.fault
    if sum(each.status == "waiting" for each in s.commands) > 1:
        return "two of a key wait"
    if s.order and all(what == "done" for what, _ in s.senders):
        payloads = {each.payload for each in s.commands if each.status != "none"}
        if s.order[-1] not in payloads:
            return "the last payload is lost"
    return ""


def _put(
    items: tuple[tuple[str, int], ...], n: int, item: tuple[str, int]
) -> tuple[tuple[str, int], ...]:
    return (*items[:n], item, *items[n + 1 :])


def _with(s: Unique, n: int, status: str, payload: int) -> tuple[Sent, ...]:
    return (*s.commands[:n], Sent(status, payload), *s.commands[n + 1 :])
