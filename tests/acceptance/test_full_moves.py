"""A domain that has something of everything moves between two servers: under the traffic of all
faces, with an old worker that knows nothing of it, and with servers that die on the way.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import psycopg
import pytest

from commandbus import CommandBus
from commandbus.errors import CommandBusError, DatabaseUnavailableError, DuplicateCommandError
from commandbus.models import BatchCommand
from commandbus.names import new_id
from commandbus.settings import Settings
from commandbus.shards import ShardMap, SpanningBus, apply_map, move_domain
from faults.servers import Server, free_port
from tests.full_domain import DOMAIN, Full, at_work, contents, go_on, rows
from tests.http_world import ADMIN, app_of, client_of
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.postgres, pytest.mark.timeout(600)]

QUICK = Settings(
    connect_timeout_seconds=2, user_cooldown_seconds=0, max_user_pending_batches=10_000,
    max_user_pending_children=100_000, max_global_pending_batches=10_000, poll_max_seconds=0.05,
)  # fmt: skip
#: Nobody reads the replies, and one was archived by hand.
OF_READERS = {"REPLIES_REFUSED", "REPLIES_UNREAD"}
#: As the shard that the domain leaves sees the move, when its process is killed.
KILLED_WHEN = ("phase = 'copying'", "phase = 'closing'", "is_frozen")


@pytest.fixture
def servers() -> Iterator[dict[str, Server]]:
    folder = Path(tempfile.mkdtemp(prefix="commandbus-moves-"))
    folder.chmod(0o755)
    found = {name: Server(folder / name, tcp_port=free_port()) for name in ("one", "two")}
    try:
        for server in found.values():
            server.start()
        yield found
    finally:
        for server in found.values():
            server.remove()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Traffic:
    """What every face sends until it is stopped; what was accepted, by how it was sent."""

    full: Full
    client: httpx2.AsyncClient
    accepted: dict[str, list[UUID]] = field(default_factory=dict)
    batches: list[UUID] = field(default_factory=list)
    tickets: list[UUID] = field(default_factory=list)
    called: int = 0
    is_stopping: bool = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        faces = (self.one, self.many, self.batch, self.http, self.governed, self.call)
        tasks = [asyncio.create_task(self._again(face)) for face in faces]
        yield
        self.is_stopping = True
        await asyncio.wait_for(asyncio.gather(*tasks), 60)

    async def _again(self, face: Callable[[], Awaitable[None]]) -> None:
        while not self.is_stopping:
            await face()
            await asyncio.sleep(0.05)

    async def _insist(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """Until it is taken; the same again is harmless."""
        while True:
            try:
                return await send()
            except DuplicateCommandError:
                return None  # the answer of an earlier attempt was lost
            except DatabaseUnavailableError:
                await asyncio.sleep(0.1)

    def _note(self, face: str, *ids: UUID) -> None:
        self.accepted.setdefault(face, []).extend(ids)

    async def one(self) -> None:
        command_id = new_id()
        await self._insist(lambda: self.full.bus.send(DOMAIN, "Post", command_id, {}, reply_to=""))
        self._note("send", command_id)

    async def many(self) -> None:
        commands = [BatchCommand("Post", new_id(), {}) for _ in range(5)]
        await self._insist(lambda: self.full.bus.send_many(DOMAIN, commands))
        self._note("send_many", *(each.command_id for each in commands))

    async def batch(self) -> None:
        commands = [BatchCommand("Post", new_id(), {}) for _ in range(3)]
        end = BatchCommand("Post", new_id(), {})
        made = await self._insist(
            lambda: self.full.bus.create_batch(DOMAIN, commands, on_complete_command=end)
        )
        self._note("batch", *(each.command_id for each in commands))
        if made is not None:
            self.batches.append(made)

    async def http(self) -> None:
        command_id = new_id()
        body = {"domain": DOMAIN, "command_type": "Post", "command_id": str(command_id), "data": {}}
        while (answer := await self.client.post("/api/v1/commands", json=body)).status_code == 503:
            await asyncio.sleep(0.1)
        assert answer.status_code in {200, 202, 409}, answer.text
        self._note("http", command_id)

    async def governed(self) -> None:
        body = {
            "batch_type": "FULL_ORDERS", "request_id": str(new_id()), "items": [{"n": 1}, {"n": 2}],
        }  # fmt: skip
        while (answer := await self.client.post("/api/v1/batches", json=body)).status_code == 503:
            await asyncio.sleep(0.1)
        assert answer.status_code in {200, 202}, answer.text
        self.tickets.append(UUID(answer.json()["batch_id"]))

    async def call(self) -> None:
        with suppress(DatabaseUnavailableError):
            reply = await self.full.bus.call(DOMAIN, "Post", {"n": 3}, timeout=60)
            assert reply.data == {"n": 3}
            self.called += 1


async def killed_when(dsn: str, reached: str, moving: asyncio.subprocess.Process) -> bool:
    """kill -9, as soon as the move is there; False if it had got further before we looked."""
    text = f"select from commandbus.command_bus_move where {reached} and finished_at is null"
    with psycopg.connect(dsn, autocommit=True) as conn:
        while moving.returncode is None:
            if conn.execute(text.encode()).fetchone() is not None:
                moving.kill()
                await moving.wait()
                return True
            await asyncio.sleep(0.005)
    return False


async def set_up(servers: dict[str, Server]) -> ShardMap:
    addresses = {name: each.dsn(each.create_database()) for name, each in servers.items()}
    for address in addresses.values():
        async with CommandBus.connect(address):
            pass  # sets it up
    known = ShardMap(addresses, {DOMAIN: "two"}, "one", 1)
    await apply_map(known, settings=QUICK)
    return known


async def ended(full: Full, ids: list[UUID]) -> bool:
    found = [await full.bus.get_command(DOMAIN, each) for each in ids]
    assert None not in found, "an accepted command is lost"
    return all(each is not None and each.status == "COMPLETED" for each in found)


async def ticks_are_whole(dsn: str) -> bool:
    """Whether each tick of the schedule was sent once, up to the last one."""
    ((sent, due),) = await rows(
        dsn,
        "select (select count(*) from commandbus.command_bus_command c"
        "         where c.domain = s.domain and c.correlation_id = s.schedule_id),"
        "       extract(epoch from s.last_tick_at - s.counted_from)::int"
        "  from commandbus.command_bus_schedule s where s.name = 'each-second'",
    )
    return bool(sent == due > 5)


async def test_a_full_domain_moves_under_the_traffic_of_all_faces(
    servers: dict[str, Server], tmp_path: Path
) -> None:
    known = await set_up(servers)
    one, two = known.shards["one"], known.shards["two"]
    file = tmp_path / "shards.toml"
    file.write_text(
        f'version = 1\ndefault = "one"\n[shards]\none = "{one}"\ntwo = "{two}"\n'
        f'[domains]\n{DOMAIN} = "two"\n'
    )
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(SpanningBus.over(known, settings=QUICK))
        full = Full(bus)
        bus.include(full.handlers())
        await full.fill(two)
        old = await stack.enter_async_context(CommandBus.connect(two, settings=QUICK))
        old.include(full.handlers())
        working = asyncio.create_task(old.run_worker(DOMAIN, concurrency=5))
        client = await stack.enter_async_context(client_of(app_of(bus)))
        traffic = Traffic(full, client)
        async with at_work(full):
            loading = asyncio.create_task(
                bus.loads.load(
                    DOMAIN, [{"command_type": "Post", "data": {"n": n}} for n in range(600)],
                    checkpoint_size=50, dispatch_rate=60,
                )
            )  # fmt: skip
            async with traffic.running():
                await until(lambda: traffic.called >= 3, "the first calls")
                for reached in KILLED_WHEN:
                    moving = await asyncio.create_subprocess_exec(
                        sys.executable, "-m", "commandbus", "shards", "move", DOMAIN,
                        "--to", "one", "--map", str(file), "--wait", "20",
                    )  # fmt: skip
                    await killed_when(two, reached, moving)
                await move_domain(known, DOMAIN, "one", settings=QUICK)
                before = traffic.called
                await until(lambda: traffic.called >= before + 3, "calls on the new shard")
            result = await asyncio.wait_for(loading, 60)
            assert (result.status, result.tasks_committed) == ("success", 600)
            accepted = Counter(each for ids in traffic.accepted.values() for each in ids)
            assert set(traffic.accepted) == {"send", "send_many", "batch", "http"}
            for face, ids in traffic.accepted.items():
                await until(partial(ended, full, ids), f"what came by {face}", 60)
            for batch_id in [*traffic.batches, result.batch_id]:
                await until(partial(closed, full, batch_id), "the end of a batch")
            for ticket in traffic.tickets:
                assert await bus.governance.get(ADMIN, ticket) is not None
            await go_on(full, one)
            await until(lambda: ticks_are_whole(one), "every tick, once")
            seen = await bus.sharded.everywhere(lambda shard: shard.upkeep.doctor(full=True))
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        done = Counter(
            each for (each,) in await rows(
                one,
                "select command_id from commandbus.command_bus_audit"
                " where event_type = 'COMPLETED'",
            )
        )  # fmt: skip
        assert all(done[each] == 1 for each in accepted)
        assert {count for count, _ in (await contents(two)).values()} == {0}
        for name, found in seen.found.items():
            codes = {each.code for each in found.findings} - OF_READERS
            assert codes == set(), name


async def closed(full: Full, batch_id: UUID) -> bool:
    found = await full.bus.get_batch(DOMAIN, batch_id)
    assert found is not None, "a batch is lost"
    return found.status == "COMPLETED"


@pytest.mark.parametrize("victim", ["one", "two"])
async def test_a_server_that_dies_on_the_way_costs_nothing(
    servers: dict[str, Server], victim: str
) -> None:
    known = await set_up(servers)
    two = known.shards["two"]
    async with SpanningBus.over(known, settings=QUICK) as bus:
        full = Full(bus)
        bus.include(full.handlers())
        await full.fill(two)
    before = await contents(two)
    told: list[str] = []
    deaths = 0
    for wanted in ("events", "closed", "command_bus_schedule", "removing"):

        def die(text: str, wanted: str = wanted) -> None:
            if wanted in text and not told:
                told.append(text)
                servers[victim].kill()

        told.clear()
        with suppress(CommandBusError):
            await move_domain(known, DOMAIN, "one", settings=QUICK, tell=die)
        deaths += len(told)
        if told:
            await asyncio.to_thread(servers[victim].start)
    with suppress(CommandBusError):  # it may be over
        await move_domain(known, DOMAIN, "one", settings=QUICK)
    assert await contents(known.shards["one"]) == before
    assert {count for count, _ in (await contents(two)).values()} == {0}
    assert deaths >= 1
