"""How an application is named: `module:attribute`, and what the attribute may be.

handlers = Handlers("payments")         handlers, which a bus includes (recommended)
def setup(bus): ...                     registers handlers on the bus it is given;
                                        may be async, or an async context manager
bus = CommandBus(pool)                  a bus
@asynccontextmanager
async def bus(): ... yield bus          opens a bus
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from commandbus.bus import CommandBus
from commandbus.cli.frame import Place
from commandbus.errors import CommandBusError, InvalidInputError
from commandbus.handlers.router import Handlers
from commandbus.settings import Settings

KINDS = (
    "use Handlers, a function `setup(bus)` that registers handlers, a CommandBus, or a function "
    "without arguments that opens one"
)


class AppError(InvalidInputError):
    """An application that cannot be found, or is not one."""


def load_app(name: str) -> Any:
    """Import what `module:attribute` names. The current folder is on the path, as with uvicorn."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise AppError(f"the app is {name!r}; write module:attribute, for example myapp:setup")
    found: Any = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AppError(f"module {module_name!r} has no attribute {attribute!r}{hint}")
        found = getattr(found, part)
    return found


def _import(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with _described(f"importing {name!r} failed"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only if it is the app itself, or a package that it is said to be in.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise AppError(f"importing {name!r} failed: {error}{_where(error)}") from error
        raise AppError(
            f"no module {error.name!r}; it is looked for in {here} and among what is installed"
        ) from None


@contextmanager
def _described(what: str) -> Iterator[None]:
    """Turn what the application raises into one line, with the place and the cause."""
    try:
        yield
    except (CommandBusError, ModuleNotFoundError):
        raise
    except (Exception, SystemExit) as error:
        raise AppError(f"{what}: {type(error).__name__}: {error}{_where(error)}") from error


def _where(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its text names the place
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return f" ({os.path.relpath(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


@asynccontextmanager
async def open_app(name: str, place: Place, wait_seconds: float = 0.0) -> AsyncIterator[CommandBus]:
    """The bus of an application, with its handlers registered."""
    shards = place.read_map()
    connect: Callable[..., AbstractAsyncContextManager[CommandBus]]
    if shards is None:
        connect = partial(
            CommandBus.connect, place.dsn, data_dir=place.data_dir, wait_seconds=wait_seconds
        )
    else:
        from commandbus.cli.spanning import open_shards

        connect = partial(open_shards, shards, Settings.from_env(), creates=True)
    target = load_app(name)
    if isinstance(target, CommandBus):
        _refuse_place(name, place)
        yield target
        return
    if isinstance(target, Handlers):
        async with connect(handlers=target) as bus:
            yield bus
        return
    match _required_arguments(name, target):
        case 1:
            async with connect() as bus, _opened(name, target, bus):
                yield bus
        case 0:
            _refuse_place(name, place)
            async with _opened(name, target) as made:
                if not isinstance(made, CommandBus):
                    kind = type(made).__name__
                    raise AppError(f"{name} gives a {kind}, not a CommandBus; {KINDS}")
                yield made
        case more:
            raise AppError(f"{name} asks for {more} arguments; {KINDS}")


def _required_arguments(name: str, target: Any) -> int:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        raise AppError(f"{name} is of type {type(target).__name__}; {KINDS}") from None
    return sum(
        parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        for parameter in parameters
    )


@asynccontextmanager
async def _opened(
    name: str, function: Callable[..., Any], *arguments: CommandBus
) -> AsyncIterator[Any]:
    """What a function of the app gives: awaited if it is async, entered if it is a context."""
    with _described(f"{name} failed"):
        result = function(*arguments)
        if inspect.isawaitable(result):
            result = await result
    if hasattr(result, "__aenter__"):
        async with result as entered:
            yield entered
    else:
        yield result


def _refuse_place(name: str, place: Place) -> None:
    if place.dsn is not None or place.data_dir is not None or place.map_file is not None:
        raise AppError(
            f"{name} brings a bus with a database of its own; leave out --dsn, --data-dir and --map"
        )
