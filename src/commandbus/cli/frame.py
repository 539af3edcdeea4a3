"""The frame of every command: its options, the open bus, what is printed, the exit code.

A command is an async function `(frame, options…) -> View`. A parameter whose type is a data class
is a group of options: each of its fields is one option.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints
from uuid import UUID

import typer

from commandbus.bus import CommandBus
from commandbus.cli.options import AsJson, DataDir, Dsn, OneBatch, OneCommand
from commandbus.cli.output import (
    ExitCode,
    jsonable,
    moment,
    print_error,
    print_json,
    say,
)
from commandbus.database.store import Store
from commandbus.errors import CommandBusError, InvalidInputError, SchemaMissingError
from commandbus.models import BatchMetadata
from commandbus.names import check_domain, check_uuid
from commandbus.paging import Page
from commandbus.settings import Settings

Item = TypeVar("Item")
Options = ParamSpec("Options")


# -- which database


@dataclass(frozen=True, slots=True)
class Place:
    """The database that was asked for: an address, a folder, or neither."""

    dsn: Dsn = None
    data_dir: DataDir = None

    def __post_init__(self) -> None:
        from commandbus.wiring import find_dsn, refuse_both

        refuse_both(find_dsn(self.dsn), self.data_dir)

    @property
    def is_embedded(self) -> bool:
        """Whether it is our own server."""
        from commandbus.wiring import find_dsn

        return find_dsn(self.dsn) is None

    @property
    def folder(self) -> Path:
        """Where the embedded server has its data."""
        from commandbus.embedded import find_binaries
        from commandbus.embedded.folder import home_directory

        chosen = self.data_dir or home_directory() / f"pg{find_binaries().major}"
        return chosen.expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Session:
    """An open bus; and its store, for payloads with their secrets."""

    bus: CommandBus
    store: Store

    async def find(self, one: OneCommand) -> tuple[str, UUID]:
        """The domain of an id, and the id; raises if none, or more than one, knows it."""
        wanted = check_uuid(one.command_id)
        if one.domain is not None:
            return check_domain(one.domain), wanted
        match await self.bus.search.domains(wanted):
            case [only]:
                return only, wanted
            case []:
                raise CommandBusError(
                    f"no command {wanted} in this database; check the id and the database"
                )
            case several:
                raise InvalidInputError(
                    f"several domains know {wanted}: {', '.join(several)}; say which with --domain"
                )

    async def find_batch(self, one: OneBatch) -> BatchMetadata:
        """A batch by its id, which no two domains share; raises if there is none."""
        wanted, domain = check_uuid(one.batch_id, "batch id"), one.domain
        known = await self.bus.search.domains(wanted) if domain is None else [domain]
        for each in known:
            batch = await self.bus.batches.get(each, wanted)
            if batch is not None:
                return batch
        where = "this database" if domain is None else f"domain {domain!r}"
        raise CommandBusError(
            f"no batch {wanted} in {where}; `commandbus batch list DOMAIN` lists what there is"
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """What every command has: the database that was asked for, and how to print."""

    place: Place
    as_json: bool = False

    @asynccontextmanager
    async def open(self, *, creates: bool = False) -> AsyncIterator[Session]:
        """Open a bus. Unless it `creates`, a database without our schema is refused, not set up:
        a look at the wrong database must not leave tables there.
        """
        from commandbus.wiring import database_status, find_dsn, open_store

        settings = Settings.from_env()
        address = find_dsn(self.place.dsn)
        if address is not None and not creates:
            status = await database_status(address, settings)
            if status.installed_version is None:
                raise SchemaMissingError(
                    f"the database has no schema {settings.schema!r}; run `commandbus db init`"
                )
        async with open_store(self.place.dsn, settings, data_dir=self.place.data_dir) as opened:
            store = opened[1]
            bus = CommandBus(store=store, settings=settings)
            try:
                yield Session(bus, store)
            finally:
                await bus.close()


# -- what is printed


@dataclass(frozen=True, slots=True)
class View:
    """The result of a command: one JSON document, or text for people; and the exit code."""

    document: Any
    print: Callable[[], object]
    code: ExitCode = ExitCode.OK
    #: One line for stderr, after the result.
    error: str | None = None

    @classmethod
    def line(cls, text: str, **document: Any) -> View:
        """One line of text; the document has its parts."""
        return cls(document, lambda: say(text))

    def show(self, *, as_json: bool) -> None:
        """Print it, and end the program if the exit code is not 0."""
        if as_json:
            print_json(self.document)
        else:
            self.print()
        if self.error is not None:
            print_error(self.error)
        if self.code is not ExitCode.OK:
            raise typer.Exit(self.code)


def page_view(
    page: Page[Item],
    name: str,
    table: Callable[[list[Item]], object],
    *,
    to_json: Callable[[Item], Any] = jsonable,
    is_search: bool = False,
) -> View:
    """A page of a listing. `table` prints the items, or that there are none."""
    document: dict[str, Any] = {
        name: [to_json(item) for item in page.items],
        "next_cursor": page.next_cursor,
    }
    if is_search:
        document["searched_to"] = page.searched_to

    def show() -> None:
        if page.items or page.next_cursor is None:
            table(page.items)
        if page.next_cursor is None:
            return
        if page.searched_to is not None:
            say(f"Searched as far as {moment(page.searched_to)}; there may be more beyond that.")
        say(f"[dim]For the next page, repeat this with --cursor {page.next_cursor}[/]")

    return View(document, show)


# -- how a command is registered

Command = Callable[Concatenate[Frame, Options], Coroutine[Any, Any, View]]

_FRAME = [
    inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
    inspect.Parameter("place", inspect.Parameter.KEYWORD_ONLY, annotation=Place),
]


def command(
    group: typer.Typer, name: str, *, panel: str | None = None
) -> Callable[[Command[Options]], Command[Options]]:
    """Register an async function `(frame, options…) -> View` as a command."""

    def register(function: Command[Options]) -> Command[Options]:
        work = cast("Callable[..., Coroutine[Any, Any, View]]", function)
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [*own, *_FRAME]

        def callback(**given: Any) -> None:
            options = _grouped(parameters, given)
            frame = Frame(options.pop("place"), options.pop("as_json"))
            asyncio.run(work(frame, **options)).show(as_json=frame.as_json)

        _add(group, name, panel, callback, parameters, function.__doc__)
        return function

    return register


def program(
    group: typer.Typer, name: str, *, panel: str | None = None
) -> Callable[[Callable[Options, None]], Callable[Options, None]]:
    """Register a function that needs no frame: it runs until it is stopped, or has no database."""

    def register(function: Callable[Options, None]) -> Callable[Options, None]:
        work = cast("Callable[..., None]", function)
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())

        def callback(**given: Any) -> None:
            work(**_grouped(parameters, given))

        _add(group, name, panel, callback, parameters, function.__doc__)
        return function

    return register


def _add(
    group: typer.Typer,
    name: str,
    panel: str | None,
    callback: Callable[..., None],
    parameters: list[inspect.Parameter],
    text: str | None,
) -> None:
    """Show Typer one parameter for each option, those of groups too."""
    flat = [option for each in parameters for option in _flattened(each)]
    callback.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    callback.__annotations__ = {}
    group.command(name, rich_help_panel=panel, help=text)(callback)


def _flattened(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    kind = parameter.annotation
    if not is_dataclass(kind):
        return [parameter.replace(kind=parameter.KEYWORD_ONLY)]
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            spec.name,
            parameter.KEYWORD_ONLY,
            default=parameter.empty if spec.default is MISSING else spec.default,
            annotation=hints[spec.name],
        )
        for spec in fields(kind)
    ]


def _grouped(parameters: list[inspect.Parameter], given: dict[str, Any]) -> dict[str, Any]:
    """The options as the function takes them: those of a group together."""
    options = dict(given)
    for parameter in parameters:
        kind = parameter.annotation
        if is_dataclass(kind):
            values = {spec.name: options.pop(spec.name) for spec in fields(kind)}
            options[parameter.name] = cast("type[Any]", kind)(**values)
    return options
