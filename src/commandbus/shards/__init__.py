"""Shards by domain: several databases, each with the whole life of its domains."""

from commandbus.shards.applying import apply_map
from commandbus.shards.bus import ShardedBus
from commandbus.shards.map import ShardMap
from commandbus.shards.model import Everywhere, OnShard
from commandbus.shards.moving import MoveReport, cancel_move, move_domain
from commandbus.shards.pages import MergedPage
from commandbus.shards.reads import MergedGroups
from commandbus.shards.spanning import SpanningBus

__all__ = [
    "Everywhere",
    "MergedGroups",
    "MergedPage",
    "MoveReport",
    "OnShard",
    "ShardMap",
    "ShardedBus",
    "SpanningBus",
    "apply_map",
    "cancel_move",
    "move_domain",
]
