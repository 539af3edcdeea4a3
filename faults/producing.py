"""The producer processes: they send, and write down what they were told, as in Jepsen.

A send that raises is *unknown*: it may be committed. It is repeated under the same id until the
answer is `ok` or `duplicate`; both mean that the command exists.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from commandbus import (
    BatchCommand,
    CommandBus,
    CommandBusError,
    DuplicateCommandError,
    InvalidInputError,
    SendOptions,
)
from commandbus.database.own_connections import OurConnection
from faults.logs import EventLog
from faults.working import open_bus

#: Seconds before an unknown send is repeated.
REPEAT_SECONDS = 0.05
#: A look at the queue may take so long; then nobody knows how full it is.
LOOK_SECONDS = 2.0
#: Commands of a batch that is made along the way.
BATCH_SIZE = 25
#: The ways to send, in the order of their weights.
KINDS = ["one", "many", "batch", "open"]


class Producer:
    """Keeps the queue filled up to a line, so that workers are always busy and never far behind."""

    def __init__(self, config: dict[str, Any], bus: CommandBus, log: EventLog) -> None:
        self._config = config
        self._bus = bus
        self._log = log
        self._domain: str = config["domain"]
        self._stopping = asyncio.Event()
        self._has_room = asyncio.Event()
        self._left: int | None = config.get("count")

    def stop(self) -> None:
        """Send nothing new; what is unknown is still found out."""
        self._stopping.set()
        self._has_room.set()

    async def run(self) -> None:
        """Send until stopped, or until the count is reached."""
        watch = asyncio.create_task(self._watch_depth())
        try:
            await asyncio.gather(*(self._task(n) for n in range(self._config["tasks"])))
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        self._log.write("stopped")

    async def _task(self, number: int) -> None:
        chance = random.Random(f"{self._config['seed']}:{number}")
        while not self._stopping.is_set() and (self._left is None or self._left > 0):
            await self._has_room.wait()
            if self._stopping.is_set():
                return
            weights = self._config["groups"]
            kind = chance.choices(KINDS[: len(weights)], weights)[0]
            size = {"one": 1, "many": 10, "batch": BATCH_SIZE, "open": 5}[kind]
            if self._left is not None:
                size = min(size, self._left)
                self._left -= size
            commands = [self._command(chance) for _ in range(size)]
            if commands and kind == "open":
                await self._send_open(commands, chance)
            elif commands:
                await self._send(kind, commands)
            await asyncio.sleep(0)

    def _command(self, chance: random.Random) -> BatchCommand:
        mix: dict[str, float] = self._config["mix"]
        kind = chance.choices(list(mix), list(mix.values()))[0]
        ms = round(self._config["work_ms"] * chance.uniform(0.5, 1.5), 1)
        data: dict[str, Any] = {"ms": ms}
        # "Limited:transient" is a type and a fate, "Limited" a type, "transient" a fate.
        command_type, _, fate = kind.rpartition(":")
        if fate in {"transient", "permanent"}:
            data["fate"] = fate
        elif fate != "fine":
            command_type = fate
        command_type = command_type or "Work"
        if command_type in {"Block", "Spin"}:
            data["seconds"] = self._config["block_seconds"]
        command_id = UUID(int=chance.getrandbits(128), version=4)
        return BatchCommand(command_type, command_id, data, **self._options(chance))

    def _options(self, chance: random.Random) -> SendOptions:
        options: SendOptions = {}
        if keys := self._config["keys"]:
            options["ordering_key"] = f"key:{chance.randrange(keys)}"
        if keys := self._config["limit_keys"]:
            options["limit_key"] = f"customer:{chance.randrange(keys)}"
        if span := self._config["expires_seconds"]:
            seconds = chance.uniform(*span)
            options["expires_in"] = seconds
            if chance.random() < 0.5:
                options["delay"] = seconds * chance.uniform(0.0, 0.5)
        return options

    async def _send_open(self, commands: list[BatchCommand], chance: random.Random) -> None:
        """In a transaction that stays open for a while, and is sometimes rolled back."""
        ids = [str(command.command_id) for command in commands]
        is_kept = chance.random() < 0.7
        try:
            async with await psycopg.AsyncConnection.connect(self._config["dsn"]) as conn:
                await self._bus.send_many(self._domain, commands, conn=conn)
                await asyncio.sleep(chance.uniform(0.0, 0.2))
                if not is_kept:
                    # Nothing is written down: if one of them exists, nobody has sent it.
                    await conn.rollback()
                    return
                self._log.write("invoke", ids=ids)
                await conn.commit()
        except (CommandBusError, psycopg.Error, OSError):
            if is_kept:
                self._log.write("send", ids=ids, outcome="unknown")
        else:
            self._log.write("send", ids=ids, outcome="ok")

    async def _send(self, kind: str, commands: list[BatchCommand]) -> None:
        ids = [str(command.command_id) for command in commands]
        self._log.write("invoke", ids=ids)
        while True:
            try:
                known = await self._send_once(kind, commands)
            except DuplicateCommandError:
                self._log.write("send", ids=ids, outcome="duplicate")
                return
            except InvalidInputError as error:
                self._log.write("send", ids=ids, outcome="refused", error=str(error)[:200])
                return
            except CommandBusError as error:
                name = type(error).__name__
                self._log.write("send", ids=ids, outcome="unknown", error=f"{name} {error}"[:200])
                await asyncio.sleep(REPEAT_SECONDS)
            else:
                self._log.write("send", ids=[i for i in ids if i not in known], outcome="ok")
                self._log.write("send", ids=sorted(known), outcome="duplicate")
                return

    async def _send_once(self, kind: str, commands: list[BatchCommand]) -> set[str]:
        """Send them; returns those that were known before."""
        if kind == "one":
            first = commands[0]
            await self._bus.send(
                self._domain, first.command_type, first.command_id, first.data,
                **(first.options or {}),
            )  # fmt: skip
        elif kind == "many" and self._config["skips_known"]:
            report = await self._bus.send_many(self._domain, commands, on_duplicate="skip")
            return {str(command_id) for command_id in report.skipped}
        elif kind == "many":
            await self._bus.send_many(self._domain, commands)
        else:
            await self._bus.create_batch(self._domain, commands)
        return set()

    async def _watch_depth(self) -> None:
        queue = sql.Identifier("pgmq", f"q_{self._domain}__commands")
        query = sql.SQL("select count(*) from {}").format(queue)
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._follow_depth(query)
            except (psycopg.Error, OSError, TimeoutError):
                self._has_room.set()  # a send will tell
                await asyncio.sleep(REPEAT_SECONDS)

    async def _follow_depth(self, query: sql.Composed) -> None:
        # One of ours finds the leader past a silent host, within the time that a look has.
        kind = OurConnection if self._config.get("watched") else psycopg.AsyncConnection
        async with await kind.connect(self._config["dsn"], autocommit=True) as conn:
            while True:
                row = await (await conn.execute(query)).fetchone()
                if self._stopping.is_set() or (row and row[0] < self._config["backlog"]):
                    self._has_room.set()
                else:
                    self._has_room.clear()
                await asyncio.sleep(0.05)


async def produce(config: dict[str, Any]) -> None:
    """Send until SIGTERM."""
    log = EventLog(Path(config["log_folder"], f"producer-{os.getpid()}.jsonl"), config["clock"])
    async with open_bus(config) as (bus, _):
        producer = Producer(config, bus, log)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, producer.stop)
        await producer.run()


async def cross(config: dict[str, Any]) -> None:
    """Send to two domains in one transaction, half of the tasks in the opposite order (F14)."""
    log = EventLog(Path(config["log_folder"], f"crossing-{os.getpid()}.jsonl"), config["clock"])
    async with open_bus(config) as (bus, pool):
        domains = [config["domain"], config["other_domain"]]
        for domain in domains:
            # The first send of a process needs a connection beside the caller's, once: with all
            # of the pool in transactions it would have to wait for them.
            await bus._store.ensure_domain(domain)

        async def task(number: int) -> None:
            chance = random.Random(f"{config['seed']}:crossing:{number}")
            order = domains if number % 2 == 0 else domains[::-1]
            for _ in range(config["rounds"]):
                ids = [UUID(int=chance.getrandbits(128), version=4) for _ in order]
                names = [str(command_id) for command_id in ids]
                try:
                    async with pool.connection() as conn, conn.transaction():
                        for domain, command_id in zip(order, ids, strict=True):
                            data = {"ms": config["work_ms"]}
                            await bus.send(domain, "Work", command_id, data, conn=conn)
                            await asyncio.sleep(0)
                except (CommandBusError, psycopg.Error) as error:
                    name = type(error).__name__
                    log.write("send", ids=names, outcome="unknown", error=f"{name} {error}"[:200])
                    log.write("crossing_failed", error=f"{name} {error}"[:200])
                else:
                    log.write("send", ids=names, outcome="ok")

        await asyncio.gather(*(task(number) for number in range(config["tasks"])))
    log.write("stopped")


async def send_identical(config: dict[str, Any]) -> None:
    """Many sends of one id at once, with the same or another body; some are cancelled (F16)."""
    log = EventLog(Path(config["log_folder"], f"identical-{os.getpid()}.jsonl"), config["clock"])
    chance = random.Random(f"{config['seed']}:identical")
    domain = config["domain"]
    async with open_bus(config) as (bus, _):

        async def send(command_id: UUID, number: int, gives_up_after: float | None) -> None:
            data = {"ms": config["work_ms"], "body": number % 3}
            outcome = "ok"
            try:
                async with asyncio.timeout(gives_up_after):
                    await bus.send(domain, "Work", command_id, data)
            except DuplicateCommandError:
                outcome = "duplicate"
            except (CommandBusError, TimeoutError):
                outcome = "unknown"
            log.write("send", ids=[str(command_id)], outcome=outcome)

        for _ in range(config["keys"]):
            command_id = UUID(int=chance.getrandbits(128), version=4)
            tries = [
                send(command_id, n, chance.uniform(0, 0.02) if chance.random() < 0.2 else None)
                for n in range(config["sends"])
            ]
            # The first may be cut off before it is sent, and so may all: one more is not.
            await asyncio.gather(*tries)
            await send(command_id, 0, None)
    log.write("stopped")
