"""The command core in memory, for the tests of applications; anything else needs PostgreSQL."""

from commandbus.testing.memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
