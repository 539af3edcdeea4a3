"""Which parked commands `tsq retry|cancel|complete|edit` acts on: ids, or a filter; and how."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from commandbus.cli.frame import Session
from commandbus.cli.options import (
    GroupFilter,
    OneBatch,
    OneCommand,
    Rate,
    TypeFilter,
    Wait,
    parse_moment,
    parse_uuid,
)
from commandbus.errors import InvalidInputError
from commandbus.names import check_domain
from commandbus.troubleshooting.model import BulkFilter

_OPTIONS = "--group, --type, --code, --batch, --parked-after, --parked-before, --failed-of or --all"


def _moment(text: str | None, option: str) -> datetime | None:
    return None if text is None else parse_moment(text, option)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parked commands were asked for, and how to act on them."""

    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="The ids of parked commands.")
    ] = None
    domain: Annotated[
        str | None,
        typer.Option(
            "--domain", "-d", help="The domain; of an id or a group only if several know it."
        ),
    ] = None
    group: GroupFilter = None
    command_type: TypeFilter = None
    code: Annotated[
        str | None, typer.Option("--code", metavar="CODE", help="Only this error code.")
    ] = None
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="UUID", help="Only commands of this batch.")
    ] = None
    parked_after: Annotated[
        str | None,
        typer.Option(
            "--parked-after", metavar="TIME", help="From then on: 2026-05-01T10:00, or 90s, 2h, 3d."
        ),
    ] = None
    parked_before: Annotated[
        str | None,
        typer.Option("--parked-before", metavar="TIME", help="Before then, written the same way."),
    ] = None
    everything: Annotated[
        bool, typer.Option("--all", help="Everything parked in the domain; needs --yes.")
    ] = False
    rate: Rate = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what it would act on.")] = (
        False
    )
    expect: Annotated[
        int | None,
        typer.Option(
            "--expect",
            metavar="N",
            help="Refuse if it is not N commands that match, the number that --dry-run printed.",
        ),
    ] = None
    only: Annotated[
        int | None,
        typer.Option(
            "--only",
            metavar="N",
            min=1,
            help="Only the N that are parked longest: to try it first.",
        ),
    ] = None
    start_after: Annotated[
        float | None,
        typer.Option(
            "--start-after",
            metavar="SECONDS",
            help="Do nothing yet for so long: `bulk stop` then undoes all of it.",
        ),
    ] = None
    failed_of: Annotated[
        str | None,
        typer.Option(
            "--failed-of", metavar="UUID", help="What failed in this operation, if it still waits."
        ),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Everything that matches is meant.")] = (
        False
    )
    wait: Wait = True
    operation_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="UUID", help="An id of your own: a repeat is the same operation."
        ),
    ] = None

    @property
    def only_id(self) -> str | None:
        """The id, if one command was named and nothing else asked for."""
        is_plain = (
            self._is_unfiltered
            and self.wait
            and not (self.rate or self.dry_run or self.operation_id or self.expect)
            and self.only is None
            and self.start_after is None
        )
        return self.ids[0] if self.ids and len(self.ids) == 1 and is_plain else None

    @property
    def _is_filtered(self) -> bool:
        return any(
            each is not None
            for each in (
                self.group, self.command_type, self.code, self.batch, self.parked_after,
                self.parked_before, self.failed_of,
            )
        )  # fmt: skip

    @property
    def _is_unfiltered(self) -> bool:
        return not (self._is_filtered or self.everything)

    async def filter(self, session: Session) -> BulkFilter:
        """As the bus takes it, with the domain found; raises if that is not possible."""
        if self.ids:
            if not self._is_unfiltered:
                raise InvalidInputError(f"name ids, or choose with {_OPTIONS}; not both")
            return await self._named(session, self.ids)
        if self._is_unfiltered:
            raise InvalidInputError(
                f"say which: name ids, or choose with {_OPTIONS}; "
                "`commandbus tsq groups` shows what there is"
            )
        if self.everything and self._is_filtered:
            raise InvalidInputError("--all is everything; leave out the other conditions")
        domain, group, batch = self.domain, self.group, parse_uuid(self.batch, "--batch")
        if group is not None:
            found = await session.bus.troubleshooting.require_group(group, domain)
            domain, group = found.domain, found.fingerprint
        failed_of = parse_uuid(self.failed_of, "--failed-of")
        if domain is None and failed_of is not None:
            domain = (await session.bus.bulk.require(failed_of)).domain
        if domain is None and batch is not None:
            domain = (await session.find_batch(OneBatch(str(batch)))).domain
        if domain is None:
            raise InvalidInputError("say which domain with --domain")
        return BulkFilter(
            check_domain(domain), self.command_type, self.code, group, batch,
            _moment(self.parked_after, "--parked-after"),
            _moment(self.parked_before, "--parked-before"), failed_of=failed_of,
        )  # fmt: skip

    async def _named(self, session: Session, ids: list[str]) -> BulkFilter:
        found: dict[UUID, str] = {}
        for each in ids:
            where, wanted = await session.find(OneCommand(each, self.domain))
            found[wanted] = where
        domains = sorted(set(found.values()))
        if len(domains) > 1:
            raise InvalidInputError(
                f"the commands are in several domains: {', '.join(domains)}; name those of one"
            )
        return BulkFilter(domains[0], command_ids=tuple(found))
