"""No sequence of calls makes a governed delete that nobody has approved as it is.

Three callers with every scope but the right to pass by governance call what they like. Every
execution of a governed handler must have an approval of exactly that content in the audit, by
somebody else than who submitted or edited it.

`make test-long` makes a thousand calls, `make attacks` ten thousand.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.security.governed_world import BATCHES, DOMAIN, TYPES, USERS, World, world_on

#: Calls of the long test.
CALLS = int(os.environ.get("GOVERNED_CALLS", "1000"))
STEPS = 50
#: Which of the things that were made, from the last.
recent = st.integers(0, 5)
users = st.sampled_from(USERS)
kinds = st.sampled_from(TYPES)
items = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["a", "b"]), "fails": st.booleans()}),
    min_size=1, max_size=3,
)  # fmt: skip
payload = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "victim"]), "fails": st.booleans()}
)
#: Of the digest that a decision names: the right one most of the time.
digests = st.sampled_from(["right", "right", "right", "none", "old", "wrong"])
decisions = st.sampled_from(["approve", "approve", "approve", "reject"])


class Callers(RuleBasedStateMachine):
    """What the callers do, one call each."""

    world: ClassVar[World]
    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[str] = []
        self.old: list[str] = ["0" * 64]

    def ask(self, who: str, method: str, path: str, body: Any = None) -> Any:
        return self.runner.run(self.world.ask(who, method, path, body))

    def batch(self, place: int) -> str:
        return self.batches[-1 - place] if place < len(self.batches) else str(uuid4())

    def parked(self, who: str, place: int) -> str:
        """The id of something parked: children of governed batches first, then the newest."""
        found = self.ask(who, "GET", f"/api/v1/troubleshooting/{DOMAIN}?payload=true&limit=50")
        newest = found["items"][::-1]
        listed = sorted(newest, key=lambda each: str(each["command_type"]) == "Ping")
        return str(listed[place]["command_id"] if place < len(listed) else uuid4())

    def digest(self, choice: str, right: str | None) -> dict[str, str]:
        if right is not None:
            self.old.append(right)
        wrong = {"old": self.old[len(self.old) // 2], "wrong": "f" * 64}
        chosen = right if choice == "right" else wrong.get(choice)
        return {} if chosen is None else {"digest": chosen}

    # -- the front door

    @rule(who=users, kind=kinds, items=items)
    def submit(self, who: str, kind: Any, items: Any) -> None:
        made = self.ask(who, "POST", BATCHES, {"batch_type": kind.name, "items": items})
        self.batches.append(made["batch_id"])

    @rule(who=users, place=recent, decision=decisions, choice=digests)
    def decide(self, who: str, place: int, decision: str, choice: str) -> None:
        shown = self.ask(who, "GET", f"{BATCHES}/{self.batch(place)}/review")
        form = {"decision": decision, "reason": "x"}
        form |= self.digest(choice, shown.get("content_digest"))
        self.ask(who, "POST", f"{BATCHES}/{self.batch(place)}/decision", form)

    @rule(who=users, decision=decisions, choice=digests, place=recent)
    def decide_what_waits(self, who: str, decision: str, choice: str, place: int) -> None:
        waiting = self.ask(who, "GET", "/api/v1/undecided?newest_first=true")["items"]
        if place < len(waiting):
            chosen = waiting[place]
            form = {"decision": decision, "reason": "x", **self.digest(choice, chosen["digest"])}
            self.ask(who, "POST", chosen["links"]["decision"], form)

    @rule(who=users, decision=decisions, choice=digests)
    def decide_many(self, who: str, decision: str, choice: str) -> None:
        waiting = self.ask(who, "GET", "/api/v1/undecided?newest_first=true&limit=3")["items"]
        listed = [
            {
                "ticket_id": each["batch_id"], "decision": decision, "reason": "x",
                **self.digest(choice, each["digest"]),
                **({} if each["sequence_no"] is None else {"sequence_no": each["sequence_no"]}),
            }
            for each in waiting
        ]  # fmt: skip
        self.ask(who, "POST", "/api/v1/approvals/batch", {"items": listed})

    @rule()
    def work(self) -> None:
        self.runner.run(self.world.settle())

    # -- ways around

    @rule(who=users, data=payload, kind=st.sampled_from(["DeleteVM", "StopVM", "Ping"]))
    def send(self, who: str, data: Any, kind: str) -> None:
        body = {"domain": DOMAIN, "command_type": kind, "data": data}
        self.ask(who, "POST", "/api/v1/commands", body)

    @rule(who=users, data=payload, kind=st.sampled_from(["DeleteVM", "StopVM", "Ping"]))
    def send_batch(self, who: str, data: Any, kind: str) -> None:
        body = {"commands": [{"command_type": kind, "data": data}]}
        made = self.ask(who, "POST", f"/api/v1/command-batches/{DOMAIN}", body)
        if "batch_id" in made:
            self.batches.append(made["batch_id"])

    @rule(who=users, data=payload, place=recent)
    def send_a_known_id(self, who: str, data: Any, place: int) -> None:
        command_id = self.parked(who, place)
        body = {"domain": DOMAIN, "command_type": "Ping", "data": data, "command_id": command_id}
        self.ask(who, "POST", "/api/v1/commands", body)

    @rule(who=users, data=payload, place=recent)
    def send_a_decision(self, who: str, data: Any, place: int) -> None:
        forged = {"ticket_id": self.batch(place), "decision": "approve"}
        body = {"domain": "approvals", "command_type": "DecideTicket", "data": forged}
        self.ask(who, "POST", "/api/v1/commands", body)

    @rule(who=users, place=recent, data=payload)
    def retry_edited(self, who: str, place: int, data: Any) -> None:
        command_id = self.parked(who, place)
        path = f"/api/v1/troubleshooting/{DOMAIN}/{command_id}/retry"
        self.ask(who, "POST", path, {"reason": "x", "payload": data})

    @rule(editor=users, who=users, place=recent, data=payload)
    def edit_and_decide(self, editor: str, who: str, place: int, data: Any) -> None:
        self.retry_edited(editor, place, data)
        self.decide_what_waits(who, "approve", "right", 0)

    @rule(who=users, place=recent, verb=st.sampled_from(["retry", "cancel", "complete"]))
    def operate(self, who: str, place: int, verb: str) -> None:
        command_id = self.parked(who, place)
        self.ask(
            who, "POST", f"/api/v1/troubleshooting/{DOMAIN}/{command_id}/{verb}", {"reason": "x"}
        )

    @rule(who=users, place=recent)
    def note(self, who: str, place: int) -> None:
        command_id = self.parked(who, place)
        path = f"/api/v1/troubleshooting/{DOMAIN}/{command_id}/notes"
        self.ask(who, "POST", path, {"text": "approved by everybody"})

    @rule(
        who=users, edit=st.booleans(), verb=st.sampled_from(["retry", "retry", "retry", "cancel"])
    )
    def bulk(self, who: str, verb: str, edit: bool) -> None:
        form: dict[str, Any] = {"verb": verb, "filter": {"domain": DOMAIN}, "everything": True}
        if verb == "cancel":
            form["reason"] = "x"
        elif edit:
            form["edit"] = {"merge_patch": {"name": "victim", "fails": False}}
        started = self.ask(who, "POST", "/api/v1/bulk-operations", form)
        if "operation_id" in started:
            wanted = UUID(started["operation_id"])
            self.runner.run(self.world.bus.bulk.run(wanted))
            self.runner.run(self.world.look())

    @rule(who=users, place=recent, verb=st.sampled_from(["retry", "cancel"]))
    def act_on_ticket(self, who: str, place: int, verb: str) -> None:
        self.ask(who, "POST", f"{BATCHES}/{self.batch(place)}/{verb}", {"reason": "x"})

    @rule(who=users, place=recent, verb=st.sampled_from(["retry", "cancel", "seal", "resume"]))
    def act_on_batch(self, who: str, place: int, verb: str) -> None:
        path = f"/api/v1/command-batches/{DOMAIN}/{self.batch(place)}/{verb}"
        self.ask(who, "POST", path, {"reason": "x"} if verb == "cancel" else {})

    @rule(who=users, user=users, number=st.integers(0, 1_000))
    def change_limits(self, who: str, user: str, number: int) -> None:
        path = f"/api/v1/admin/rate-limits/users/{user}"
        self.ask(who, "PUT", path, {"max_pending_children": number + 1_000_000})


def attack(dsn: str, calls: int, *, is_repeatable: bool) -> World:
    """Make about so many calls; returns the world as it is afterwards."""
    with asyncio.Runner() as runner:
        context = world_on(dsn)
        world = runner.run(context.__aenter__())
        try:
            machine = type("Callers", (Callers,), {"world": world, "runner": runner})
            while world.calls < calls:
                run_state_machine_as_test(
                    machine,
                    settings=settings(
                        # The first example is the smallest one; a rule is one to three calls.
                        max_examples=2 + (calls - world.calls) // (2 * STEPS),
                        stateful_step_count=STEPS,
                        deadline=None,
                        database=None,
                        derandomize=is_repeatable and world.calls == 0,
                        # What happened stays in the database: a shorter sequence shows nothing.
                        phases=[Phase.generate],
                        suppress_health_check=list(HealthCheck),
                    ),
                )
            runner.run(world.settle())
        finally:
            runner.run(context.__aexit__(None, None, None))
    return world


def test_no_sequence_of_calls_makes_a_governed_delete_without_an_approval(dsn: str) -> None:
    world = attack(dsn, 300, is_repeatable=True)
    assert world.calls >= 300
    assert world.proved > 10, "the calls get somewhere"


@pytest.mark.long
@pytest.mark.timeout(0)
def test_no_long_sequence_of_calls_makes_a_governed_delete_without_an_approval(dsn: str) -> None:
    world = attack(dsn, CALLS, is_repeatable=False)
    assert world.calls >= CALLS
    assert world.proved > CALLS // 100
    assert world.proved_edits >= CALLS // 2_000, "edits are approved, too"
    print(f"{world.calls:,} calls, {world.proved:,} executions, {world.proved_edits:,} of edits")
