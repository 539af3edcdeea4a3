"""Both ways of a handover in one process; any number of processes may do it."""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.handover.carrier import Carrier
from commandbus.handover.collector import Collector
from commandbus.handover.messages import check_keys
from commandbus.loops import running
from commandbus.settings import check_number
from commandbus.transport import Transport
from commandbus.worker.consumer import Consumer

#: How long the other system may take, and how many commands it may have, unless it is said.
LEASE_SECONDS = 300
AT_ONCE = 100


async def hand_over(
    consumer: Consumer, queue: Transport, keys: bytes | Sequence[bytes], at_once: int
) -> None:
    """Give commands away and take results, until cancelled."""
    known = check_keys(keys)
    check_number(at_once, "at_once", 1, 100_000, is_whole=True)
    await consumer.store.ensure_domain(consumer.domain)
    carrier = Carrier(
        consumer.store, queue, consumer.domain, known[0], consumer.vt_seconds, at_once,
        counts_lapses=consumer.policy.count_lapses == "every",
    )  # fmt: skip
    async with running([Collector(consumer, queue, known, carrier)]):
        await carrier.run()
