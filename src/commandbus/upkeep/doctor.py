"""The doctor: is everything in the database as it must be, and if not, what now?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from commandbus.errors import InvalidOperationError, InvalidSettingError
from commandbus.names import check_domain, check_operator
from commandbus.store.upkeep import Examination, UpkeepStore
from commandbus.upkeep.findings import FAULTS, Severity

#: What one transaction of a repair takes on.
REPAIR_LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of fault in one domain."""

    code: str
    severity: Severity
    #: None: it is about the database as a whole.
    domain: str | None
    found: int
    #: At most five: ids of commands, batches or workers, names of tables. Never payloads.
    examples: tuple[str, ...]
    meaning: str
    advice: str
    can_fix: bool


@dataclass(frozen=True, slots=True)
class Repair:
    """What was mended of one kind of fault."""

    domain: str
    function: str
    mended: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found, worst first."""

    findings: tuple[Finding, ...]
    #: Only what was touched since then was looked at; None: everything.
    since: datetime | None
    facts: Mapping[str, Any]
    unknown: tuple[str, ...]
    repairs: tuple[Repair, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """No finding is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


class Doctor:
    """Examines a database, and mends what can be mended safely."""

    def __init__(self, store: object) -> None:
        self._store = store

    async def examine(
        self,
        *,
        domain: str | None = None,
        window: timedelta | None = None,
        full: bool = False,
        fix: bool = False,
        operator: str | None = None,
    ) -> Diagnosis:
        """Look, and with `fix` mend and look again; what is then found is what is left."""
        store = upkeep_of(self._store, "doctor")
        if domain is not None:
            check_domain(domain)
        if window is not None and (full or window <= timedelta(0)):
            raise InvalidSettingError("the window is some time, and contradicts `full`")
        actor = check_operator(operator)
        found = diagnosis_of(await store.examine(domain, window=window, is_full=full))
        if not fix:
            return found
        repairs = await self._mend(store, found, actor)
        left = await store.examine(domain, window=window, is_full=full)
        return diagnosis_of(left, repairs)

    async def _mend(
        self, store: UpkeepStore, found: Diagnosis, actor: str | None
    ) -> tuple[Repair, ...]:
        todo = {
            (finding.domain, str(FAULTS[finding.code].repair))
            for finding in found.findings
            if finding.can_fix and finding.domain is not None
        }
        # A queue that is made again is empty: what it should hold has to be sent again.
        todo |= {(d, "repair_lost_messages") for d, verb in todo if verb == "repair_queues"}
        order = [fault.repair for fault in FAULTS.values()]
        repairs = []
        for domain, verb in sorted(todo, key=lambda item: (order.index(item[1]), item[0])):
            mended: dict[str, None] = {}
            # It comes to an end: each round mends something that was not mended before.
            while set(
                now := await store.repair(verb, domain, actor=actor, limit=REPAIR_LIMIT)
            ) - set(mended):
                mended |= dict.fromkeys(now)
            if mended:
                repairs.append(Repair(domain, verb, tuple(mended)))
        return tuple(repairs)


def upkeep_of(store: object, what: str) -> UpkeepStore:
    """The store, if it can do this."""
    if not isinstance(store, UpkeepStore):
        raise InvalidOperationError(
            f"the in-memory store has no {what}; test it on the embedded server"
        )
    return store


def diagnosis_of(examination: Examination, repairs: tuple[Repair, ...] = ()) -> Diagnosis:
    """Say what the symptoms mean."""
    rank = {code: place for place, code in enumerate(FAULTS)}
    severities = list(Severity)
    findings = []
    for symptom in examination.symptoms:
        fault = FAULTS[symptom.code]
        findings.append(
            Finding(
                symptom.code, fault.severity, symptom.domain, symptom.found, symptom.examples,
                fault.meaning, fault.advice, fault.repair is not None,
            )
        )  # fmt: skip
    findings.sort(key=lambda f: (severities.index(f.severity), rank[f.code], f.domain or ""))
    return Diagnosis(
        tuple(findings), examination.since, examination.facts, examination.unknown, repairs
    )
