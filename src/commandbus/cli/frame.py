"""The frame of every command: its options, the open bus, what is printed, the exit code.

A command is an async function `(frame, options…) -> View`; `declared` says how it has its options.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

from commandbus.bus import CommandBus
from commandbus.cli.declared import flattened, for_typer, option, parameters_of, value_of
from commandbus.cli.output import (
    ExitCode,
    jsonable,
    moment,
    print_error,
    print_json,
    print_note,
    say,
)
from commandbus.database.store import Store
from commandbus.errors import CommandBusError, InvalidInputError, SchemaMissingError
from commandbus.models import BatchMetadata
from commandbus.names import check_domain, check_uuid
from commandbus.paging import MISSING, Page
from commandbus.privacy.redaction import redact_text
from commandbus.settings import Settings

if TYPE_CHECKING:
    import typer

    from commandbus.cli.options import OneBatch, OneCommand
    from commandbus.shards.map import ShardMap

Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., "Coroutine[Any, Any, View] | None"])

#: As `shards.map` names it, which is loaded for a map only.
MAP_VARIABLE = "COMMANDBUS_SHARDS"


# -- which database

Dsn = Annotated[
    str | None,
    option(
        "--dsn",
        metavar="DSN",
        help="The PostgreSQL to use. Default: $COMMANDBUS_DSN, else the embedded server.",
    ),
]
DataDir = Annotated[
    Path | None,
    option(
        "--data-dir", metavar="FOLDER", help="Use the embedded server with its data in this folder."
    ),
]
MapFile = Annotated[
    Path | None,
    option(
        "--map",
        metavar="FILE",
        help="Domains are in several databases: the map of them. Default: $COMMANDBUS_SHARDS.",
    ),
]
#: How long processes that run until they are stopped wait for a server when they start.
WAIT_SECONDS = 30.0
WaitForServer = Annotated[
    float,
    option(
        "--wait",
        metavar="SECONDS",
        help="Wait this long for a server that accepts writes, before giving up.",
    ),
]
AsJson = Annotated[bool, option("--json", help="Print one JSON document.")]


@dataclass(frozen=True, slots=True)
class Place:
    """The database that was asked for: an address, a folder, neither, or several by a map."""

    dsn: Dsn = None
    data_dir: DataDir = None
    map_file: MapFile = None

    def __post_init__(self) -> None:
        from commandbus.wiring import find_dsn, refuse_both

        if self.map_file is None:
            refuse_both(find_dsn(self.dsn), self.data_dir)
        elif self.dsn is not None or self.data_dir is not None:
            raise InvalidInputError(
                "--dsn and --data-dir name one database; the map names all of them"
            )

    @property
    def has_map(self) -> bool:
        """Whether several databases are meant."""
        if self.map_file is not None:
            return True
        if self.dsn is not None or self.data_dir is not None:
            return False
        from commandbus.wiring import DSN_VARIABLE

        if not os.environ.get(MAP_VARIABLE):
            return False
        if os.environ.get(DSN_VARIABLE):
            raise InvalidInputError(
                f"{DSN_VARIABLE} names one database and {MAP_VARIABLE} several; say --dsn or "
                "--map, or unset one of them"
            )
        return True

    def read_map(self) -> ShardMap | None:
        """The map; None: one database is meant."""
        if not self.has_map:
            return None
        from commandbus.shards.map import ShardMap

        return ShardMap.from_env() if self.map_file is None else ShardMap.from_file(self.map_file)

    @property
    def one(self) -> Place:
        """The same for what works on one database; raises if there are several."""
        if self.has_map:
            raise InvalidInputError(
                "this works on one database, and the map of shards names several; give the "
                "address of one of them (--dsn)"
            )
        return self

    @property
    def is_embedded(self) -> bool:
        """Whether it is our own server."""
        from commandbus.wiring import find_dsn

        return find_dsn(self.one.dsn) is None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What every command has: how to print, and the database that was asked for."""

    as_json: AsJson = False
    place: Place

    @asynccontextmanager
    async def open(
        self, *, creates: bool = False, wait_seconds: float = 0.0, only_reads: bool = False
    ) -> AsyncIterator[Session]:
        """Open a bus. Unless it `creates`, a database without our schema is refused, not set up:
        a look at the wrong database must not leave tables there. `only_reads`: a standby will do.
        """
        from commandbus.wiring import (
            any_server,
            database_status,
            find_dsn,
            open_store,
            until_writable,
        )

        settings = Settings.from_env()
        shards = self.place.read_map()
        if shards is not None:
            from commandbus.cli.spanning import open_shards

            through = any_server if only_reads else None
            async with open_shards(shards, settings, through) as spanning:
                yield Session(spanning, spanning._store)
            return
        dsn = self.place.dsn
        address = find_dsn(dsn)
        if address is not None and only_reads:
            dsn = address = any_server(address)
        if address is not None and wait_seconds:
            await until_writable(address, settings, wait_seconds)
        if address is not None and not creates:
            status = await database_status(address, settings)
            if status.installed_version is None:
                raise SchemaMissingError(
                    f"the database has no schema {settings.schema!r}; run `commandbus db init`"
                )
        async with open_store(dsn, settings, data_dir=self.place.data_dir) as opened:
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
        """One line for people; the other arguments are the JSON document."""
        return cls(document, lambda: say(text))

    def show(self, *, as_json: bool, missing: Mapping[str, str] | None = None) -> None:
        """Print it, and end the program if the exit code is not 0. `missing`: shards, and why."""
        if as_json:
            more = {"missing_shards": dict(missing)} if missing else {}
            is_open = isinstance(self.document, dict)
            print_json({**self.document, **more} if is_open else self.document)
        else:
            self.print()
        for name, why in (missing or {}).items():
            print_note(f"shard {name} is missing here: {redact_text(why)}")
        if self.error is not None:
            print_error(self.error)
        if self.code is not ExitCode.OK:
            raise SystemExit(self.code)


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


def command(
    group: typer.Typer, name: str, *, panel: str | None = None
) -> Callable[[Function], Function]:
    """Register a command: an async function with a frame, whose View is shown, or one that prints
    what it does by itself.
    """

    def register(function: Function) -> Function:
        parameters = parameters_of(function)
        # What every command has comes last in its help.
        parameters.sort(key=lambda each: each.annotation is Frame)

        def callback(**given: Any) -> None:
            options = {
                each.name: value_of(each.name, each.annotation, given) for each in parameters
            }
            result = function(**options)
            if result is not None:
                missing: dict[str, str] = {}
                noted = MISSING.set(missing)  # the shards that did not answer
                try:
                    view = asyncio.run(result)
                finally:
                    MISSING.reset(noted)
                view.show(as_json=options["frame"].as_json, missing=missing)

        flat = [for_typer(option) for each in parameters for option in flattened(each)]
        callback.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
        callback.__annotations__ = {}
        group.command(name, rich_help_panel=panel, help=function.__doc__)(callback)
        return function

    return register
