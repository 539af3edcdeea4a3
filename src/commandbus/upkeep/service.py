"""Upkeep: `bus.upkeep`. The doctor, retention, seals of the audit, figures of what is where."""

from __future__ import annotations

from commandbus.database.store import Store
from commandbus.upkeep.checks import CheckRuns
from commandbus.upkeep.doctor import Doctor, FurtherCheck
from commandbus.upkeep.figures import Figures
from commandbus.upkeep.retention import Retention
from commandbus.upkeep.standing import Standings
from commandbus.upkeep.states import States
from commandbus.upkeep.verification import Verification


class Upkeep(Doctor, Retention, Verification, States):
    """Keeps a database healthy and small. Needs PostgreSQL."""

    def __init__(self, store: Store, further: FurtherCheck | None = None) -> None:
        super().__init__(store, further)
        #: How much is where.
        self.figures = Figures(store)
        #: What the database is.
        self.standing = Standings(store)
        #: What was found last, and runs in the background.
        self.runs = CheckRuns(store, self._diagnose, self.verify_audit)
