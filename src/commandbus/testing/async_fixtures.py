"""The open bus of an asynchronous test: made by the plugin that runs the test, on its loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any, Literal

import pytest

from commandbus.bus import CommandBus

#: How long an event loop of pytest-asyncio may live.
LoopScope = Literal["function", "class", "module", "package", "session"]
LOOP_SCOPES: tuple[LoopScope, ...] = ("function", "class", "module", "package", "session")


def fixture_for(request: pytest.FixtureRequest) -> str:
    """The name of the fixture that opens a bus on the loop of this test."""
    node, config = request.node, request.config
    if (marker := node.get_closest_marker("asyncio")) and config.pluginmanager.hasplugin("asyncio"):
        scope = (
            marker.kwargs.get("loop_scope")
            or marker.kwargs.get("scope")
            or config.getini("asyncio_default_test_loop_scope")
        )
        return _registered(config, f"_commandbus_bus_in_{scope}_loop")
    if node.get_closest_marker("anyio") and config.pluginmanager.hasplugin("anyio"):
        return _registered(config, "_commandbus_bus_in_anyio")
    raise pytest.UsageError(
        f"commandbus_bus is for asynchronous tests, run by pytest-asyncio or anyio, and "
        f"{node.name} is none; mark it, or use commandbus_blocking"
    )


def _registered(config: pytest.Config, name: str) -> str:
    """Make the fixture known, once in a run; nothing of it is there before somebody asks."""
    if not config.pluginmanager.hasplugin(name):
        holder = ModuleType(name)  # of other objects pytest looks at their class
        setattr(holder, name, _fixture(name))
        config.pluginmanager.register(holder, name)
    return name


def _fixture(name: str) -> Any:
    for scope in LOOP_SCOPES:
        if name == f"_commandbus_bus_in_{scope}_loop":
            import pytest_asyncio  # noqa: PLC0415  (only a project that uses it has it)

            return pytest_asyncio.fixture(_new_function(), loop_scope=scope, name=name)
    return pytest.fixture(_new_function(), name=name)


def _new_function() -> Any:
    # pytest-asyncio marks the function itself, so each fixture gets its own.
    async def commandbus_bus(commandbus_dsn: str) -> AsyncIterator[CommandBus]:
        async with CommandBus.connect(commandbus_dsn) as bus:
            yield bus

    return commandbus_bus
