"""Shards by domain: several databases, each with the whole life of its domains."""

from commandbus.shards.applying import apply_map
from commandbus.shards.bus import Everywhere, ShardedBus
from commandbus.shards.map import ShardMap
from commandbus.shards.pages import MergedPage, OnShard

__all__ = ["Everywhere", "MergedPage", "OnShard", "ShardMap", "ShardedBus", "apply_map"]
