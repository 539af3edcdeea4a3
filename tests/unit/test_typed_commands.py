"""Typed commands: instances of classes with @command are sent, called and handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypedDict, cast
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandFailedError,
    Fail,
    HandlerContext,
    Handlers,
    InvalidInputError,
    InvalidNameError,
    InvalidPayloadError,
    InvalidSettingError,
    PermanentCommandError,
    Returns,
    Settings,
    command,
)
from commandbus.errors import InvalidResultError
from commandbus.handlers import handles
from commandbus.testing import fake_bus, run_until_idle, sent
from commandbus.typed.commands import declared_result, name_on
from tests.waiting import until


@dataclass
class Debited:
    left: Decimal


@command("payments", "DebitAccount")
@dataclass(frozen=True, slots=True)
class DebitAccount(Returns[Debited]):
    account: UUID
    amount: Decimal


@command("payments", "Credit")
class Credit(pydantic.BaseModel, Returns[Debited]):
    amount: Decimal
    pin: pydantic.SecretStr = pydantic.SecretStr("")


@command("payments", "Move")
class Move(msgspec.Struct, Returns[list[Debited]]):
    amount: int


@command("payments", "Note")
@dataclass
class Note:
    text: str
    #: A field with the name of something that a BatchCommand has.
    options: str = ""


@command("mail", "Letter")
@dataclass
class Letter(Returns["Later"]):
    text: str


@dataclass
class Later:
    text: str


@dataclass
class Unmarked:
    text: str


ACCOUNT = uuid4()
DEBIT = DebitAccount(ACCOUNT, Decimal(5))


def payments(result: Any = None) -> Handlers:
    handlers = Handlers("payments")

    @handlers.handle(DebitAccount)
    async def debit(command: DebitAccount) -> Debited:
        if result is not None:
            raise result
        return Debited(100 - command.amount)

    @handlers.handle(Credit)
    def credit(command: Credit) -> Debited:
        return Debited(100 + command.amount)

    @handlers.handle(Move)
    async def move(command: Move) -> list[Debited]:
        return [Debited(Decimal(command.amount))]

    @handlers.handle(Note)
    async def note(command: Command[Note], ctx: HandlerContext) -> dict[str, str]:
        return {"text": command.data.text}

    return handlers


@asynccontextmanager
async def running(bus: CommandBus, domain: str = "payments") -> AsyncIterator[CommandBus]:
    worker = asyncio.create_task(bus.run_worker(domain))
    try:
        yield bus
    finally:
        await bus.stop()
        await worker


# -- the mark


def test_a_command_class_knows_its_domain_its_type_and_its_result() -> None:
    assert name_on(DebitAccount) == ("payments", "DebitAccount")
    assert declared_result(DebitAccount) is Debited
    assert declared_result(Credit) is Debited
    assert declared_result(Move) == list[Debited]
    assert declared_result(Note) is None
    assert declared_result(Unmarked) is None
    assert declared_result(Letter) is Later


def test_a_result_whose_type_cannot_be_found_is_refused_with_its_name() -> None:
    @command("mail", "Lost")
    @dataclass
    class Lost(Returns["Nowhere"]):  # type: ignore[name-defined]
        text: str

    with pytest.raises(InvalidSettingError, match=r"that .*Lost returns is not known.*Nowhere"):
        declared_result(Lost)


def test_a_subclass_is_no_command_without_a_mark_of_its_own() -> None:
    @dataclass
    class Other(Note):
        more: str = ""

    assert name_on(Other) is None


def test_the_mark_stays_when_a_dataclass_is_made_anew_with_slots() -> None:
    marked: type = command("payments", "Again")(type("Again", (Unmarked,), {}))
    anew: type = dataclass(slots=True)(marked)
    assert name_on(anew) == ("payments", "Again")
    assert name_on(Unmarked) is None


def test_a_class_without_fields_or_a_typed_dict_is_refused_as_a_command() -> None:
    class Plain:
        pass

    class Data(TypedDict):
        text: str

    for kind in (Plain, Data):
        with pytest.raises(InvalidSettingError, match="@command above @dataclass"):
            command("payments", "X")(kind)


def test_a_name_that_is_not_well_formed_is_refused_where_the_class_is_written() -> None:
    with pytest.raises(InvalidNameError):
        command("Payments!", "X")
    with pytest.raises(InvalidNameError):
        command("payments", "")


# -- send


async def test_an_instance_is_sent_with_an_id_made_for_it() -> None:
    bus = fake_bus()
    first, second = await bus.send(DEBIT), await bus.send(DEBIT)
    assert first != second
    assert [each.command_id for each in sent(bus, "payments", "DebitAccount")] == [first, second]
    assert sent(bus, "payments")[0].data == {"account": str(ACCOUNT), "amount": "5"}


async def test_an_instance_is_sent_with_the_options_of_a_send() -> None:
    bus = fake_bus()
    own, cause = uuid4(), uuid4()
    found = await bus.send(
        DEBIT, command_id=own, correlation_id=cause, reply_to="mine", max_attempts=2, actor="kim",
        priority=1, meta={"tenant": "north"},
    )  # fmt: skip
    assert found == own
    (it,) = sent(bus, "payments")
    assert (it.command_id, it.correlation_id, it.reply_to) == (own, cause, "mine")
    stored = await bus.get_command("payments", own)
    assert stored is not None
    assert (stored.max_attempts, stored.priority) == (2, 1)


async def test_a_model_keeps_its_secrets_and_a_struct_its_fields_when_sent() -> None:
    bus = fake_bus()
    await bus.send(Credit(amount=Decimal(1), pin=pydantic.SecretStr("4711")))
    await bus.send(Move(amount=3))
    assert [each.data for each in sent(bus, "payments")] == [
        {"amount": "1", "pin": "4711"},
        {"amount": 3},
    ]


async def test_data_that_does_not_fit_its_class_is_refused_with_places() -> None:
    bus = fake_bus()
    wrong = DebitAccount("4711", Decimal(5))  # type: ignore[arg-type]
    for verb in (bus.send, bus.call):
        with pytest.raises(InvalidPayloadError, match="account must be a UUID") as refused:
            await verb(wrong)
        assert "4711" not in str(refused.value)
    with pytest.raises(InvalidPayloadError, match="account must be a UUID"):
        await bus.send_many("payments", [wrong])
    with pytest.raises(InvalidPayloadError, match="account must be a UUID"):
        await bus.create_batch("payments", [wrong])
    assert sent(bus, "payments") == []


async def test_data_is_sent_unchecked_if_the_settings_say_so() -> None:
    bus = fake_bus(settings=Settings(validate_on_send=False))
    await bus.send(DebitAccount("4711", Decimal(5)))  # type: ignore[arg-type]
    assert len(sent(bus, "payments")) == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Unmarked("x"), "Unmarked is no command; write @command"),
        (Unmarked, "Unmarked is a class; send an instance"),
        (DebitAccount, "DebitAccount is a class; send an instance"),
        (None, "domain"),
        (5, "domain"),
        ({"a": 1}, "domain"),
    ],
)
async def test_what_is_no_command_is_refused_with_what_to_do(given: Any, text: str) -> None:
    bus = fake_bus()
    for verb in (bus.send, bus.call):
        with pytest.raises(InvalidInputError, match=text):
            await verb(given)


async def test_a_type_or_data_beside_an_instance_is_refused() -> None:
    bus: Any = fake_bus()
    with pytest.raises(InvalidInputError, match="brings its command type and its data"):
        await bus.send(DEBIT, "DebitAccount")
    with pytest.raises(InvalidInputError, match="brings its command type and its data"):
        await bus.call(DEBIT, data={})


async def test_the_printed_form_without_a_type_or_data_is_refused() -> None:
    bus: Any = fake_bus()
    with pytest.raises(InvalidNameError):
        await bus.send("payments")
    with pytest.raises(InvalidInputError):
        await bus.send("payments", "DebitAccount", uuid4())


# -- many


async def test_instances_and_batch_commands_are_sent_together() -> None:
    bus = fake_bus()
    own = uuid4()
    report = await bus.send_many(
        "payments", [DEBIT, BatchCommand("Other", own, {}), Note("x", options="y")]
    )
    assert [each.command_type for each in sent(bus, "payments")] == [
        "DebitAccount",
        "Other",
        "Note",
    ]
    assert [each.command_id for each in sent(bus, "payments")] == list(report)
    assert len(await bus.send_many("payments", (Note(str(n)) for n in range(3)))) == 3


async def test_a_measured_bus_counts_instances_by_their_types() -> None:
    bus = fake_bus()
    monitor = bus.monitor()
    await bus.send_many("payments", [DEBIT, Note("x")])
    text = monitor.metrics.text().decode()
    for command_type in ("DebitAccount", "Note"):
        assert f'commandbus_sent_total{{domain="payments",type="{command_type}"}} 1' in text


async def test_an_instance_of_another_domain_is_refused_among_many() -> None:
    bus = fake_bus()
    with pytest.raises(InvalidInputError, match="of the domain 'mail', and is sent to 'payments'"):
        await bus.send_many("payments", [DEBIT, Letter("x")])
    with pytest.raises(InvalidInputError, match="classes with @command, not Unmarked"):
        await bus.create_batch("payments", [Unmarked("x")])
    assert sent(bus, "payments") == []


async def test_a_batch_of_instances_ends_with_an_instance() -> None:
    bus = fake_bus(payments())
    batch = await bus.create_batch("payments", [DEBIT, DEBIT], on_complete_command=Note("all"))
    await run_until_idle(bus)
    done = await bus.get_batch("payments", batch)
    assert done is not None
    assert done.completed_count == 2
    (note,) = sent(bus, "payments", "Note")
    assert (note.data["text"], note.correlation_id) == ("all", batch)


# -- call


async def test_a_call_returns_a_value_of_the_declared_type() -> None:
    async with running(fake_bus(payments())) as bus:
        assert await bus.call(DEBIT) == Debited(Decimal(95))
        assert await bus.call(Credit(amount=Decimal(1))) == Debited(Decimal(101))
        assert await bus.call(Move(amount=2)) == [Debited(Decimal(2))]
        assert await bus.call(Note("x")) == {"text": "x"}
        printed = await bus.call("payments", "Note", {"text": "y"})
        assert printed.data == {"text": "y"}


async def test_a_call_of_a_command_that_failed_raises_with_its_reply() -> None:
    async with running(fake_bus(payments(Fail("NO_FUNDS", "the account is empty")))) as bus:
        own = uuid4()
        with pytest.raises(CommandFailedError, match="FAILED: NO_FUNDS: the account") as failed:
            await bus.call(DEBIT, command_id=own)
    assert failed.value.reply.command_id == own
    assert failed.value.reply.error is not None
    assert failed.value.reply.error.code == "NO_FUNDS"


async def test_a_call_of_a_command_that_an_operator_cancels_raises() -> None:
    async with running(fake_bus(payments(PermanentCommandError("BAD", "no")))) as bus:
        own = uuid4()
        calling = asyncio.create_task(bus.call(DEBIT, command_id=own))
        await until(lambda: bus.list_troubleshooting("payments"))
        await bus.operator_cancel("payments", own, "not wanted")
        with pytest.raises(CommandFailedError, match="ended as CANCELED"):
            await calling


async def test_a_call_whose_result_is_not_of_the_declared_type_says_so() -> None:
    async with running(fake_bus(payments(PermanentCommandError("BAD", "no")))) as bus:
        own = uuid4()
        calling = asyncio.create_task(bus.call(DEBIT, command_id=own))
        await until(lambda: bus.list_troubleshooting("payments"))
        await bus.operator_complete("payments", own, {"left": "much"})
        with pytest.raises(InvalidResultError, match=r"has completed.*not a Debited: left must"):
            await calling


# -- handlers


async def test_a_handler_sends_an_instance_with_its_outcome() -> None:
    handlers = Handlers("payments")

    @handlers.handle(DebitAccount)
    async def debit(command: DebitAccount, ctx: HandlerContext) -> Debited:
        ctx.send(Letter("hello"), priority=1)
        return Debited(command.amount)

    bus = fake_bus(handlers)
    cause = uuid4()
    await bus.send(DEBIT, correlation_id=cause)
    await run_until_idle(bus)
    (letter,) = sent(bus, "mail", "Letter")
    assert (letter.data, letter.correlation_id) == ({"text": "hello"}, cause)


async def test_the_result_must_fit_what_the_class_declares_whatever_the_handler_says() -> None:
    handlers = Handlers("payments")

    @handlers.handle(DebitAccount)
    async def debit(command: Command, ctx: HandlerContext) -> dict[str, str]:
        return {"left": "much"}

    bus = fake_bus(handlers)
    await bus.send(DEBIT)
    await run_until_idle(bus)
    (parked,) = await bus.list_troubleshooting("payments")
    assert parked.last_error_code == "INVALID_RESULT"


async def test_methods_are_marked_with_the_class_too() -> None:
    class Desk:
        @handles(DebitAccount)
        async def debit(self, command: DebitAccount) -> Debited:
            return Debited(command.amount)

    handlers = Handlers("payments")
    handlers.add(Desk())
    async with running(fake_bus(handlers)) as bus:
        assert await bus.call(DEBIT) == Debited(Decimal(5))


def test_a_class_that_does_not_fit_its_handlers_is_refused() -> None:
    handlers = Handlers("payments")
    with pytest.raises(InvalidSettingError, match="domain 'mail', and these are Handlers"):
        handlers.handle(Letter)
    with pytest.raises(InvalidSettingError, match="Unmarked is no command; write @command"):
        handlers.handle(Unmarked)
    with pytest.raises(InvalidSettingError, match="leave payload_type out"):
        handlers.handle(DebitAccount, payload_type=Note)
    with pytest.raises(InvalidNameError):
        handlers.handle(cast("str", None))


def test_a_handler_that_takes_another_class_than_its_command_is_refused() -> None:
    handlers = Handlers("payments")

    @handlers.handle(DebitAccount)
    async def debit(command: Note) -> None: ...

    with pytest.raises(InvalidSettingError, match="and the command is a DebitAccount"):
        fake_bus(handlers)
