"""Random interleavings of two sessions with open transactions, against a model in memory.

The model knows of each key its open commands in the order of their numbers. What is leased must be
the first of its key; nothing else of the key may be leased; and whenever no transaction is open,
one receive must give each key that is free to go on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.sql.conftest import Open
from tests.sql.helpers import DOMAIN, FAILURE, Held, Session
from tests.sql.keyed import assert_nothing_left, set_policy

KEYS = ("a", "b", "c")


@dataclass
class Model:
    """What is committed."""

    line: dict[str, list[UUID]] = field(default_factory=lambda: {key: [] for key in KEYS})
    held: dict[UUID, Held] = field(default_factory=dict)
    parked: dict[UUID, str] = field(default_factory=dict)
    blocked: dict[str, UUID] = field(default_factory=dict)
    skips: bool = False

    def key_of(self, command_id: UUID) -> str:
        return next(key for key in KEYS if command_id in self.line[key])

    def ready(self) -> set[UUID]:
        return {
            line[0]
            for key, line in self.line.items()
            if line and key not in self.blocked and line[0] not in self.held
        }


class Actor:
    """One session; what it did in its open transaction becomes the model's with its commit."""

    def __init__(self, session: Session, model: Model, dice: random.Random) -> None:
        self.session = session
        self.model = model
        self.dice = dice
        self.effects: list[tuple[str, UUID, str]] = []
        #: Keys that this transaction has locked; another sender would wait for them.
        self.keys: set[str] = set()
        self.commands: set[UUID] = set()
        #: Leased before this transaction began: a lease comes before the work on it.
        self.leased: set[UUID] = set()

    def begin(self) -> None:
        if not self.is_open:
            self.leased = set(self.model.held)

    @property
    def is_open(self) -> bool:
        return bool(self.effects)

    async def send(self, keys: list[str]) -> None:
        ids = [uuid4() for _ in keys]
        commands = [
            {"command_id": str(i), "type": "Debit", "ordering_key": key, "max_attempts": 1000}
            for i, key in zip(ids, keys, strict=True)
        ]
        await self.session.rows("select commandbus.send_commands(%s, %s)", DOMAIN, Jsonb(commands))
        self.keys |= set(keys)
        self.effects += [("sent", i, key) for i, key in zip(ids, keys, strict=True)]

    async def end(self, held: Held, verb: str) -> None:
        key = self.model.key_of(held.command_id)
        item = held.item(data=None, reason="PERMANENT", delay_seconds=0, **FAILURE)
        assert await self.session.settle(verb, item) == []
        self.keys.add(key)
        self.commands.add(held.command_id)
        self.effects.append((verb, held.command_id, key))

    async def cancel(self, command_id: UUID, key: str) -> None:
        query = "select commandbus.cancel_commands(%s, %s, 'why')"
        await self.session.rows(query, DOMAIN, [command_id])
        self.keys.add(key)
        self.effects.append(("canceled", command_id, key))

    async def retry(self, command_id: UUID, key: str) -> None:
        await self.session.rows("select commandbus.operator_retry(%s, %s)", DOMAIN, [command_id])
        self.keys.add(key)
        self.effects.append(("retried", command_id, key))

    async def skip(self, key: str) -> None:
        await self.session.rows("select commandbus.skip_key(%s, %s, 'ana')", DOMAIN, key)
        self.keys.add(key)
        self.effects.append(("skipped", self.model.blocked[key], key))

    @property
    def has_group(self) -> bool:
        """Whether it has the row of the failure group, for which every other park waits."""
        return any(kind in {"park", "retried"} for kind, _, _ in self.effects)

    async def finish(self, *, commits: bool) -> None:
        await (self.session.conn.commit if commits else self.session.conn.rollback)()
        for kind, command_id, key in self.effects if commits else ():
            apply(self.model, kind, command_id, key)
        self.effects.clear()
        self.keys.clear()
        self.commands.clear()


def apply(model: Model, kind: str, command_id: UUID, key: str) -> None:
    line = model.line[key]
    if kind == "sent":
        line.append(command_id)
    elif kind == "retried":
        del model.parked[command_id]
        if model.blocked.get(key) == command_id:
            del model.blocked[key]
        else:
            line.append(command_id)
    elif kind == "skipped":
        del model.blocked[key]
        line.remove(command_id)
    else:
        model.held.pop(command_id, None)
        if kind == "park":
            model.parked[command_id] = key
            if not model.skips:
                model.blocked[key] = command_id
                return
        if kind not in {"retry", "release"}:
            line.remove(command_id)


async def receive(db: Session, model: Model) -> None:
    for held in await db.receive(100):
        assert held.command_id in model.ready(), "leased out of its turn"
        model.held[held.command_id] = held


async def step(dice: random.Random, model: Model, actor: Actor, other: Actor, db: Session) -> None:
    free = [key for key in KEYS if key not in other.keys]
    touched = actor.commands | other.commands
    actor.begin()
    endable = [h for i, h in model.held.items() if i not in touched and i in actor.leased]
    # Behind the first: that one may be leased, and is ended by its outcome.
    behind = [
        (i, key)
        for key in free
        if key not in actor.keys
        for i in model.line[key][1:]
        if i not in touched
    ]
    parked = [(i, k) for i, k in model.parked.items() if k in free and k not in actor.keys]
    blocked = [k for k in model.blocked if k in free and k not in actor.keys]
    match dice.randrange(12):
        case 0 | 1 | 2 if free:
            await actor.send([dice.choice(free) for _ in range(dice.randint(1, 3))])
        case 3 | 4 | 5 if endable:
            verbs = ["complete", "complete", "complete", "fail", "retry", "release"]
            verbs += [] if other.has_group else ["park"]
            await actor.end(dice.choice(endable), dice.choice(verbs))
        case 6 if behind:
            await actor.cancel(*dice.choice(behind))
        case 7 if parked and not other.has_group:
            await actor.retry(*dice.choice(parked))
        case 8 if blocked:
            await actor.skip(dice.choice(blocked))
        case 9 if not actor.is_open and not other.is_open:
            model.skips = not model.skips
            await set_policy(db, "skip" if model.skips else "block")
            for key, command_id in list(model.blocked.items()) if model.skips else ():
                apply(model, "skipped", command_id, key)
        case _:
            await receive(db, model)
    if dice.random() < 0.6:
        await actor.finish(commits=dice.random() < 0.8)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
@pytest.mark.parametrize("seed", range(6))
async def test_no_interleaving_breaks_the_order_or_loses_a_turn(
    db: Session, session: Open, seed: int, isolation: str
) -> None:
    dice = random.Random(seed)
    await db.rows("select commandbus.ensure_domain(%s), commandbus.use_keys(%s)", DOMAIN, DOMAIN)
    model = Model()
    actors = [Actor(await session(), model, dice) for _ in range(2)]
    for each in actors:
        await each.session.rows("set lock_timeout = '5s'")  # nothing here may have to wait
        await each.session.rows(
            f"set session characteristics as transaction isolation level {isolation}"
        )
        await each.session.conn.commit()
    for _ in range(120):
        actor, other = dice.sample(actors, 2)
        try:
            await step(dice, model, actor, other, db)
        except psycopg.DatabaseError as error:
            # Above READ COMMITTED it may not see, or not change, what was committed since.
            if isolation == "read committed" or isinstance(error, errors.LockNotAvailable):
                raise
            await actor.finish(commits=False)
        if not any(each.is_open for each in actors):
            due = model.ready()
            await receive(db, model)
            assert due <= model.held.keys(), "a key stands still"
    for each in actors:
        await each.finish(commits=True)
    await set_policy(db, "skip")
    for key, command_id in list(model.blocked.items()):
        apply(model, "skipped", command_id, key)
    model.skips = True
    while any(model.line.values()):
        await receive(db, model)
        assert model.held, "a key stands still"
        for held in list(model.held.values()):
            await actors[0].end(held, "complete")
        await actors[0].finish(commits=True)
    await receive(db, model)
    await assert_nothing_left(db)
