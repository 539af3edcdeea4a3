"""A failure of a state machine leaves its steps behind, and is tried first the next time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.models.kept import run_kept


class Counting(RuleBasedStateMachine):
    """Fails when it has counted far enough."""

    most = 3
    runs = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).runs += 1
        self.total = 0

    @rule(n=st.integers(1, 2))
    def add(self, n: int) -> None:
        self.total += n
        assert self.total <= self.most, "too many"


def test_a_failure_leaves_its_steps_in_a_file_and_is_tried_again_first(tmp_path: Path) -> None:
    for _ in range(2):
        Counting.runs = 0
        with pytest.raises(AssertionError, match="too many"):
            run_kept(Counting, examples=50, steps=10, folder=tmp_path)
    kept = sorted(tmp_path.glob("Counting-*.txt"))
    assert kept
    text = kept[0].read_text(encoding="utf-8")
    assert "state.add(n=2)" in text
    assert "AssertionError: too many" in text
    assert any((tmp_path / "examples").iterdir())


def test_a_run_without_a_failure_leaves_nothing(tmp_path: Path) -> None:
    class Harmless(Counting):
        most = 1_000

    run_kept(Harmless, examples=5, steps=5, folder=tmp_path)
    assert list(tmp_path.glob("*.txt")) == []
