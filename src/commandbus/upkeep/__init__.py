"""Upkeep: the doctor, retention, seals of the audit, and figures of what is where."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commandbus.upkeep.activity import (
        Activity,
        DomainActivity,
        LimitActivity,
        Watch,
        WorkerActivity,
    )
    from commandbus.upkeep.checks import CheckRun, CheckRuns, LastCheck
    from commandbus.upkeep.figures import DomainFigures, Figures, GovernedFigures
    from commandbus.upkeep.findings import Diagnosis, Finding, Repair, Severity
    from commandbus.upkeep.heads import Head
    from commandbus.upkeep.overview import DomainOverview, DomainRates, GroupTrend, WorkerOverview
    from commandbus.upkeep.retention import PruneResult, RetentionRule, parse_age
    from commandbus.upkeep.sealing import SealResult
    from commandbus.upkeep.service import Upkeep
    from commandbus.upkeep.states import Chore, DatabaseSetting, SealState, SettingsOverview
    from commandbus.upkeep.verification import AuditPlace, AuditVerification

__all__ = [
    "Activity",
    "AuditPlace",
    "AuditVerification",
    "CheckRun",
    "CheckRuns",
    "Chore",
    "DatabaseSetting",
    "Diagnosis",
    "DomainActivity",
    "DomainFigures",
    "DomainOverview",
    "DomainRates",
    "Figures",
    "Finding",
    "GovernedFigures",
    "GroupTrend",
    "Head",
    "LastCheck",
    "LimitActivity",
    "PruneResult",
    "Repair",
    "RetentionRule",
    "SealResult",
    "SealState",
    "SettingsOverview",
    "Severity",
    "Upkeep",
    "Watch",
    "WorkerActivity",
    "WorkerOverview",
    "parse_age",
]

_NAMES = {
    "activity": ("Activity", "DomainActivity", "LimitActivity", "Watch", "WorkerActivity"),
    "checks": ("CheckRun", "CheckRuns", "LastCheck"),
    "figures": ("DomainFigures", "Figures", "GovernedFigures"),
    "findings": ("Diagnosis", "Finding", "Repair", "Severity"),
    "heads": ("Head",),
    "overview": ("DomainOverview", "DomainRates", "GroupTrend", "WorkerOverview"),
    "retention": ("PruneResult", "RetentionRule", "parse_age"),
    "sealing": ("SealResult",),
    "service": ("Upkeep",),
    "states": ("Chore", "DatabaseSetting", "SealState", "SettingsOverview"),
    "verification": ("AuditPlace", "AuditVerification"),
}


def __getattr__(name: str) -> Any:
    """Import when asked for: a worker needs the rules of retention at its start, and no more."""
    for home, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
