"""Upkeep: the doctor, retention, and figures of what is where."""

from commandbus.upkeep.figures import DomainFigures, Figures, GovernedFigures
from commandbus.upkeep.findings import Diagnosis, Finding, Repair, Severity
from commandbus.upkeep.retention import PruneResult, RetentionRule, parse_age
from commandbus.upkeep.service import Upkeep

__all__ = [
    "Diagnosis",
    "DomainFigures",
    "Figures",
    "Finding",
    "GovernedFigures",
    "PruneResult",
    "Repair",
    "RetentionRule",
    "Severity",
    "Upkeep",
    "parse_age",
]
