"""Scopes of Sentry that are made when they are looked at: nobody can tell them from others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.scope import Scope
from sentry_sdk.transport import Transport

from commandbus import Command, HandlerContext
from commandbus.middleware.scopes import LazyScope
from commandbus.middleware.sentry import Sentry
from commandbus.testing import fake_bus, run_until_idle


class Recording(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events.append(envelope.get_event())


@pytest.fixture
def recorded() -> Iterator[list[Any]]:
    transport = Recording()
    with sentry_sdk.isolation_scope(), sentry_sdk.new_scope():
        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1", transport=transport,
            auto_enabling_integrations=False,
            release="test",  # else older ones ask git for it, which is a breadcrumb
        )  # fmt: skip
        yield transport.events
        sentry_sdk.init()


async def handled(handler: Any, count: int = 1) -> None:
    bus = fake_bus(middleware=[Sentry()])
    bus.register_handler("shop", "Work", handler)
    for number in range(count):
        await bus.send("shop", "Work", uuid4(), {"number": number})
    await run_until_idle(bus)
    await bus.close()


async def test_a_command_that_never_uses_sentry_makes_no_scope(recorded: list[Any]) -> None:
    sentry_sdk.get_current_scope().set_tag("process", "worker")  # else there is nothing to fork
    seen: list[Any] = []

    async def work(command: Command, ctx: HandlerContext) -> None:
        seen.extend([sentry_sdk.get_isolation_scope(), sentry_sdk.get_current_scope()])
        assert sentry_sdk.get_client().is_active()  # what integrations ask all the time

    before = sentry_sdk.get_isolation_scope(), sentry_sdk.get_current_scope()
    await handled(work, 3)
    assert len({id(each) for each in seen}) == 6
    for scope in seen:
        with pytest.raises(AttributeError):
            object.__getattribute__(scope, "_tags")
    assert seen[0]._tags["commandbus.domain"] == "shop"
    assert (sentry_sdk.get_isolation_scope(), sentry_sdk.get_current_scope()) == before


async def test_what_commands_note_is_theirs_alone_and_the_process_keeps_its_own(
    recorded: list[Any],
) -> None:
    sentry_sdk.set_tag("process", "worker")

    async def work(command: Command, ctx: HandlerContext) -> None:
        number = command.data["number"]
        sentry_sdk.get_isolation_scope().set_user({"id": str(number)})  # before anything is read
        sentry_sdk.get_current_scope().set_tag(f"only-{number}", "1")
        logging.getLogger("shop").warning("crumb %d", number)
        with sentry_sdk.new_scope() as inner:
            inner.set_extra("inner", number)
            sentry_sdk.capture_message(f"message {number}")

    await handled(work, 2)
    sentry_sdk.capture_message("outside")
    first, second, outside = recorded
    for number, event in enumerate((first, second)):
        assert event["user"] == {"id": str(number)}
        assert event["tags"]["process"] == "worker"
        assert event["tags"]["commandbus.command_type"] == "Work"
        assert event["tags"][f"only-{number}"] == "1"
        assert f"only-{1 - number}" not in event["tags"]
        assert [each["message"] for each in event["breadcrumbs"]["values"]] == [f"crumb {number}"]
        assert event["extra"]["inner"] == number
        assert event["transaction"] == "shop/Work"
    assert "user" not in outside
    assert outside["tags"] == {"process": "worker"}


async def test_a_scope_inside_a_handler_is_a_fork_of_that_of_its_command(
    recorded: list[Any],
) -> None:
    async def work(command: Command, ctx: HandlerContext) -> None:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("inner", "1")
            sentry_sdk.capture_message("inside")
        sentry_sdk.capture_message("after")

    await handled(work)
    inside, after = recorded
    assert inside["tags"]["inner"] == "1"
    assert inside["tags"]["commandbus.domain"] == after["tags"]["commandbus.domain"] == "shop"
    assert "inner" not in after["tags"]


def test_a_copy_of_a_lazy_scope_has_no_origin_and_says_so() -> None:
    lazy = LazyScope.of(Scope(), None, None)
    copied: Any = lazy.fork()
    copied.set_tag("a", "b")
    assert "a" not in lazy._tags
    with pytest.raises(AttributeError, match="_origin"):
        copied._origin  # noqa: B018
    with pytest.raises(AttributeError, match="nothing_like_that"):
        lazy.nothing_like_that  # noqa: B018
