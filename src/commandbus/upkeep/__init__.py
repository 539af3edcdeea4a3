"""Upkeep: the doctor, retention, seals of the audit, and figures of what is where."""

from commandbus.upkeep.figures import DomainFigures, Figures, GovernedFigures
from commandbus.upkeep.findings import Diagnosis, Finding, Repair, Severity
from commandbus.upkeep.heads import Head
from commandbus.upkeep.retention import PruneResult, RetentionRule, parse_age
from commandbus.upkeep.sealing import SealResult
from commandbus.upkeep.service import Upkeep
from commandbus.upkeep.verification import AuditPlace, AuditVerification

__all__ = [
    "AuditPlace",
    "AuditVerification",
    "Diagnosis",
    "DomainFigures",
    "Figures",
    "Finding",
    "GovernedFigures",
    "Head",
    "PruneResult",
    "Repair",
    "RetentionRule",
    "SealResult",
    "Severity",
    "Upkeep",
    "parse_age",
]
