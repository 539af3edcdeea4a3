"""Approval is of content: nobody gets something else done than what was approved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import httpx2
import psycopg
import pytest

from commandbus import Command, CommandBus, HandlerContext, RetryPolicy, Settings
from commandbus.access.model import Scope
from commandbus.errors import InvalidOperationError, PermanentCommandError
from commandbus.governance.types import BatchType
from commandbus.privacy.secrets import Secret
from tests.http_world import app_of, caller, client_of, problem
from tests.waiting import until, working

DOMAIN = "bank"
BATCHES = "/api/v1/batches"


class Transfer(TypedDict, total=False):
    """What an item of TRANSFERS must look like."""

    to: str
    amount: int
    pin: Annotated[str, Secret]


TRANSFERS = BatchType(
    name="TRANSFERS", domain=DOMAIN, command_type="Transfer", max_size=50, payload_type=Transfer,
    requires_approval=True,
)  # fmt: skip
#: Needs no approval: its children are checked and limited only.
NOTICES = BatchType(
    name="NOTICES", domain=DOMAIN, command_type="Notice", max_size=50, payload_type=Transfer
)


class Bank:
    """The service, and what its handlers were given."""

    def __init__(self, bus: CommandBus) -> None:
        self.bus = bus
        self.done: list[dict[str, Any]] = []
        self.is_closed = True
        self.app = app_of(
            bus,
            ada=caller("read", "submit", user="ada"),
            olga=caller("read", "operate", user="olga"),
            oskar=caller("read", "operate", "approve", user="oskar"),
            petra=caller("approve", user="petra"),
            rita=caller("read", "read-payload", "operate", user="rita"),
            boss=caller("read", "operate", "bypass-governance", user="boss"),
            far=caller(*(set(Scope) - {Scope.ADMIN}), user="far", domains=("other",)),
        )

    async def work(self, command: Command, ctx: HandlerContext) -> dict[str, Any]:
        if self.is_closed:
            raise PermanentCommandError("CLOSED", "the bank is closed")
        self.done.append(command.data)
        return {}

    async def ask(self, who: str, method: str, path: str, **body: Any) -> httpx2.Response:
        async with client_of(self.app, who) as client:
            return await client.request(method, path, json=body or None)

    async def submit(self, *items: dict[str, Any], kind: str = "TRANSFERS") -> str:
        answer = await self.ask("ada", "POST", BATCHES, batch_type=kind, items=list(items))
        assert answer.status_code == 202, answer.text
        batch_id: str = answer.json()["batch_id"]
        return batch_id

    async def decide(self, who: str, batch_id: str, child: int | None = None, **form: Any) -> Any:
        place = "" if child is None else f"/children/{child}"
        return await self.ask(who, "POST", f"{BATCHES}/{batch_id}{place}/decision", **form)

    async def review(self, who: str, batch_id: str) -> dict[str, Any]:
        answer = await self.ask(who, "GET", f"{BATCHES}/{batch_id}/review")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def parked(self, *items: dict[str, Any], kind: str = "NOTICES") -> tuple[str, list[str]]:
        """A batch whose children have all failed, and the ids of their commands."""
        batch_id = await self.submit(*items, kind=kind)
        if kind == "TRANSFERS":
            assert (await self.decide("petra", batch_id, decision="approve")).status_code == 200

        async def children() -> list[str]:
            found = (await self.ask("root", "GET", f"{BATCHES}/{batch_id}")).json()["children"]
            return [each["ticket_id"] for each in found if each["status"] == "FAILED"]

        async with working(self.bus, DOMAIN):
            await until(lambda: _has(children, len(items)), "all children parked")
        self.is_closed = False
        return batch_id, await children()

    async def edit(self, who: str, command_id: str, payload: dict[str, Any]) -> httpx2.Response:
        path = f"/api/v1/troubleshooting/{DOMAIN}/{command_id}/retry"
        return await self.ask(who, "POST", path, reason="fixed", payload=payload)


async def _has(read: Any, count: int) -> bool:
    return len(await read()) == count


@pytest.fixture
async def bank(dsn: str) -> AsyncIterator[Bank]:
    settings = Settings(
        user_cooldown_seconds=0, poll_max_seconds=0.05, max_user_pending_batches=1_000,
        max_user_pending_children=10_000,
    )  # fmt: skip
    async with CommandBus.connect(dsn, settings=settings) as bus:
        made = Bank(bus)
        for kind in (TRANSFERS, NOTICES):
            bus.governance.declare(kind)
            policy = RetryPolicy(max_attempts=1)
            bus.register_handler(DOMAIN, kind.command_type, made.work, retry_policy=policy)
        bus.governance.register_handlers()
        yield made


# -- what approvers see


async def test_approvers_see_all_that_they_approve_in_one_request_and_no_secret(bank: Bank) -> None:
    items = [{"to": f"bob{n}", "amount": n, "pin": "1234-5678"} for n in range(1, 31)]
    batch_id = await bank.submit(*items)
    shown = await bank.review("petra", batch_id)
    assert [each["sequence_no"] for each in shown["children"]] == list(range(1, 31))
    assert [each["payload"]["to"] for each in shown["children"]] == [i["to"] for i in items]
    assert {each["masked_count"] for each in shown["children"]} == {1}
    assert "1234-5678" not in str(shown)
    assert (len(shown["content_digest"]), shown["next_cursor"]) == (64, None)
    answer = await bank.decide(
        "petra", batch_id, decision="approve", digest=shown["content_digest"]
    )
    assert answer.status_code == 200
    assert answer.json()["content_digest"] == shown["content_digest"]


async def test_a_review_is_for_those_who_decide_and_later_for_those_who_may_see_payloads(
    bank: Bank,
) -> None:
    batch_id = await bank.submit({"to": "bob", "amount": 1})
    path = f"{BATCHES}/{batch_id}/review"
    assert (await bank.ask("ada", "GET", path)).status_code == 403
    assert (await bank.ask("olga", "GET", path)).status_code == 403
    assert (await bank.ask("far", "GET", path)).status_code == 404
    assert (await bank.ask("rita", "GET", path)).status_code == 200
    await bank.decide("petra", batch_id, decision="approve")
    assert (await bank.ask("petra", "GET", path)).status_code == 403
    assert (await bank.ask("rita", "GET", path)).status_code == 200


async def test_a_decision_about_another_digest_is_a_conflict_and_changes_nothing(
    bank: Bank, conn: psycopg.AsyncConnection[Any]
) -> None:
    batch_id = await bank.submit({"to": "bob", "amount": 1})
    for decision in ("approve", "reject"):
        answer = await bank.decide(
            "petra", batch_id, decision=decision, reason="x", digest="0" * 64
        )
        problem(answer, 409, "CONFLICT")
    answer = await bank.decide("petra", batch_id, decision="approve", digest="short")
    assert answer.status_code == 422 or answer.status_code == 400
    assert (await bank.review("petra", batch_id))["status"] == "PENDING_APPROVAL"


async def test_what_was_changed_in_the_database_meanwhile_is_not_done(
    bank: Bank, conn: psycopg.AsyncConnection[Any]
) -> None:
    batch_id = await bank.submit({"to": "bob", "amount": 1})
    await conn.execute(
        "update commandbus.command_bus_payload_archive"
        " set payload_json = jsonb_set(payload_json, '{data,to}', '\"eve\"')"
    )
    await conn.commit()
    answer = await bank.decide("petra", batch_id, decision="approve")
    assert "not what was submitted" in problem(answer, 409, "CONFLICT")["detail"]


# -- edits


@pytest.mark.parametrize("kind", ["NOTICES", "TRANSFERS"])
async def test_an_edit_of_a_governed_child_is_not_done_until_somebody_else_approved_it(
    bank: Bank, kind: str
) -> None:
    batch_id, (child,) = await bank.parked({"to": "bob", "amount": 1, "pin": "9999-8"}, kind=kind)
    masked = {"to": "eve", "amount": 1, "pin": "[REDACTED]"}
    answer = await bank.edit("oskar", child, masked)
    assert (answer.status_code, answer.json()["status"]) == (202, "IN_TROUBLESHOOTING_QUEUE")
    shown = await bank.review("petra", batch_id)
    (found,) = shown["children"]
    edit = found["edit"]
    assert (shown["status"], shown["edit_count"]) == ("PENDING_APPROVAL", 1)
    assert edit["changes"] == {"changed": [{"path": "data.to", "from": '"bob"', "to": '"eve"'}]}
    assert (edit["editor"], edit["payload"]["to"], edit["masked_count"]) == ("oskar", "eve", 1)
    assert "9999-8" not in str(shown)
    form = {"decision": "approve", "digest": edit["digest"]}
    assert (await bank.decide("oskar", batch_id, 1, **form)).status_code == 409
    assert (await bank.decide("petra", batch_id, 1, decision="approve")).status_code == 409
    assert (await bank.decide("petra", batch_id, 2, **form)).status_code == 409
    assert (await bank.decide("olga", batch_id, 1, **form)).status_code == 403
    assert (await bank.decide("far", batch_id, 1, **form)).status_code == 404
    async with working(bank.bus, DOMAIN):
        assert bank.done == []
        assert (await bank.decide("petra", batch_id, 1, **form)).status_code == 200
        await until(lambda: _is([{"to": "eve", "amount": 1, "pin": "9999-8"}], bank), "done")
    assert (await bank.decide("petra", batch_id, 1, **form)).status_code == 409


async def _is(expected: list[dict[str, Any]], bank: Bank) -> bool:
    return bank.done == expected


async def test_an_edit_that_was_replaced_is_not_approved_by_the_digest_of_the_first(
    bank: Bank,
) -> None:
    batch_id, (child,) = await bank.parked({"to": "bob", "amount": 1})
    await bank.edit("olga", child, {"to": "bob", "amount": 2})
    (seen,) = (await bank.review("petra", batch_id))["children"]
    await bank.edit("oskar", child, {"to": "bob", "amount": 2_000})
    form = {"decision": "approve", "digest": seen["edit"]["digest"]}
    assert (await bank.decide("petra", batch_id, 1, **form)).status_code == 409
    (again,) = (await bank.review("petra", batch_id))["children"]
    assert again["edit"]["payload"]["amount"] == 2_000


async def test_a_rejected_edit_leaves_the_child_to_operators_as_it_was(bank: Bank) -> None:
    batch_id, (child,) = await bank.parked({"to": "bob", "amount": 1})
    await bank.edit("olga", child, {"to": "eve", "amount": 1})
    assert (await bank.decide("petra", batch_id, 1, decision="reject")).status_code in {400, 422}
    answer = await bank.decide("petra", batch_id, 1, decision="reject", reason="not eve")
    assert (answer.status_code, answer.json()["status"]) == (200, "FAILED")
    path = f"/api/v1/troubleshooting/{DOMAIN}/{child}/retry"
    assert (await bank.ask("olga", "POST", path, reason="again")).status_code == 200
    async with working(bank.bus, DOMAIN):
        await until(lambda: _is([{"to": "bob", "amount": 1}], bank), "done")


async def test_the_owner_of_a_batch_does_not_decide_about_its_edits(bank: Bank) -> None:
    bank.app = app_of(
        bank.bus, ada=caller("read", "submit", "approve", user="ada"),
        olga=caller("read", "operate", user="olga"),
    )  # fmt: skip
    batch_id, (child,) = await bank.parked({"to": "bob", "amount": 1})
    await bank.edit("olga", child, {"to": "ada", "amount": 1})
    (found,) = (await bank.review("ada", batch_id))["children"]
    form = {"decision": "approve", "digest": found["edit"]["digest"]}
    assert (await bank.decide("ada", batch_id, 1, **form)).status_code == 409


async def test_a_bulk_edit_of_governed_children_waits_too(bank: Bank) -> None:
    batch_id, _ = await bank.parked({"to": "bob", "amount": 1}, {"to": "bob", "amount": 2})
    answer = await bank.ask(
        "olga", "POST", "/api/v1/bulk-operations", verb="retry", filter={"domain": DOMAIN},
        everything=True, edit={"merge_patch": {"to": "eve"}},
    )  # fmt: skip
    assert answer.status_code == 202, answer.text

    async def are_proposed() -> bool:
        return bool((await bank.review("petra", batch_id))["edit_count"] == 2)

    async with working(bank.bus, DOMAIN):
        await bank.bus.bulk.run(answer.json()["operation_id"])
        await until(are_proposed, "both edits waiting")
    assert bank.done == []


async def test_the_right_to_pass_by_governance_is_audited(
    bank: Bank, conn: psycopg.AsyncConnection[Any]
) -> None:
    _, (child,) = await bank.parked({"to": "bob", "amount": 1})
    answer = await bank.edit("boss", child, {"to": "eve", "amount": 1})
    assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")
    cursor = await conn.execute(
        "select actor from commandbus.command_bus_audit where event_type = 'GOVERNANCE_BYPASSED'"
    )
    assert await cursor.fetchall() == [("boss",)]


async def test_an_edit_that_does_not_fit_the_batch_type_is_refused(bank: Bank) -> None:
    _, (child,) = await bank.parked({"to": "bob", "amount": 1})
    answer = await bank.edit("olga", child, {"to": "eve", "amount": "much"})
    assert answer.status_code in {400, 422}


async def test_the_library_must_say_who_edits_a_governed_child(bank: Bank) -> None:
    batch_id, _ = await bank.parked({"to": "bob", "amount": 1})
    (child,) = (await bank.review("rita", batch_id))["children"]
    with pytest.raises(InvalidOperationError, match="nobody is named as the operator"):
        await bank.bus.operator_retry(DOMAIN, child["ticket_id"], payload={"to": "eve"})


# -- what waits


async def test_batches_and_edits_that_wait_are_listed_together_page_by_page(bank: Bank) -> None:
    edited, (child,) = await bank.parked({"to": "bob", "amount": 1})
    first = await bank.submit({"to": "bob", "amount": 1})
    await bank.edit("olga", child, {"to": "eve", "amount": 1})
    last = await bank.submit({"to": "bob", "amount": 2})
    for newest, expected in (("false", [first, edited, last]), ("true", [last, edited, first])):
        found, cursor = [], ""
        while True:
            path = f"/api/v1/undecided?limit=1&newest_first={newest}{cursor}"
            page = (await bank.ask("petra", "GET", path)).json()
            found += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert [each["batch_id"] for each in found] == expected
        assert [each["editor"] for each in found] == [None, "olga", None]
    assert (await bank.ask("far", "GET", "/api/v1/undecided")).json()["items"] == []
    assert (await bank.ask("ada", "GET", "/api/v1/undecided")).status_code == 403


async def test_a_full_inbox_does_not_stop_deciding(dsn: str) -> None:
    settings = Settings(user_cooldown_seconds=120, poll_max_seconds=0.05)
    async with CommandBus.connect(dsn, settings=settings) as bus:
        bus.governance.declare(TRANSFERS)
        bus.governance.register_handlers()
        users: dict[str, Any] = {
            f"u{n}": caller("read", "submit", user=f"u{n}") for n in range(101)
        }
        app = app_of(bus, petra=caller("read", "approve", user="petra"), **users)
        ids = []
        for name in users:
            async with client_of(app, name) as client:
                items = [{"to": "bob", "amount": 1}]
                body = {"batch_type": "TRANSFERS", "items": items}
                answer = await client.post(BATCHES, json=body)
                if name == "u100":
                    problem(answer, 429, "RATE_LIMIT_EXCEEDED")
                else:
                    ids.append(answer.json()["batch_id"])
        async with client_of(app, "petra") as petra:
            made = []
            for start in range(0, 100, 20):
                decisions = [
                    {"ticket_id": each, "decision": "reject", "reason": "too many"}
                    for each in ids[start : start + 20]
                ]
                answer = await petra.post("/api/v1/approvals/batch", json={"items": decisions})
                assert answer.status_code == 202, answer.text
                made.append(answer.json()["status_url"])
            async with working(bus, "approvals"):
                for url in made:
                    ended = (await petra.get(url, headers={"Prefer": "wait=20"})).json()
                    assert (ended["status"], ended["success_count"]) == ("COMPLETED", 20)
            assert (await petra.get("/api/v1/undecided")).json()["items"] == []


async def test_an_edit_is_decided_by_a_batch_of_decisions_too(bank: Bank) -> None:
    batch_id, (child,) = await bank.parked({"to": "bob", "amount": 1})
    await bank.edit("oskar", child, {"to": "eve", "amount": 1})
    (found,) = (await bank.review("petra", batch_id))["children"]
    item = {"ticket_id": batch_id, "sequence_no": 1, "decision": "approve"}
    path = "/api/v1/approvals/batch"
    whole = {"ticket_id": batch_id, "decision": "approve"}
    for wrong in (item, {**item, "digest": "0" * 64}, {**item, "sequence_no": 2}, whole):
        assert (await bank.ask("petra", "POST", path, items=[wrong])).status_code == 400
    right = {**item, "digest": found["edit"]["digest"]}
    assert (await bank.ask("oskar", "POST", path, items=[right])).status_code == 400
    assert (await bank.ask("petra", "POST", path, items=[right])).status_code == 202
    async with working(bank.bus, "approvals"), working(bank.bus, DOMAIN):
        await until(lambda: _is([{"to": "eve", "amount": 1}], bank), "done")


# -- expiry


async def test_what_nobody_decides_about_expires_by_a_chore_of_any_worker(
    dsn: str, conn: psycopg.AsyncConnection[Any]
) -> None:
    settings = Settings(
        user_cooldown_seconds=0, approval_expires_seconds=0.01, maintenance_interval_seconds=0.2
    )
    async with CommandBus.connect(dsn, settings=settings) as bus:
        bus.governance.declare(TRANSFERS)
        app = app_of(
            bus, ada=caller("read", "submit", user="ada"), petra=caller("approve", user="petra")
        )
        async with client_of(app, "ada") as ada, client_of(app, "petra") as petra:
            items = [{"to": "bob", "amount": 1}]
            body = {"batch_type": "TRANSFERS", "items": items}
            url = (await ada.post(BATCHES, json=body)).json()["status_url"]
            late = await petra.post(f"{url}/decision", json={"decision": "approve"})
            assert "expired" in problem(late, 409, "CONFLICT")["detail"]

            async def is_over() -> bool:
                return (await ada.get(url)).json()["status"] == "CANCELED"

            async with working(bus, "elsewhere"):
                await until(is_over, "the batch expiring")
            shown = (await ada.get(url)).json()
    assert (shown["decided_by"], "in time" in shown["decision_reason"]) == (None, True)
    cursor = await conn.execute(
        "select actor from commandbus.command_bus_audit where event_type = 'BATCH_EXPIRED'"
    )
    assert await cursor.fetchall() == [(None,)]


async def test_a_child_says_its_parent_and_its_number(bank: Bank) -> None:
    batch_id, (_, child) = await bank.parked({"to": "a", "amount": 1}, {"to": "b", "amount": 2})
    shown = (await bank.ask("olga", "GET", f"/api/v1/commands/{DOMAIN}/{child}")).json()
    assert (shown["parent_ticket_id"], shown["sequence_no"]) == (batch_id, 2)
