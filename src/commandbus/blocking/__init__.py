"""BlockingBus: the bus for code that is not asynchronous (Django, Flask, scripts).

with BlockingBus.connect() as bus:
    bus.send("payments", "DebitAccount", uuid4(), {"amount": 5}, conn=my_psycopg_connection)
"""

from commandbus.blocking.bus import BlockingBus

__all__ = ["BlockingBus"]
