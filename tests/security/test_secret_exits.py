"""The ways out: what a caller over HTTP, a queue's error and the audit tell about payloads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import BaseModel

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    PermanentCommandError,
    Secret,
)
from commandbus.batches.model import DispatchMode
from commandbus.brokers import TransportMessage
from commandbus.privacy.values import MASK
from tests.canaries import assert_hidden, new_canary
from tests.http_world import app_of, caller, client_of, problem
from tests.waiting import until_status, working

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
URL = "/api/v1/bulk-operations"


@dataclass
class Account:
    iban: Annotated[str, Secret]
    amount: int = 0
    users: list[Any] = field(default_factory=list)
    login: dict[str, Any] = field(default_factory=dict)
    more: str = ""
    apiKey: str = ""  # noqa: N815  (a name that is masked without a mark)


async def parked(bus: CommandBus, *payloads: dict[str, Any]) -> list[UUID]:
    """Commands with these payloads, in troubleshooting."""

    @bus.handler("bank", "Book", payload_type=Account)
    async def book(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("BAD", f"cannot book {command.data}")

    ids = [await bus.send("bank", "Book", uuid4(), data) for data in payloads]
    async with working(bus, "bank"):
        for command_id in ids:
            await until_status(bus, "bank", command_id, PARKED)
    return ids


async def test_an_operator_who_removes_an_element_over_http_moves_no_secret(
    bus: CommandBus,
) -> None:
    users = [
        {"user": name, "password": f"{name.upper()}-PW", "iban": new_canary(name)}
        for name in ("alice", "bob", "carol")
    ]
    (sent,) = await parked(bus, {"users": users, "iban": "DE99-1234"})
    app = app_of(bus, ann=caller("read", "read-payload", "operate"))
    url = f"/api/v1/troubleshooting/bank/{sent}"
    async with client_of(app, "ann") as client:
        seen = (await client.get(url, params={"payload": True})).json()
        assert_hidden(json.dumps(seen), "the page of an operator")
        edited = seen["payload"]
        del edited["users"][0]
        edited["users"][0]["user"] = "dave"
        form = {"reason": "two only", "payload": edited}
        refused = problem(await client.post(f"{url}/retry", json=form), 400, "INVALID_REQUEST")
        assert "data.users[0]" in refused["detail"]
        assert "give the real value" in refused["detail"]
        assert_hidden(json.dumps(refused), "a problem")
        edited["users"][0]["user"] = "bob"
        assert (await client.post(f"{url}/retry", json=form)).status_code == 200
    stored = json.loads(await bus._store.get_payload("bank", sent) or "")
    assert stored["users"] == users[1:]


async def test_who_may_not_see_payloads_learns_no_value_from_a_preview(bus: CommandBus) -> None:
    ids = await parked(bus, {"iban": "DE1234", "amount": 5}, {"iban": "DE1234", "amount": 6})
    app = app_of(bus, blind=caller("read", "operate"), ann=caller("operate", "read-payload"))
    chosen = {"domain": "bank", "command_ids": list(map(str, ids))}

    async def preview(who: str, edit: Any) -> Any:
        async with client_of(app, who) as client:
            return await client.post(f"{URL}/preview-edit", json={"filter": chosen, "edit": edit})

    guesses = [
        (await preview("blind", {"merge_patch": {"amount": guess, "iban": "DE1234"}})).json()
        for guess in (5, 6, 7)
    ]
    assert guesses[0] == guesses[1] == guesses[2]
    assert (guesses[0]["changed"], guesses[0]["unchanged"]) == (2, 0)
    assert guesses[0]["examples"][0]["changes"] == {"written": ["/amount", "/iban"]}
    seen = (await preview("ann", {"merge_patch": {"amount": 5}})).json()
    assert (seen["changed"], seen["unchanged"]) == (1, 1)

    test = {"patch": [{"op": "test", "path": "/amount", "value": 5}]}
    problem(await preview("blind", test), 403, "PERMISSION_DENIED")
    assert (await preview("ann", test)).json()["failed"] == 1
    async with client_of(app, "blind") as client:
        form = {"verb": "retry", "filter": chosen, "edit": test, "everything": True}
        problem(await client.post(URL, json=form), 403, "PERMISSION_DENIED")


async def test_the_audit_does_not_tell_whether_a_guess_was_right(bus: CommandBus) -> None:
    right, wrong = await parked(bus, {"iban": "DE1234"}, {"iban": "DE5678"})
    for command_id in (right, wrong):
        await bus.operator_retry("bank", command_id, payload={"iban": "DE1234"}, operator="eve")
    details = [
        (event.details or {})["edited"]["changes"]
        for command_id in (right, wrong)
        for event in await bus.get_audit_trail("bank", command_id)
        if event.event_type == "OPERATOR_RETRY"
    ]
    assert details == [{"changed": [{"path": "data.iban", "from": MASK, "to": MASK}]}] * 2


class Repeating:
    """A queue of somebody else's that repeats in its error what it was given."""

    name = "repeating"

    async def publish(self, domain: str, messages: Sequence[str]) -> None:
        shown = [json.loads(message)["data"]["iban"].upper() for message in messages]
        raise ValueError(f"cannot parse {messages} with {shown}")

    async def receive(
        self, domain: str, *, quantity: int, lease_seconds: int
    ) -> list[TransportMessage]:
        return []

    async def acknowledge(self, domain: str, messages: Sequence[TransportMessage]) -> None: ...

    async def set_aside(self, domain: str, messages: Sequence[TransportMessage]) -> None: ...


async def test_the_error_of_a_queue_is_stored_without_the_secrets_of_its_messages(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    await parked(bus, {"iban": "DE1234"})  # its worker has told which keys are secret
    data = {"iban": new_canary("queue"), "apiKey": new_canary("queue")}
    result = await bus.batches.dispatch(
        "bank",
        [BatchCommand("Book", uuid4(), data) for _ in range(2)],
        mode=DispatchMode.TWO_PHASE,
        queue=Repeating(),
    )
    assert_hidden(repr(result), "the result of a dispatch")
    rows = await conn.execute("select t::text from commandbus.command_bus_command t")
    text = str(await rows.fetchall())
    assert "Queue send failed: cannot parse" in text
    assert_hidden(text, "the table of commands")


class Model(BaseModel):
    iban: int
    login: dict[str, int]


async def test_an_error_of_pydantic_has_no_secret_however_it_cuts_its_input(
    bus: CommandBus, conn: psycopg.AsyncConnection[Any]
) -> None:
    data = {"iban": new_canary("m") * 9, "login": {"userPwd": new_canary("m") * 5}, "more": "x"}

    @bus.handler("bank", "Check", payload_type=Account)
    async def check(command: Command, ctx: HandlerContext) -> None:
        try:
            Model.model_validate(command.data)
        except ValueError as error:
            errors: Any = error
            raise PermanentCommandError("BAD", str(error), {"errors": errors.errors()}) from error

    sent = await bus.send("bank", "Check", uuid4(), data)
    async with working(bus, "bank"):
        await until_status(bus, "bank", sent, PARKED)
    for table in ("command", "audit", "troubleshooting", "failure_group"):
        rows = await conn.execute(
            psycopg.sql.SQL("select t::text from {} t").format(
                psycopg.sql.Identifier("commandbus", f"command_bus_{table}")
            )
        )
        assert_hidden(str(await rows.fetchall()), table)


@pytest.mark.parametrize("body", ['{"reason": 5, "password": "%s"}', '{"password": "%s'])
async def test_a_request_that_is_refused_does_not_repeat_a_value_of_it(
    bus: CommandBus, body: str
) -> None:
    canary = new_canary("field")
    async with client_of(app_of(bus)) as client:
        for path in (f"/api/v1/troubleshooting/bank/{uuid4()}/retry", URL, "/api/v1/commands/bank"):
            answer = await client.post(
                path, content=body % canary, headers={"content-type": "application/json"}
            )
            assert answer.status_code in {400, 404, 405, 422}
            assert_hidden(answer.text, path)
