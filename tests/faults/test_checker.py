"""The checker: a sound history passes, and each invariant has histories that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from faults import INVARIANTS, check
from faults.checker import extra_runs, fold
from faults.facts import Batch, Change, Claim, Effect, Event, Facts, Send
from tests.faults.broken_flow import BROKEN as BROKEN_FLOW
from tests.faults.histories import OTHER, WORKER, History, sound

Break = Callable[[History], Facts]


def broken(facts: Facts) -> set[str]:
    return {violation.invariant for violation in check(facts)}


def test_a_sound_history_has_no_violation() -> None:
    assert check(sound().end()) == []


def lost(history: History) -> Facts:
    facts = history.end()
    facts.rows[:] = [row for row in facts.rows if row.command_id != "plain"]
    return facts


def left_open(history: History) -> Facts:
    history.send("late")
    facts = history.end()
    facts.messages.append((9, "late"))
    return facts


def from_nowhere(history: History) -> Facts:
    history.send("ghost")
    facts = history.end()
    facts.sends[:] = [send for send in facts.sends if send.command_id != "ghost"]
    return facts


def finished_twice(history: History) -> Facts:
    history.change("plain", "COMPLETED", new_holder=None)
    history.event("plain", "COMPLETED")
    return history.end()


def changed_after_its_end(history: History) -> Facts:
    history.change("plain", "PENDING")
    history.change("plain", "COMPLETED")
    return history.end()


def leased_too_early(history: History) -> Facts:
    history.send("early")
    history.claim("early")
    history.start("early")
    history.claim("early", OTHER, early=5.0)
    history.start("early", OTHER)
    history.finish("early", OTHER)
    return history.end()


def epoch_falls(history: History) -> Facts:
    history.send("reset")
    history.claim("reset")
    history.start("reset")
    history.change("reset", "COMPLETED", new_epoch=0)
    history.event("reset", "COMPLETED")
    history.facts.replies.append("reset")
    return history.end()


def epoch_given_twice(history: History) -> Facts:
    history.send("twice")
    history.claim("twice")
    history.change("twice", "IN_PROGRESS", new_holder=OTHER)
    history.start("twice")
    history.finish("twice")
    return history.end()


def two_holders_of_one_epoch(history: History) -> Facts:
    history.facts.claims.append(Claim("plain", 1, 22, history.now))
    return history.end()


def done_without_effect(history: History) -> Facts:
    facts = history.end()
    facts.effects[:] = [effect for effect in facts.effects if effect.command_id != "plain"]
    return facts


def run_again_without_a_reason(history: History) -> Facts:
    history.epochs["plain"] = 2
    history.start("plain")
    return history.end()


def started_twice_in_one_lease(history: History) -> Facts:
    history.facts.starts.append(history.facts.starts[0])
    return history.end()


def written_twice(history: History) -> Facts:
    history.facts.effects.extend([Effect("plain", 1, True), Effect("plain", 2, True)])
    return history.end()


def written_by_one_that_was_rolled_back(history: History) -> Facts:
    history.facts.effects.append(Effect("parked", 1, True))
    return history.end()


def stale_result_accepted(history: History) -> Facts:
    # It did not end the lease of its epoch: that one was taken over.
    history.tell("lapsed", 1, WORKER, "accepted")
    return history.end()


def sample_differs(history: History) -> Facts:
    history.facts.batch_samples.append(1)
    return history.end()


def counters_differ(history: History) -> Facts:
    history.facts.batches.append(Batch("wrong", (2, 1, 0, 0, 0), (2, 2, 0, 0, 0), False, 0, 0))
    return history.end()


def batch_completed_twice(history: History) -> Facts:
    history.facts.batches.append(Batch("twice", (2, 2, 0, 0, 0), (2, 2, 0, 0, 0), True, 2, 0))
    return history.end()


def reply_missing(history: History) -> Facts:
    history.facts.replies.remove("plain")
    return history.end()


def reply_twice(history: History) -> Facts:
    history.facts.replies.append("plain")
    return history.end()


def reply_of_nobody(history: History) -> Facts:
    history.facts.replies.append("ghost")
    return history.end()


def message_of_an_ended_one(history: History) -> Facts:
    history.facts.messages.append((5, "plain"))
    return history.end()


def message_of_nobody(history: History) -> Facts:
    history.facts.messages.append((5, None))
    return history.end()


def open_without_a_message(history: History) -> Facts:
    history.send("adrift")
    return history.end()


def leased_after_its_end(history: History) -> Facts:
    facts = history.end()
    facts.rows[0] = replace(facts.rows[0], holder=WORKER)
    return facts


def audit_tells_another_state(history: History) -> Facts:
    facts = history.end()
    facts.rows[0] = replace(facts.rows[0], status="CANCELED")
    return facts


def audit_has_an_impossible_step(history: History) -> Facts:
    history.event("plain", "RECEIVED")
    history.event("plain", "COMPLETED")
    return history.end()


def created_without_a_word(history: History) -> Facts:
    facts = history.end()
    facts.changes.append(Change(99, 1.0, "mute", None, "PENDING", 0, 0, None, None, None))
    return facts


def too_many_attempts(history: History) -> Facts:
    facts = history.end()
    facts.rows[0] = replace(facts.rows[0], attempts=4)
    return facts


def two_sends_acknowledged(history: History) -> Facts:
    history.facts.sends.append(Send("plain", "ok", history.now))
    return history.end()


def created_twice(history: History) -> Facts:
    facts = history.end()
    facts.events.append(Event(99, 1.0, "plain", "SENT"))
    return facts


def duplicate_of_nothing(history: History) -> Facts:
    history.facts.sends.append(Send("ghost", "duplicate", history.now))
    return history.end()


BROKEN: list[tuple[str, Break]] = [
    ("I1", lost),
    ("I1", left_open),
    ("I2", from_nowhere),
    ("I3", finished_twice),
    ("I3", changed_after_its_end),
    ("I4", leased_too_early),
    ("I5", epoch_falls),
    ("I5", epoch_given_twice),
    ("I5", two_holders_of_one_epoch),
    ("I6", done_without_effect),
    ("I6", run_again_without_a_reason),
    ("I6", started_twice_in_one_lease),
    ("I6", written_twice),
    ("I6", written_by_one_that_was_rolled_back),
    ("I7", stale_result_accepted),
    ("I8", sample_differs),
    ("I8", counters_differ),
    ("I9", batch_completed_twice),
    ("I10", reply_missing),
    ("I10", reply_twice),
    ("I10", reply_of_nobody),
    ("I11", message_of_an_ended_one),
    ("I11", message_of_nobody),
    ("I11", open_without_a_message),
    ("I11", leased_after_its_end),
    ("I12", audit_tells_another_state),
    ("I12", audit_has_an_impossible_step),
    ("I12", created_without_a_word),
    ("I13", too_many_attempts),
    ("I14", two_sends_acknowledged),
    ("I14", created_twice),
    ("I14", duplicate_of_nothing),
]


@pytest.mark.parametrize(
    ("invariant", "breaks"), BROKEN, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_broken_history_is_refused_by_its_invariant(invariant: str, breaks: Break) -> None:
    assert invariant in broken(breaks(sound()))


def test_every_invariant_has_a_history_that_it_refuses() -> None:
    assert {invariant for invariant, _ in (*BROKEN, *BROKEN_FLOW)} == set(INVARIANTS)


def test_only_the_invariants_that_were_asked_for_are_checked() -> None:
    facts = lost(sound())
    assert check(facts, ("I2", "I13")) == []
    assert [violation.subject for violation in check(facts, ("I1",))] == ["plain"]


def test_a_retry_by_an_operator_opens_the_way_to_another_end() -> None:
    history = sound()
    history.change("parked", "PENDING")
    history.event("parked", "OPERATOR_RETRY")
    history.claim("parked")
    history.start("parked")
    history.finish("parked")
    assert check(history.end()) == []


def test_further_runs_are_split_into_those_that_a_lapse_explains_and_others() -> None:
    history = sound()
    assert list(extra_runs(history.facts)) == [("lapsed", 1, 0)]
    history.epochs["lapsed"] = 3
    history.start("lapsed")
    assert list(extra_runs(history.facts)) == [("lapsed", 1, 1)]


def test_a_remark_changes_no_state_when_the_audit_is_folded() -> None:
    trail = [Event(1, 0.0, "a", "SENT"), Event(2, 0.0, "a", "NOTE"), Event(3, 0.0, "a", "CANCELED")]
    assert fold(trail) == ("CANCELED", None)
    assert fold(trail[1:])[1] == "CANCELED in state None (audit 3)"
