"""The store of document 004 §12.1: everything in memory, time by a clock that tests move.

One file for each file of sql/functions, and the same verbs in it; tests/conformance proves that
the two behave alike.
"""

from commandbus.testing.memory.store import InMemoryStore
from commandbus.testing.memory.transaction import MemoryConnection

__all__ = ["InMemoryStore", "MemoryConnection"]
