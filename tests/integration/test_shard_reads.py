"""What operators read of all shards: groups, overview, doctor, metrics; one of them is down."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from commandbus.errors import InvalidInputError
from commandbus.names import new_id
from commandbus.shards import ShardedBus
from tests.integration.test_sharded_bus import sharded

pytestmark = pytest.mark.postgres


async def park(bus: ShardedBus, domain: str, count: int) -> None:
    shard = await bus.on(domain)
    async with shard.consumer(domain) as consumer:
        for _ in range(count):
            await shard.send(domain, "Ask", new_id(), {}, max_attempts=1)
        for leased in await consumer.receive(count):
            await leased.park(ValueError(f"no {domain}"))


async def test_operators_read_all_shards_and_know_which_is_down(dsn: str, empty_dsn: str) -> None:
    async with sharded(dsn, empty_dsn) as bus:
        await park(bus, "payments", 1)
        await park(bus, "mail", 3)
        groups = await bus.groups()
        found = [(each.shard, each.item.domain, each.item.parked_count) for each in groups.items]
        assert found == [("two", "mail", 3), ("one", "payments", 1)]
        assert [each.shard for each in (await bus.groups(limit=1)).items] == ["two"]
        assert [each.shard for each in (await bus.groups("payments")).items] == ["one"]
        with pytest.raises(InvalidInputError):
            await bus.groups(limit=0)

        overview = await bus.overview()
        assert {
            name: [each.domain for each in domains] for name, domains in overview.found.items()
        } == {"one": ["payments"], "two": ["mail"]}
        diagnosis = await bus.diagnose()
        assert set(diagnosis.found) == {"one", "two"}
        for missing in (groups.missing, overview.missing, diagnosis.missing):
            assert set(missing) == {"down"}

        families = {
            family.name: family
            for family in text_string_to_metric_families((await bus.metrics()).decode())
        }
        up = {
            each.labels["shard"]: each.value for each in families["commandbus_database_up"].samples
        }
        assert up == {"one": 1, "two": 1, "down": 0}
        shards = {
            (each.labels["shard"], each.labels["domain"])
            for each in families["commandbus_queue_depth"].samples
        }
        assert shards == {("one", "payments"), ("two", "mail")}
