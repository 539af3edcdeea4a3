"""Upkeep: the doctor, retention, and figures of what is where."""

from commandbus.upkeep.figures import DomainFigures, GovernedFigures
from commandbus.upkeep.findings import Diagnosis, Finding, Repair, Severity
from commandbus.upkeep.retention import PruneResult, RetentionRule, parse_age

__all__ = [
    "Diagnosis",
    "DomainFigures",
    "Finding",
    "GovernedFigures",
    "PruneResult",
    "Repair",
    "RetentionRule",
    "Severity",
    "parse_age",
]
