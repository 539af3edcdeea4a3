"""Bars that are ratios of whole drains or sends: beside what waits, with levels, with keys."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchmarks.flow_lab import (
    DOMAIN,
    Bar,
    FlowLab,
    Measured,
    commands,
    drain,
    judged,
    looking,
    paired_drains,
    send,
)
from commandbus import BatchCommand, CommandBus, Settings

#: As `send(delay=)` leaves them, but put in by SQL: through the bus a million takes minutes.
DELAYED = (
    """
insert into pgmq.q_bench__commands (read_ct, vt, message)
select 0, now() + interval '1 day', jsonb_build_object(
           'command_id', uuidv7(), 'type', 'Work', 'note', repeat('x', 120))
  from generate_series(1, %(rows)s) n
""",
    """
insert into commandbus.command_bus_command
    (domain, queue_name, msg_id, command_id, command_type, status, attempts, max_attempts,
     created_at, updated_at, reply_queue, correlation_id, lease_epoch, queued_at, deliver_at)
select 'bench', 'bench.commands', q.msg_id, (q.message ->> 'command_id')::uuid, 'Work', 'PENDING',
       0, 3, now(), now(), 'bench.replies', uuidv7(), 0, now(), q.vt
  from pgmq.q_bench__commands q
""",
)


async def fill_delayed(lab: FlowLab, dsn: str) -> None:
    """Very many that are due tomorrow."""
    with looking(dsn) as conn:
        for statement in DELAYED:
            conn.execute(statement.encode(), {"rows": lab.scale.delayed})


async def fill_gate(lab: FlowLab, dsn: str) -> None:
    """Very many at a limit that is full."""
    async with CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus:
        await bus.limits.set(DOMAIN, "Other", max_running=1)
    await send(dsn, list(commands(lab.scale.waiting, "Other")))
    with looking(dsn) as conn:
        while True:
            # Its place is held by a lease of an hour; each further receive finds it full.
            conn.execute(
                "select count(*) from commandbus.receive_commands('bench', 3600, 250, 'filler')"
            )
            row = conn.execute(
                "select count(*) from pgmq.q_bench__commands where vt <= clock_timestamp()"
            ).fetchone()
            if row is not None and not row[0]:
                return


async def fill_key(lab: FlowLab, dsn: str) -> None:
    """Very many behind the first of their key, which is leased for an hour."""
    await send(dsn, list(commands(lab.scale.waiting, ordering_key=lambda _: "one")))
    with looking(dsn) as conn:
        conn.execute("select count(*) from commandbus.receive_commands('bench', 3600, 1, 'filler')")


def beside(fill: Callable[[FlowLab, str], Awaitable[None]]) -> Callable[..., Awaitable[Measured]]:
    """The drain of others in a database that was filled, against one that was not."""

    async def measure(lab: FlowLab) -> Measured:
        async with AsyncExitStack() as stack:
            plain = await stack.enter_async_context(lab.database())
            filled = await stack.enter_async_context(lab.database())
            await fill(lab, filled)
            for dsn in (plain, filled):
                with looking(dsn) as conn:
                    conn.execute("vacuum analyze")
                await drain(lab, dsn, list(commands(lab.scale.drain // 4)))  # warm
            ratios = await paired_drains(
                lab,
                lambda: drain(lab, plain, list(commands(lab.scale.drain))),
                lambda: drain(lab, filled, list(commands(lab.scale.drain))),
            )
            return judged(*ratios, least=0.95)

    return measure


def with_options(
    make: Callable[[int], list[BatchCommand]], count: int, least: float
) -> Callable[..., Awaitable[Measured]]:
    """Commands with options, against as many without, each in a database of their own."""

    async def measure(lab: FlowLab) -> Measured:
        number = count or lab.scale.drain
        async with AsyncExitStack() as stack:
            plain = await stack.enter_async_context(lab.database())
            used = await stack.enter_async_context(lab.database())
            await drain(lab, plain, list(commands(number // 4)))
            await drain(lab, used, make(number // 4))
            ratios = await paired_drains(
                lab,
                lambda: drain(lab, plain, list(commands(number))),
                lambda: drain(lab, used, make(number)),
            )
            return judged(*ratios, least=least)

    return measure


def leveled(count: int) -> list[BatchCommand]:
    """Levels used by all."""
    chance = random.Random(20261118)
    return list(commands(count, priority=lambda _: chance.choice([-2, -1, 1, 2])))


def keyed(count: int) -> list[BatchCommand]:
    """Ten of each key."""
    return list(commands(count, ordering_key=lambda n: f"key:{n % max(1, count // 10)}"))


async def one_key(lab: FlowLab) -> Measured:
    """All of one key: each waits for the outcome of the one before."""
    count = max(200, lab.scale.drain // 8)
    async with lab.database() as dsn:
        rate = await drain(lab, dsn, list(commands(count, ordering_key=lambda _: "one")))
    return Measured(f"{rate:,.0f}/s", rate >= 100, {"rate": rate})


async def skip_known(lab: FlowLab) -> Measured:
    """10,000 in one call of which half are known, against 10,000 new ones."""
    ratios, ours, theirs = [], [], []
    count = 10_000 if lab.scale.pairs > 3 else 2_000
    async with (
        lab.database() as dsn,
        CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus,
    ):

        async def timed(given: list[BatchCommand], wanted: int) -> float:
            lab.server.checkpoint()
            began = time.perf_counter()
            report = await bus.send_many(DOMAIN, given, on_duplicate="skip")
            seconds = time.perf_counter() - began
            assert len(report.sent) == wanted, len(report.sent)
            return count / seconds

        for _ in range(lab.scale.pairs):
            known = list(commands(count))
            theirs.append(await timed(known, count))
            half = [*known[: count // 2], *commands(count // 2)]
            ours.append(await timed(half, count // 2))
            ratios.append(ours[-1] / theirs[-1])
    return judged(ratios, ours, theirs, 0.6)


DRAINS = (
    Bar("delayed", "drain beside 1,000,000 delayed commands", ">= 0.95", beside(fill_delayed)),
    Bar("gate", "drain of others beside 100,000 at a full limit", ">= 0.95", beside(fill_gate)),
    Bar("key", "drain of others beside 100,000 behind one key", ">= 0.95", beside(fill_key)),
    Bar("levels", "drain, levels used by all", ">= 0.80", with_options(leveled, 0, 0.80)),
    Bar("keys", "drain, 1,000 keys x 10", ">= 0.50", with_options(keyed, 10_000, 0.50)),
    Bar("one-key", "drain of one key, empty handler", ">= 100/s", one_key),
    Bar("skip", "send_many, skip, half of 10,000 known", ">= 0.60", skip_known),
)
