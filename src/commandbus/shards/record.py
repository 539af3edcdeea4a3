"""The record: what a database knows of the map, and whether it agrees with the one that we have."""

from __future__ import annotations

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
_LEFT: LiteralString = (
    "select l.what, l.amount from {schema}.left_in_domain(%s) l where l.amount > 0"
)

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

    def difference(self, name: str, shards: ShardMap) -> str | None:
        """How the map that we have disagrees with it, and what to do; None: it does not."""
        if self.shard != name:
            return (
                f"the map calls a database {name!r} that is shard {self.shard!r}; are two "
                "addresses exchanged?"
            )
        if self.version > shards.version:
            return (
                f"the map has version {shards.version}, and shard {name!r} knows version "
                f"{self.version}; start this process with the newer map"
            )
        if self.version < shards.version:
            return (
                f"the map has version {shards.version}, and shard {name!r} knows version "
                f"{self.version}; run {_APPLY}"
            )
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


async def require_agreement(gateway: Gateway, name: str, shards: ShardMap) -> None:
    """Raise InvalidSettingError if database and map disagree; one that knows of none is told."""
    record = await record_of(gateway)
    if record is None:
        try:
            await adopt(gateway, name, shards)
        except DatabaseError as error:
            raise InvalidSettingError(
                f"shard {name!r} does not know the map yet, and this login may not tell it "
                f"({error}); run {_APPLY} as the owner of the schema"
            ) from error
        return
    if said := record.difference(name, shards):
        raise InvalidSettingError(said)


async def domains_here(gateway: Gateway) -> dict[str, bool]:
    """The domains that have a queue in a database, and whether they have left it."""
    return dict(await gateway.rows(_HERE))


async def left_in(gateway: Gateway, domain: str) -> dict[str, Any]:
    """What a domain has still to do in a database; empty: it may leave."""
    return dict(await gateway.patient.rows(_LEFT, (domain,)))
