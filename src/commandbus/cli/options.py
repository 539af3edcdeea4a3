"""Options that many commands share, and the database they stand for."""

from __future__ import annotations

import getpass
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from commandbus.bus import CommandBus
from commandbus.database.store import Store
from commandbus.errors import CommandBusError, InvalidInputError, SchemaMissingError
from commandbus.models import BatchMetadata
from commandbus.names import check_domain, check_uuid
from commandbus.settings import Settings

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="The PostgreSQL to use. Default: $COMMANDBUS_DSN, else the embedded server.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Use the embedded server with its data in this folder.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DomainFilter = Annotated[str | None, typer.Option("--domain", "-d", help="Only this domain.")]
TypeFilter = Annotated[str | None, typer.Option("--type", "-t", help="Only this command type.")]
CommandId = Annotated[str, typer.Argument(metavar="ID", help="The id of the command.")]
DomainOfId = Annotated[
    str | None,
    typer.Option("--domain", "-d", help="Needed only if several domains know the id."),
]


@dataclass(frozen=True, slots=True)
class Place:
    """The database that was asked for: an address, a folder, or neither."""

    dsn: str | None = None
    data_dir: Path | None = None

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
    """An open bus, and the store beneath it for reads that the bus does not offer."""

    bus: CommandBus
    store: Store

    async def find(self, command_id: str, domain: str | None) -> tuple[str, UUID]:
        """The domain of an id; raises if none, or more than one, knows it."""
        wanted = check_uuid(command_id)
        if domain is not None:
            return check_domain(domain), wanted
        match await self.store.find_domains(wanted):
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

    async def find_batch(self, batch_id: str, domain: str | None) -> BatchMetadata:
        """A batch by its id, which no two domains share; raises if there is none."""
        wanted = check_uuid(batch_id, "batch id")
        known = await self.store.find_domains(wanted) if domain is None else [domain]
        for each in known:
            batch = await self.bus.get_batch(each, wanted)
            if batch is not None:
                return batch
        where = "this database" if domain is None else f"domain {domain!r}"
        raise CommandBusError(
            f"no batch {wanted} in {where}; `commandbus batch list DOMAIN` lists what there is"
        )


@asynccontextmanager
async def open_session(place: Place, *, create: bool = False) -> AsyncIterator[Session]:
    """Open a bus. Unless `create`, a database without our schema is refused, not set up:
    a look at the wrong database must not leave tables there.
    """
    from commandbus.wiring import database_status, find_dsn, open_store

    settings = Settings.from_env()
    address = find_dsn(place.dsn)
    if address is not None and not create:
        status = await database_status(address, settings)
        if status.installed_version is None:
            raise SchemaMissingError(
                f"the database has no schema {settings.schema!r}; run `commandbus db init`"
            )
    async with open_store(place.dsn, settings, data_dir=place.data_dir) as (_, store):
        bus = CommandBus(store=store, settings=settings)
        try:
            yield Session(bus, store)
        finally:
            await bus.close()


def parse_json(text: str, what: str) -> Any:
    """Read JSON that somebody typed."""
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{what} is not JSON: {error}") from None


_AGO = re.compile(r"(\d{1,9})\s*([smhdw])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_moment(text: str, what: str) -> datetime:
    """A moment that somebody typed: ISO 8601, local unless it says its zone, or how long ago."""
    if ago := _AGO.match(text.strip()):
        try:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise InvalidInputError(f"{what} is {text!r}, which is before all times") from None
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInputError(
            f"{what} is {text!r}; write 2026-05-01T10:00, or how long ago: 90s, 15m, 2h, 3d, 1w"
        ) from None


def actor_or_login(operator: str | None) -> str | None:
    """Who acts: the name that was given, else the login name, else nobody."""
    if operator is not None:
        return operator
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return None
