"""The mutants themselves: every guard is found, and taking it out changes what is installed."""

from __future__ import annotations

from commandbus.database.migrations import FUNCTION_FILES
from tests.mutants.choosing import SUBJECTS
from tests.mutants.results import equivalents
from tests.mutants.sql_sites import all_mutants, function_source


def test_the_guards_of_an_outcome_are_all_found() -> None:
    keys = {mutant.key for mutant in all_mutants(["leases", "outcomes", "payloads"])}
    for guard in ("c.lease_epoch = i.lease_epoch", "c.leased_by is not null"):
        assert f"end_leases where: {guard}" in keys
    assert any("on conflict" in key for key in keys)


def test_locks_and_their_order_are_found() -> None:
    keys = {mutant.key for mutant in all_mutants(["batches"])}
    assert "move_batch_counters for update: for update of b" in keys
    assert "move_batch_counters lock order: order by b.batch_id" in keys


def test_every_mutant_differs_from_what_it_was_made_of_and_is_one_function() -> None:
    for mutant in all_mutants():
        source = function_source(mutant.file)
        assert mutant.statement not in source, mutant.place
        # Indented ones are made by that function.
        assert f"\n{mutant.statement}".count("\ncreate or replace function") == 1, mutant.place


def test_every_reason_belongs_to_a_mutant_that_is_there() -> None:
    keys = {mutant.key for mutant in all_mutants()}
    assert set(equivalents("sql")) <= keys


def test_every_function_file_that_tests_are_chosen_for_is_there() -> None:
    assert set(SUBJECTS) <= set(FUNCTION_FILES)
