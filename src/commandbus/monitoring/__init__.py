"""Monitoring: what workers and senders tell of themselves. Standard library only.

`bus.monitor()` switches it on for a bus; `commandbus worker --http` does the same and serves it.
"""

from commandbus.monitoring.health import Health
from commandbus.monitoring.metrics import Metrics
from commandbus.monitoring.monitor import Monitor

__all__ = ["Health", "Metrics", "Monitor"]
