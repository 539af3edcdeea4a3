"""What happens to a cluster: its leader is killed, hands over, or stands still."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from faults.arena import Arena
from faults.patroni import Cluster, connections_of

#: Seconds between two looks at the connections to a frozen leader.
LOOK_SECONDS = 0.1
#: By then they are not looked at any more.
LEFT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClusterFaults:
    """Kills, switchovers and freezes of the leader, in an order that the seed decides."""

    kills: int
    switchovers: int
    freezes: int
    pace: tuple[float, float] = (2.0, 4.0)
    name: str = "cluster"

    async def rage(self, arena: Arena, chance: random.Random) -> None:
        """One fault after the other; each begins once the cluster is whole again."""
        cluster = arena.site.cluster
        assert cluster is not None
        hired = arena.fleet.hired
        faults = (
            ["kill"] * self.kills + ["switchover"] * self.switchovers + ["freeze"] * self.freezes
        )
        chance.shuffle(faults)
        for fault in faults:
            await asyncio.sleep(chance.uniform(*self.pace))
            await asyncio.to_thread(cluster.until_whole)
            if fault == "freeze":
                began, ready = await self._freeze(arena, cluster)
            elif fault == "kill":
                began, ready = await asyncio.to_thread(cluster.kill)
            else:
                began, ready = await asyncio.to_thread(cluster.switch_over)
            arena.counts[f"leader_{fault}s"] += 1
            arena.peak(f"{fault}_seconds", ready - began)
            arena.tell_outage(began, ready)
        arena.counts["workers_restarted"] += arena.fleet.hired - hired

    async def _freeze(self, arena: Arena, cluster: Cluster) -> tuple[float, float]:
        frozen = await asyncio.to_thread(cluster.freeze)
        began = time.monotonic()
        replaced = asyncio.create_task(asyncio.to_thread(cluster.until_replaced, frozen))
        try:
            # Those that were there: until another one leads, new ones are tried with all servers.
            held = connections_of(arena.fleet.alive, frozen.port)
            arena.counts["connections_to_frozen"] += len(held)
            while held & connections_of(arena.fleet.alive, frozen.port):
                if time.monotonic() - began > LEFT_SECONDS:
                    break
                await asyncio.sleep(LOOK_SECONDS)
            arena.peak("left_seconds", time.monotonic() - began)
            return began, await replaced
        finally:
            cluster.thaw(frozen)

    async def heal(self, arena: Arena) -> None:
        """Each fault heals by itself."""
