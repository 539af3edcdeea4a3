"""Handlers without a bus: `commandbus.Handlers` gathers them, a bus includes them."""

from commandbus.handlers.methods import handles
from commandbus.handlers.needs import Use

__all__ = ["Use", "handles"]
