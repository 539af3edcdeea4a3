"""Bars that are times and counts: how soon, how many at once, how often, how exactly."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from benchmarks.figures import quantile
from benchmarks.flow_lab import (
    DOMAIN,
    Bar,
    FlowLab,
    Measured,
    commands,
    looking,
    send,
    serving,
    worker_processes,
)
from commandbus import Command, CommandBus, HandlerContext, Settings, new_id

POLL_MAX_SECONDS = Settings().poll_max_seconds
COMPLETED = "select count(*) from commandbus.command_bus_audit where event_type = 'COMPLETED'"
RECEIVED = """
select extract(epoch from ts)::float8 from commandbus.command_bus_audit
 where domain = 'bench' and event_type = 'RECEIVED' order by ts
"""


async def until(is_so: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.002)


def one(conn: psycopg.Connection[Any], query: str, *params: object) -> Any:
    """The first value of the first row."""
    row = conn.execute(query.encode(), params or None).fetchone()
    return None if row is None else row[0]


def milliseconds(values: list[float]) -> str:
    """Median, p99 and the largest."""
    median, p99 = quantile(values, 0.5) * 1e3, quantile(values, 0.99) * 1e3
    return f"p50 {median:,.0f} ms, p99 {p99:,.0f} ms, max {max(values) * 1e3:,.0f} ms"


async def delayed_start(lab: FlowLab) -> Measured:
    """From due to begun, by an idle worker, with hints and without."""
    found: dict[bool, list[float]] = {}
    for use_notify in (True, False):
        begun: dict[Any, float] = {}

        async def work(command: Command, ctx: HandlerContext, begun: Any = begun) -> None:
            begun[command.command_id] = time.time()

        async with (
            lab.database() as dsn,
            serving(dsn, work, use_notify=use_notify) as bus,
        ):
            chance = random.Random(7)
            for _ in range(lab.scale.rounds):
                await bus.send(
                    DOMAIN, "Work", new_id(), {}, delay=chance.uniform(0.2, 0.1 * lab.scale.rounds)
                )
            await until(lambda begun=begun: len(begun) == lab.scale.rounds, "all begun")  # type: ignore[misc]
            with looking(dsn) as conn:
                due = dict(
                    conn.execute(
                        "select command_id, extract(epoch from deliver_at)::float8"
                        " from commandbus.command_bus_command where deliver_at is not null"
                    ).fetchall()
                )
            found[use_notify] = [at - due[command_id] for command_id, at in begun.items()]
    is_met = quantile(found[True], 0.99) <= 0.1 and max(found[False]) <= POLL_MAX_SECONDS + 0.1
    text = f"{milliseconds(found[True])}; without hints max {max(found[False]) * 1e3:,.0f} ms"
    return Measured(text, is_met and min(found[True]) > -0.005, {"seconds": found[True]})


async def urgent(lab: FlowLab) -> Measured:
    """Level 1, sent behind a long queue of level 0 that a worker is busy with."""
    taken: list[float] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        if "sent" in command.data:
            taken.append(time.time() - command.data["sent"])
        await asyncio.sleep(0.005)

    async with lab.database() as dsn:
        await send(dsn, list(commands(lab.scale.waiting)))
        rounds = max(10, lab.scale.rounds // 4)
        async with serving(dsn, work, concurrency=10) as bus:
            for number in range(rounds):
                await bus.send(DOMAIN, "Work", new_id(), {"sent": time.time()}, priority=1)
                await until(lambda number=number: len(taken) > number, "level 1 begun")  # type: ignore[misc]
                await asyncio.sleep(0.2)
    return Measured(milliseconds(taken), max(taken) <= 0.2, {"seconds": taken})


async def starvation(lab: FlowLab) -> Measured:
    """Level -2 under level 2 that never ends; a level is worth one second here."""
    level_seconds, lease = 1.0, 30
    waited: list[float] = []
    left = 0

    async def work(command: Command, ctx: HandlerContext) -> None:
        nonlocal left
        if "sent" in command.data:
            waited.append(time.time() - command.data["sent"])
        else:
            left -= 1
        await asyncio.sleep(0.005)

    async with (
        lab.database() as dsn,
        serving(dsn, work, concurrency=10, vt_seconds=lease) as bus,
    ):
        await bus.send(DOMAIN, "Work", new_id(), {}, priority=2)
        with looking(dsn) as conn:
            conn.execute(
                "update commandbus.command_bus_flow set level_seconds = %s", (level_seconds,)
            )
        is_over = asyncio.Event()

        async def press() -> None:
            nonlocal left
            while not is_over.is_set():
                if left < 400:
                    left += 200
                    await bus.send_many(DOMAIN, list(commands(200, priority=lambda _: 2)))
                await asyncio.sleep(0.005)

        pressing = asyncio.create_task(press())
        await asyncio.sleep(1.0)
        for _ in range(5):
            await bus.send(DOMAIN, "Work", new_id(), {"sent": time.time()}, priority=-2)
            await asyncio.sleep(0.3)
        await until(lambda: len(waited) == 5, "level -2 begun")
        is_over.set()
        await pressing
    bound = 4 * level_seconds + lease
    text = f"{min(waited):.1f} to {max(waited):.1f} s at level_seconds = 1"
    # Both ways: not before its time either, or the higher level would not go first.
    return Measured(text, max(waited) <= bound and min(waited) >= 3.5, {"seconds": waited})


PLACES = """
select coalesce(c.leased_by, ''), count(*) from commandbus.command_bus_slot s
  left join commandbus.command_bus_command c using (domain, command_id) group by 1
"""


async def limit(lab: FlowLab) -> Measured:
    """Ten at once on four processes of ten; then one of them is killed."""
    lease, places, ms = 5, 10, 50
    async with lab.database() as dsn:
        async with CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus:
            await bus.limits.set(DOMAIN, "Work", max_running=places)
        count = 4_000 if lab.scale.pairs > 3 else 2_000
        await send(dsn, list(commands(count)))
        samples: list[tuple[float, int]] = []
        async with worker_processes(dsn, 4, ms=ms, vt_seconds=lease) as workers:
            with looking(dsn) as conn:

                async def sample(seconds: float) -> None:
                    ends = time.monotonic() + seconds
                    while time.monotonic() < ends:
                        taken = sum(row[1] for row in conn.execute(PLACES).fetchall())
                        samples.append((time.monotonic(), taken))
                        await asyncio.sleep(0.01)

                await sample(1.0)
                samples.clear()
                before, began = one(conn, COMPLETED), time.monotonic()
                await sample(6.0 if lab.scale.pairs > 3 else 3.0)
                done, seconds = one(conn, COMPLETED) - before, time.monotonic() - began
                steady = [taken for _, taken in samples]
                back = await _killed(conn, workers, places, samples)
        busy = sum(steady) / len(steady) / places
        above = sum(taken > places for _, taken in samples)
        handlers = done * ms / 1000 / (seconds * places)
        text = (
            f"{busy:.1%} of places taken ({handlers:.0%} in handlers), {above} of {len(samples)} "
            f"samples above, back after {back:.1f} s (lease {lease} s)"
        )
        is_met = busy >= 0.95 and not above and back <= lease + 1
        figures = {"busy": busy, "handlers": handlers, "above": above, "back_seconds": back}
        return Measured(text, is_met, figures)


async def _killed(
    conn: psycopg.Connection[Any], workers: Sequence[asyncio.subprocess.Process], places: int,
    samples: list[tuple[float, int]],
) -> float:  # fmt: skip
    """Seconds from the death of a worker that has places until the others use all of them."""

    def with_place() -> asyncio.subprocess.Process | None:
        # Not any: the worker that ends a command asks first for its place, and may keep it long.
        holders = [holder for holder, _ in conn.execute(PLACES).fetchall()]
        return next((w for w in workers if any(f":{w.pid}:" in each for each in holders)), None)

    await until(lambda: with_place() is not None, "a worker has a place")
    victim = with_place() or workers[0]
    victim.send_signal(signal.SIGKILL)
    died = time.monotonic()
    while True:
        used = taken = 0
        for holder, number in conn.execute(PLACES).fetchall():
            taken += number
            used += number * (f":{victim.pid}:" not in holder)
        samples.append((time.monotonic(), taken))
        if used >= places or time.monotonic() - died > 60:
            return time.monotonic() - died
        await asyncio.sleep(0.01)


async def rate(lab: FlowLab) -> Measured:
    """100 a second by two processes, from the audit."""
    per_second, burst, seconds = 100.0, 10.0, lab.scale.rate_seconds
    async with lab.database() as dsn:
        async with CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus:
            await bus.limits.set(DOMAIN, "Work", rate=per_second, per=1.0, burst=burst)
        await send(dsn, list(commands(int(per_second * (seconds + 5)))))
        async with worker_processes(dsn, 2):
            await asyncio.sleep(seconds + 2)
        with looking(dsn) as conn:
            times = [row[0] for row in conn.execute(RECEIVED.encode()).fetchall()]
    above = 0
    for span in (0.1, 1.0, 10.0):
        allowed = per_second * span + burst + 1e-6
        above += sum(
            bisect_right(times, at + span - 1e-6) - place > allowed
            for place, at in enumerate(times)
        )
    # The burst at the beginning is not part of the rate.
    start = times[0] + 1.0
    found = bisect_right(times, start + seconds - 1.5) - bisect_right(times, start)
    share = found / (per_second * (seconds - 1.5))
    text = f"{share:.1%} of the rate over {seconds - 1.5:g} s, {above} windows above"
    return Measured(text, 0.98 <= share <= 1.0 + burst / found and not above, {"share": share})


async def schedules(lab: FlowLab) -> Measured:
    """A thousand due in one second, three workers; and what idle workers ask."""
    number = 1_000 if lab.scale.pairs > 3 else 200
    async with lab.database(counts_statements=True) as dsn:
        async with CommandBus.connect(dsn, settings=Settings(maintenance=False)) as bus:
            at = datetime.now(UTC) + timedelta(seconds=8 + number / 100)
            for place in range(number):
                await bus.schedules.put(DOMAIN, f"at-{place:04}", "Work", {"n": place}, at=at)
        is_late = datetime.now(UTC) > at - timedelta(seconds=4)
        async with worker_processes(dsn, 3):
            with looking(dsn) as conn:
                await until(lambda: one(conn, COMPLETED) >= number, "all ticks")
                await asyncio.sleep(2.0)  # one too many would be here by now
                before, began = calls(lab, dsn, "due_schedules"), time.monotonic()
                await asyncio.sleep(10.0 if lab.scale.pairs > 3 else 4.0)
                looks: float = calls(lab, dsn, "due_schedules") - before
                looks /= (time.monotonic() - began) * 3
                late = [
                    row[0] - at.timestamp() for row in conn.execute(RECEIVED.encode()).fetchall()
                ]
                sent = one(conn, "select count(*) from commandbus.command_bus_command") - 1
    is_exact = sent == number
    p99 = quantile(late, 0.99)
    text = f"p99 {p99:.2f} s, {sent:,} commands, {looks:.2f} looks a second for each worker"
    is_met = is_exact and p99 <= 2.0 and looks <= 1.1 and not is_late
    return Measured(text, is_met, {"p99": p99, "sent": sent, "looks": looks})


async def pause(lab: FlowLab) -> Measured:
    """Pauses under load: leases after the commit, and when what was not begun is back."""
    begun: set[tuple[Any, int]] = set()

    async def work(command: Command, ctx: HandlerContext) -> None:
        begun.add((command.command_id, ctx.lease_epoch))
        await asyncio.sleep(0.02)

    rounds = 10 if lab.scale.pairs > 3 else 3
    back: list[float] = []
    after = 0
    async with lab.database() as dsn:
        await send(dsn, list(commands(lab.scale.waiting // 4)))
        async with serving(dsn, work, concurrency=10) as bus:
            with looking(dsn) as conn:
                for _ in range(rounds):
                    await asyncio.sleep(0.5)
                    await bus.pause(DOMAIN, reason="a measurement")
                    committed = one(conn, "select clock_timestamp()")
                    asked = time.monotonic()
                    await until(lambda: not _unbegun(conn, begun), "unstarted leases back")
                    back.append(time.monotonic() - asked)
                    await asyncio.sleep(0.5)
                    after += one(
                        conn,
                        "select count(*) from commandbus.command_bus_audit"
                        " where event_type = 'RECEIVED' and ts > %s", committed,
                    )  # fmt: skip
                    await bus.resume(DOMAIN)
    text = f"{after} leases after the commit, unstarted back after {max(back):.2f} s at most"
    return Measured(text, not after and max(back) <= 2.0, {"back": back, "after": after})


def _unbegun(conn: psycopg.Connection[Any], begun: set[tuple[Any, int]]) -> bool:
    found = conn.execute(
        "select command_id, lease_epoch from commandbus.command_bus_command"
        " where leased_by is not null"
    ).fetchall()
    return not set(found) <= begun


async def cancel(lab: FlowLab) -> Measured:
    """From the request to CANCELED, of an asynchronous handler that would run on."""
    begun: set[Any] = set()

    async def work(command: Command, ctx: HandlerContext) -> None:
        begun.add(command.command_id)
        await asyncio.sleep(600)

    taken: list[float] = []
    async with (
        lab.database() as dsn,
        serving(dsn, work, concurrency=20) as bus,
    ):
        with looking(dsn) as conn:
            for _ in range(lab.scale.rounds):
                command_id = await bus.send(DOMAIN, "Work", new_id(), {})
                await until(lambda command_id=command_id: command_id in begun, "begun")  # type: ignore[misc]
                asked = time.monotonic()
                await bus.cancel(DOMAIN, command_id, "a measurement", running="request")
                while True:
                    status = one(
                        conn,
                        "select status from commandbus.command_bus_command where command_id = %s",
                        command_id,
                    )
                    if status == "CANCELED" or time.monotonic() - asked > 30:
                        break
                    await asyncio.sleep(0.002)
                taken.append(time.monotonic() - asked)
    return Measured(milliseconds(taken), quantile(taken, 0.99) <= 1.0, {"seconds": taken})


async def progress(lab: FlowLab) -> Measured:
    """Ten handlers that speak all the time: statements a second."""

    async def work(command: Command, ctx: HandlerContext) -> None:
        for step in range(500):
            ctx.progress(step / 500, f"step {step}")
            await asyncio.sleep(0.01)

    async with lab.database(counts_statements=True) as dsn:
        await send(dsn, list(commands(20)))
        async with serving(dsn, work, concurrency=10):
            before, began = calls(lab, dsn, "record_progress"), time.monotonic()
            await asyncio.sleep(8.0)
            found: float = calls(lab, dsn, "record_progress") - before
            found /= time.monotonic() - began
    return Measured(f"{found:.2f} statements a second", 0 < found <= 1.05, {"statements": found})


def calls(lab: FlowLab, dsn: str, function: str) -> int:
    """How often statements of this database that name a function were run."""
    with looking(lab.server.superuser_dsn("postgres")) as conn:
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        found = one(
            conn,
            "select coalesce(sum(s.calls), 0) from pg_stat_statements s join pg_database d"
            " on d.oid = s.dbid where d.datname = %s and s.query ~ %s", name, function,
        )  # fmt: skip
    return int(found)


CLOCKS = (
    Bar("start", "start of a delayed command, idle worker", "p99 <= 100 ms", delayed_start),
    Bar("urgent", "level 1 behind 100,000 of level 0", "<= 200 ms", urgent),
    Bar("starvation", "level -2 under endless level 2", "<= 4 levels + lease", starvation),
    Bar("limit", "limit 10, 50 ms, four workers", ">= 95 %, 0 above, <= lease + 1 s", limit),
    Bar("rate", "rate 100/s for 60 s", "98 to 100 %, 0 above", rate),
    Bar("schedules", "1,000 schedules in one second", "p99 <= 2 s, exact, 1 look/s", schedules),
    Bar("pause", "pause under load", "0 after, back <= 2 s", pause),
    Bar("cancel", "cancel of an async handler", "p99 <= 1 s", cancel),
    Bar("progress", "progress of ten handlers", "<= 1 statement/s", progress),
)
