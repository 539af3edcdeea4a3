"""A retry with an edited payload: through the bus, on both stores."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID, uuid4

import orjson
import pytest

from commandbus import CommandBus, Secret, Settings
from commandbus.database.model import Edit
from commandbus.database.store import Store
from commandbus.errors import (
    CommandNotFoundError,
    InvalidOperationError,
    InvalidPayloadError,
    PayloadLostError,
)
from commandbus.privacy.values import MASK
from tests.conformance.worlds import DOMAIN, World, done, new, parked


@pytest.fixture
def bus(store: Store) -> CommandBus:
    return CommandBus(store=store, settings=Settings(max_payload_bytes=2_000))


async def park(world: World, data: dict[str, Any]) -> UUID:
    command = new(data=data)
    await world.park(command)
    return command.command_id


async def edit_in_audit(world: World, command_id: UUID) -> Any:
    return (await world.details(command_id, "OPERATOR_RETRY"))[-1]["edited"]


async def test_the_handler_is_given_the_edited_payload(world: World, bus: CommandBus) -> None:
    command_id = await park(world, {"amount": -5, "note": "x"})
    old = (await world.command(command_id)).msg_id

    await bus.operator_retry(DOMAIN, command_id, operator="ann", payload={"amount": 5, "to": [1]})

    [lease] = await world.receive()
    assert orjson.loads(lease.payload or "") == {"amount": 5, "to": [1]}
    assert lease.attempt == 1
    assert await edit_in_audit(world, command_id) == {
        "previous_msg_id": old,
        "changes": {
            "changed": [{"path": "data.amount", "from": "-5", "to": "5"}],
            "added": [{"path": "data.to", "to": "[1]"}],
            "removed": [{"path": "data.note", "from": '"x"'}],
        },
    }
    trail = await bus.get_audit_trail(DOMAIN, command_id)
    assert [e.actor for e in trail if e.event_type == "OPERATOR_RETRY"] == ["ann"]
    await world.settle(done(lease))
    assert len(await world.replies()) == 1


async def test_the_old_payload_stays_in_the_archive_when_the_new_one_comes_there_too(
    world: World, bus: CommandBus
) -> None:
    command_id = await park(world, {"n": 1})
    await bus.operator_retry(DOMAIN, command_id, payload={"n": 2})
    [lease] = await world.receive()
    await world.settle(parked(lease))

    archive = (await world.dump())["archive"]

    assert [message["data"] for message in archive] == [{"n": 1}, {"n": 2}]
    [item] = await bus.list_troubleshooting(DOMAIN)
    assert item.data == {"n": 2}
    await bus.operator_retry(DOMAIN, command_id)  # the edited one from now on
    [again] = await world.receive()
    assert orjson.loads(again.payload or "") == {"n": 2}


async def test_secrets_are_masked_in_the_audit_and_kept_in_the_message(
    world: World, bus: CommandBus, store: Store
) -> None:
    await store.declare_secrets(DOMAIN, {"Debit": ["iban"]})
    old = {"password": "hunter-22", "iban": "DE-1234", "memo": "for DE-1234", "n": 1}
    command_id = await park(world, old)
    edited = {"password": "hunter-33", "iban": "DE-9999", "memo": "pay DE-9999 now", "n": 1}

    await bus.operator_retry(DOMAIN, command_id, payload=edited)

    changes = (await edit_in_audit(world, command_id))["changes"]
    text = str(changes)
    assert {c["path"] for c in changes["changed"]} == {"data.password", "data.iban", "data.memo"}
    for secret in ("hunter", "DE-1234", "DE-9999"):
        assert secret not in text
    [lease] = await world.receive()
    assert orjson.loads(lease.payload or "") == edited


async def test_what_is_left_masked_keeps_its_real_value(world: World, bus: CommandBus) -> None:
    old = {"auth": {"token": "t-123456", "user": "a"}, "list": [{"secret": "s-1"}], "n": 1}
    command_id = await park(world, old)
    shown = {"auth": {"token": MASK, "user": "b"}, "list": [{"secret": MASK}], "n": 2}

    await bus.operator_retry(DOMAIN, command_id, payload=shown)

    [lease] = await world.receive()
    assert orjson.loads(lease.payload or "") == {
        "auth": {"token": "t-123456", "user": "b"}, "list": [{"secret": "s-1"}], "n": 2,
    }  # fmt: skip


async def test_an_edit_that_changes_nothing_is_a_plain_retry(world: World, bus: CommandBus) -> None:
    command_id = await park(world, {"a": 1})

    await bus.operator_retry(DOMAIN, command_id, payload={"a": 1})

    assert "edited" not in (await world.details(command_id, "OPERATOR_RETRY"))[0]


@dataclass
class Payment:
    amount: int
    iban: Annotated[str, Secret] = ""


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        ([1], "data must be a dict"),
        ({"amount": float("nan")}, "JSON cannot hold"),
        ({"amount": 1, "big": "x" * 3_000}, "at most 2,000"),
        ({"amount": "1"}, "amount must be a whole number"),
        ({"amount": True}, "amount must be a whole number"),
        ({}, "amount is missing"),
        ({"amount": 1, "amonut": 2}, "amonut is not one of its fields"),
        ({"amount": 1, "iban": f"x {MASK}"}, "give the real value"),
    ],
)
async def test_a_wrong_payload_is_refused_and_nothing_changes(
    world: World, bus: CommandBus, payload: Any, match: str
) -> None:
    async def handler(command: Any, ctx: Any) -> None: ...

    bus.register_handler(DOMAIN, "Debit", handler, payload_type=Payment)
    command_id = await park(world, {"amount": -1, "iban": "DE-77"})
    before = await world.dump()

    with pytest.raises(InvalidPayloadError, match=match) as caught:
        await bus.operator_retry(DOMAIN, command_id, payload=payload)

    assert "DE-77" not in str(caught.value)
    assert await world.dump() == before


async def test_only_a_parked_command_with_a_payload_can_be_edited(
    world: World, bus: CommandBus
) -> None:
    command = new()
    await world.send(command)
    with pytest.raises(InvalidOperationError, match="it is PENDING"):
        await bus.operator_retry(DOMAIN, command.command_id, payload={"a": 1})
    with pytest.raises(CommandNotFoundError):
        await bus.operator_retry(DOMAIN, uuid4(), payload={"a": 1})
    command_id = await park(world, {})
    await world.lose_archive()
    before = await world.dump()
    with pytest.raises(PayloadLostError):
        await bus.operator_retry(DOMAIN, command_id, payload={"a": 1})
    assert await world.dump() == before


async def test_an_edit_of_an_older_message_is_refused(world: World, store: Store) -> None:
    command_id = await park(world, {"n": 1})
    older = (await world.command(command_id)).msg_id
    await store.operator_retry(DOMAIN, [command_id], actor=None, reset_attempts=True)
    [lease] = await world.receive()
    await world.settle(parked(lease))
    before = await world.dump()

    with pytest.raises(InvalidOperationError, match="sent again since its payload was read"):
        await store.operator_retry(
            DOMAIN,
            [command_id],
            actor=None,
            reset_attempts=True,
            edits={command_id: Edit(b'{"n": 9}', older, {})},
        )

    assert await world.dump() == before


async def test_edits_are_for_the_commands_that_they_name(world: World, store: Store) -> None:
    first, second = await park(world, {"n": 1}), await park(world, {"n": 2})
    number = (await world.command(first)).msg_id

    await store.operator_retry(
        DOMAIN,
        [first, second],
        actor=None,
        reset_attempts=True,
        edits={first: Edit(b'{"n": 7}', number, {"changed": []})},
    )

    data = {lease.command_id: orjson.loads(lease.payload or "") for lease in await world.receive()}
    assert data == {first: {"n": 7}, second: {"n": 2}}


@pytest.mark.parametrize("rounds", [5])
async def test_of_many_operators_at_once_one_wins_and_one_reply_goes_out(
    world: World, bus: CommandBus, rounds: int
) -> None:
    for _ in range(rounds):
        command_id = await park(world, {"n": 1})
        outcomes = await asyncio.gather(
            bus.operator_cancel(DOMAIN, command_id, "no", operator="ann"),
            bus.operator_complete(DOMAIN, command_id, {"by": "hand"}, operator="bob"),
            bus.operator_retry(DOMAIN, command_id, payload={"n": 2}, operator="cyd"),
            bus.operator_retry(DOMAIN, command_id, operator="dan"),
            bus.operator_cancel(DOMAIN, command_id, "nor I", operator="eve"),
            return_exceptions=True,
        )
        lost = [o for o in outcomes if o is not None]
        assert len(lost) == 4
        assert all(isinstance(o, InvalidOperationError) for o in lost)
        deciding = [e for e in await world.events(command_id) if e.startswith("OPERATOR_")]
        assert len(deciding) == 1
        for lease in await world.receive():
            await world.settle(done(lease))
        assert len(await world.replies()) == 1
