"""Middleware: what is around handlers and sends, in which order, and what it may decide."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    CommandStatus,
    HandlerContext,
    Handlers,
    InvalidInputError,
    InvalidSettingError,
    PermanentCommandError,
    RetryPolicy,
)
from commandbus.commands.drafted import sending_through
from commandbus.errors import Fail
from commandbus.middleware import Call, CallOutcome, Draft, Drafts, Middleware
from commandbus.middleware.base import Surrounding
from commandbus.middleware.guarding import Guard
from commandbus.outcomes import Snooze
from commandbus.testing import fake_bus, run_until_idle, store_of

Make = Callable[..., CommandBus]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[CommandBus] = []

    def bus(*middleware: Middleware, **options: Any) -> CommandBus:
        made.append(fake_bus(middleware=middleware, **options))
        return made[-1]

    yield bus
    for each in made:
        await each.close()


async def send(bus: CommandBus, **data: Any) -> UUID:
    return await bus.send("shop", "Work", uuid4(), data)


async def status(bus: CommandBus, command_id: UUID) -> CommandStatus:
    found = await bus.get_command("shop", command_id)
    assert found is not None
    return found.status


class Noting(Middleware):
    """Writes down when it is entered and left."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    async def handle(self, call: Call, proceed: Any) -> Any:
        self.notes.append(f"{self.name} in")
        try:
            return await proceed()
        finally:
            self.notes.append(f"{self.name} out")


class Outcomes(Middleware):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Call, CallOutcome, BaseException | None]] = []

    def on_outcome(self, call: Call, outcome: CallOutcome, error: BaseException | None) -> None:
        self.told.append((call, outcome, error))

    @property
    def names(self) -> list[str]:
        return [outcome.name for _, outcome, _ in self.told]


class Marking(Middleware):
    """Adds to what travels with commands."""

    def __init__(self, **meta: str) -> None:
        self.meta = meta
        self.seen: list[Drafts] = []

    @contextmanager
    def _around(self, drafts: Drafts) -> Iterator[None]:
        self.seen.append(drafts)
        drafts.each(lambda draft: draft.meta.update(self.meta))
        yield

    def sending(self, drafts: Drafts) -> AbstractContextManager[Any]:
        return self._around(drafts)


# -- around handlers


async def test_layers_are_the_bus_then_handlers_from_the_outside_in_then_the_handler(
    make: Make,
) -> None:
    notes: list[str] = []
    inner = Handlers("shop", middleware=[Noting("inner group", notes)])

    @inner.handle("Work", middleware=[Noting("own", notes), Noting("own second", notes)])
    async def work(command: Command, ctx: HandlerContext) -> None:
        notes.append("handler")

    outer = Handlers(middleware=[Noting("outer group", notes)])
    outer.include(inner)
    bus = make(Noting("bus", notes))
    bus.include(outer)
    await send(bus)
    await run_until_idle(bus)

    layers = ["bus", "outer group", "inner group", "own", "own second"]
    assert notes == [
        *(f"{name} in" for name in layers), "handler", *(f"{name} out" for name in layers[::-1]),
    ]  # fmt: skip


async def test_without_middleware_nothing_is_between_the_worker_and_the_handler(make: Make) -> None:
    frames: list[list[str]] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        frames.append([f"{frame.filename}:{frame.function}" for frame in inspect.stack()])

    class OnlySends(Marking):
        pass

    plain, sends_only = make(), make(OnlySends())
    for bus in (plain, sends_only):
        bus.register_handler("shop", "Work", work)
        assert bus._registry.get("shop", "Work").layers is None
        await send(bus)
        await run_until_idle(bus)

    for stack in frames:
        worker = [each for each in stack if "commandbus/worker" in each]
        assert [each.rsplit(":")[-1] for each in worker] == [
            "_call", "_outcome_of", "run", "_run_and_report",
        ]  # fmt: skip
        assert stack.index(worker[0]) == 1  # the handler itself is frame 0
        assert not [each for each in stack if "commandbus/middleware" in each]


async def test_built_in_middleware_is_in_its_place_and_alone_adds_no_frame(make: Make) -> None:
    notes: list[str] = []
    frames: list[str] = []

    class BuiltIn(Surrounding):
        guard = Guard("the middleware of a test")

        def __init__(self, name: str) -> None:
            self.name = name

        def enter(self, call: Call) -> str:
            notes.append(f"{self.name} in")
            return self.name

        def leave(self, call: Call, entered: str) -> None:
            notes.append(f"{entered} out")

    async def work(command: Command, ctx: HandlerContext) -> None:
        frames.extend(frame.filename for frame in inspect.stack())

    first, second = BuiltIn("first"), BuiltIn("second")
    for middleware in ([first, second], [first, Noting("mine", notes), second]):
        bus = make(*middleware)
        bus.register_handler("shop", "Work", work)
        await send(bus)
        await run_until_idle(bus)
        if len(middleware) == 2:
            assert not [each for each in frames if "commandbus/middleware" in each]
            assert notes == ["first in", "second in", "second out", "first out"]
            notes.clear()
    assert notes == ["first in", "mine in", "second in", "second out", "mine out", "first out"]


async def test_built_in_middleware_is_told_of_failures_and_of_what_it_asked_for(make: Make) -> None:
    told: list[str] = []

    class BuiltIn(Surrounding):
        guard = Guard("the middleware of a test")

        def enter(self, call: Call) -> None:
            call.tells_success = "wanted" in call.command.data
            call.state[self] = call  # a ring, of which nothing may stay

        def on_outcome(self, call: Call, outcome: CallOutcome, error: BaseException | None) -> None:
            told.append(f"{outcome.name} {sorted(call.command.data)}")

    async def work(command: Command, ctx: HandlerContext) -> None:
        if "fails" in command.data:
            raise PermanentCommandError("NO", "no")

    bus = make(BuiltIn())
    bus.register_handler("shop", "Work", work)
    for data in ({}, {"wanted": 1}, {"fails": 1}):
        await send(bus, **data)
    await run_until_idle(bus)
    assert sorted(told) == ["completed ['wanted']", "parked ['fails']"]


async def test_what_a_handler_leaves_in_its_context_is_not_there_for_the_next(make: Make) -> None:
    left: ContextVar[int] = ContextVar("left", default=0)
    seen: list[int] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        seen.append(left.get())
        left.set(len(seen))

    bus = make()
    bus.register_handler("shop", "Work", work)
    # Enough that some are leased ahead, and begun where another has ended.
    await bus.send_many("shop", [BatchCommand("Work", uuid4(), {}) for _ in range(300)])
    left.set(7)
    await bus.run_worker("shop", concurrency=1, until_empty=True)
    assert set(seen) == {7}  # what the worker was started with


async def test_without_middleware_the_sends_of_a_bus_are_those_without_a_layer(make: Make) -> None:
    plain = make(Noting("around handlers only", []))

    assert sending_through(plain._sending) is plain._sending  # type: ignore[arg-type]
    assert type(plain._sending).__name__ == "Sending"
    assert type(make(Marking())._sending).__name__ == "DraftedSending"


async def test_a_def_handler_has_layers_on_the_loop_and_in_its_own_thread(make: Make) -> None:
    threads: dict[str, int] = {}

    class Both(Middleware):
        async def handle(self, call: Call, proceed: Any) -> Any:
            threads["handle"] = threading.get_ident()
            return await proceed()

        def handle_in_thread(self, call: Call, proceed: Any) -> Any:
            threads["before"] = threading.get_ident()
            result = proceed()
            threads["after"] = threading.get_ident()
            return {"wrapped": result, "attempt": call.attempt}

    def work(command: Command, ctx: HandlerContext) -> int:
        threads["handler"] = threading.get_ident()
        return 7

    bus = make(Both())
    bus.register_handler("shop", "Work", work)
    await send(bus)
    await run_until_idle(bus)
    reply = await anext(bus.replies("shop"))

    assert threads["handle"] == threading.get_ident()
    assert threads["before"] == threads["after"] == threads["handler"] != threading.get_ident()
    assert reply.data == {"wrapped": 7, "attempt": 1}


async def test_a_layer_in_the_thread_alone_is_not_around_async_handlers(make: Make) -> None:
    class InThread(Middleware):
        def handle_in_thread(self, call: Call, proceed: Any) -> Any:
            raise AssertionError

    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    bus = make(InThread())
    bus.register_handler("shop", "Work", work)
    assert bus._registry.get("shop", "Work").layers is None


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_a_middleware_raises_is_the_failure_of_the_handler(
    make: Make, kind: str
) -> None:
    class Refusing(Middleware):
        async def handle(self, call: Call, proceed: Any) -> Any:
            if kind == "async":
                raise PermanentCommandError("NOT_TODAY", "closed")
            return await proceed()

        def handle_in_thread(self, call: Call, proceed: Any) -> Any:
            proceed()
            raise PermanentCommandError("NOT_TODAY", "closed")

    async def on_loop(command: Command, ctx: HandlerContext) -> None:
        raise AssertionError

    def in_thread(command: Command, ctx: HandlerContext) -> None:
        pass

    bus = make(Refusing())
    bus.register_handler("shop", "Work", on_loop if kind == "async" else in_thread)
    sent = await send(bus)
    await run_until_idle(bus)

    (item,) = await bus.list_troubleshooting("shop")
    assert (item.command_id, item.last_error_code) == (sent, "NOT_TODAY")


async def test_a_middleware_that_swallows_an_error_completes_the_command(make: Make) -> None:
    class Swallowing(Middleware):
        async def handle(self, call: Call, proceed: Any) -> Any:
            try:
                return await proceed()
            except ValueError:
                return {"swallowed": True}

    async def work(command: Command, ctx: HandlerContext) -> None:
        raise ValueError("never mind")

    outcomes = Outcomes()
    bus = make(outcomes, Swallowing())
    bus.register_handler("shop", "Work", work)
    sent = await send(bus)
    await run_until_idle(bus)

    assert await status(bus, sent) is CommandStatus.COMPLETED
    assert (await anext(bus.replies("shop"))).data == {"swallowed": True}
    assert [(outcome.name, error) for _, outcome, error in outcomes.told] == [("completed", None)]


async def test_a_middleware_that_does_not_proceed_completes_with_what_it_returns(
    make: Make,
) -> None:
    class Cached(Middleware):
        async def handle(self, call: Call, proceed: Any) -> Any:
            return "from the cache"

    async def work(command: Command, ctx: HandlerContext) -> None:
        raise AssertionError

    bus = make(Cached())
    bus.register_handler("shop", "Work", work)
    await send(bus)
    await run_until_idle(bus)
    assert (await anext(bus.replies("shop"))).data == "from the cache"


async def test_a_middleware_that_proceeds_twice_fails_and_the_handler_ran_once(make: Make) -> None:
    ran: list[int] = []

    class Twice(Middleware):
        async def handle(self, call: Call, proceed: Any) -> Any:
            await proceed()
            return await proceed()

    async def work(command: Command, ctx: HandlerContext) -> None:
        ran.append(1)

    bus = make(Twice(), retry_policy=RetryPolicy(max_attempts=1))
    bus.register_handler("shop", "Work", work)
    await send(bus)
    await run_until_idle(bus)

    (item,) = await bus.list_troubleshooting("shop")
    assert ran == [1]
    assert "a second time" in (item.last_error_msg or "")


async def test_a_handler_error_that_is_returned_is_raised_for_the_middleware(make: Make) -> None:
    seen: list[BaseException] = []

    class Looking(Middleware):
        async def handle(self, call: Call, proceed: Any) -> Any:
            try:
                return await proceed()
            except Fail as error:
                seen.append(error)
                raise

    async def work(command: Command, ctx: HandlerContext) -> Any:
        return Fail("NO_MONEY", "none left")

    bus = make(Looking())
    bus.register_handler("shop", "Work", work)
    sent = await send(bus)
    await run_until_idle(bus)

    assert await status(bus, sent) is CommandStatus.FAILED
    assert len(seen) == 1


async def test_a_cancelled_error_passes_through_all_layers(make: Make) -> None:
    notes: list[str] = []
    started = asyncio.Event()

    async def work(command: Command, ctx: HandlerContext) -> None:
        started.set()
        await asyncio.Event().wait()

    outcomes = Outcomes()
    bus = make(outcomes, Noting("layer", notes))
    bus.register_handler("shop", "Work", work, timeout_seconds=0.05)
    await send(bus)
    await run_until_idle(bus)

    (_, outcome, error) = outcomes.told[0]
    assert notes[:2] == ["layer in", "layer out"]
    assert (outcome.name, outcome.error_code) == ("retried", "HANDLER_TIMEOUT")
    assert isinstance(error, asyncio.CancelledError)


# -- outcomes


async def test_each_attempt_is_told_once_with_what_became_of_it(make: Make) -> None:
    errors: list[Any] = [
        RuntimeError("first"), Snooze(5), RuntimeError("second"), RuntimeError("third"),
    ]  # fmt: skip

    async def work(command: Command, ctx: HandlerContext) -> None:
        if errors:
            raise errors.pop(0)

    outcomes = Outcomes()
    bus = make(outcomes, retry_policy=RetryPolicy(max_attempts=3))
    bus.register_handler("shop", "Work", work)
    sent = await send(bus)
    await run_until_idle(bus, skip_waits=True)
    await bus.operator_retry("shop", sent)
    await run_until_idle(bus, skip_waits=True)

    assert outcomes.names == ["retried", "snoozed", "retried", "parked", "completed"]
    first = outcomes.told[0]
    assert (first[1].error_code, first[1].error_message) == ("RuntimeError", "first")
    assert first[1].delay_seconds > 0
    assert str(first[2]) == "first"
    assert [outcome.is_final for _, outcome, _ in outcomes.told] == [
        False, False, False, True, False,
    ]  # fmt: skip


async def test_the_outcome_of_a_transactional_handler_is_told_after_its_commit(make: Make) -> None:
    outcomes = Outcomes()
    bus = make(outcomes)

    async def work(command: Command, ctx: HandlerContext) -> str:
        if command.data.get("fails"):
            raise PermanentCommandError("NO", "no")
        return "done"

    bus.register_handler("shop", "Work", work, transactional=True)
    await send(bus)
    await run_until_idle(bus)
    await send(bus, fails=True)
    await run_until_idle(bus)
    assert outcomes.names == ["completed", "parked"]


async def test_an_on_outcome_that_fails_is_logged_without_secrets_and_changes_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Middleware):
        def on_outcome(self, call: Call, outcome: Any, error: Any) -> None:
            raise ValueError(f"cannot tell {call.command.data['password']}")

    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    outcomes = Outcomes()
    bus = make(Broken(), outcomes)
    bus.register_handler("shop", "Work", work)
    with caplog.at_level(logging.WARNING, "commandbus"):
        sent = await send(bus, password="hunter-two-42")
        await run_until_idle(bus)

    assert await status(bus, sent) is CommandStatus.COMPLETED
    assert outcomes.names == ["completed"]
    assert "Broken" in caplog.text
    assert "hunter-two-42" not in caplog.text


async def test_state_of_a_call_is_shared_by_its_layers_and_by_no_other_call(make: Make) -> None:
    found: list[Any] = []

    class Writes(Middleware):
        async def handle(self, call: Call, proceed: Any) -> Any:
            assert call.state == {}
            call.state["id"] = call.command.command_id
            return await proceed()

        def on_outcome(self, call: Call, outcome: CallOutcome, error: Any) -> None:
            found.append((call.state["id"], call.entry.command_type))

    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    bus = make(Writes())
    bus.register_handler("shop", "Work", work)
    ids = [await send(bus) for _ in range(3)]
    await run_until_idle(bus)
    assert sorted(found) == sorted((each, "Work") for each in ids)


# -- around sends


async def test_each_way_to_send_passes_the_middleware_once(make: Make) -> None:
    marking = Marking(tenant="north")
    bus = make(marking)
    metas: dict[str, dict[str, str]] = {}

    async def work(command: Command, ctx: HandlerContext) -> None:
        metas[command.data["way"]] = ctx.meta
        if command.data["way"] == "send":
            ctx.send("shop", "Work", uuid4(), {"way": "ctx.send"})

    bus.register_handler("shop", "Work", work)
    await send(bus, way="send")
    await bus.send_many("shop", [BatchCommand("Work", uuid4(), {"way": "send_many"})])
    await bus.send_many("shop", (BatchCommand("Work", uuid4(), {"way": "all"}) for _ in range(1)))
    await bus.create_batch(
        "shop", [BatchCommand("Work", uuid4(), {"way": "batch"}, meta={"of": "batch"})]
    )
    await run_until_idle(bus)

    assert metas == {
        "send": {"tenant": "north"}, "send_many": {"tenant": "north"}, "all": {"tenant": "north"},
        "batch": {"tenant": "north", "of": "batch"}, "ctx.send": {"tenant": "north"},
    }  # fmt: skip
    assert [(each.count, each.is_many) for each in marking.seen] == [
        (1, False), (1, True), (None, True), (1, True), (1, False),
    ]  # fmt: skip


async def test_a_generator_is_read_while_it_is_sent_and_not_before(make: Make) -> None:
    drafts: list[int] = []
    read: list[int] = []

    class Counting(Middleware):
        @contextmanager
        def sending(self, found: Drafts) -> Iterator[None]:
            found.each(lambda draft: drafts.append(len(read)))
            assert not read
            yield

    def commands() -> Iterator[BatchCommand]:
        for number in range(5):
            read.append(number)
            yield BatchCommand("Work", uuid4(), {})

    bus = make(Counting())
    await bus.send_many("shop", commands())
    assert drafts == [1, 2, 3, 4, 5]


async def test_a_middleware_refuses_a_send_by_raising(make: Make) -> None:
    class Refusing(Middleware):
        @contextmanager
        def sending(self, drafts: Drafts) -> Iterator[None]:
            def refuse(draft: Draft) -> None:
                raise InvalidInputError(f"{draft.command_type} is not sent here")

            drafts.each(refuse)
            yield

    bus = make(Refusing())
    for sends in (
        send(bus), bus.send_many("shop", [BatchCommand("Work", uuid4(), {})]),
        bus.create_batch("shop", [BatchCommand("Work", uuid4(), {})]),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match="Work is not sent here"):
            await sends
    assert store_of(bus).read(lambda state: dict(state.commands)) == {}


async def test_a_middleware_cannot_hide_that_a_send_has_failed(make: Make) -> None:
    class Hiding(Middleware):
        @contextmanager
        def sending(self, drafts: Drafts) -> Iterator[None]:
            with suppress(Exception):
                yield

    bus = make(Hiding())
    sent = await send(bus)
    with pytest.raises(InvalidInputError):
        await bus.send("shop", "Work", uuid4(), {}, meta={"key": 3})  # type: ignore[dict-item]
    with pytest.raises(Exception, match="already"):
        await bus.send("shop", "Work", sent, {})


async def test_what_a_middleware_adds_to_meta_is_checked_like_what_a_sender_gives(
    make: Make,
) -> None:
    bus = make(Marking(password="hunter"))
    with pytest.raises(InvalidInputError, match="name of a secret"):
        await send(bus)


async def test_sending_is_nested_like_the_list_is_written(make: Make) -> None:
    notes: list[str] = []

    class Named(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        @contextmanager
        def sending(self, drafts: Drafts) -> Iterator[None]:
            notes.append(f"{self.name} in")
            yield
            notes.append(f"{self.name} out")

    await send(make(Named("first"), Named("second")))
    assert notes == ["first in", "second in", "second out", "first out"]


# -- what is no middleware


def _broken() -> list[tuple[Any, str]]:
    class NotAsync(Middleware):
        def handle(self, call: Any, proceed: Any) -> Any:
            return None

    class AsyncSending(Middleware):
        async def sending(self, drafts: Any) -> Any:  # type: ignore[override]
            return None

    return [
        (Noting("alone", []), "must be a list"),
        ([Noting], "it is a class, use Noting"),
        (["text"], "no Middleware"),
        (3, "must be a list"),
        ([NotAsync()], "handle must be `async def`"),
        ([AsyncSending()], "sending must be `def`"),
    ]


@pytest.mark.parametrize(("middleware", "text"), _broken())
async def test_what_is_no_middleware_is_refused_when_it_is_given(
    make: Make, middleware: Any, text: str
) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        pass

    with pytest.raises(InvalidSettingError, match=text):
        fake_bus(middleware=middleware)
    with pytest.raises(InvalidSettingError, match=text):
        make().register_handler("shop", "Work", work, middleware=middleware)
