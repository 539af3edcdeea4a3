"""Fixtures for pytest. It finds them by itself wherever commandbus is installed.

pytest imports this module whenever it starts, so everything else is imported by the fixtures. They
are plain functions: an asynchronous one would need a plugin that not every project has. The open
bus of an asynchronous test comes from async_fixtures.py, through the plugin that runs the test.
"""

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from commandbus.blocking import BlockingBus
    from commandbus.bus import CommandBus
    from commandbus.testing.servers import PostgresServer


@pytest.fixture(scope="session")
def commandbus_server() -> "Iterator[PostgresServer]":
    """That of COMMANDBUS_TEST_DSN, or an embedded one for all processes of the run."""
    from commandbus.testing.servers import running_server

    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def commandbus_template(commandbus_server: "PostgresServer") -> "Iterator[str]":
    """The name of a migrated database; override it to add tables, and close what you open."""
    with commandbus_server.template() as name:
        yield name


@pytest.fixture
def commandbus_dsn(
    commandbus_server: "PostgresServer", commandbus_template: str
) -> "Iterator[str]":
    """The address of a database for this test alone: a clone of the template."""
    with commandbus_server.clone(commandbus_template) as name:
        yield commandbus_server.dsn_for(name)


@pytest.fixture
def commandbus_blocking(commandbus_dsn: str) -> "Iterator[BlockingBus]":
    """A BlockingBus on the database of this test."""
    from commandbus.blocking import BlockingBus

    with BlockingBus.connect(commandbus_dsn) as bus:
        yield bus


@pytest.fixture
def commandbus_bus(request: pytest.FixtureRequest) -> "CommandBus":
    """A CommandBus on the database of this test, open on the event loop of the test."""
    from commandbus.testing.async_fixtures import fixture_for

    bus: CommandBus = request.getfixturevalue(fixture_for(request))
    return bus


@pytest.fixture
def commandbus_fake() -> "CommandBus":
    """A CommandBus in memory, with a FakeClock."""
    from commandbus.testing.helpers import fake_bus

    return fake_bus()


@pytest.fixture
def commandbus_fake_blocking() -> "Iterator[BlockingBus]":
    """A BlockingBus in memory, with a FakeClock."""
    from commandbus.testing.helpers import fake_blocking_bus

    with fake_blocking_bus() as bus:
        yield bus


@pytest.fixture
def drain() -> "Callable[..., Any]":
    """What works off all that is due: to be awaited for a CommandBus."""
    from commandbus.testing.draining import drain as function

    return function
