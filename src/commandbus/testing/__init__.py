"""For the tests of applications: the bus, its store and PGMQ in memory, with a clock to move.

    bus = fake_bus()
    bus.register_handler("payments", "DebitAccount", debit)
    await bus.send("payments", "DebitAccount", uuid4(), {"amount": 5})
    await run_until_idle(bus, "payments")

What is listed in __all__ is public; everything else may change.
"""

from commandbus.database.model import PgmqMessage
from commandbus.testing.clock import FakeClock
from commandbus.testing.fakes import FakePgmqClient
from commandbus.testing.helpers import fake_bus, run_until_idle, sent, store_of
from commandbus.testing.memory import InMemoryStore

__all__ = [
    "FakeClock",
    "FakePgmqClient",
    "InMemoryStore",
    "PgmqMessage",
    "fake_bus",
    "run_until_idle",
    "sent",
    "store_of",
]
