"""A shop with something of everything, for tests of the HTTP service."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from uuid import UUID, uuid4

from commandbus import BatchCommand, Command, CommandBus, HandlerContext, PermanentCommandError
from commandbus.database.model import Failure, Outcome, OutcomeKind
from commandbus.models import ParkReason
from commandbus.troubleshooting.model import BulkFilter, BulkVerb


async def fail(command: Command, ctx: HandlerContext) -> None:
    raise PermanentCommandError("NO_STOCK", "nothing left")


async def work(command: Command, ctx: HandlerContext) -> dict[str, int]:
    return {"done": 1}


def register(bus: CommandBus, domain: str = "shop") -> None:
    bus.register_handler(domain, "Fail", fail)
    bus.register_handler(domain, "Work", work)


FAILURE = Failure("PERMANENT", "NO_STOCK", "nothing left")


async def work_off(bus: CommandBus, domain: str) -> None:
    """What a worker would do with all that is there, without the time that one takes to start."""
    leases = await bus._store.receive(
        domain, vt_seconds=600, quantity=100, worker="test", limits={}
    )
    await bus._store.settle(
        domain,
        [
            Outcome(lease, OutcomeKind.PARK, reason=ParkReason.PERMANENT, failure=FAILURE)
            if lease.command_type == "Fail"
            else Outcome(lease, OutcomeKind.COMPLETE, result=b'{"done": 1}')
            for lease in leases
        ],
    )


@dataclass(frozen=True)
class Shop:
    """The ids of what is there, in one domain."""

    domain: str
    pending: UUID
    parked: list[UUID]
    done: UUID
    batch: UUID
    bulk: UUID


def group_of(domain: str, failure: Failure = FAILURE) -> str:
    """The failure group of what is parked, as the database names it."""
    parts = (domain, "Fail", failure.error_type, failure.code, failure.message)
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:16]


#: Schedules that are there, to be deleted one by one.
SPARES = 25


def schedule_name(method: str, path: str, number: int) -> str:
    """The name in the path of a schedule: a new one to put, one that is there to delete."""
    if method == "put":
        return f"new-{number}"
    return f"spare-{1 + number % (SPARES - 1)}" if method == "delete" else "spare-0"


async def fill(bus: CommandBus, domain: str = "shop", parked: int = 3) -> Shop:
    """Send, work off, park, and leave something pending."""
    failing = [uuid4() for _ in range(parked)]
    done = uuid4()
    batch = await bus.create_batch(
        domain, [BatchCommand("Work", uuid4(), {"n": n}) for n in range(3)], name="three"
    )
    for command_id in failing:
        await bus.send(domain, "Fail", command_id, {"password": "hunter2", "n": 1})
    await bus.send(domain, "Work", done, {})
    await work_off(bus, domain)
    bulk = await bus.bulk.start(
        BulkVerb.RETRY,
        BulkFilter(domain, command_ids=(failing[0],)),
        operator="ann",
        everything=True,
    )
    await bus.bulk.stop(bulk.operation_id)
    for number in range(SPARES):
        await bus.schedules.put(
            domain, f"spare-{number}", "Work", {"password": "hunter2"}, every=60
        )
    pending = uuid4()
    await bus.send(domain, "Work", pending, {"password": "hunter2", "n": 7})
    return Shop(domain, pending, failing, done, batch, bulk.operation_id)
