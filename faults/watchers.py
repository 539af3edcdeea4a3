"""Who looks on from the first worker to the end of the drain: places, keys, and an operator."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from commandbus import CommandBus, CommandBusError, Settings
from faults.arena import DOMAIN, Arena
from faults.facts_flow import PlaceSample

#: Seconds between two looks at the places.
PLACES_SECONDS = 0.01
#: Seconds between two looks at places beside leases, and at keys: they read more.
SNAPSHOT_SECONDS = 0.25
#: What a gate is about, by its name.
KINDS = {"d": "domains", "t": "types", "k": "keys"}

PLACES = """
select g.gate, r.max_running, coalesce(c.leased_by, ''), count(*),
       extract(epoch from clock_timestamp())::float8
  from commandbus.command_bus_slot g
  join commandbus.command_bus_flow_rule r
    on r.domain = g.domain and r.command_type = commandbus.gate_type(g.gate)
   and r.by_key = commandbus.is_key_gate(g.gate) and r.max_running is not null
  left join commandbus.command_bus_command c
    on c.domain = g.domain and c.command_id = g.command_id
 group by 1, 2, 3
"""

#: In one snapshot: leases, and the places of their gates, that have not the other.
MISMATCHES = """
with leased as (
    select c.domain, c.command_id,
           case when r.by_key
                then 'l:k:' || c.command_type || '/' || coalesce(c.limit_key, c.ordering_key)
                when r.command_type = '' then 'l:d' else 'l:t:' || c.command_type end as gate
      from commandbus.command_bus_command c
      join commandbus.command_bus_flow_rule r
        on r.domain = c.domain and r.command_type in ('', c.command_type)
       and r.max_running is not null
     where c.leased_by is not null
       and (not r.by_key or num_nonnulls(c.limit_key, c.ordering_key) > 0)
       -- Its lease has lapsed, and it waits for a token: nobody has that epoch any more.
       and not exists (select from commandbus.command_bus_waiting w
                        where w.domain = c.domain and w.command_id = c.command_id)
), placed as (
    select s.domain, s.command_id, s.gate from commandbus.command_bus_slot s
)
select (select count(*) from (select * from leased except select * from placed) l)
     + (select count(*) from (select * from placed except select * from leased) p)
"""

#: Keys without a head that is due, leased, backing off or at a limit, and which nobody blocks.
STUCK = """
select k.ordering_key
  from commandbus.command_bus_key k
  left join commandbus.command_bus_command c on c.domain = k.domain and c.command_id = k.head
  left join pgmq.q_storm__commands q on q.msg_id = c.msg_id
 where k.domain = 'storm' and k.blocked_by is null
   and (c.leased_by is not null or q.vt < 'infinity'
        or exists (select from commandbus.command_bus_waiting w
                    where w.domain = k.domain and w.command_id = k.head and w.gate not like 'k:%')
       ) is not true
union
select substr(w.gate, 3) from commandbus.command_bus_waiting w
 where w.domain = 'storm' and w.gate like 'k:%' and not exists (
       select from commandbus.command_bus_key k
        where k.domain = w.domain and k.ordering_key = substr(w.gate, 3))
"""


async def _connect(arena: Arena) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(
        arena.direct_dsn(), autocommit=True, application_name="faults", connect_timeout=2
    )


@dataclass(frozen=True, slots=True)
class PlaceWatch:
    """Counts the places of all gates a hundred times a second."""

    name: str = "places"

    async def watch(self, arena: Arena, chance: random.Random) -> None:
        """Sample; each is one statement, so one snapshot."""
        compared = 0.0
        async with await _connect(arena) as conn:
            while True:
                gates: dict[str, PlaceSample] = {}
                for gate, limit, holder, number, at in await (
                    await conn.execute(PLACES)
                ).fetchall():
                    sample = gates.setdefault(gate, PlaceSample(at, gate, limit, {}))
                    # "host:pid:…"; a place without a lease counts as somebody's.
                    pid = int(holder.split(":")[-2]) if holder else 0
                    sample.holders[pid] = sample.holders.get(pid, 0) + number
                for sample in gates.values():
                    if sample.taken >= sample.limit:
                        arena.counts[f"full_{KINDS[sample.gate[2]]}"] += 1
                arena.flow.places += gates.values()
                arena.counts["place_samples"] += 1
                if time.monotonic() - compared > SNAPSHOT_SECONDS:
                    compared = time.monotonic()
                    row = await (await conn.execute(MISMATCHES)).fetchone()
                    arena.flow.place_mismatches.append(int(row[0]) if row else 0)
                await asyncio.sleep(PLACES_SECONDS)


@dataclass(frozen=True, slots=True)
class KeyWatch:
    """Looks for keys that stand still, and for how long they do."""

    name: str = "keys"

    async def watch(self, arena: Arena, chance: random.Random) -> None:
        """Sample; after an outage all begins anew."""
        since: dict[str, float] = {}
        longest = arena.flow.stuck_keys
        async with await _connect(arena) as conn:
            while True:
                found = {row[0] for row in await (await conn.execute(STUCK)).fetchall()}
                now = time.monotonic()
                since = {key: since.get(key, now) for key in found}
                for key, began in since.items():
                    longest[key] = max(longest.get(key, 0.0), now - began)
                    arena.peak("stuck_seconds", now - began)
                arena.flow.key_samples += 1
                arena.counts["key_samples"] += 1
                await asyncio.sleep(SNAPSHOT_SECONDS)


@dataclass(frozen=True, slots=True)
class KeyOperator:
    """Decides about parked commands, so that no key stays blocked; now and then steps over one."""

    #: The policy changes now and then between blocking and stepping over.
    changes_policy: bool = True
    name: str = "key operator"

    async def watch(self, arena: Arena, chance: random.Random) -> None:
        """Some twenty decisions a second."""
        settings = Settings(maintenance=False)
        async with CommandBus.connect(arena.direct_dsn(), settings=settings) as bus:
            while True:
                if self.changes_policy and chance.random() < 0.1:
                    policy = chance.choice(["block", "block", "skip"])
                    await arena.query(
                        "select commandbus.set_key_policy(%s, %s, 'harness')", DOMAIN, policy
                    )
                    arena.counts["policy_changes"] += 1
                await self._decide(arena, bus, chance)
                await asyncio.sleep(0.25)

    async def _decide(self, arena: Arena, bus: CommandBus, chance: random.Random) -> None:
        blocked = await arena.query(
            "select ordering_key from commandbus.command_bus_key"
            " where domain = %s and blocked_by is not null order by 1", DOMAIN,
        )  # fmt: skip
        for (key,) in chance.sample(blocked, min(len(blocked), 3)):
            with suppress(psycopg.Error):  # somebody else was quicker
                await arena.query("select commandbus.skip_key(%s, %s, 'harness')", DOMAIN, key)
                arena.counts["keys_skipped"] += 1
        for item in await bus.list_troubleshooting(DOMAIN, limit=20):
            act = chance.choice(["retry", "cancel", "complete", "cancel"])
            with suppress(CommandBusError):
                if act == "retry":
                    await bus.operator_retry(DOMAIN, item.command_id, operator="harness")
                elif act == "cancel":
                    await bus.operator_cancel(DOMAIN, item.command_id, "no", operator="harness")
                else:
                    await bus.operator_complete(DOMAIN, item.command_id, operator="harness")
                arena.counts["decisions"] += 1


@dataclass(frozen=True, slots=True)
class ProgressWatch:
    """Looks at the progress of what runs: it is that of the lease that runs, or none."""

    name: str = "progress"

    async def watch(self, arena: Arena, chance: random.Random) -> None:
        """Compare what a handler said with the lease that it said it under."""
        async with await _connect(arena) as conn:
            while True:
                cursor = await conn.execute(
                    "select count(*), count(*) filter ("
                    "           where p.message <> 'epoch ' || c.lease_epoch)"
                    "  from commandbus.command_bus_command c"
                    "  join commandbus.progress_of(%s, array("
                    "           select r.command_id from commandbus.command_bus_command r"
                    "            where r.domain = %s and r.leased_by is not null)) p"
                    "    on p.command_id = c.command_id"
                    " where c.domain = %s", (DOMAIN, DOMAIN, DOMAIN),
                )  # fmt: skip
                [(seen, wrong)] = await cursor.fetchall()
                arena.counts["progress_seen"] += seen
                arena.counts["progress_of_others"] += wrong
                await asyncio.sleep(SNAPSHOT_SECONDS)
