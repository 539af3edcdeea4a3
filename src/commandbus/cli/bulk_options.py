"""What the commands that decide for many share: their options, and what they choose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import typer

from commandbus.cli.options import Session
from commandbus.errors import InvalidInputError
from commandbus.names import check_domain
from commandbus.troubleshooting.model import BulkFilter

CommandIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The ids of parked commands.")
]
DomainOfChoice = Annotated[
    str | None,
    typer.Option("--domain", "-d", help="The domain; of an id or a group only if several know it."),
]
GroupChoice = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="FINGERPRINT", help="A failure group; how it begins is enough."
    ),
]
TypeChoice = Annotated[
    str | None, typer.Option("--type", "-t", metavar="TYPE", help="Only this command type.")
]
CodeChoice = Annotated[
    str | None, typer.Option("--code", metavar="CODE", help="Only this error code.")
]
Everything = Annotated[
    bool, typer.Option("--all", help="Everything parked in the domain; needs --yes.")
]
Rate = Annotated[
    str | None,
    typer.Option("--rate", metavar="RATE", help="At most so many: 100/s, 600/m, 50/h."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what it would act on.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Everything that matches is meant.")]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", help="Do it here and show progress, or leave it to the workers."
    ),
]
OperationId = Annotated[
    str | None,
    typer.Option("--id", metavar="UUID", help="An id of your own: a repeat is the same operation."),
]
Operator = Annotated[
    str | None,
    typer.Option("--operator", metavar="NAME", help="Who decides. Default: your login name."),
]

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?\Z")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3_600}


def parse_rate(text: str | None) -> float | None:
    """Commands per second of `100/s`, `600/m` or `50/h`."""
    if text is None:
        return None
    found = _RATE.match(text)
    if found is None:
        raise InvalidInputError(f"--rate is {text!r}; write 100/s, 600/m or 50/h")
    return float(found[1]) / _SECONDS[found[2]]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parked commands were asked for, and how."""

    ids: list[str] | None
    domain: str | None
    group: str | None
    command_type: str | None
    code: str | None
    is_everything: bool
    rate: str | None
    is_dry_run: bool
    is_confirmed: bool
    waits: bool
    operation_id: str | None
    as_json: bool

    @property
    def only_id(self) -> str | None:
        """The id, if one command was named and nothing else asked for."""
        is_plain = self._is_unfiltered and not (
            self.rate or self.is_dry_run or self.operation_id or self.as_json or not self.waits
        )
        return self.ids[0] if self.ids and len(self.ids) == 1 and is_plain else None

    @property
    def _is_unfiltered(self) -> bool:
        return not (self.group or self.command_type or self.code or self.is_everything)

    async def filter(self, session: Session) -> BulkFilter:
        """What it means, with the domain found; raises if it is not clear."""
        if self.ids:
            if not self._is_unfiltered:
                raise InvalidInputError(
                    "name ids, or choose with --group, --type, --code or --all; not both"
                )
            return await self._named(session, self.ids)
        if self._is_unfiltered:
            raise InvalidInputError(
                "say which: name ids, or choose with --group, --type, --code or --all; "
                "`commandbus tsq groups` shows what there is"
            )
        if self.is_everything and (self.group or self.command_type or self.code):
            raise InvalidInputError("--all is everything; leave out --group, --type and --code")
        domain, group = self.domain, self.group
        if group is not None:
            found = await session.bus.troubleshooting.require_group(group, domain)
            domain, group = found.domain, found.fingerprint
        if domain is None:
            raise InvalidInputError("say which domain with --domain")
        return BulkFilter(check_domain(domain), self.command_type, self.code, group)

    async def _named(self, session: Session, ids: list[str]) -> BulkFilter:
        found: dict[UUID, str] = {}
        for each in ids:
            where, wanted = await session.find(each, self.domain)
            found[wanted] = where
        domains = sorted(set(found.values()))
        if len(domains) > 1:
            raise InvalidInputError(
                f"the commands are in several domains: {', '.join(domains)}; name those of one"
            )
        return BulkFilter(domains[0], command_ids=tuple(found))
