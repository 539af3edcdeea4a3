"""The business of the demo, in a schema of its own, and the questions that prove the result.

A payment is written in the transaction that sends its command; an effect in the transaction that
completes it. Only the bus prevents a second effect of a command: there is no unique key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

from commandbus.models import BatchCommand

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway

ACCOUNTS = 500
#: Payments from this account fail until an operator opens it.
CLOSED_ACCOUNT = 13
OPENING_BALANCE_CENTS = 1_000_000_00

_TABLES: LiteralString = """
select pg_advisory_xact_lock(hashtext('commandbus_demo'));
create schema if not exists commandbus_demo;
create table if not exists commandbus_demo.account (
    account_id    int primary key,
    is_open       boolean not null default true,
    balance_cents bigint not null
) with (fillfactor = 50);
create table if not exists commandbus_demo.payment (
    payment_id   uuid primary key,  -- also the id of its command
    run_id       uuid not null,
    account_id   int not null references commandbus_demo.account,
    amount_cents int not null,
    created_at   timestamptz not null default clock_timestamp()
);
create index if not exists payment_run on commandbus_demo.payment (run_id);
create table if not exists commandbus_demo.effect (
    effect_id    bigint generated always as identity primary key,
    command_id   uuid not null,
    run_id       uuid not null,
    account_id   int not null,
    amount_cents int not null,
    worker_pid   int not null,
    created_at   timestamptz not null default clock_timestamp()
);
create index if not exists effect_run on commandbus_demo.effect (run_id);
"""

_ACCOUNTS: LiteralString = """
insert into commandbus_demo.account (account_id, balance_cents)
select account_id, %s from generate_series(1, %s) account_id on conflict do nothing
"""

_PAY: LiteralString = """
insert into commandbus_demo.payment (payment_id, run_id, account_id, amount_cents)
select payment_id, %s, account_id, amount_cents
  from unnest(%s::uuid[], %s::int[], %s::int[]) p(payment_id, account_id, amount_cents)
"""

_TRACES: LiteralString = """
select (select count(*) from commandbus_demo.payment where payment_id = %s)
     + (select count(*) from {schema}.command_bus_command where domain = %s and command_id = %s)
"""

_PROGRESS: LiteralString = """
select count(*) filter (where c.status = 'COMPLETED'),
       count(*) filter (where c.attempts > 1),
       count(*) filter (where c.status = 'IN_TROUBLESHOOTING_QUEUE')
  from commandbus_demo.payment p
  join {schema}.command_bus_command c on c.domain = %s and c.command_id = p.payment_id
 where p.run_id = %s
"""

#: Lost: a payment whose command is gone or has not ended, or was completed without its effect.
_COUNTS: LiteralString = """
with effects as (
    select command_id, count(*) as times from commandbus_demo.effect where run_id = %s group by 1
), fates as (
    select c.status, coalesce(c.attempts, 0) as attempts, coalesce(e.times, 0) as times,
           exists (select from {schema}.command_bus_audit a
                    where a.command_id = p.payment_id and a.domain = c.domain
                      and a.event_type = 'LEASE_EXPIRED') as is_redelivered
      from commandbus_demo.payment p
      left join {schema}.command_bus_command c on c.domain = %s and c.command_id = p.payment_id
      left join effects e on e.command_id = p.payment_id
     where p.run_id = %s
)
select count(*),
       count(*) filter (where status = 'COMPLETED'),
       count(*) filter (where attempts > 1),
       count(*) filter (where status = 'IN_TROUBLESHOOTING_QUEUE'),
       count(*) filter (where is_redelivered),
       count(*) filter (where (status = 'COMPLETED' and times = 0)
                           or status is distinct from 'COMPLETED'
                          and status is distinct from 'IN_TROUBLESHOOTING_QUEUE'),
       coalesce(sum(times - 1) filter (where times > 1), 0)::bigint
         + count(*) filter (where status is distinct from 'COMPLETED' and times > 0),
       extract(epoch from
           (select max(created_at) from commandbus_demo.effect where run_id = %s)
         - (select min(created_at) from commandbus_demo.payment where run_id = %s))::float8
  from fates
"""

_LEASES: LiteralString = (
    "select count(*) from {schema}.command_bus_command"
    " where domain = %s and leased_by like %s and status = 'IN_PROGRESS'"
)
_READY: LiteralString = (
    "select count(*) from {schema}.command_bus_worker"
    " where domain = %s and split_part(worker_id, ':', 2) = any(%s)"
)
_EXAMPLE: LiteralString = (
    "select p.payment_id from commandbus_demo.payment p"
    " join {schema}.command_bus_audit a on a.command_id = p.payment_id where p.run_id = %s"
    " order by a.event_type = 'LEASE_EXPIRED' desc, a.event_type = 'FAILED' desc limit 1"
)
_PENDING: LiteralString = (
    "select c.command_id from commandbus_demo.payment p"
    " join {schema}.command_bus_command c on c.domain = %s and c.command_id = p.payment_id"
    " where p.run_id = %s and c.status = 'PENDING'"
)
_OPEN_ACCOUNT: LiteralString = (
    "update commandbus_demo.account set is_open = %s where account_id = %s"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    sent: int
    completed: int
    retried: int
    in_troubleshooting: int

    @property
    def is_finished(self) -> bool:
        """Whether every command has been completed or parked."""
        return self.completed + self.in_troubleshooting >= self.sent


@dataclass(frozen=True, slots=True)
class Counts(Progress):
    """What the tables say of a run when it is over."""

    redelivered: int
    lost: int
    double_effects: int
    seconds: float | None


async def pay(conn: Any, run_id: UUID, commands: Sequence[BatchCommand]) -> None:
    """Record the payments of these commands, in the caller's transaction."""
    columns = (
        [command.command_id for command in commands],
        [command.data["account_id"] for command in commands],
        [command.data["amount_cents"] for command in commands],
    )
    await conn.execute(_PAY, (run_id, *columns))


class Books:
    """The tables of the demo, and what they say of one run beside those of the bus."""

    def __init__(self, gateway: Gateway, domain: str, run_id: UUID) -> None:
        self._gateway = gateway
        self._domain = domain
        self._run_id = run_id

    async def prepare(self) -> None:
        """Create what is missing; close the account whose payments must fail."""
        async with self._gateway.transaction() as session:
            await session.conn.execute(_TABLES)
            await session.rows(_ACCOUNTS, (OPENING_BALANCE_CENTS, ACCOUNTS))
            await session.rows(_OPEN_ACCOUNT, (False, CLOSED_ACCOUNT))

    async def open_account(self, account_id: int) -> None:
        """Open a closed account."""
        await self._gateway.rows(_OPEN_ACCOUNT, (True, account_id))

    async def count_traces(self, payment_id: UUID) -> int:
        """2 if both the payment and its command are there, 0 if neither is."""
        return int(await self._gateway.value(_TRACES, (payment_id, self._domain, payment_id)))

    async def progress(self, sent: int) -> Progress:
        """How far the run is."""
        rows = await self._gateway.rows(_PROGRESS, (self._domain, self._run_id))
        return Progress(sent, *rows[0])

    async def counts(self) -> Counts:
        """What became of every command of the run, from the tables alone."""
        run_id = self._run_id
        params = (run_id, self._domain, run_id, run_id, run_id)
        return (await self._gateway.rows(_COUNTS, params, into=Counts))[0]

    async def leases_of(self, pid: int) -> int:
        """How many leases a worker process has."""
        return int(await self._gateway.value(_LEASES, (self._domain, f"%:{pid}:%")))

    async def are_ready(self, pids: Sequence[int]) -> bool:
        """Whether all these worker processes have begun to work."""
        params = (self._domain, [str(pid) for pid in pids])
        return int(await self._gateway.value(_READY, params)) >= len(pids)

    async def example(self) -> UUID:
        """A command to look at: one that was redelivered, else one that was retried, else any."""
        return UUID(str(await self._gateway.value(_EXAMPLE, (self._run_id,))))

    async def pending(self) -> list[UUID]:
        """The commands of the run that are PENDING."""
        return [row[0] for row in await self._gateway.rows(_PENDING, (self._domain, self._run_id))]
