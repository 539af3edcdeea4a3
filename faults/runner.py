"""One run from end to end: set up, calm, storm, healing, calm, drain, check."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commandbus import CommandBus, CommandBusError, Settings
from commandbus.wiring import migrate_database
from faults import tap
from faults.arena import DOMAIN, PATIENCE_SECONDS, Arena, Fleet, Watcher
from faults.checker import Violation, check
from faults.checker_flow import slowest_return
from faults.collecting import claim_milliseconds, collect
from faults.facts import Facts, Phases
from faults.figures import Figures, measure, missed_bars
from faults.logs import EventLog, clock_difference
from faults.nursery import Nursery
from faults.plan import Run
from faults.proxy import Proxy
from faults.sites import Site, SkippedError, open_site

#: Seconds between two looks at the counters of batches.
SAMPLE_SECONDS = 0.2
#: After the healing and before the rate is measured, beside the lease: what lapsed comes back.
RECOVERY_SECONDS = 2.0
#: A key or a limit may need so long after a death, beside the lease.
PATIENCE_AFTER_LEASE = 2.0

#: Windows after the storm in which the rate may come back.
AFTER_WINDOWS = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a run."""

    run: Run
    seed: int
    seconds: float
    figures: Figures | None
    violations: list[Violation] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: Why it could not be run here.
    skipped: str = ""

    @property
    def is_good(self) -> bool:
        """Nothing is wrong; one that was skipped shows nothing, and is not held against it."""
        return not self.violations and not self.missed


class Runner:
    """Runs one after the other; those that need no server of their own share one."""

    def __init__(self, *, keep_logs: Path | None = None) -> None:
        self._keep_logs = keep_logs
        self._folder = Path(tempfile.mkdtemp(prefix="commandbus-faults-"))
        # As root the server is another account, which has to get to its folder.
        self._folder.chmod(0o755)
        self._site: Site | None = None

    async def run(self, run: Run, seed: int, say: Say = lambda _: None) -> Verdict:
        """One run, judged."""
        began = time.monotonic()
        log_folder = self._folder / f"logs-{run.id}-{seed}"
        shutil.rmtree(log_folder, ignore_errors=True)
        log_folder.mkdir()
        try:
            async with self._at_site(run) as site:
                facts, arena = await _Storm(run, seed, site, log_folder, say).pass_over()
        except SkippedError as reason:
            return Verdict(run, seed, time.monotonic() - began, None, skipped=str(reason))
        say("check")
        found = await asyncio.to_thread(check, facts)
        add_flow_figures(facts, arena)
        # All are counted, so that what an asynchronous standby loses is reported; judged are those
        # that the run promises to keep.
        figures = measure(facts, found, dict(arena.counts), arena.peaks)
        violations = [v for v in found if not run.invariants or v.invariant in run.invariants]
        missed = missed_bars(figures, run.bars, run.workers.vt_seconds)
        verdict = Verdict(
            run, seed, time.monotonic() - began, figures, violations, missed, arena.notes
        )
        self._keep(log_folder, verdict)
        return verdict

    def close(self) -> None:
        """Stop the shared server and remove everything; blocks."""
        if self._site is not None:
            self._site.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @asynccontextmanager
    async def _at_site(self, run: Run) -> AsyncIterator[Site]:
        if run.server in {"single", "pooler"}:
            if self._site is None:
                self._site = await asyncio.to_thread(open_site, "single", self._folder)
            yield self._site
            return
        site = await asyncio.to_thread(open_site, run.server, self._folder)
        try:
            yield site
        finally:
            await asyncio.to_thread(site.close)

    def _keep(self, log_folder: Path, verdict: Verdict) -> None:
        if self._keep_logs is not None and not verdict.is_good:
            target = self._keep_logs / log_folder.name
            shutil.copytree(log_folder, target, dirs_exist_ok=True)
        shutil.rmtree(log_folder, ignore_errors=True)


def add_flow_figures(facts: Facts, arena: Arena) -> None:
    """What bars are set on beside the invariants: expiry, and how soon a limit is used again."""
    begun = {event.command_id for event in facts.events if event.kind == "RECEIVED"}
    arena.counts["expired"] += sum(event.kind == "EXPIRED" for event in facts.events)
    arena.counts["expiring_and_begun"] += len(begun & facts.flow.expires_at.keys())
    if (seconds := slowest_return(facts)) is not None:
        arena.peak("return_seconds", seconds)


class _Storm:
    """The parts of one run."""

    def __init__(self, run: Run, seed: int, site: Site, log_folder: Path, say: Say) -> None:
        self._run = run
        self._seed = f"{seed}:{run.id}"
        self._site = site
        self._log_folder = log_folder
        self._say = say
        self._samples: list[int] = []

    async def pass_over(self) -> tuple[Facts, Arena]:
        run = self._run
        self._say("set up")
        database = await asyncio.to_thread(self._site.create_database)
        await migrate_database(self._site.direct_dsn(database), Settings())
        await asyncio.to_thread(self._prepare, self._site.direct_dsn(database))
        clock = await asyncio.to_thread(clock_difference, self._site.direct_dsn(database))
        log = EventLog(self._log_folder / "orchestrator.jsonl", clock)
        nursery = Nursery(self._log_folder)
        fleet: Fleet | None = None
        await nursery.start()
        try:
            async with self._network(database) as (dsn, proxy):
                common = {"dsn": dsn, "domain": DOMAIN, "clock": clock,
                          "log_folder": str(self._log_folder), "seed": self._seed,
                          "watched": run.server == "cluster",
                          "prepare": run.server != "pooler"}  # fmt: skip
                fleet = Fleet(nursery, self._worker_config(common), run.workers.number)
                arena = Arena(
                    seed=self._seed, log=log, log_folder=self._log_folder, nursery=nursery,
                    fleet=fleet, dsn=dsn, vt_seconds=run.workers.vt_seconds,
                    direct_dsn=lambda: self._site.direct_dsn(database),
                    superuser_dsn=lambda: self._site.superuser_dsn(database),
                    server=self._site.server, pair=self._site.pair, proxy=proxy, site=self._site,
                )  # fmt: skip
                phases = await self._phases(arena, common)
            self._say("collect")
            await self._ask_the_doctor(arena)
            facts = await asyncio.to_thread(
                collect,
                self._site.direct_dsn(database),
                self._log_folder,
                self._samples,
                phases,
                arena.flow,
            )
            self._look_at_claims(arena)
            await self._look_for_deadlocks(arena)
        finally:
            if fleet is not None:
                await fleet.stop(patience_seconds=0.0)
            await nursery.stop()
            log.close()
        await asyncio.to_thread(self._site.drop_database, database)
        return facts, arena

    def _prepare(self, dsn: str) -> None:
        tap.install(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select commandbus.ensure_domain(%s)", (DOMAIN,))
            conn.execute("select commandbus.ensure_domain(%s)", (f"{DOMAIN}_two",))
            if self._run.sabotage:
                conn.execute(self._run.sabotage.encode())

    @asynccontextmanager
    async def _network(self, database: str) -> AsyncIterator[tuple[str, Proxy | None]]:
        """What the parties connect to: the server, a pooler, or the proxy before it."""
        if self._run.server == "pooler":
            async with self._site.pooler(database, self._log_folder) as dsn:
                yield dsn, None
            return
        dsn = self._site.dsn(database)
        if not self._run.has_proxy:
            yield dsn, None
            return
        assert self._site.server is not None
        proxy = Proxy(self._site.server.socket_path, random.Random(f"{self._seed}:proxy"))
        await proxy.start()
        options = conninfo_to_dict(dsn)
        through = make_conninfo(
            "", host="127.0.0.1", hostaddr="127.0.0.1", port=proxy.port, user=options["user"],
            password=options["password"], dbname=database, sslmode="disable",
            gssencmode="disable",
        )  # fmt: skip
        try:
            yield through, proxy
        finally:
            await proxy.stop()

    def _worker_config(self, common: dict[str, Any]) -> dict[str, Any]:
        workers = self._run.workers
        return {
            **common, "role": "worker", "concurrency": workers.concurrency,
            "vt_seconds": workers.vt_seconds, "settings": workers.settings, **workers.options,
        }  # fmt: skip

    async def _phases(self, arena: Arena, common: dict[str, Any]) -> Phases:
        run, log = self._run, arena.log
        nemeses = run.nemeses
        arena.flow.patience_seconds = arena.vt_seconds + PATIENCE_AFTER_LEASE
        watching = [asyncio.create_task(self._sample(arena))]
        watching += [asyncio.create_task(self._watch(arena, each)) for each in run.watchers]
        await arena.fleet.start()
        producer = await self._start_producer(arena, common)
        try:
            await self._warm_up(arena)
            self._say("calm before")
            before = await self._calm(log)
            self._say("storm")
            began = log.now()
            await asyncio.gather(
                *(n.rage(arena, random.Random(f"{self._seed}:{n.name}")) for n in nemeses)
            )
            during = (began, log.now())
            self._say("heal")
            for nemesis in nemeses:
                await nemesis.heal(arena)
            after = (0.0, 0.0)
            if run.bars.rate_after is not None:
                await asyncio.sleep(arena.vt_seconds + RECOVERY_SECONDS)
                after = await self._calm_again(arena, before, run.bars.rate_after)
            await self._stop_producer(arena, producer)
            self._say("drain")
            await self._drain(arena)
            stubborn = await arena.fleet.stop()
            if stubborn:
                arena.counts["stubborn_workers"] += stubborn
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        return Phases(before, during, after)

    async def _warm_up(self, arena: Arena) -> None:
        """Wait until all workers serve, and the first commands have ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        least = 1 if self._run.load.tasks else 0
        while time.monotonic() < deadline:
            found = await arena.query(
                "select (select count(*) from commandbus.command_bus_worker),"
                " (select count(*) from commandbus.command_bus_command where status = 'COMPLETED')"
            )
            if found[0][0] >= self._run.workers.number and found[0][1] >= least:
                return
            await asyncio.sleep(0.05)
        arena.notes.append("not all workers came up")

    async def _calm(self, log: EventLog) -> tuple[float, float]:
        # The first moments fill the pipeline; they are not measured.
        await asyncio.sleep(self._run.calm_seconds * 0.2)
        began = log.now()
        await asyncio.sleep(self._run.calm_seconds)
        return began, log.now()

    async def _calm_again(
        self, arena: Arena, before: tuple[float, float], share: float
    ) -> tuple[float, float]:
        """The first window in which the rate is back, of three at most; else the last one."""
        wanted = share * await self._rate_in(arena, before)
        after = before
        for number in range(1, AFTER_WINDOWS + 1):
            self._say(f"calm after, window {number}")
            after = await self._calm(arena.log)
            arena.counts["windows_until_the_rate_is_back"] = number
            if await self._rate_in(arena, after) >= wanted:
                break
        return after

    async def _rate_in(self, arena: Arena, window: tuple[float, float]) -> float:
        found = await arena.query(
            "select count(*) from commandbus.command_bus_audit where event_type = 'COMPLETED'"
            " and ts >= to_timestamp(%s) and ts < to_timestamp(%s)",
            *window,
        )
        return float(found[0][0]) / (window[1] - window[0])

    async def _start_producer(self, arena: Arena, common: dict[str, Any]) -> int | None:
        load, workers = self._run.load, self._run.workers
        if not load.tasks:
            return None
        return await arena.nursery.fork({
            **common, "role": "producer", "tasks": load.tasks, "work_ms": load.work_ms,
            "backlog": load.backlog + workers.number * workers.concurrency, "mix": load.mix,
            "groups": load.groups, "keys": load.keys, "expires_seconds": load.expires_seconds,
            "skips_known": load.skips_known, "count": load.count, "limit_keys": load.limit_keys,
            "block_seconds": load.block_seconds,
            "settings": {"pool_size": load.pool_size},
        })  # fmt: skip

    async def _stop_producer(self, arena: Arena, pid: int | None) -> None:
        if pid is None:
            return
        arena.fleet.signal(pid, signal.SIGTERM)
        if await arena.fleet.exit_of(pid, 30.0) != 0:
            arena.notes.append("the producer did not end by itself: some sends stay unknown")
            arena.fleet.signal(pid, signal.SIGKILL)

    async def _drain(self, arena: Arena) -> None:
        deadline = time.monotonic() + self._run.drain_seconds
        while time.monotonic() < deadline:
            with suppress(psycopg.Error):
                left = await arena.query(
                    "select count(*) from commandbus.command_bus_command"
                    " where status in ('PENDING', 'IN_PROGRESS')"
                )
                if not left[0][0]:
                    return
            await asyncio.sleep(0.1)
        arena.notes.append(f"the drain did not end within {self._run.drain_seconds:g} s")

    async def _sample(self, arena: Arena) -> None:
        """I8 in one snapshot, again and again; a database that is away gives no sample."""
        while True:
            with suppress(psycopg.Error, OSError):
                async with await psycopg.AsyncConnection.connect(
                    arena.direct_dsn(), application_name="faults", connect_timeout=2
                ) as conn:
                    await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
                    while True:
                        row = await (await conn.execute(tap.MISMATCHES)).fetchone()
                        await conn.rollback()
                        self._samples.append(int(row[0]) if row else 0)
                        await asyncio.sleep(SAMPLE_SECONDS)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _watch(self, arena: Arena, watcher: Watcher) -> None:
        """One watcher; when the database is away it begins anew."""
        chance = random.Random(f"{self._seed}:{watcher.name}")
        while True:
            with suppress(psycopg.Error, OSError, CommandBusError):
                await watcher.watch(arena, chance)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _ask_the_doctor(self, arena: Arena) -> None:
        settings = Settings(maintenance=False)
        async with CommandBus.connect(arena.direct_dsn(), settings=settings) as bus:
            found = (await bus.upkeep.doctor()).findings
        arena.flow.findings += [f"{each.code} {each}" for each in found if each.severity == "error"]

    def _look_at_claims(self, arena: Arena) -> None:
        times = sorted(claim_milliseconds(self._log_folder))
        if times:
            arena.peaks["claim_p99_ms"] = times[int(len(times) * 0.99)]

    async def _look_for_deadlocks(self, arena: Arena) -> None:
        found = await arena.query(
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
        arena.counts["deadlocks"] += found[0][0]


def replay_command(verdict: Verdict, scale: str) -> str:
    """How to see the same again."""
    return f"python -m faults --only {verdict.run.id} --seed {verdict.seed} --scale {scale}"
