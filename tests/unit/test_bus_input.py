"""What CommandBus refuses before a store is touched, and what it hands on when all is well."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from inspect import isgenerator
from itertools import islice
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from commandbus import (
    NO_REPLY,
    BatchCommand,
    CommandBus,
    HandlerAlreadyRegisteredError,
    InvalidInputError,
    InvalidNameError,
    InvalidPayloadError,
    InvalidSettingError,
    RetryPolicy,
    Settings,
)
from commandbus.database.store import Store
from commandbus.errors import InvalidCommandIdError
from commandbus.models import NewCommand
from commandbus.testing import fake_bus

ID = UUID(int=1)


class Recorder:
    """A store that notes what it is asked, and answers nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    @property
    def gateway(self) -> Recorder:
        return self

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[None]]:
        async def note(*args: Any, **kwargs: Any) -> None:
            # Commands may come one by one: all of them are checked before a store changes anything.
            taken = tuple(list(arg) if isgenerator(arg) else arg for arg in args)
            self.calls.append((verb, taken, kwargs))

        return note


@pytest.fixture
def store() -> Recorder:
    return Recorder()


@pytest.fixture
def stub(store: Recorder) -> CommandBus:
    return CommandBus(store=cast("Store", store), settings=Settings())


def sent(store: Recorder) -> list[NewCommand]:
    return [command for verb, args, _ in store.calls if verb == "send" for command in args[1]]


BAD_SENDS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"domain": "Payments"}, InvalidNameError),
    ({"domain": "pay.ments"}, InvalidNameError),
    ({"domain": "a" * 38}, InvalidNameError),
    ({"domain": None}, InvalidNameError),
    ({"command_type": ""}, InvalidNameError),
    ({"command_type": None}, InvalidNameError),
    ({"command_id": "not-a-uuid"}, InvalidCommandIdError),
    ({"command_id": None}, InvalidCommandIdError),
    ({"data": None}, InvalidPayloadError),
    ({"data": [1]}, InvalidPayloadError),
    ({"data": {"a": math.nan}}, InvalidPayloadError),
    ({"reply_to": "payments.commands"}, InvalidNameError),
    ({"reply_to": "Bad Queue"}, InvalidNameError),
    ({"reply_to": ["a"]}, InvalidNameError),
    ({"correlation_id": "x"}, InvalidCommandIdError),
    ({"batch_id": "x"}, InvalidCommandIdError),
    ({"max_attempts": 0}, InvalidSettingError),
    ({"max_attempts": 2.5}, InvalidSettingError),
]


@pytest.mark.parametrize(("change", "error"), BAD_SENDS)
async def test_a_send_is_refused_before_the_store_is_asked(
    stub: CommandBus, store: Recorder, change: dict[str, Any], error: type[Exception]
) -> None:
    values: dict[str, Any] = {
        "domain": "payments", "command_type": "Debit", "command_id": ID, "data": {},
    }  # fmt: skip
    with pytest.raises(error):
        await stub.send(**(values | change))
    assert store.calls == []


@pytest.mark.parametrize(("change", "error"), [c for c in BAD_SENDS if "batch_id" not in c[0]])
async def test_one_bad_command_refuses_the_whole_group(
    stub: CommandBus, store: Recorder, change: dict[str, Any], error: type[Exception]
) -> None:
    good = BatchCommand("Debit", uuid4(), {})
    values: dict[str, Any] = {"command_type": "Debit", "command_id": ID, "data": {}}
    domain = change.get("domain", "payments")
    attempts = change.get("max_attempts")
    item = {k: v for k, v in change.items() if k not in {"domain", "max_attempts"}}
    with pytest.raises(error):
        await stub.send_many(
            domain, [good, BatchCommand(**(values | item)), good], max_attempts=attempts
        )
    assert store.calls == []


async def test_a_group_is_refused_when_it_is_larger_than_one_transaction_should_hold(
    store: Recorder,
) -> None:
    stub = CommandBus(store=cast("Store", store), settings=Settings(max_send_many=2))
    commands = [BatchCommand("Debit", uuid4(), {}) for _ in range(3)]
    with pytest.raises(InvalidInputError, match=r"3 commands .* at most 2 at a time"):
        await stub.send_many("payments", commands)
    assert store.calls == []
    assert len(await stub.send_many("payments", commands[:2])) == 2


async def test_a_generator_is_read_while_its_commands_are_sent(store: Recorder) -> None:
    stub = CommandBus(store=cast("Store", store), settings=Settings(max_send_many=2))
    read: list[UUID] = []

    def endless() -> Iterator[BatchCommand]:
        while True:
            read.append(uuid4())
            yield BatchCommand("Debit", read[-1], {})

    with pytest.raises(InvalidInputError, match=r"3 commands .* at most 2 at a time"):
        await stub.send_many("payments", endless())
    assert store.calls == []
    assert len(read) == 3, "no more was read than it takes to know"
    assert await stub.send_many("payments", islice(endless(), 2)) == read[3:5]


async def test_a_generator_is_read_before_anything_is_sent_into_a_batch() -> None:
    read: list[int] = []
    read_when_asked: list[int] = []

    def generated() -> Iterator[BatchCommand]:
        for number in range(3):
            read.append(number)
            yield BatchCommand("Debit", uuid4(), {})

    class Watching:
        async def send(self, *args: Any, **kwargs: Any) -> None:
            read_when_asked.append(len(read))

    stub = CommandBus(store=cast("Store", Watching()))
    await stub.send_many("payments", generated())
    await stub.send_many("payments", generated(), batch_id=uuid4())
    assert read_when_asked == [0, 3]


async def test_an_empty_group_asks_nothing_of_the_store_but_its_domain_is_checked(
    stub: CommandBus, store: Recorder
) -> None:
    assert await stub.send_many("payments", []) == []
    assert store.calls == []
    with pytest.raises(InvalidNameError):
        await stub.send_many("Payments", [])


async def test_a_send_hands_on_what_it_was_given(stub: CommandBus, store: Recorder) -> None:
    correlation, batch, conn = uuid4(), uuid4(), object()
    returned = await stub.send(
        "payments", "Debit", ID, {"a": 1}, "shared.replies", correlation,
        batch_id=batch, max_attempts=9, conn=conn,
    )  # fmt: skip
    assert returned == ID
    (verb, args, kwargs) = store.calls[0]
    command = NewCommand("Debit", ID, b'{"a":1}', "shared.replies", correlation, 9)
    assert (verb, args, kwargs) == (
        "send",
        ("payments", [command]),
        {"batch_id": batch, "actor": None, "conn": conn},
    )


async def test_a_send_fills_in_what_was_left_out(store: Recorder) -> None:
    stub = CommandBus(
        store=cast("Store", store), settings=Settings(), retry_policy=RetryPolicy(max_attempts=5)
    )
    await stub.send("payments", "Debit", ID, {})
    await stub.send("payments", "Debit", uuid4(), {}, NO_REPLY)
    first, second = sent(store)
    assert (first.reply_to, first.max_attempts) == ("payments.replies", 5)
    assert second.reply_to == ""
    assert first.correlation_id != second.correlation_id


@pytest.mark.parametrize(
    ("replies", "queue"),
    [("none", ""), ("shared.replies", "shared.replies"), ("domain", "payments.replies")],
)
async def test_replies_go_where_the_settings_say(store: Recorder, replies: str, queue: str) -> None:
    stub = CommandBus(store=cast("Store", store), settings=Settings(replies=replies))
    await stub.send("payments", "Debit", ID, {})
    assert sent(store)[0].reply_to == queue


async def test_an_id_may_be_given_as_text(stub: CommandBus, store: Recorder) -> None:
    assert await stub.send("payments", "Debit", cast("UUID", str(ID)), {}) == ID
    assert sent(store)[0].command_id == ID


@pytest.mark.parametrize("timeout", [0, -1, 86_401, math.nan, math.inf])
async def test_a_call_is_refused_with_an_absurd_timeout(
    stub: CommandBus, store: Recorder, timeout: float
) -> None:
    with pytest.raises(InvalidSettingError, match="timeout is"):
        await stub.call("payments", "Debit", {}, timeout=timeout)
    assert store.calls == []


OPERATOR_VERBS: list[tuple[str, tuple[Any, ...]]] = [
    ("operator_retry", ()),
    ("operator_cancel", ("a reason",)),
    ("operator_complete", ({"ok": 1},)),
    ("cancel", ("a reason",)),
]


@pytest.mark.parametrize(("verb", "rest"), OPERATOR_VERBS)
async def test_an_operators_verb_is_refused_for_a_bad_name_or_id(
    stub: CommandBus, store: Recorder, verb: str, rest: tuple[Any, ...]
) -> None:
    call = getattr(stub, verb)
    with pytest.raises(InvalidNameError):
        await call("Payments", ID, *rest)
    with pytest.raises(InvalidCommandIdError):
        await call("payments", "x", *rest)
    assert store.calls == []


@pytest.mark.parametrize(("verb", "rest"), OPERATOR_VERBS[:3])
@pytest.mark.parametrize("operator", ["", " ", "a\x00b", "x" * 201, 5])
async def test_an_operators_verb_is_refused_without_a_proper_name_of_the_operator(
    stub: CommandBus, store: Recorder, verb: str, rest: tuple[Any, ...], operator: Any
) -> None:
    with pytest.raises(InvalidInputError, match="operator must be"):
        await getattr(stub, verb)("payments", ID, *rest, operator=operator)
    assert store.calls == []


@pytest.mark.parametrize("operator", ["", "a\x00b", "x" * 201, 5])
async def test_a_cancel_is_refused_without_a_proper_name_of_the_operator(
    stub: CommandBus, store: Recorder, operator: Any
) -> None:
    with pytest.raises(InvalidInputError, match="operator must be"):
        await stub.cancel("payments", ID, "a reason", operator=operator)


@pytest.mark.parametrize("verb", ["operator_cancel", "cancel"])
@pytest.mark.parametrize("reason", ["", "   ", None, 5, "a\x00b", "x" * 2_001, "\ud800"])
async def test_a_cancel_is_refused_without_a_reason(
    stub: CommandBus, store: Recorder, verb: str, reason: Any
) -> None:
    with pytest.raises(InvalidInputError, match="reason must be"):
        await getattr(stub, verb)("payments", ID, reason)
    assert store.calls == []


@pytest.mark.parametrize("verb", ["operator_cancel", "cancel"])
async def test_a_reason_is_redacted_before_it_is_stored(
    stub: CommandBus, store: Recorder, verb: str
) -> None:
    await getattr(stub, verb)("payments", ID, "password=hunter2 was wrong", operator="eve")
    (name, args, kwargs) = store.calls[0]
    assert (name, args) == (verb, ("payments", [ID]))
    assert kwargs["reason"] == "password=[REDACTED] was wrong"
    assert kwargs["actor"] == "eve"


async def test_a_completion_by_an_operator_is_refused_when_its_result_is_not_json(
    stub: CommandBus, store: Recorder
) -> None:
    with pytest.raises(InvalidPayloadError, match="result_data"):
        await stub.operator_complete("payments", ID, {"a": {1}})
    assert store.calls == []
    await stub.operator_complete("payments", ID)
    assert store.calls[0][2]["result"] == b"null"


async def test_a_retry_by_an_operator_resets_the_attempts_unless_told_otherwise(
    stub: CommandBus, store: Recorder
) -> None:
    await stub.operator_retry("payments", ID)
    await stub.operator_retry("payments", ID, reset_attempts=False)
    assert [kwargs["reset_attempts"] for _, _, kwargs in store.calls] == [True, False]


BAD_PAGES: list[dict[str, Any]] = [
    {"limit": 0}, {"limit": -1}, {"limit": 10_001}, {"limit": "5"}, {"limit": None},
    {"limit": True}, {"offset": -1}, {"offset": 1.5}, {"offset": None},
]  # fmt: skip


@pytest.mark.parametrize("page", BAD_PAGES)
async def test_a_listing_is_refused_with_an_absurd_page(
    stub: CommandBus, store: Recorder, page: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSettingError, match=r"limit is|offset is"):
        await stub.list_batches("payments", **page)
    with pytest.raises(InvalidSettingError, match=r"limit is|offset is"):
        await stub.list_troubleshooting("payments", **page)
    assert store.calls == []


@pytest.mark.parametrize("limit", [0, 10_001])
async def test_a_trail_is_refused_with_an_absurd_limit(
    stub: CommandBus, store: Recorder, limit: int
) -> None:
    with pytest.raises(InvalidSettingError, match="limit is"):
        await stub.get_audit_trail(ID, limit=limit)
    assert store.calls == []


async def test_a_query_is_refused_for_an_unknown_status_or_a_bad_name(
    stub: CommandBus, store: Recorder
) -> None:
    with pytest.raises(InvalidSettingError, match="use one of PENDING, IN_PROGRESS"):
        await stub.search.commands(status=cast("Any", "DONE"))
    with pytest.raises(InvalidNameError):
        await stub.search.commands(domain="Payments")
    with pytest.raises(InvalidNameError):
        await stub.search.commands(command_type="1st")
    with pytest.raises(InvalidNameError):
        await stub.list_troubleshooting("payments", type="1st")
    assert store.calls == []


@pytest.mark.parametrize("verb", ["get_command", "get_batch"])
async def test_a_lookup_is_refused_for_a_bad_name_or_id(
    stub: CommandBus, store: Recorder, verb: str
) -> None:
    with pytest.raises(InvalidNameError):
        await getattr(stub, verb)("Payments", ID)
    with pytest.raises(InvalidCommandIdError):
        await getattr(stub, verb)("payments", "x")
    with pytest.raises(InvalidCommandIdError):
        await stub.get_audit_trail(cast("UUID", "x"))
    with pytest.raises(InvalidNameError):
        await stub.get_audit_trail("Payments", ID)
    assert store.calls == []


async def trail(bus: CommandBus, *args: Any, **options: Any) -> list[str]:
    return [event.domain for event in await bus.get_audit_trail(*args, **options)]


async def test_the_audit_trail_takes_the_domain_before_the_id_as_all_verbs_do() -> None:
    bus, sent = fake_bus(), uuid4()
    for domain in ("orders", "payments"):
        await bus.send(domain, "Debit", sent, {})

    assert await trail(bus, "payments", sent) == ["payments"]
    assert await trail(bus, "payments", str(sent)) == ["payments"]
    assert await trail(bus, "payments", command_id=sent) == ["payments"]
    assert await trail(bus, domain="payments", command_id=sent) == ["payments"]
    for everywhere in ((sent,), (str(sent),), (None, sent)):
        assert await trail(bus, *everywhere) == ["orders", "payments"]
    assert await trail(bus, command_id=sent) == ["orders", "payments"]


async def test_the_former_order_of_the_audit_trail_works_and_is_deprecated() -> None:
    bus = fake_bus()
    sent = await bus.send("payments", "Debit", uuid4(), {})

    for given in (sent, str(sent)):
        with pytest.warns(DeprecationWarning, match=r"get_audit_trail\(domain, command_id\)"):
            assert await trail(bus, given, "payments") == ["payments"]
        with pytest.warns(DeprecationWarning, match="domain first"):
            assert await trail(bus, given, domain="payments") == ["payments"]
        with pytest.warns(DeprecationWarning, match="domain first"):
            assert await trail(bus, given, "orders") == []


async def test_an_audit_trail_needs_one_id_and_at_most_one_domain() -> None:
    bus, sent = fake_bus(), uuid4()
    with pytest.raises(InvalidCommandIdError):
        await trail(bus)
    with pytest.raises(InvalidCommandIdError):
        await trail(bus, "payments")
    with pytest.raises(TypeError, match="given twice"):
        await trail(bus, "payments", sent, domain="orders")
    with pytest.raises(TypeError, match="given twice"):
        await trail(bus, "payments", sent, command_id=sent)
    with pytest.raises(TypeError, match="at most two"):
        await trail(bus, "payments", sent, 10)


@pytest.mark.parametrize(
    "names", [{}, {"domain": "payments", "queue": "shared.replies"}]
)  # fmt: skip
def test_replies_are_refused_without_one_source(stub: CommandBus, names: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettingError, match="either a domain or"):
        stub.replies(**names)


def test_replies_are_refused_from_a_badly_named_source(stub: CommandBus) -> None:
    with pytest.raises(InvalidNameError):
        stub.replies("Payments")
    with pytest.raises(InvalidNameError):
        stub.replies(queue="payments.commands")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -5}, "concurrency"),
        ({"vt_seconds": 0}, "vt_seconds"),
    ],
)
async def test_a_worker_is_refused_with_absurd_settings(
    stub: CommandBus, store: Recorder, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        await stub.run_worker("payments", **options)
    with pytest.raises(InvalidNameError):
        await stub.run_worker("pay-ments")
    assert store.calls == []


def test_a_handler_registered_twice_is_refused_in_both_styles(stub: CommandBus) -> None:
    @stub.handler("payments", "Debit")
    async def debit(command: Any, ctx: Any) -> None:
        pass

    with pytest.raises(HandlerAlreadyRegisteredError, match="exactly one"):
        stub.register_handler("payments", "Debit", debit)
    with pytest.raises(HandlerAlreadyRegisteredError, match="exactly one"):
        stub.handler("payments", "Debit")(debit)
    assert stub.domains == ["payments"]


def test_a_bus_is_refused_without_or_with_two_databases(store: Recorder) -> None:
    with pytest.raises(InvalidSettingError, match="give CommandBus a pool"):
        CommandBus()
    with pytest.raises(InvalidSettingError, match="give CommandBus a pool"):
        CommandBus(object(), store=cast("Store", store))


@pytest.mark.parametrize(
    "call",
    [
        lambda bus: bus.send_many("shop", [{"command_type": "Work"}]),
        lambda bus: bus.call("shop", "Work", {}, timeout="soon"),
        lambda bus: bus.wait_reply("shop", uuid4(), timeout=0),
        lambda bus: bus.search.commands(batch_id="no uuid"),
        lambda bus: bus.search.commands(created_after="yesterday"),
    ],
)
async def test_an_argument_of_the_wrong_kind_is_refused_with_advice(
    stub: CommandBus, call: Any
) -> None:
    with pytest.raises(InvalidInputError):
        await call(stub)


@pytest.mark.parametrize("options", [{"batch_size": -1}, {"vt_seconds": "x"}])
def test_a_stream_of_replies_needs_sensible_numbers(
    stub: CommandBus, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError):
        stub.replies("shop", **options)
