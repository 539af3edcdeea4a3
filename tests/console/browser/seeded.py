"""A deployment as people find it: payments that failed for three causes, batches, requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
    new_id,
)
from commandbus.access.model import Caller, Scope
from commandbus.governance.types import BatchType
from commandbus.http import HttpSettings
from commandbus.http.console.registry import registry
from commandbus.troubleshooting.model import BulkFilter, BulkVerb
from tests.canaries import Canaries
from tests.http_server import Served, served

#: Seconds that the seeding may take.
PATIENCE = 90.0
CUSTOMER = "Ada Lovelace"
TWICE = RetryPolicy(max_attempts=2, backoff_schedule=(0.05,))
REFUNDS = BatchType(
    name="REFUNDS", domain="payments", command_type="Refund", max_size=100, requires_approval=True,
    description="Money back to customers",
)  # fmt: skip
#: A browser in a test asks for more in a minute than a person does.
SETTINGS = HttpSettings(
    port=0, max_user_requests=1_000_000, max_address_requests=1_000_000,
    deployment_name="STAGING eu", deployment_colour="amber",
)  # fmt: skip
EVERYTHING = [scope for scope in Scope if scope is not Scope.BYPASS_GOVERNANCE]


@dataclass
class World:
    """What was made, and switches of the handlers."""

    #: Texts of tokens by what they may do.
    tokens: dict[str, str] = field(default_factory=dict)
    #: One command of each kind: parked, completed, and that of one customer.
    commands: dict[str, UUID] = field(default_factory=dict)
    #: What stands in addresses.
    ids: dict[str, str] = field(default_factory=dict)
    #: Whether the accounts are there again, so that a retry helps.
    is_mended: bool = False
    #: Seconds that one refund takes.
    refund_seconds: float = 0.0

    async def debit(self, command: Command, ctx: HandlerContext) -> dict[str, Any]:
        data = command.data
        if not self.is_mended and data["fails"] == "account":
            account, secret = data["account"], data["password"]
            raise PermanentCommandError(
                "NO_ACCOUNT", f"account {account} does not exist, password={secret}"
            )
        if data["fails"] == "ledger":
            raise TransientCommandError("TIMEOUT", "the ledger did not answer within 5 s")
        if data["fails"] == "bug":
            raise KeyError("currency")
        return {"booked": data["amount"], "password": data["password"]}

    async def refund(self, command: Command, ctx: HandlerContext) -> dict[str, Any]:
        await asyncio.sleep(self.refund_seconds)
        return {"refunded": command.data.get("amount", 0)}


def payments(count: int, fails: str = "", kind: str = "DebitAccount") -> list[BatchCommand]:
    """So many payments; each has secrets that no page may show."""
    canaries = Canaries()
    return [
        BatchCommand(
            kind, new_id(),
            {
                "fails": fails, "amount": 10 + n, "account": f"DE{1000 + n}", "customer": CUSTOMER,
                "password": canaries.password, "card": {"number": 4111, "api_key": canaries.styled},
            },
        )
        for n in range(count)
    ]  # fmt: skip


def declare(bus: CommandBus, world: World) -> None:
    """The handlers and what may be submitted."""
    bus.register_handler("payments", "DebitAccount", world.debit, retry_policy=TWICE)
    bus.register_handler("payments", "Refund", world.refund, retry_policy=TWICE)
    bus.governance.declare(REFUNDS)


async def tokens(bus: CommandBus, world: World) -> None:
    """Some who may do all, some who may only look, one who may do nothing here."""
    all_of_it: list[str] = [*EVERYTHING]
    rights = {"ada": all_of_it, "grace": all_of_it, "reader": ["read"], "denied": ["send"]}
    for name, scopes in rights.items():
        made = await bus.tokens.create(
            name, scopes, actor="setup", label="browser", expires_in=timedelta(days=1)
        )
        world.tokens[name] = made.text
        world.ids["token_id"] = str(made.token.token_id)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await is_so():
            await asyncio.sleep(0.1)


async def parked(bus: CommandBus, domain: str) -> int:
    groups = await bus.troubleshooting.groups(domain)
    return sum(each.parked_count for each in groups)


async def fail_many(bus: CommandBus, world: World, counts: dict[str, int]) -> None:
    """Payments that end in troubleshooting, by their cause."""
    wanted = await parked(bus, "payments") + sum(counts.values())
    for cause, count in counts.items():
        sent = payments(count, cause)
        await bus.send_many("payments", sent)
        world.commands.setdefault(cause, sent[0].command_id)
    await work_until_parked(bus, wanted)


async def work_until_parked(bus: CommandBus, wanted: int) -> None:
    """Work until so many payments are parked."""
    worker = asyncio.create_task(bus.run_worker("payments", concurrency=20))

    async def is_all() -> bool:
        return await parked(bus, "payments") >= wanted

    await until(is_all)
    await bus.stop()
    await worker


async def edited(bus: CommandBus, world: World) -> None:
    """One command has had another payload before, with secrets too, and is parked again."""
    [_, other], wanted = payments(2, "account"), await parked(bus, "payments")
    await bus.troubleshooting.retry(
        "payments", world.commands["account"], operator="grace", payload=other.data
    )
    await work_until_parked(bus, wanted)


async def full(bus: CommandBus, world: World) -> World:
    """Something on every screen."""
    declare(bus, world)
    await tokens(bus, world)
    good = payments(30)
    await bus.send_many("payments", good)
    world.commands["completed"] = good[0].command_id
    await fail_many(bus, world, {"account": 40, "ledger": 8, "bug": 3})
    await edited(bus, world)
    await bus.send_many("email", payments(12, kind="SendInvoice"))
    await bus.pause("email", reason="the provider is down, ticket 4711", operator="grace")
    await bus.schedules.put(
        "payments", "nightly", "Refund", {"amount": 1}, cron="0 3 * * *", operator="grace"
    )
    await bus.limits.set("payments", "Refund", max_running=5, operator="grace", reason="the bank")
    batch = await bus.create_batch(
        "email", payments(20, kind="SendInvoice"), name="Invoices of November", created_by="ada"
    )
    ended = await bus.create_batch(
        "payments", payments(25), name="Salaries of November", created_by="ada"
    )
    loaded = await bus.loads.load(
        "email", [{"amount": n} for n in range(50)], command_type="SendInvoice", name="Reminders",
        created_by="ada",
    )  # fmt: skip
    caller = Caller("grace", frozenset(EVERYTHING), None)
    refunds = [{"amount": 10 + n, "currency": "EUR", "password": "x"} for n in range(12)]
    ticket = await bus.governance.submit(caller, "REFUNDS", refunds, reason="parcels were lost")
    groups = await bus.troubleshooting.groups("payments")
    group = max(groups, key=lambda each: each.parked_count)
    slow = await bus.bulk.start(
        BulkVerb.RETRY, BulkFilter("payments", group=group.fingerprint), rate=0.01,
        reason="the accounts are back", operator="grace", limit=20,
    )  # fmt: skip
    small = min(groups, key=lambda each: each.parked_count)
    done = await bus.bulk.start(
        BulkVerb.CANCEL, BulkFilter("payments", group=small.fingerprint), operator="grace",
        reason="sent twice", limit=1,
    )  # fmt: skip
    await bus.bulk.run(done.operation_id)
    await bus.upkeep.figures.overview(None)
    world.ids = {
        "domain": "payments", "name": "nightly", "command_id": str(world.commands["account"]),
        "completed": str(world.commands["completed"]), "fingerprint": group.fingerprint,
        "batch_id": str(batch), "ended": str(ended), "load": str(loaded.batch_id),
        "ticket": str(ticket.ticket.ticket_id), "operation_id": str(slow.operation_id),
        "done": str(done.operation_id), "verb": "retry", "action": "cancel",
        "token_id": world.ids["token_id"],
    }  # fmt: skip
    return world


async def empty(bus: CommandBus, world: World) -> World:
    """Nobody has sent anything yet."""
    await tokens(bus, world)
    return world


async def thousand(bus: CommandBus, world: World) -> World:
    """1,000 failures for one cause among three, and nothing else."""
    declare(bus, world)
    await tokens(bus, world)
    await fail_many(bus, world, {"account": 980, "ledger": 15, "bug": 5})
    return world


def be_patient(app: Any) -> None:
    """A page may take long on a machine that does much else."""
    app.state.commandbus_console.read_seconds = 30.0


@contextmanager
def deployment(
    dsn: str,
    seed: Callable[[CommandBus, World], Awaitable[World]],
    *,
    workers: bool = True,
    settings: HttpSettings = SETTINGS,
    prefix: str = "",
) -> Iterator[tuple[Served, World]]:
    """A real service with workers, seeded."""
    world = World()

    async def prepare(bus: CommandBus) -> World:
        return await seed(bus, world)

    with served(dsn, prepare, settings, workers=workers, tune=be_patient, prefix=prefix) as service:
        yield service, world


def folder_of(name: str) -> Path:
    """A folder in build/, made if it is not there."""
    found = Path(__file__).parents[3] / "build" / name
    found.mkdir(parents=True, exist_ok=True)
    return found


PARAMETER = re.compile(r"\{(\w+)\}")
#: Where one name of a parameter stands for different things.
OTHERS = {"approvals": {"batch_id": "ticket"}, "loads": {"batch_id": "load"}}
#: More views of a page than the plain one.
VIEWS = {
    "/commands": ["?status=COMPLETED", "?domain=payments&error_code=NO_ACCOUNT"],
    "/troubleshooting": ["?domain=payments"],
    "/troubleshooting/payments/edit": ["?group={fingerprint}"],
    "/troubleshooting/payments/decide/retry": ["?group={fingerprint}"],
    "/audit": ["?machine=1"],
}


def addresses(world: World) -> list[str]:
    """Every page of the console that can be opened in this deployment."""
    found: list[str] = []
    for screen in registry().screens:
        for page in screen.pages:
            if page.path.endswith(".{form}"):  # a file, not a page
                continue
            ids = world.ids | {
                name: world.ids[of]
                for name, of in OTHERS.get(screen.name, {}).items()
                if of in world.ids
            }
            if not set(PARAMETER.findall(page.path)) <= set(ids):
                continue
            path = page.path
            for name, value in ids.items():
                path = path.replace(f"{{{name}}}", value)
            # The batch is in another domain than the rest.
            path = path.replace(f"/payments/{ids.get('batch_id')}", f"/email/{ids.get('batch_id')}")
            views = [query.format_map(world.ids) for query in VIEWS.get(path, [])]
            views += ["?form=raw"] if page.name == "command.payload" else []
            found += [path, *(path + query for query in views)]
    return found
