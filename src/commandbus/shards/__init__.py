"""Shards by domain: several databases, each with the whole life of its domains."""

from commandbus.shards.bus import Everywhere, ShardedBus
from commandbus.shards.map import ShardMap

__all__ = ["Everywhere", "ShardMap", "ShardedBus"]
