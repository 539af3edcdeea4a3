"""Handlers without a bus: what modules write down, and what a bus makes of it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from commandbus import (
    Command,
    CommandBus,
    HandlerAlreadyRegisteredError,
    HandlerContext,
    Handlers,
    InvalidNameError,
    InvalidOperationError,
    InvalidSettingError,
    RetryPolicy,
)
from commandbus.handler import HandlerEntry
from commandbus.middleware import Middleware
from commandbus.testing import fake_bus, run_until_idle

PATIENT, HASTY = RetryPolicy(max_attempts=9), RetryPolicy(max_attempts=1)


async def debit(command: Command, ctx: HandlerContext) -> dict[str, Any]:
    return {"seen": command.data}


async def credit(command: Command, ctx: HandlerContext) -> None: ...


def entry_of(bus: CommandBus, domain: str, command_type: str) -> HandlerEntry:
    return bus._registry.get(domain, command_type)


def module(domain: str = "payments", **options: Any) -> Handlers:
    handlers = Handlers(domain, **options)
    handlers.handle("DebitAccount")(debit)
    return handlers


async def test_what_a_bus_includes_is_handled() -> None:
    bus = fake_bus(module())
    command_id = await bus.send("payments", "DebitAccount", uuid4(), {"amount": 5})

    await run_until_idle(bus)

    found = await bus.get_command("payments", command_id)
    assert found is not None
    assert found.status == "COMPLETED"


def test_a_decorated_function_stays_what_it_is() -> None:
    assert Handlers("payments").handle("DebitAccount")(debit) is debit


def test_all_options_of_a_handler_reach_the_bus() -> None:
    handlers = Handlers("payments")
    handlers.handle(
        "DebitAccount", transactional=True, timeout_seconds=3.0, retry_policy=HASTY
    )(debit)  # fmt: skip

    entry = entry_of(fake_bus(handlers), "payments", "DebitAccount")

    assert (entry.is_transactional, entry.timeout_seconds, entry.retry_policy) == (True, 3.0, HASTY)
    assert entry.handler is debit


def test_a_retry_policy_is_that_of_the_nearest_group_that_has_one() -> None:
    inner = Handlers("payments")
    inner.handle("DebitAccount", retry_policy=HASTY)(debit)
    inner.handle("CreditAccount")(credit)
    app = Handlers(retry_policy=PATIENT)
    app.include(inner)
    bus = fake_bus(app)

    assert entry_of(bus, "payments", "DebitAccount").retry_policy is HASTY
    assert entry_of(bus, "payments", "CreditAccount").retry_policy is PATIENT


def test_middleware_is_kept_from_the_outside_in() -> None:
    of_bus, of_app, of_module, own = (Middleware() for _ in range(4))
    handlers = Handlers("payments", middleware=[of_module])
    handlers.handle("DebitAccount", middleware=[own])(debit)
    app = Handlers(middleware=[of_app])
    app.include(handlers)
    bus = fake_bus(app, middleware=[of_bus])
    bus.register_handler("payments", "CreditAccount", credit, middleware=[own])

    debits = entry_of(bus, "payments", "DebitAccount")
    assert debits.middleware == (of_bus, of_app, of_module, own)
    assert entry_of(bus, "payments", "CreditAccount").middleware == (of_bus, own)


def test_one_module_serves_two_buses() -> None:
    handlers = module()

    assert fake_bus(handlers).domains == fake_bus(handlers).domains == ["payments"]


def test_what_is_added_after_an_include_has_no_effect() -> None:
    handlers, app = module(), Handlers()
    app.include(handlers)
    bus = fake_bus(app)
    handlers.handle("CreditAccount")(credit)
    app.include(module("savings"))

    assert bus.domains == ["payments"]
    assert [draft.command_type for draft in app.drafts] == ["DebitAccount"] * 2
    assert app.domains == ["payments", "savings"]


def test_a_second_handler_is_refused_with_both_places() -> None:
    handlers = module()

    with pytest.raises(HandlerAlreadyRegisteredError) as caught:
        handlers.handle("DebitAccount")(credit)

    text = str(caught.value)
    assert text.startswith("payments/DebitAccount already has a handler, debit (test_handlers.py:")
    assert "credit (test_handlers.py:" in text


def test_modules_that_handle_the_same_are_refused_together_and_nothing_is_taken() -> None:
    app, bus = Handlers(), fake_bus()
    with pytest.raises(HandlerAlreadyRegisteredError, match="already has a handler, debit"):
        app.include(module("savings"), module(), module())
    with pytest.raises(HandlerAlreadyRegisteredError, match="already has a handler, debit"):
        bus.include(module("savings"), module(), module())

    assert app.drafts == ()
    assert bus.domains == []


def test_a_bus_refuses_what_it_has_a_handler_for_and_takes_nothing() -> None:
    bus = fake_bus()
    bus.register_handler("payments", "DebitAccount", credit)
    app = Handlers()
    app.include(module("savings"), module())

    with pytest.raises(HandlerAlreadyRegisteredError, match=r"credit \(test_handlers.py:"):
        bus.include(app)

    assert bus.domains == ["payments"]


async def test_including_while_a_worker_runs_is_refused() -> None:
    bus = fake_bus(module())
    async with bus.worker("payments"):
        with pytest.raises(InvalidOperationError, match="while a worker of this bus runs"):
            bus.include(module("savings"))

    bus.include(module("savings"))
    assert bus.domains == ["payments", "savings"]


def test_handlers_without_a_domain_only_gather() -> None:
    with pytest.raises(InvalidSettingError, match=r'write Handlers\("payments"\)'):
        Handlers().handle("DebitAccount")


@pytest.mark.parametrize("domain", ["", "Pay ments", "x" * 60])
def test_a_domain_is_checked_where_it_is_written(domain: str) -> None:
    with pytest.raises(InvalidNameError):
        Handlers(domain)


def test_a_command_type_is_checked_where_it_is_written() -> None:
    with pytest.raises(InvalidNameError):
        Handlers("payments").handle("not a type")


def test_only_handlers_can_be_included() -> None:
    wrong: Any = debit
    with pytest.raises(InvalidSettingError, match="include takes Handlers, not function"):
        Handlers().include(wrong)


def test_a_policy_is_checked_where_it_is_written() -> None:
    wrong: Any = 3
    with pytest.raises(InvalidSettingError, match=r"use RetryPolicy\(…\)"):
        Handlers("payments", retry_policy=wrong)


def test_handlers_say_what_they_are() -> None:
    assert repr(module()) == "Handlers('payments') of 1 command types"
    assert repr(Handlers()) == "Handlers() of 0 command types"
