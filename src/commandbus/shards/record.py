"""The record: what a database knows of the map, and whether it agrees with the one that we have."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import orjson

from commandbus.errors import DatabaseError, InvalidSettingError
from commandbus.shards.map import ShardMap

if TYPE_CHECKING:
    from commandbus.database.gateway import Gateway

_RECORD: LiteralString = (
    "select s.shard, s.version, s.default_shard, s.domains from {schema}.command_bus_shard s"
)
_ADOPT: LiteralString = "select {schema}.adopt_map(%s, %s, cast(%s as text), cast(%s as jsonb))"
_HERE: LiteralString = "select d.domain, d.has_left from {schema}.domains_here() d"
_CLOSE: LiteralString = "select {schema}.close_domains(cast(%s as text[]))"
_OPEN: LiteralString = "select o from {schema}.open_domains() o"
_CLOSED: LiteralString = "select c from {schema}.closed_domains() c order by 1"
_LEFT: LiteralString = (
    "select l.what, l.amount from {schema}.left_in_domain(%s) l where l.amount > 0"
)

_log = logging.getLogger("commandbus.shards")

_APPLY = "`commandbus shards apply`"


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What a database was told: which shard it is, and by which map."""

    shard: str
    version: int
    default: str | None
    domains: dict[str, str]

    @property
    def named(self) -> set[str]:
        """The shards that have domains by this map, and the one that it stands on."""
        return {self.shard, *self.domains.values(), *filter(None, [self.default])}

    def find(self, domain: str) -> str | None:
        """The shard that a domain is on by this map; None: on none."""
        return self.domains.get(domain, self.default)

    def refusal(self, domain: str, shards: ShardMap) -> str | None:
        """Why a domain that our map puts here is not to be used here; None: it is here."""
        if self.find(domain) == self.shard:
            return None
        text = (
            f"version {shards.version} of the map puts domain {domain!r} on shard {self.shard!r}, "
            f"which knows version {self.version}, and that puts it elsewhere; "
        )
        if self.version > shards.version:
            return text + "start this process with the newer map"
        return text + f"run {_APPLY}"

    def difference(self, name: str, shards: ShardMap) -> str | None:
        """How the map that we have differs from it, and what to do; None: it does not."""
        said = self.contradiction(name, shards)
        if said is not None or self.version == shards.version:
            return said
        what = (
            f"the map has version {shards.version}, and shard {name!r} knows version "
            f"{self.version}; "
        )
        if self.version > shards.version:
            return what + "start this process with the newer map"
        return what + f"run {_APPLY}"

    def contradiction(self, name: str, shards: ShardMap) -> str | None:
        """What cannot be meant, and what to do; None: nothing. Another version can be meant."""
        if self.shard != name:
            return (
                f"the map calls a database {name!r} that is shard {self.shard!r}; are two "
                "addresses exchanged?"
            )
        if self.version != shards.version:
            return None
        if (self.default, self.domains) != (shards.default, dict(shards.domains)):
            return (
                f"version {self.version} of the map says something else on shard {name!r}; a map "
                f"that was changed needs a higher version, and {_APPLY}"
            )
        return None


async def record_of(gateway: Gateway) -> ShardRecord | None:
    """What this database was told; None: nothing."""
    return await gateway.row(_RECORD, into=ShardRecord)


async def adopt(gateway: Gateway, name: str, shards: ShardMap) -> bool:
    """Tell a database which shard it is; whether that was new to it."""
    domains = orjson.dumps(dict(shards.domains)).decode()
    params = (name, shards.version, shards.default, domains)
    return bool(await gateway.patient.value(_ADOPT, params))


async def require_agreement(gateway: Gateway, name: str, shards: ShardMap) -> ShardRecord:
    """What the database knows of the map; one that knows nothing is told.

    InvalidSettingError: they contradict each other. Another version does not: while processes are
    started anew after `apply`, some have the former map, and most domains are where they were. Each
    domain is looked at when it is needed, and the database refuses those that are not its own.
    """
    record = await record_of(gateway)
    if record is None:
        try:
            await adopt(gateway, name, shards)
        except DatabaseError as error:
            raise InvalidSettingError(
                f"shard {name!r} does not know the map yet, and this login may not tell it "
                f"({error}); run {_APPLY} as the owner of the schema"
            ) from error
        return ShardRecord(name, shards.version, shards.default, dict(shards.domains))
    if said := record.contradiction(name, shards):
        raise InvalidSettingError(said)
    if said := record.difference(name, shards):
        _log.warning("%s; domains that both put there are served meanwhile", said)
    return record


async def domains_here(gateway: Gateway) -> dict[str, bool]:
    """The domains that have a queue in a database, and whether they have left it."""
    return dict(await gateway.rows(_HERE))


async def left_in(gateway: Gateway, domain: str) -> dict[str, Any]:
    """What a domain has still to do in a database; empty: it may leave."""
    return dict(await gateway.patient.rows(_LEFT, (domain,)))


async def close_domains(gateway: Gateway, domains: Collection[str]) -> None:
    """Let nothing new into domains that are about to leave."""
    await gateway.patient.value(_CLOSE, (sorted(domains),))


async def open_domains(gateway: Gateway) -> list[str]:
    """Open all that are closed; which they were."""
    return [domain for (domain,) in await gateway.patient.rows(_OPEN)]


async def closed_domains(gateway: Gateway) -> list[str]:
    """The domains that are closed."""
    return [domain for (domain,) in await gateway.rows(_CLOSED)]
