"""The command core in memory, for the tests of applications.

It has the verbs of commandbus.database.store.Store and no more; anything else needs PostgreSQL and
says so. tests/conformance runs one suite over this store and the real one.
"""

from commandbus.testing.memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
