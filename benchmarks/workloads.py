"""What is done with each system. Every measurement starts on a fresh database."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.systems import System


@dataclass(frozen=True)
class Workload:
    """One row of the table: a name, a unit, and how a figure is got."""

    name: str
    unit: str
    is_rate: bool  # higher is better
    measure: Callable[[System, int], Awaitable[float]]


async def _bulk_send(system: System, count: int) -> float:
    began = time.perf_counter()
    await system.bulk_send(count)
    return count / (time.perf_counter() - began)


def _drain(concurrency: int) -> Callable[[System, int], Awaitable[float]]:
    async def measure(system: System, count: int) -> float:
        await system.bulk_send(count)
        began = time.perf_counter()
        await system.drain(count, concurrency)
        return count / (time.perf_counter() - began)

    return measure


def _senders(parallel: int) -> Callable[[System, int], Awaitable[float]]:
    async def measure(system: System, count: int) -> float:
        each = max(count // 20 // parallel, 20)

        async def sender() -> None:
            for _ in range(each):
                await system.single_send()

        began = time.perf_counter()
        await asyncio.gather(*(sender() for _ in range(parallel)))
        return each * parallel / (time.perf_counter() - began)

    return measure


async def _send_p50(system: System, count: int) -> float:
    await system.single_send()  # first use creates the queue
    taken = []
    for _ in range(200):
        began = time.perf_counter()
        await system.single_send()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1_000


def _latency(index: int) -> Callable[[System, int], Awaitable[float]]:
    async def measure(system: System, count: int) -> float:
        rounds = [await system.one_round() for _ in range(50)]
        return statistics.median(pair[index] for pair in rounds[5:]) * 1_000

    return measure


WORKLOADS = (
    Workload("bulk send, one transaction", "commands/s", True, _bulk_send),
    Workload("drain, no-op, defaults (concurrency 10)", "commands/s", True, _drain(10)),
    Workload("drain, no-op, concurrency 100", "commands/s", True, _drain(100)),
    Workload("single sends, 10 senders", "commands/s", True, _senders(10)),
    Workload("single send, p50", "ms", False, _send_p50),
    Workload("send to handler start, idle worker, p50", "ms", False, _latency(0)),
    Workload("send to completion seen, idle worker, p50", "ms", False, _latency(1)),
)
