"""Every route of the OpenAPI document, called by everyone who may come: who gets what, by one rule.

What is expected follows from the scope that the document names and from whose the thing is that is
asked for. A route that this test does not know how to call fails it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from psycopg import AsyncConnection

from commandbus.access.model import Caller, Scope
from tests.http_world import app_of, caller, client_of
from tests.integration.http_shop import group_of, schedule_name
from tests.security.people import DOMAIN, ORDERS_PATH, PEOPLE, World, world_on

API = "/api/v1"
APPROVALS = f"{API}/approvals/batch"
LIMITS = f"{API}/admin/rate-limits"
REASON = {"reason": "because"}
DONE = {200, 201, 202, 204, 409}
#: Listings that take the domain as a query, and are 404 for another one.
BY_QUERY = {
    f"{API}/{name}"
    for name in (
        "commands", "audit", "failure-groups", "bulk-operations", "troubleshooting", "schedules",
        "exports/commands", "exports/audit", "audit/people", "overview", "workers", "loads",
    )
}  # fmt: skip
#: Listings of all that a caller reaches: of another domain there is nothing in them.
FILTERED = {
    f"{API}/{name}"
    for name in (
        "domains",
        "whoami",
        "tokens",
        "batches",
        "batch-types",
        "undecided",
        "schedules/preview",
        "doctor",
        "retention",
        "chores",
        "settings",
        "audit/seals",
    )
} | {ORDERS_PATH, APPROVALS}
SUBMISSIONS = {f"{API}/batches", ORDERS_PATH, APPROVALS}


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    async with world_on(dsn) as made:
        yield made


def operations(world: World) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """All of the document: first what only reads."""
    found = [
        (method, path, operation)
        for path, methods in world.app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    yield from sorted(found, key=lambda each: (each[0] != "get", each[1]))


def bodies(world: World, numbers: Iterator[int]) -> dict[str, Any]:
    """A body that each route with one accepts; a new route must be added here."""
    batch_paths = {f"{API}/batches", ORDERS_PATH, APPROVALS}
    n = next(numbers)
    return {
        "/commands": {"domain": DOMAIN, "command_type": "Work", "data": {}},
        "/commands/{domain}/{command_id}/cancel": REASON,
        "/commands/{domain}/{command_id}/reschedule": {"now": True},
        "/commands/{domain}/{command_id}/priority": {"priority": 2},
        "/domains/{domain}/pause": REASON,
        "/domains/{domain}/resume": {},
        "/domains/{domain}/level-worth": {"level_seconds": 60},
        "/command-batches/{domain}": {"commands": [{"command_type": "Work", "data": {}}]},
        "/command-batches/{domain}/{batch_id}/cancel": REASON,
        "/command-batches/{domain}/{batch_id}/retry": None,
        "/command-batches/{domain}/{batch_id}/resume": {"rows": [{}]},
        "/command-batches/{domain}/{batch_id}/seal": None,
        "/troubleshooting/{domain}/{command_id}/retry": REASON,
        "/troubleshooting/{domain}/{command_id}/cancel": REASON,
        "/troubleshooting/{domain}/{command_id}/complete": REASON,
        "/troubleshooting/{domain}/{command_id}/notes": {"text": "hm"},
        "/failure-groups/{domain}/{fingerprint}/note": {"text": "hm"},
        "/failure-groups/{domain}/{fingerprint}/assignee": {"assignee": "ann"},
        "/schedules/{domain}/{name}": {"command_type": "Work", "data": {}, "every_seconds": 60},
        "/keys/{domain}": {"on_park": "skip", **REASON},
        "/keys/{domain}/{ordering_key}/skip": REASON,
        "/limits/{domain}": {"max_running": 1_000},
        "/limits/{domain}/{command_type}": {"max_running": 1_000},
        "/schedules/{domain}/{name}/pause": REASON,
        "/schedules/{domain}/{name}/resume": None,
        "/schedules/{domain}/{name}/trigger": None,
        "/bulk-operations/preview": {"domain": DOMAIN},
        "/bulk-operations/preview-edit": {
            "filter": {"domain": DOMAIN}, "edit": {"merge_patch": {"a": 1}},
        },
        "/bulk-operations": {
            "verb": "retry",
            "filter": {"domain": DOMAIN, "command_ids": [str(world.shop.parked[-1])]},
        },
        "/bulk-operations/{operation_id}/stop": None,
        "/bulk-operations/{operation_id}/resume": {},
        "/replies/{domain}/lease": {"limit": 1, "vt_seconds": 1},
        "/replies/{domain}/ack": {"replies": [{"msg_id": 1, "receipt": 99}]},
        "/doctor/runs": {"domain": DOMAIN},
        "/doctor/fixes": {"run_id": 1, "domain": DOMAIN, **REASON},
        "/tokens/{token_id}/revoke": None,
        "/tokens/{token_id}/rotate": {},
        "/batches": {"batch_type": "ORDERS", "items": [{"n": n}]},
        "/orders/batch": {"items": [{"n": n}]},
        "/approvals/batch": {"items": [{"ticket_id": str(world.waiting), "decision": "approve"}]},
        "/batches/{batch_id}/decision": {"decision": "approve"},
        "/batches/{batch_id}/children/{sequence_no}/decision": {"decision": "approve"},
        "/admin/rate-limits/exemptions": {"user_id": "ann", **REASON},
        "/admin/rate-limits/exemptions/{user_id}": None,
        "/admin/rate-limits/users/{user_id}": {"cooldown_seconds": 0},
        **{f"{base.removeprefix(API)}/{{batch_id}}/retry": None for base in batch_paths},
        **{f"{base.removeprefix(API)}/{{batch_id}}/cancel": REASON for base in batch_paths},
    }  # fmt: skip


class Asker:
    """Calls a route about the governed batch of ada, or about what belongs to nobody."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.numbers = count()
        self.schedules = count()

    async def ask(
        self, who: str | None, method: str, path: str, *, governed: bool, in_domain: bool = True
    ) -> httpx2.Response:
        world, shop = self.world, self.world.shop
        parked = world.child if governed else shop.parked[0]
        values = {
            "domain": DOMAIN,
            "command_id": parked if governed or "troubleshooting" in path else shop.pending,
            "batch_id": shop.batch if not governed and "command-batches" in path else world.batch,
            "operation_id": world.bulk if governed else shop.bulk,
            "user_id": "ann",
            "token_id": world.token,
            "sequence_no": 1,
            "name": schedule_name(method, path, next(self.schedules)),
            "ordering_key": "account:42",
            "command_type": "Seldom",
            "fingerprint": world.fingerprint if governed else group_of(DOMAIN),
            "some_id": world.child if governed else shop.pending,
        }
        if path.startswith(APPROVALS):
            values["batch_id"] = world.approval
        elif path.endswith("/decision"):
            values["batch_id"] = world.waiting
        options: dict[str, Any] = {}
        if method == "get":
            options["params"] = {"domain": DOMAIN} if path in BY_QUERY and in_domain else {}
            if path.endswith("/preview") and "schedules" in path:
                options["params"] = {"cron": "0 6 * * *"}
        else:
            body = bodies(world, self.numbers)[path.removeprefix(API)]
            if body is not None:
                options["json"] = body
        async with client_of(world.app, who) as client:
            return await client.request(method, path.format(**values), **options)


def allowed(operation: dict[str, Any], caller: Caller) -> bool:
    names = [operation["x-scope"], *operation.get("x-scope-alternatives", [])]
    return any(caller.may(Scope(name)) for name in names)


def is_owned(path: str) -> bool:
    """Whether the path names a thing of ada's governed batches (or petra's, under approvals)."""
    names = ("batch_id", "command_id", "operation_id", "fingerprint", "some_id")
    return any(f"{{{name}}}" in path for name in names)


def expected(
    who: str, method: str, path: str, operation: dict[str, Any], governed: bool
) -> set[int]:
    """The one rule, written once more: by scope, by domain, by owner."""
    if "x-scope" not in operation:
        return {200}
    if path == "/metrics":  # of all domains
        return {200} if who == "admin" else {403}
    caller = PEOPLE[who]
    if not allowed(operation, caller):
        return {403}
    if path.startswith(LIMITS):  # of all domains
        return DONE if caller.domains is None else {403}
    if "{token_id}" in path:
        if who == "owner":
            return DONE
        if who == "admin":  # sees it, and may end it, but not become its user
            return {403} if path.endswith("/rotate") else DONE
        return {404}
    if who == "other":
        if method == "get" and path in FILTERED:
            return {200}
        return {403} if method == "post" and path in SUBMISSIONS else {404}
    if is_owned(path) and (governed or path.startswith((f"{API}/batches", ORDERS_PATH, APPROVALS))):
        owner = "approver" if path.startswith(APPROVALS) else "owner"
        if who not in {owner, "operator", "approver", "admin"}:
            return {409} if "{fingerprint}" in path else {404}  # as of a cause that is not there
        # An approver sees the batches of others, and may not act on them.
        if who == "approver" != owner and path.endswith(("/retry", "/cancel")):
            return {403}
        # A bulk operation is an operator's work: whose commands it touches does not own it.
        if "{operation_id}" in path and who == "owner":
            return {404}
    if method == "post" and path == f"{API}/batches" and who == "approver":
        return {403}  # one of the scopes is enough for the route; the type wants another
    return DONE


async def snapshot(conn: AsyncConnection) -> list[Any]:
    """Everything that a refused request could change."""
    queries = (
        "select command_id, status, attempts, msg_id, lease_epoch, priority, deliver_at from"
        " commandbus.command_bus_command order by 1",
        "select count(*), max(audit_id) from commandbus.command_bus_audit",
        "select operation_id, status, done from commandbus.command_bus_bulk_operation order by 1",
        "select batch_id, updated_at, decision from commandbus.command_bus_batch order by 1",
        "select msg_id, read_ct from pgmq.q_shop__replies order by 1",
        "select token_id, revoked_at from commandbus.command_bus_api_token order by 1",
        "select * from commandbus.rate_limit_exemption",
        "select * from commandbus.rate_limit_override",
        "select * from commandbus.command_bus_schedule order by 1",
        "select domain, on_park, level_seconds, paused_at from"
        " commandbus.command_bus_flow order by 1",
    )
    return [await (await conn.execute(query.encode())).fetchall() for query in queries]


async def test_every_route_answers_everyone_as_the_rule_says(
    world: World, conn: AsyncConnection
) -> None:
    asker = Asker(world)
    wrong: list[str] = []
    checked = 0
    before = await snapshot(conn)
    # Those who are refused first: all that there is must be as it was.
    for phase in ("refused", "done"):
        for method, path, operation in operations(world):
            for governed in (True, False) if is_owned(path) else (True,):
                for who in (None, *PEOPLE):
                    wanted = (
                        ({401} if "x-scope" in operation else {200})
                        if who is None
                        else expected(who, method, path, operation, governed)
                    )
                    is_change = method != "get" and not wanted <= {401, 403, 404}
                    if is_change is (phase == "refused"):
                        continue
                    answer = await asker.ask(who, method, path, governed=governed)
                    checked += 1
                    if answer.status_code not in wanted:
                        thing = "governed" if governed else "raw"
                        wrong.append(f"{who} {method} {path} ({thing}): {answer.status_code}, "
                                     f"not {sorted(wanted)} {answer.text[:200]}")  # fmt: skip
        if phase == "refused":
            assert await snapshot(conn) == before
    assert not wrong, "\n".join(wrong)
    assert checked > 500


#: Who sees something of ada's batches in each listing; all others find nothing of it, and nobody
#: does in listings that are not named here.
SEERS = {"owner", "operator", "approver", "admin"}
SHOWN = {
    f"{API}/commands": SEERS, f"{API}/audit": SEERS, f"{API}/audit/people": SEERS,
    f"{API}/batches": SEERS, ORDERS_PATH: SEERS,
    f"{API}/command-batches/{{domain}}": SEERS, f"{API}/failure-groups": SEERS,
    f"{API}/troubleshooting": SEERS, f"{API}/troubleshooting/{{domain}}": SEERS,
    f"{API}/bulk-operations": SEERS - {"owner"}, f"{API}/bulk-operations/preview": SEERS,
    f"{API}/exports/commands": SEERS, f"{API}/exports/audit": SEERS,
    f"{API}/exports/troubleshooting/{{domain}}": SEERS, f"{API}/tokens": {"owner", "admin"},
    f"{API}/bulk-operations/preview-edit": {"operator", "admin"}, APPROVALS: SEERS - {"owner"},
    f"{API}/undecided": {"approver", "admin"},
}  # fmt: skip


async def test_no_listing_shows_a_stranger_anything_of_a_governed_batch(world: World) -> None:
    asker = Asker(world)
    for method, path, operation in operations(world):
        is_listing = method == "get" or "preview" in path
        if not is_listing or is_owned(path) or "{token_id}" in path or "x-scope" not in operation:
            continue
        for who, person in PEOPLE.items():
            if not allowed(operation, person):
                continue
            answer = await asker.ask(who, method, path, governed=True)
            text = answer.text + repr(sorted(answer.headers.items()))
            seen = {word for word in world.hidden if word in text}
            if who in SHOWN.get(path, set()):
                assert answer.status_code == 200, f"{who} {method} {path}"
                if "preview-edit" not in path:
                    assert seen, f"{who} {method} {path} sees nothing of it"
            else:
                assert not seen, f"{who} {method} {path} sees {seen}"
                if path in BY_QUERY:  # without one: of all domains that the caller reaches
                    answer = await asker.ask(who, method, path, governed=True, in_domain=False)
                    assert not any(word in answer.text for word in world.hidden), f"{who} {path}"


async def test_the_doctor_names_nothing_of_a_governed_batch_to_a_stranger(
    world: World, conn: AsyncConnection
) -> None:
    await conn.execute(
        "delete from commandbus.command_bus_troubleshooting where command_id = %s", (world.child,)
    )
    await world.bus.upkeep.doctor(domain=DOMAIN, operator="olga")
    shown = {}
    for who in PEOPLE:
        async with client_of(world.app, who) as client:
            shown[who] = (await client.get(f"{API}/doctor")).json()
        is_named = any(word in str(shown[who]) for word in world.hidden)
        assert is_named is (who in {"operator", "approver", "admin"}), who
    counts = {
        who: [(each["code"], each["found"]) for each in found["last"]["findings"]]
        for who, found in shown.items()
    }
    assert counts["stranger"] == counts["owner"] == counts["operator"] != []
    assert (counts["other"], shown["other"]["last"]["actor"]) == ([], None)
    await world.bus.upkeep.doctor(domain=DOMAIN, operator="olga", fix=True)
    async with client_of(world.app, "stranger") as bob, client_of(world.app, "operator") as olga:
        mine, all_of_it = [(await each.get(f"{API}/doctor")).json() for each in (bob, olga)]
    assert str(world.child) in str(all_of_it["last"]["repairs"])
    assert not any(word in str(mine) for word in world.hidden)
    assert len(mine["last"]["repairs"]) == len(all_of_it["last"]["repairs"])


async def test_a_stranger_cannot_tell_a_hidden_thing_from_none(world: World) -> None:
    """The same answers, letter by letter but for the id, for what is hidden and what is not."""
    nothing = str(uuid4())
    pairs = {
        f"{API}/commands/{DOMAIN}/{{}}": world.child,
        f"{API}/commands/{DOMAIN}/{{}}/audit": world.child,
        f"{API}/commands?domain={DOMAIN}&command_id={{}}": world.child,
        f"{API}/commands?domain={DOMAIN}&batch_id={{}}": world.batch,
        f"{API}/audit?domain={DOMAIN}&command_id={{}}": world.child,
        f"{API}/audit?domain={DOMAIN}&batch_id={{}}": world.batch,
        f"{API}/audit?domain={DOMAIN}&command_id={{}}&limit=1": world.bulk,
        f"{API}/command-batches/{DOMAIN}/{{}}": world.batch,
        f"{API}/command-batches/{DOMAIN}/{{}}/commands": world.batch,
        f"{API}/command-batches/{DOMAIN}/{{}}/load": world.batch,
        f"{API}/troubleshooting/{DOMAIN}/{{}}": world.child,
        f"{API}/troubleshooting?domain={DOMAIN}&group=0000000{{}}": "",
        f"{API}/batches/{{}}": world.batch,
        f"{API}/batches/{{}}/children": world.batch,
        f"{API}/batches/{{}}/events": world.batch,
        f"{API}/bulk-operations/{{}}": world.bulk,
        f"{API}/bulk-operations/{{}}/items": world.bulk,
        f"{API}/exports/commands?domain={DOMAIN}&batch_id={{}}": world.batch,
        f"{API}/exports/audit?domain={DOMAIN}&batch_id={{}}": world.batch,
        f"{API}/tokens/{{}}": world.token,
        f"{API}/commands/{DOMAIN}/{{}}/life": world.child,
        f"{API}/command-batches/{DOMAIN}/{{}}/standing": world.batch,
    }
    ids = f"{API}/ids/{{}}"
    of_ids = [(ids, each) for each in (world.child, world.batch, world.waiting, world.bulk)]
    async with client_of(world.app, "stranger") as client:
        for path, hidden in [*pairs.items(), *of_ids]:
            there = await client.get(path.format(hidden), headers={"X-Request-Id": "r"})
            absent = await client.get(
                path.format(nothing.replace("-", "") if "tokens" in path else nothing),
                headers={"X-Request-Id": "r"},
            ) if hidden else there  # fmt: skip
            assert there.status_code == absent.status_code, path
            plain = there.text.replace(str(hidden), "ID") if hidden else there.text
            other = absent.text.replace(nothing, "ID").replace(nothing.replace("-", ""), "ID")
            assert plain == other, path
        # A group that only hidden commands are in, named in a filter.
        for group in (world.fingerprint, "0123456789abcdef"):
            body = {"domain": DOMAIN, "group": group}
            answer = await client.post(f"{API}/bulk-operations/preview", json=body)
            assert answer.status_code == 409
            assert answer.json()["detail"].replace(group, "ID").startswith("no failure group")
            answer = await client.get(f"{API}/failure-groups/{DOMAIN}/{group}")
            assert answer.status_code == 409
            assert answer.json()["detail"].replace(group, "ID").startswith("no failure group")
            url = f"{API}/domains/{DOMAIN}/failure-trends"
            assert (await client.get(url, params={"fingerprint": group})).json() == {"items": []}


async def test_counts_are_of_what_may_be_seen(world: World) -> None:
    async with client_of(world.app, "stranger") as bob, client_of(world.app, "operator") as olga:
        body = {"domain": DOMAIN}
        mine = (await bob.post(f"{API}/bulk-operations/preview", json=body)).json()
        all_of_them = (await olga.post(f"{API}/bulk-operations/preview", json=body)).json()
        assert (mine["total"], all_of_them["total"]) == (3, 5)
        for page_size in (1, 2, 50):
            listed: list[str] = []
            params: dict[str, Any] = {"limit": page_size}
            while True:
                page = (await bob.get(f"{API}/troubleshooting/{DOMAIN}", params=params)).json()
                listed += [item["command_id"] for item in page["items"]]
                # A page is full of what may be seen, and the last one says that it is.
                assert len(page["items"]) == page_size or page["next_cursor"] is None
                if page["next_cursor"] is None:
                    break
                params["cursor"] = page["next_cursor"]
            assert set(listed) == set(map(str, world.shop.parked))


async def test_events_of_tokens_and_limits_are_for_administrators_of_all_domains(
    world: World,
) -> None:
    app = app_of(
        world.bus, olga=caller("read", "operate", user="olga"), eva=caller("read", user="eva")
    )
    for who, sees in (("olga", False), ("eva", False), ("root", True)):
        async with client_of(app, who) as client:
            for query in ({"event_type": "TOKEN_CREATED"}, {"command_id": str(UUID(world.token))}):
                found = (await client.get(f"{API}/audit", params=query)).json()["items"]
                assert bool(found) is sees, f"{who} {query}"
            exported = await client.get(f"{API}/exports/audit")
            assert ("TOKEN_CREATED" in exported.text) is sees
