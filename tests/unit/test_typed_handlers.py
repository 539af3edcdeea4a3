"""Handlers by the types of their parameters: payloads, results, classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from pydantic import BaseModel

from commandbus import (
    INBOX,
    Command,
    CommandBus,
    Fail,
    HandlerContext,
    Handlers,
    InvalidPayloadError,
    InvalidSettingError,
    RetryPolicy,
    Secret,
    Settings,
)
from commandbus.handlers import handles
from commandbus.testing import fake_bus, run_until_idle, sent

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class DebitAccount:
    amount: int
    pin: Annotated[str, Secret] = "0000"


@dataclass
class Debited:
    left: int


class Note(TypedDict):
    text: str


class Model(BaseModel):
    amount: int


def bus_with(handler: Callable[..., Any], **options: Any) -> CommandBus:
    handlers = Handlers("payments")
    handlers.handle("DebitAccount", **options)(handler)
    return fake_bus(handlers, settings=Settings(validate_on_send=False))


async def outcome(bus: CommandBus, data: dict[str, Any]) -> tuple[str, Any]:
    """The status of a command, and its result or the code of its error."""
    command_id = await bus.send("payments", "DebitAccount", uuid4(), data, INBOX)
    await run_until_idle(bus, skip_waits=True)
    found = await bus.get_command("payments", command_id)
    assert found is not None
    if found.status == "COMPLETED":
        reply = await bus.wait_reply("payments", command_id)
        return "COMPLETED", reply.data
    return str(found.status), found.last_error_code


async def by_payload(command: DebitAccount, ctx: HandlerContext) -> Any:
    return [type(command).__name__, command.amount, type(ctx.command).__name__]


def in_thread(command: DebitAccount, ctx: HandlerContext) -> Any:
    return [type(command).__name__, command.amount, type(ctx.command).__name__]


async def by_command(command: Command[DebitAccount], ctx: HandlerContext) -> Any:
    return [type(command.data).__name__, command.data.amount, type(command).__name__]


async def without_context(command: DebitAccount) -> Any:
    return [type(command).__name__, command.amount, "Command"]


async def with_named_context(command: DebitAccount, *, here: HandlerContext) -> Any:
    return [type(command).__name__, command.amount, type(here.command).__name__]


class Called:
    async def __call__(self, command: DebitAccount, ctx: HandlerContext) -> Any:
        return await by_payload(command, ctx)


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "handler",
    [
        by_payload, in_thread, by_command, without_context, with_named_context, Called(),
        passed_on(by_payload), functools.partial(by_payload),
    ],
)  # fmt: skip
async def test_a_handler_gets_its_payload_by_its_annotation(handler: Any) -> None:
    result = await outcome(bus_with(handler), {"amount": 5, "newer": 1})

    assert result == ("COMPLETED", ["DebitAccount", 5, "Command"])


async def test_a_typed_dict_and_a_model_are_decoded_too() -> None:
    async def note(command: Note, ctx: HandlerContext) -> Any:
        return command["text"]

    async def model(command: Model, ctx: HandlerContext) -> Any:
        return [type(command).__name__, command.amount]

    assert await outcome(bus_with(note), {"text": "hi"}) == ("COMPLETED", "hi")
    assert await outcome(bus_with(model), {"amount": 5}) == ("COMPLETED", ["Model", 5])


async def test_a_payload_type_wins_over_the_annotation() -> None:
    async def model(command: Model, ctx: HandlerContext) -> Any:
        return type(command).__name__

    bus = bus_with(model, payload_type=DebitAccount)

    assert await outcome(bus, {"amount": 5}) == ("COMPLETED", "DebitAccount")


async def test_a_handler_of_commands_gets_them_as_they_came_and_only_those_that_fit() -> None:
    async def plain(command: Command, ctx: HandlerContext) -> Any:
        return command.data

    bus = bus_with(plain, payload_type=DebitAccount)

    assert await outcome(bus, {"amount": 5, "newer": 1}) == ("COMPLETED", {"amount": 5, "newer": 1})
    assert await outcome(bus, {}) == ("IN_TROUBLESHOOTING_QUEUE", "PAYLOAD_INVALID")


@pytest.mark.parametrize("handler", [by_payload, in_thread, by_command])
@pytest.mark.parametrize("when_exhausted", ["troubleshoot", "fail"])
async def test_what_does_not_fit_is_parked_with_places_and_without_values(
    handler: Any, when_exhausted: Any
) -> None:
    bus = bus_with(handler, retry_policy=RetryPolicy(when_exhausted=when_exhausted))
    command_id = await bus.send(
        "payments", "DebitAccount", uuid4(), {"amount": "hunter2", "pin": 5}
    )
    await run_until_idle(bus)

    (item,) = await bus.list_troubleshooting("payments")
    assert (item.last_error_code, item.attempts) == ("PAYLOAD_INVALID", 1)
    assert item.last_error_msg == (
        "data is not a DebitAccount: amount must be a whole number; pin must be text"
    )
    events = await bus.get_audit_trail("payments", command_id)
    (details,) = [event.details for event in events if event.event_type == "FAILED"] or [None]
    assert details is not None
    assert details["details"]["problems"] == [
        {"place": "amount", "message": "must be a whole number"},
        {"place": "pin", "message": "must be text"},
    ]
    assert "hunter2" not in str(details)


async def test_at_most_twenty_problems_are_kept() -> None:
    @dataclass
    class Long:
        numbers: list[int]

    async def long(command: Long, ctx: HandlerContext) -> None: ...

    bus = bus_with(long)
    command_id = await bus.send("payments", "DebitAccount", uuid4(), {"numbers": ["x"] * 50})
    await run_until_idle(bus)

    (event,) = [
        each
        for each in await bus.get_audit_trail("payments", command_id)
        if each.event_type == "FAILED"
    ]
    assert event.details is not None
    assert len(event.details["details"]["problems"]) == 20


async def test_a_parked_payload_is_edited_and_checked_by_the_same_type() -> None:
    bus = bus_with(by_payload)
    command_id = await bus.send("payments", "DebitAccount", uuid4(), {"amount": "x"})
    await run_until_idle(bus)

    with pytest.raises(InvalidPayloadError, match="amount must be a whole number"):
        await bus.operator_retry("payments", command_id, payload={"amount": "y"})
    await bus.operator_retry("payments", command_id, payload={"amount": 7})
    await run_until_idle(bus)

    found = await bus.get_command("payments", command_id)
    assert found is not None
    assert found.status == "COMPLETED"


def test_secret_fields_are_known_from_the_annotation() -> None:
    entry = bus_with(by_payload)._registry.get("payments", "DebitAccount")

    assert entry.secret_keys == {"pin"}
    assert entry.payload_type is DebitAccount


def test_a_handler_without_types_is_called_as_it_is() -> None:
    async def untyped(command: Command, ctx: HandlerContext) -> dict[str, int]:
        return {}

    async def bare(command, ctx):
        return {}

    def threaded(command: Command[dict[str, Any]], ctx: Any) -> None: ...

    for handler in (untyped, bare, threaded, lambda command, ctx: None):
        assert bus_with(handler)._registry.get("payments", "DebitAccount").handler is handler


async def test_no_frame_is_between_the_worker_and_a_handler_without_types() -> None:
    seen: list[list[str]] = []

    async def handler(command: Command, ctx: HandlerContext) -> None:
        frames = inspect.stack(0)
        seen.append([frame.function for frame in frames[:4]])

    await outcome(bus_with(handler), {})

    assert seen == [["handler", "_call", "_outcome_of", "run"]]


# -- results


async def test_a_typed_result_is_encoded() -> None:
    async def debit(command: DebitAccount, ctx: HandlerContext) -> Debited:
        return Debited(left=10 - command.amount)

    def threaded(command: DebitAccount, ctx: HandlerContext) -> list[Debited] | None:
        return [Debited(left=1)]

    assert await outcome(bus_with(debit), {"amount": 3}) == ("COMPLETED", {"left": 7})
    assert await outcome(bus_with(threaded), {"amount": 3}) == ("COMPLETED", [{"left": 1}])


async def test_a_plain_function_that_returns_an_awaitable_has_its_result_encoded() -> None:
    async def later() -> Debited:
        return Debited(left=2)

    def debit(command: DebitAccount, ctx: HandlerContext) -> Debited:
        found: Any = later()
        return found

    assert await outcome(bus_with(debit), {"amount": 3}) == ("COMPLETED", {"left": 2})


@pytest.mark.parametrize("wrong", [{"left": "x"}, Debited(left="hunter2"), 5])  # type: ignore[arg-type]
@pytest.mark.parametrize("when_exhausted", ["troubleshoot", "fail"])
async def test_a_result_that_does_not_fit_is_parked(wrong: Any, when_exhausted: Any) -> None:
    async def debit(command: DebitAccount, ctx: HandlerContext) -> Debited:
        return wrong

    bus = bus_with(debit, retry_policy=RetryPolicy(when_exhausted=when_exhausted))

    assert await outcome(bus, {"amount": 1}) == ("IN_TROUBLESHOOTING_QUEUE", "INVALID_RESULT")
    (item,) = await bus.list_troubleshooting("payments")
    assert "hunter2" not in str(item.last_error_msg)


async def test_a_result_that_cannot_be_encoded_is_parked() -> None:
    class Stubborn(BaseModel):
        value: Any = None

    async def debit(command: DebitAccount, ctx: HandlerContext) -> Stubborn:
        return Stubborn(value=object())

    assert (await outcome(bus_with(debit), {"amount": 1}))[1] == "INVALID_RESULT"


async def test_a_failure_may_be_returned_beside_a_type() -> None:
    async def debit(command: DebitAccount, ctx: HandlerContext) -> Debited | Fail:
        return Fail("NO_ACCOUNT", "there is none")

    assert await outcome(bus_with(debit), {"amount": 1}) == ("FAILED", "NO_ACCOUNT")


# -- sending


async def test_data_that_does_not_fit_is_refused_when_sent_if_the_type_is_known() -> None:
    handlers = Handlers("payments")
    handlers.handle("DebitAccount")(by_payload)
    bus = fake_bus(handlers)

    for wrong, text in (
        ({"amount": "hunter2"}, "amount must be a whole number"),
        ({"amount": 1, "ammount": 2}, "ammount is not one of its fields"),
    ):
        with pytest.raises(InvalidPayloadError, match=text) as caught:
            await bus.send("payments", "DebitAccount", uuid4(), wrong)
        assert "hunter2" not in str(caught.value)
    await bus.send("payments", "OtherType", uuid4(), {"anything": 1})
    assert len(sent(bus, "payments")) == 1


async def test_a_model_may_be_the_data() -> None:
    bus = fake_bus()
    data: Any = DebitAccount(5)
    await bus.send("payments", "DebitAccount", uuid4(), data)

    assert sent(bus, "payments")[0].data == {"amount": 5, "pin": "0000"}
    data = DebitAccount("hunter2")  # type: ignore[arg-type]
    with pytest.raises(InvalidPayloadError, match="amount must be a whole number"):
        await bus.send("payments", "DebitAccount", uuid4(), data)


# -- classes


class Payments:
    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def broken(self) -> int:
        raise LookupError("never looked at")

    @handles("DebitAccount", timeout_seconds=4.0)
    async def debit(self, command: DebitAccount, ctx: HandlerContext) -> Debited:
        return Debited(self.left - command.amount)

    @handles("CreditAccount")
    def credit(self, command: Command, ctx: HandlerContext) -> int:
        return self.left


async def test_the_marked_methods_of_an_object_are_handlers() -> None:
    handlers = Handlers("payments")
    handlers.add(Payments(10))
    bus = fake_bus(handlers)

    assert await outcome(bus, {"amount": 3}) == ("COMPLETED", {"left": 7})
    entry = bus._registry.get("payments", "DebitAccount")
    assert entry.timeout_seconds == 4.0
    assert entry.place.startswith("Payments.debit (test_typed_handlers.py:")
    assert bus._registry.find("payments", "CreditAccount") is not None


def test_an_object_is_needed_and_a_marked_method() -> None:
    with pytest.raises(InvalidSettingError, match=r"construct it: add\(Payments\(…\)\)"):
        Handlers("payments").add(Payments)
    with pytest.raises(InvalidSettingError, match="object has no method that is marked"):
        Handlers("payments").add(object())


# -- what is refused


def unknown(command: Decimal, ctx: HandlerContext) -> None: ...


def number(command: int, ctx: HandlerContext) -> None: ...


def command_of_number(command: Command[int], ctx: HandlerContext) -> None: ...


@dataclass
class Odd:
    blob: bytes


def odd(command: Odd, ctx: HandlerContext) -> None: ...


def odd_result(command: DebitAccount, ctx: HandlerContext) -> Odd: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (unknown, "the type of command in unknown, 'Decimal', is not known"),
        (number, "is a <class 'int'>; use Command"),
        (command_of_number, "payload_type of payments/DebitAccount is <class 'int'>"),
        (odd, "payload_type of payments/DebitAccount: Odd.blob: bytes"),
        (odd_result, "the result of payments/DebitAccount: Odd.blob: bytes"),
    ],
)
def test_a_type_that_cannot_be_used_is_refused_at_registration(handler: Any, text: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        bus_with(handler)
    assert text in str(caught.value)


def test_a_type_that_is_imported_for_checkers_only_is_no_problem_if_it_is_ours() -> None:
    source = (
        "from __future__ import annotations\n"
        "async def handler(command: Command[Any], ctx: HandlerContext) -> Unknown: ...\n"
    )
    names: dict[str, Any] = {"__name__": "somewhere"}
    exec(source, names)

    entry = bus_with(names["handler"])._registry.get("payments", "DebitAccount")

    assert entry.handler is names["handler"]
