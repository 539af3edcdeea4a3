"""docs/lifecycle.md against the SQL functions: no arrow, guard or event without a line there."""

from __future__ import annotations

from collections import defaultdict

import pytest

from commandbus import AuditEventType, CommandStatus
from tests.docs.functions import (
    Change,
    all_functions,
    batch_moves,
    changes,
    created_states,
    deleting,
    event_writers,
    function_texts,
    reached,
    reply_outcomes,
)
from tests.docs.markdown import (
    DOCS,
    ROOT,
    blocks,
    codes,
    diagram_arrows,
    state_diagram,
    table_with,
)

PAGE = DOCS / "lifecycle.md"
FUNCTIONS = all_functions(function_texts())
#: Written beside an arrow's own events, and explained in prose and in the table of events.
ASIDES = {
    AuditEventType.STALE_RESULT_REJECTED,
    AuditEventType.BATCH_COMPLETED,
    AuditEventType.BATCH_REOPENED,
    AuditEventType.EDIT_PROPOSED,
    AuditEventType.EDIT_REJECTED,
    AuditEventType.EDIT_DROPPED,
    AuditEventType.GOVERNANCE_BYPASSED,
}
NEW = "[*]"
#: How a batch counts a command in this state.
CLASSES = {"IN_TROUBLESHOOTING_QUEUE": "tsq", "PENDING": "open", "IN_PROGRESS": "open"}


def arrows() -> list[dict[str, str]]:
    return table_with(PAGE, "from", "to", "function", "guard")


def documented_changes() -> set[Change]:
    """The rows of one function are one change, as its one UPDATE is."""
    after: dict[str, set[str]] = defaultdict(set)
    guards: dict[str, set[str]] = defaultdict(set)
    for row in arrows():
        (name,) = codes(row["function"])
        after[name] |= set(codes(row["to"]))
        guards[name].add(row["guard"])
    found = set()
    for name, (guard, *others) in guards.items():
        assert not others, f"{name} has two guards in the table"
        is_leased = False if "not leased" in guard else True if "leased" in guard else None
        found.add(Change(name, frozenset(codes(guard)), is_leased, frozenset(after[name])))
    return found


def real_changes(texts: dict[str, str] | None = None) -> set[Change]:
    """What the SQL does: the updates that change a state, and the inserts."""
    functions = all_functions(texts or function_texts())
    updates = {change for change in changes(functions) if change.after}
    inserts = {
        Change(name, frozenset(), None, frozenset({state}))
        for name, state in created_states(functions)
    }
    return updates | inserts


def test_every_arrow_and_guard_in_the_sql_is_in_the_table_and_the_reverse() -> None:
    assert real_changes() == documented_changes()


def test_an_arrow_begins_in_a_state_that_its_guard_allows() -> None:
    for row in arrows():
        (start,) = codes(row["from"])
        assert start in codes(row["guard"]) or start == NEW, row


MUTATIONS = {
    "a guard that allows more": (
        "receiving",
        "'IN_PROGRESS')\n           and (c.msg_id = m.msg_id",
        "'IN_PROGRESS', 'COMPLETED')\n           and (c.msg_id = m.msg_id",
    ),
    "a guard that is gone": ("operator", "and c.status = p_from and c.leased_by is null", ""),
    "a lease that is not asked for": (
        "operator",
        "and c.status = p_from and c.leased_by is null",
        "and c.status = p_from",
    ),
    "a lease of a worker that is not asked for": (
        "leases",
        "and c.lease_epoch = i.lease_epoch and c.leased_by is not null\n       and c.status",
        "and c.lease_epoch = i.lease_epoch\n       and c.status",
    ),
    "another end": ("outcomes", "p_items, 'COMPLETED', false", "p_items, 'FAILED', false"),
    "another end, named by a caller": (
        "operator",
        "'IN_TROUBLESHOOTING_QUEUE', 'CANCELED',",
        "'IN_TROUBLESHOOTING_QUEUE', 'FAILED',",
    ),
    "another beginning, named by a caller": (
        "operator",
        "p_command_ids, 'PENDING', 'CANCELED',",
        "p_command_ids, 'IN_PROGRESS', 'CANCELED',",
    ),
    "a new function": (
        "outcomes",
        "create or replace function commandbus.fail_commands",
        "create or replace function commandbus.expire_commands() returns void language sql as $$\n"
        "update commandbus.command_bus_command c set status = 'FAILED'"
        " where c.status = 'PENDING';\n$$;\n"
        "create or replace function commandbus.fail_commands",
    ),
    "a new kind of row": ("sending", "i.type, 'PENDING', i.max", "i.type, 'COMPLETED', i.max"),
    "a stored row in another state": (
        "dispatch",
        "i.type, 'PENDING', i.max",
        "i.type, 'IN_PROGRESS', i.max",
    ),
    "a caller that allows more": (
        "batches",
        "array['IN_TROUBLESHOOTING_QUEUE', 'FAILED'], p_actor",
        "array['IN_TROUBLESHOOTING_QUEUE', 'FAILED', 'COMPLETED'], p_actor",
    ),
    "a caller that allows less": (
        "batches",
        "array['IN_TROUBLESHOOTING_QUEUE', 'FAILED'], p_actor",
        "array['IN_TROUBLESHOOTING_QUEUE'], p_actor",
    ),
    "another caller": (
        "search",
        "create or replace function commandbus.find_domains",
        "create or replace function commandbus.revive() returns void language sql as $$\n"
        "select commandbus.requeue_commands('shop', '{}', array['CANCELED'], null, true);\n$$;\n"
        "create or replace function commandbus.find_domains",
    ),
    "a guard by argument that is gone": ("operator", " and c.status = any(p_from);", ";"),
    "a giving up that asks for no state": (
        "recovery",
        "and c.status = 'PENDING' and c.msg_id is null\n"
        "           and c.dispatch_status in ('pending_queue', 'pending_retry', 'queued')\n"
        "           and c.queue_attempt_count + 1 >=",
        "and c.msg_id is null\n           and c.queue_attempt_count + 1 >=",
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_comparison_notices(mutation: str) -> None:
    file, old, new = MUTATIONS[mutation]
    texts = function_texts()
    assert texts[file].count(old) >= 1, "the SQL has changed: choose another place to break"

    texts[file] = texts[file].replace(old, new, 1)

    assert real_changes(texts) != documented_changes()


def test_a_guard_with_a_way_round_it_is_refused() -> None:
    texts = function_texts()
    texts["operator"] = texts["operator"].replace(
        "c.status = p_from and c.leased_by is null", "c.status in ('PENDING') or true"
    )

    with pytest.raises(AssertionError, match="way round"):
        real_changes(texts)


def test_functions_that_write_without_an_arrow_are_listed() -> None:
    documented = {
        name
        for row in table_with(PAGE, "function", "what changes")
        for name in codes(row["function"])
    }

    assert {change.function for change in changes(FUNCTIONS) if not change.after} == documented
    assert deleting(FUNCTIONS) == {"take_back", "remove_commands"}


def test_the_events_of_each_arrow_are_those_that_its_function_writes() -> None:
    documented: dict[str, set[str]] = defaultdict(set)
    for row in arrows():
        documented[codes(row["function"])[0]] |= set(codes(row["audit events"]))
    writers = event_writers(FUNCTIONS)

    for name, events in documented.items():
        helpers = reached(name, FUNCTIONS, borders=set(documented))
        written = {event for event, by in writers.items() if by & helpers}
        assert events == written - ASIDES, name


def test_the_reply_and_the_batch_counter_of_each_arrow_are_those_of_its_function() -> None:
    counted: dict[str, set[str]] = defaultdict(set)
    for row in arrows():
        (name,) = codes(row["function"])
        assert set(codes(row["reply"])) == reply_outcomes(name, FUNCTIONS), name
        counted[name] |= {row["batch"]} - {"-"}
    for name, moves in counted.items():
        assert moves == batch_moves(name, FUNCTIONS), name


def test_a_batch_counts_a_command_out_of_the_class_of_its_old_state() -> None:
    for row in arrows():
        (start,) = codes(row["from"])
        left, arrow, _ = row["batch"].partition(" -> ")
        if arrow:
            assert left == CLASSES.get(start, start.lower()), row


def test_a_reply_is_published_exactly_when_a_command_ends() -> None:
    for row in arrows():
        (end,) = codes(row["to"])
        assert bool(codes(row["reply"])) == CommandStatus(end).is_terminal, row


def test_every_event_is_documented_with_its_writer() -> None:
    rows = table_with(PAGE, "event", "written by")
    documented = {codes(row["event"])[0]: set(codes(row["written by"])) for row in rows}

    assert set(documented) == set(AuditEventType)
    assert documented == event_writers(FUNCTIONS)


def test_every_state_is_documented_with_whether_it_is_the_end() -> None:
    rows = table_with(PAGE, "status", "meaning", "ended?")

    assert {codes(row["status"])[0]: row["ended?"] for row in rows} == {
        status.value: "yes" if status.is_terminal else "no" for status in CommandStatus
    }


def test_the_diagram_has_the_arrows_of_the_table() -> None:
    table = {(codes(row["from"])[0], codes(row["to"])[0]) for row in arrows()}

    assert diagram_arrows(state_diagram(PAGE)) == table


def test_the_readme_draws_no_arrow_that_is_not_in_the_table() -> None:
    table = {(codes(row["from"])[0], codes(row["to"])[0]) for row in arrows()}
    ends = {(status.value, NEW) for status in CommandStatus if status.is_terminal}
    drawn = diagram_arrows(state_diagram(ROOT / "README.md"))

    assert drawn <= table | ends
    assert {state for arrow in drawn for state in arrow} - {NEW} == set(CommandStatus)


def test_the_page_shows_one_diagram() -> None:
    assert len(blocks(PAGE, "mermaid")) == 1
