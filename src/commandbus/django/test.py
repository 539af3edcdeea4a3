"""For the tests of a project: run what was sent, and look at what was.

In a `TestCase`, which never commits, `drain` runs due commands in the thread of the test, on its
own connection. In a `TransactionTestCase` a real worker can run: `CommandBusTransactionTestCase`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections
from django.test import TransactionTestCase

from commandbus.bus import CommandBus
from commandbus.django import bus
from commandbus.django.conf import configuration
from commandbus.django.discovery import gathered
from commandbus.django.draining import Drained, Drainer, payloads
from commandbus.django.hygiene import close_all
from commandbus.django.migrating import dsn_of
from commandbus.django.resetting import reset_for_tests

__all__ = [
    "CommandBusTransactionTestCase",
    "Drained",
    "SentCommand",
    "assert_sent",
    "drain",
    "reset_for_tests",
    "run_worker",
    "sent",
]

#: How long a handler, or a worker, may take before a test fails, in seconds.
PATIENCE_SECONDS = 10.0


def drain(*domains: str, timeout: float = PATIENCE_SECONDS) -> list[Drained]:
    """Run the handlers of everything that was sent, until nothing is left; says what happened.

    What is delayed, or backs off, is due at once. Each command has a savepoint, so that an error of
    one leaves the transaction of the test usable. Hooks of `on_commit` run, as after a commit.
    """
    return Drainer(bus._bridge.open(), timeout).run(domains or gathered().domains)


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command that was sent."""

    domain: str
    command_type: str
    command_id: UUID
    data: Mapping[str, Any]
    status: str


def sent(domain: str, command_type: str | None = None) -> list[SentCommand]:
    """The commands that are there, oldest first.

    The data of one that a real worker has completed is not kept, and empty here.
    """
    from commandbus.django.models import Command
    from commandbus.payload import decode_payload
    from commandbus.wiring import finish

    found = Command.objects.using(configuration().database).filter(domain=domain)
    if command_type is not None:
        found = found.filter(command_type=command_type)
    store = bus._bridge.open()._store
    result = []
    for each in found.order_by("created_at", "command_id"):
        payload = finish(store.get_payload(domain, each.command_id))
        data = payloads.get(each.command_id, {}) if payload is None else decode_payload(payload)
        result.append(
            SentCommand(domain, each.command_type, each.command_id, data, str(each.status))
        )
    return result


def assert_sent(
    domain: str,
    command_type: str,
    data: Mapping[str, Any] | None = None,
    *,
    times: int | None = None,
) -> list[SentCommand]:
    """Fail unless such commands were sent: with these members in their data, so often if said."""
    found = [
        each
        for each in sent(domain, command_type)
        if data is None or all(each.data.get(key) == value for key, value in data.items())
    ]
    wanted = "at least one" if times is None else str(times)
    if not found if times is None else len(found) != times:
        others = ", ".join(f"{each.command_type} {dict(each.data)}" for each in sent(domain))
        raise AssertionError(
            f"{len(found)} commands {command_type} of {domain} were sent"
            f"{'' if data is None else f' with {dict(data)}'}, not {wanted}; "
            f"there are: {others or 'none'}"
        )
    return found


def run_worker(*domains: str, timeout: float = PATIENCE_SECONDS) -> None:
    """Run a real worker until nothing is due; for tests that commit.

    Afterwards no connection of it is open, so that the database can be dropped.
    """
    wanted = domains or tuple(gathered().domains)
    failure: list[BaseException] = []

    def live() -> None:
        try:
            asyncio.run(asyncio.wait_for(_work(wanted), timeout))
        except BaseException as error:  # noqa: BLE001  (raised in the thread of the test)
            failure.append(error)

    before = set(threading.enumerate())
    thread = threading.Thread(target=live, name="commandbus-test-worker", daemon=True)
    thread.start()
    thread.join()
    for each in set(threading.enumerate()) - before:
        if each.name.startswith("commandbus-handler"):
            each.join(timeout)
    close_all()
    if failure:
        if isinstance(failure[0], TimeoutError):
            raise AssertionError(f"the worker of {', '.join(wanted)} did not end in {timeout:g} s")
        raise failure[0]


async def _work(domains: Iterable[str]) -> None:
    found = configuration()
    async with CommandBus.connect(
        dsn_of(found.database), settings=found.bus_settings, handlers=gathered()
    ) as own:
        try:
            async with asyncio.TaskGroup() as group:
                for domain in domains:
                    group.create_task(own.run_worker(domain, until_empty=True))
        finally:
            await sync_to_async(connections.close_all, thread_sensitive=True)()


class CommandBusTransactionTestCase(TransactionTestCase):
    """A `TransactionTestCase` that empties the bus too: Django flushes tables of models only."""

    def _fixture_teardown(self) -> None:
        super()._fixture_teardown()
        reset_for_tests()
