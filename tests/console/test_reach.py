"""Who reaches some domains sees nothing of the others: every page, its regions and its stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
    new_id,
)
from commandbus.access.model import Caller, Scope
from commandbus.governance import BatchType
from commandbus.http.console.registry import registry
from commandbus.http.console.screen import PageRoute
from commandbus.troubleshooting import BulkFilter, BulkStatus, BulkVerb
from tests.console.browser.seeded import SETTINGS
from tests.console.test_frame import streaming
from tests.console.test_matrix import filled
from tests.console.world import EVERYTHING, console
from tests.parking import park
from tests.waiting import until

pytestmark = pytest.mark.postgres

VAULT = "vault"
#: In every text that somebody writes there; found anywhere else, it has leaked.
CANARY = "cAnArY"
ACTOR = f"{CANARY}-actor"
#: Seconds that a stream may take to say something.
PATIENCE = 60.0
#: What is put behind every address.
QUERIES: list[dict[str, str]] = [
    {},
    {"domain": VAULT},
    {"machine": "true"},
    {"machine": "true", "domain": VAULT},
    {"machine": "true", "domain": ""},
    {"include_empty": "true", "include_ended": "true", "search": CANARY, "show": "requests"},
    {"actor": ACTOR, "user_id": ACTOR, "created_by": ACTOR},
]


async def vault(bus: CommandBus) -> set[str]:
    """A domain with something for every screen; returns what nobody else may see of it."""

    async def fail(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError(f"{CANARY}_CODE", f"{CANARY} went wrong")

    async def do(command: Command, ctx: HandlerContext) -> dict[str, str]:
        return {"text": f"{CANARY} reply"}

    kind = f"{CANARY}Type"
    bus.register_handler(VAULT, kind, fail, retry_policy=RetryPolicy(max_attempts=1))
    bus.register_handler(VAULT, f"{CANARY}Done", do)
    bus.governance.declare(
        BatchType(
            name=f"{CANARY.upper()}_BATCH", domain=VAULT, command_type=kind, max_size=9,
            requires_approval=True, description=f"{CANARY} description",
        )
    )  # fmt: skip
    ids = [new_id() for _ in range(3)]
    replied = await bus.send(VAULT, f"{CANARY}Done", new_id(), {})
    await bus.send_many(VAULT, [BatchCommand(kind, each, {"text": CANARY}) for each in ids])

    async def parked() -> bool:
        is_replied = (await bus.search.reply(VAULT, replied)).outcome is not None
        return is_replied and (await bus.troubleshooting.counts()).get(VAULT, 0) == len(ids)

    async with bus.worker(VAULT):
        await until(parked)
    group = (await bus.troubleshooting.groups(VAULT))[0]
    await bus.troubleshooting.note_group(VAULT, group.fingerprint, f"{CANARY} note", operator=ACTOR)
    running = await bus.bulk.start(
        BulkVerb.RETRY, BulkFilter(VAULT), reason=f"{CANARY} reason", operator=ACTOR,
        everything=True, start_after=600,
    )  # fmt: skip
    batch = await bus.create_batch(
        VAULT, [BatchCommand(kind, new_id(), {})], name=f"{CANARY} batch", created_by=ACTOR
    )
    load = await bus.loads.load(
        VAULT, [{"n": 1}], command_type=kind, name=f"{CANARY} load", created_by=ACTOR
    )
    await bus.pause(VAULT, reason=f"{CANARY} pause", operator=ACTOR)
    await bus.resume(VAULT, reason=f"{CANARY} resumed", operator=ACTOR)
    await bus.pause(VAULT, reason=f"{CANARY} pause", operator=ACTOR)
    again = {"text": f"{CANARY} edited"}
    await bus.troubleshooting.retry(VAULT, ids[0], operator=ACTOR, payload=again)
    await bus.schedules.put(VAULT, CANARY.lower(), kind, {}, cron="0 3 * * *", operator=ACTOR)
    await bus.schedules.trigger(VAULT, CANARY.lower(), reason=f"{CANARY} ran", operator=ACTOR)
    await bus._store.gateway.rows("select {schema}.claim_chore('prune old rows', '1 hour')")
    await bus._store.gateway.rows(
        "select {schema}.note_chore('prune old rows', jsonb_build_object(%s::text, %s::text))",
        (VAULT, f"{CANARY} removed"),
    )
    await bus.limits.set(VAULT, kind, max_running=5, operator=ACTOR, reason=f"{CANARY} limit")
    person = Caller(ACTOR, frozenset(Scope), None)
    asked = await bus.governance.submit(
        person, f"{CANARY.upper()}_BATCH", [{"n": 1}], reason=f"{CANARY} ticket"
    )
    token = await bus.tokens.create(
        ACTOR, ["read"], domains=[VAULT], actor=ACTOR, label=f"{CANARY} token"
    )
    await bus.upkeep.runs.start(domain=None, operator="setup")

    async def examined() -> bool:
        return (await bus.upkeep.runs.last()).last is not None

    await until(examined)
    things = {*ids, replied, running.operation_id, batch, load.batch_id, asked.ticket.ticket_id}
    return {*map(str, things), token.token.token_id, group.fingerprint, CANARY}


def things_of(text: str, secrets: set[str]) -> set[str]:
    return {each for each in secrets if each.lower() in text.lower()}


@pytest.mark.parametrize(
    ("scopes", "domains"),
    [
        (EVERYTHING, ("shop",)),
        (("read", "operate"), ("bank", "shop")),
        pytest.param(EVERYTHING, ("bank", "shop"), marks=pytest.mark.long),
        pytest.param(("read",), ("shop",), marks=pytest.mark.long),
    ],
)
async def test_nothing_of_a_domain_out_of_reach_is_on_any_page(
    bus: CommandBus,
    scopes: tuple[str, ...],
    domains: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("ERROR", logger="commandbus")
    secrets = await vault(bus)
    for domain in ("shop", "bank"):
        await bus.send(domain, "Work", uuid4(), {})
    leaks: dict[str, set[str]] = {}
    seen = 0
    routes = [route for _, route in registry().routes() if isinstance(route, PageRoute)]
    async with console(bus, *scopes, domains=domains, settings=SETTINGS) as browser:
        app = browser.client._transport.app  # type: ignore[attr-defined]
        for route in routes:
            for query in QUERIES:
                path = filled(route.path, VAULT if query.get("domain") else "shop")
                answer = await browser.get(path, **query)
                assert answer.status_code < 500, (path, query, answer.text)
                seen += answer.status_code == 200
                texts = [_without_echo(answer.text, query)]
                regions = await browser.client.get(
                    f"/console{path}", params=query, headers={"X-Console-Regions": "1"}
                )
                texts.append(_without_echo(regions.text, query))
                for text in texts:
                    if found := things_of(text, secrets):
                        leaks[f"{path} {query}"] = found
        for path in _live(routes):
            if found := things_of(await _streamed(app, path), secrets):
                leaks[f"live {path}"] = found
    assert not leaks
    assert seen > len(routes), "so few pages were there that the test proves nothing"


def _without_echo(text: str, query: dict[str, str]) -> str:
    """A page repeats its own filter; whoever asked for it knows it."""
    if ACTOR in query.values():
        text = text.replace(ACTOR, "")
    return text.replace(CANARY, "") if query.get("search") == CANARY else text


def _live(routes: list[PageRoute]) -> list[str]:
    found = []
    for route in routes:
        if route.live_seconds is not None and "_id}" not in route.path:
            found += [filled(route.path), f"{filled(route.path)}?domain={VAULT}"]
    return found


async def _streamed(app: Any, path: str) -> str:
    """What a stream says first: the regions, and the numbers of the navigation."""
    texts: list[str] = []
    async with streaming(app, f"/console/live{path}") as stream:
        wanted = {"view", "counts"}
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while wanted and (stream.status in {0, 200} or not stream.events.empty()):
            if stream.events.empty():
                assert asyncio.get_running_loop().time() < deadline, (path, stream.status, texts)
                await asyncio.sleep(0.01)
                continue
            kind, data = stream.events.get_nowait()
            texts.append(json.dumps(data))
            if kind in {"problem", "end"}:
                break
            # A page without a region of its own only says that it was looked at.
            is_seen = kind == "regions" or data.get("as_of") is not None
            wanted -= {"view"} if is_seen else {kind}
    return " ".join(texts)


async def test_the_same_pages_show_it_to_whoever_reaches_it(bus: CommandBus) -> None:
    secrets = await vault(bus)
    found: set[str] = set()
    async with console(bus, *EVERYTHING, domains=(VAULT, "shop")) as browser:
        for path in ("/", "/audit?machine=true", "/troubleshooting?domain=vault", "/bulk", "/loads",
                     "/batches", "/approvals", "/commands?domain=vault"):  # fmt: skip
            answer = await browser.client.get(f"/console{path}")
            found |= things_of(answer.text, secrets)
    missing = secrets - found
    # Only an administrator of all domains sees the tokens of others.
    assert len(missing) == 1, missing


async def test_what_others_do_much_of_does_not_hide_what_is_open(
    bus: CommandBus, conn: Any
) -> None:
    mine = await bus.create_batch(
        "shop", [BatchCommand("Work", uuid4(), {})], name="the oldest batch"
    )
    await park(conn, 1)
    operation = await bus.bulk.start(
        BulkVerb.CANCEL, BulkFilter("shop"), reason="the oldest operation", operator="dora",
        everything=True, start_after=600,
    )  # fmt: skip
    await bus.create_batch("other", [BatchCommand("Work", uuid4(), {})])
    await conn.execute(
        "insert into commandbus.command_bus_batch (batch_id, domain, status, total_count,"
        " created_at) select gen_random_uuid(), 'other', 'PENDING', 1, clock_timestamp()"
        " from generate_series(1, 150)"
    )
    await conn.execute(
        "insert into commandbus.command_bus_bulk_operation (operation_id, domain, verb, filter,"
        " arguments, actor, status, total, created_at, digest) select gen_random_uuid(), 'other',"
        " 'retry', '{}', '{}', 'x', 'running', 1, clock_timestamp(), ''"
        " from generate_series(1, 250)"
    )
    async with console(bus, "read", "operate", domains=("bank", "shop")) as browser:
        overview = await browser.text("/")
        batches = await browser.text("/batches")
        bulk = await browser.text("/bulk", status=BulkStatus.RUNNING.value)
    assert f"/batches/shop/{mine}" in overview
    assert "the oldest operation" in bulk
    assert str(operation.operation_id) in overview
    assert "the oldest batch" in batches
    assert "No batch is open" not in batches
    assert '<span class="count" id="count-bulk">1</span>' in overview


async def test_who_reaches_several_domains_opens_schedules_limits_and_finds_their_causes(
    bus: CommandBus, conn: Any
) -> None:
    for domain in ("bank", "shop", "vault"):
        await bus.schedules.put(domain, f"at_{domain}", "Work", {}, cron="0 3 * * *")
        await bus.limits.set(domain, "Work", max_running=5, reason="r", operator="dora")
    await park(conn, 1)
    group = (await bus.troubleshooting.groups("shop"))[0]
    async with console(bus, "read", domains=("bank", "shop")) as browser:
        schedules = await browser.text("/schedules")
        one = await browser.text("/schedules", domain="bank")
        limits = await browser.text("/execution-limits")
        found = await browser.get("/find", q=group.fingerprint[:8])
        assert (await browser.get("/schedules", domain="vault")).status_code == 404
        assert (await browser.get("/execution-limits", domain="vault")).status_code == 404
    assert "at_bank" in schedules
    assert "at_shop" in schedules
    assert "at_vault" not in schedules
    assert "at_shop" not in one
    assert "/execution-limits/bank?" in limits
    assert "/execution-limits/shop?" in limits
    assert "vault" not in limits
    assert found.headers["location"].endswith(f"/troubleshooting/shop/groups/{group.fingerprint}")


async def test_who_reaches_several_domains_runs_the_doctor_on_one_of_them(bus: CommandBus) -> None:
    for domain in ("bank", "shop", "vault"):
        await bus.send(domain, "Work", uuid4(), {})
    async with console(bus, *EVERYTHING, domains=("bank", "shop")) as browser:
        page = await browser.text("/doctor")
        assert "Run the doctor on bank" in page
        assert "Run the doctor on shop" in page
        assert "vault" not in page
        assert (await browser.submit(page, "/doctor/run", domain="vault")).status_code == 404
        assert (await browser.submit(page, "/doctor/run", domain="shop")).status_code == 303

        async def ended() -> bool:
            return (await bus.upkeep.runs.last()).last is not None

        await until(ended)
        last = (await bus.upkeep.runs.last()).last
        assert last is not None
        assert last.domain == "shop"


async def test_names_of_domains_are_for_those_who_read(bus: CommandBus) -> None:
    await bus.send("vault", "Work", uuid4(), {})
    async with console(bus, "send") as browser:
        assert "vault" not in await browser.text("/tokens")
    async with console(bus, "read") as browser:
        assert "vault" in await browser.text("/tokens")
