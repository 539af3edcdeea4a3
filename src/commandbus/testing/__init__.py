"""For the tests of applications: the bus, its store and PGMQ in memory, with a clock to move; and
fixtures for pytest, which are there as soon as commandbus is installed (plugin.py).

    bus = fake_bus()
    bus.register_handler("payments", "DebitAccount", debit)
    await bus.send("payments", "DebitAccount", uuid4(), {"amount": 5})
    await drain(bus, "payments")

What is listed in __all__ is public; everything else may change.
"""

#: Type checkers take it for true, and see the names below.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from commandbus.database.model import PgmqMessage
    from commandbus.testing.clock import FakeClock
    from commandbus.testing.draining import Drained, drain
    from commandbus.testing.fakes import FakePgmqClient
    from commandbus.testing.helpers import (
        fake_blocking_bus,
        fake_bus,
        run_until_idle,
        sent,
        store_of,
    )
    from commandbus.testing.memory import InMemoryStore
    from commandbus.testing.servers import PostgresServer
    from commandbus.testing.transport_kit import TransportConformance

__all__ = [
    "Drained",
    "FakeClock",
    "FakePgmqClient",
    "InMemoryStore",
    "PgmqMessage",
    "PostgresServer",
    "TransportConformance",
    "drain",
    "fake_blocking_bus",
    "fake_bus",
    "run_until_idle",
    "sent",
    "store_of",
]

# Each is loaded when it is first asked for: pytest imports this package whenever it starts, because
# of the plugin, also where nobody tests a bus.
_PLACES = {
    "Drained": "draining",
    "FakeClock": "clock",
    "FakePgmqClient": "fakes",
    "InMemoryStore": "memory",
    "PgmqMessage": "fakes",
    "PostgresServer": "servers",
    "TransportConformance": "transport_kit",
    "drain": "draining",
    "fake_blocking_bus": "helpers",
    "fake_bus": "helpers",
    "run_until_idle": "helpers",
    "sent": "helpers",
    "store_of": "helpers",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  (most runs of pytest need none of it)

    value: object = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value  # the next one who asks finds it without us
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})
