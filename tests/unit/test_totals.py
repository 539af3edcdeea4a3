"""What a worker has ended is told once: by the next heartbeat that arrives."""

from __future__ import annotations

from commandbus.database.model import Outcome, OutcomeKind
from commandbus.worker.totals import Totals
from tests.unit.stubs import a_lease


def test_outcomes_are_counted_by_kind_but_for_those_whose_lease_was_lost() -> None:
    totals = Totals()
    group = [Outcome(a_lease(), kind) for kind in OutcomeKind for _ in range(2)]
    lost = {group[0].lease.command_id}
    totals.add(group, lost)
    totals.completed_one()
    assert totals.take() == {"completed": 2, "retried": 2, "parked": 2, "failed": 2}
    assert totals.take() == {}


def test_what_a_heartbeat_could_not_tell_is_told_by_the_next_one() -> None:
    totals = Totals()
    totals.completed_one()
    taken = {"version": "1", **totals.take()}
    totals.completed_one()
    totals.give_back(taken)
    assert totals.take() == {"completed": 2}
