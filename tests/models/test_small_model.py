"""M1: every state of a small world is visited; each guard of the SQL functions is needed."""

from __future__ import annotations

import os

import pytest

from tests.models.small_model import GUARDS, IMPLIED, Bounds, Found, Model, search

pytestmark = pytest.mark.long

#: Small worlds, each with something else in it: all of it at once would be millions of states.
WORLDS = {
    "operators and a lapse": Bounds(1, operators=2, lapses=1),
    "lapses, crashes and lost answers": Bounds(1, lapses=2, crashes=1),
    "copies and repeats": Bounds(1, operators=1, strays=1, crashes=1, resends=1),
    "stored commands": Bounds(1, operators=1, strays=1, stored=2),
    "requests to cancel": Bounds(1, operators=1, lapses=1, requests=2),
    "two of a batch, and an operator": Bounds(2, operators=1),
    "two of a batch, and a lapse": Bounds(2, lapses=1),
}
#: MODEL_STATES=3000000 searches all of it at once, up to so many states.
MOST_STATES = int(os.environ.get("MODEL_STATES", "0"))


def search_worlds(guard: str) -> Found:
    """The shortest counterexample of the first world that has one; batches have worlds of two."""
    is_of_batch = guard.startswith(("batch.", "join."))
    for bounds in sorted(WORLDS.values(), key=lambda world: (world.commands == 2) != is_of_batch):
        found = search(Model(frozenset({guard})), bounds)
        if found.problem:
            return found
    return Found(0)


@pytest.mark.parametrize("world", WORLDS)
def test_with_all_guards_nothing_goes_wrong_in_any_state(world: str) -> None:
    found = search(Model(), WORLDS[world])
    assert found.problem == "", str(found)
    assert found.states > 4_000  # the world is not empty


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_there_is_a_counterexample(guard: str) -> None:
    found = search_worlds(guard)
    print(f"without {guard} ({GUARDS[guard]}): {found}")
    assert found.problem, f"nothing goes wrong without {guard}: is it needed?"
    assert len(found.trace) < 15


@pytest.mark.parametrize("guard", IMPLIED)
def test_a_guard_that_others_imply_is_not_missed(guard: str) -> None:
    # If this fails, the guard has become needed: move it to GUARDS.
    world = (
        "two of a batch, and an operator" if guard.startswith("batch.") else "copies and repeats"
    )
    found = search(Model(frozenset({guard})), WORLDS[world])
    assert found.problem == "", str(found)


def test_the_fence_alone_holds_off_a_zombie() -> None:
    found = search(Model(frozenset({"outcome.lease_epoch"})), Bounds(1, lapses=1))
    assert found.problem == "the result of a lost lease was accepted"
    assert found.trace == (
        "send 0 into the batch",
        "worker 0 reads message 1",
        "worker 0 leases 0",
        "lease of message 1 lapses",
        "worker 0 reads message 1",
        "worker 0 leases 0",
        "worker 0 completes 0",
    )


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not MOST_STATES, reason="MODEL_STATES says how many states to visit")
def test_with_all_guards_nothing_goes_wrong_in_a_large_world() -> None:
    bounds = Bounds(2, operators=2, lapses=2, strays=1, resends=1, crashes=1, stored=1)
    found = search(Model(), bounds, most_states=MOST_STATES)
    assert found.problem == "", str(found)
    print(f"{found.states} states")
