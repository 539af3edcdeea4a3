"""Runs transactions of several sessions in a given order, statement by statement.

Each session has two steps: its call, inside a transaction, and its commit. A schedule says whose
turn it is. Who waits for a lock is asked of the server, so nothing here depends on time: a session
whose turn comes while it still waits is passed over, and takes it when it is free again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.sql.helpers import Session
from tests.waiting import until

Act = Callable[[Session], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Refused:
    """The call was refused with this SQLSTATE."""

    sqlstate: str | None


@dataclass
class Player:
    """One session on its way through its two steps."""

    session: Session
    act: Act
    ends: str = "commit"
    task: asyncio.Task[Any] | None = None
    result: Any = None
    is_over: bool = False
    #: Whether the server once said that it waits.
    has_waited: bool = False


@dataclass
class Run:
    """What one schedule came to."""

    results: list[Any] = field(default_factory=list)
    waited: list[bool] = field(default_factory=list)


def schedules(players: int) -> Iterator[tuple[int, ...]]:
    """All orders of the steps of so many sessions."""
    steps = [player for player in range(players) for _ in range(2)]
    yield from sorted(set(itertools.permutations(steps)))


async def play(
    watcher: Session, sessions: Sequence[Session], acts: Sequence[Act], schedule: Sequence[int],
    rolls_back: int | None = None,
) -> Run:  # fmt: skip
    """Let the sessions act in this order; `rolls_back`: this one takes everything back."""
    players = [
        Player(session, act, "rollback" if n == rolls_back else "commit")
        for n, (session, act) in enumerate(zip(sessions, acts, strict=True))
    ]
    turns = list(schedule)
    while turns:
        for position, n in enumerate(turns):  # noqa: B007  (used after the loop)
            if await _is_free(watcher, players[n]):
                break
        else:
            raise AssertionError(f"all of {set(turns)} wait: a circle")
        await _step(watcher, players[turns.pop(position)])
        for other in players:  # a commit may have set others free
            await _settled(watcher, other)
    return Run([p.result for p in players], [p.has_waited for p in players])


async def _step(watcher: Session, player: Player) -> None:
    if player.task is None:
        player.task = asyncio.create_task(_call(player))
        await _settled(watcher, player)
        return
    await player.task
    if isinstance(player.result, Refused):
        await player.session.conn.rollback()
    else:
        await getattr(player.session.conn, player.ends)()
    player.is_over = True


async def _call(player: Player) -> None:
    try:
        player.result = await player.act(player.session)
    except psycopg.errors.DeadlockDetected:
        raise  # never allowed
    except psycopg.Error as error:
        player.result = Refused(error.sqlstate)


async def _settled(watcher: Session, player: Player) -> None:
    """Wait until the player's call has ended, or waits for a lock."""
    if player.task is None or player.is_over:
        return
    task = player.task

    async def has_settled() -> bool:
        return task.done() or await _is_waiting(watcher, player)

    await until(has_settled, "the call ending, or waiting for a lock")


async def _is_free(watcher: Session, player: Player) -> bool:
    return player.task is None or player.task.done() or not await _is_waiting(watcher, player)


async def _is_waiting(watcher: Session, player: Player) -> bool:
    waits = await watcher.value(
        "select cardinality(pg_blocking_pids(%s)) > 0", player.session.conn.info.backend_pid
    )
    player.has_waited |= waits
    return bool(waits)


DOCTOR = " union all ".join(
    f"select '{check}' as who, code, subject from commandbus.check_{check}(%s)"
    for check in ("messages", "commands", "troubleshooting", "batches", "audit", "replies")
)


async def symptoms(watcher: Session) -> list[dict[str, Any]]:
    """What the doctor finds in the domain of the session."""
    return await watcher.rows(DOCTOR, *[watcher.domain] * 6)
