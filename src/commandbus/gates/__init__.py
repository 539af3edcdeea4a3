"""Limits of execution: how many commands run at once and how often they start, over all workers."""

from commandbus.gates.model import ExecutionLimit, LimitedKey
from commandbus.gates.service import ExecutionLimits

__all__ = ["ExecutionLimit", "ExecutionLimits", "LimitedKey"]
