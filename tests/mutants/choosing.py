"""Which tests a mutant has to pass: those that call its function, the most focused first."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from commandbus.database.migrations import FUNCTION_FILES
from tests.mutants.forks import ROOT
from tests.mutants.lab import Lab
from tests.mutants.sql_sites import Mutant, function_source, statements

#: What the calls are recorded of. Not the plans, which look at speed, nor the catalog's texts.
RECORDED = (
    "tests/sql", "tests/models/test_interleavings.py", "tests/integration/test_bulk.py",
    "tests/integration/test_dispatch.py", "tests/integration/test_recovery.py",
    "tests/integration/test_recovery_dispatch.py", "tests/integration/test_loading.py",
    "tests/integration/test_governance.py", "tests/integration/test_governance_approvals.py",
    "tests/integration/test_governance_limits.py", "tests/integration/test_batches.py",
    "tests/integration/test_left_in_domain.py", "tests/integration/test_shard_fence.py",
    "tests/integration/test_audit_part_places.py",
)  # fmt: skip
LEFT_OUT = ("tests/sql/test_plans.py", "tests/sql/test_catalog.py")
#: The files that have a function file's own subject come first. For functions that the server does
#: not count, because they are inlined, there are only these, and the files that name them.
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "basics": ("test_support",),
    "queues": ("test_support", "test_queue_head", "test_locks", "test_commands"),
    "locks": ("test_locks", "test_lock_order", "test_support"),
    "audit": ("test_audit", "test_reads", "test_read_twins"),
    "workers": ("test_recovery_rules", "test_support"),
    "payloads": ("test_operator_rules", "test_reads"),
    "replies": ("test_outcomes", "test_service"),
    "batches": ("test_batches", "test_repair", "test_locks", "test_interleavings"),
    "troubleshooting": ("test_groups", "test_reads", "test_read_twins", "test_service"),
    "outcomes": ("test_second_times", "test_outcomes", "test_locks", "test_transitions"),
    "settle": ("test_outcomes", "test_locks", "test_interleavings"),
    "sending": ("test_sending", "test_commands", "test_locks"),
    "receiving": (
        "test_receive_guards",
        "test_twins",
        "test_lock_order",
        "test_second_times",
        "test_commands",
        "test_locks",
        "test_transitions",
    ),
    "leases": (
        "test_lease_guards",
        "test_twins",
        "test_time_twins",
        "test_second_times",
        "test_outcomes",
        "test_commands",
        "test_lapsed_and_stopped",
        "test_cancels",
        "test_locks",
    ),
    "dispatch": ("test_stored", "test_recovery_rules", "test_cancel_of_stored", "test_dispatch"),
    "recovery": ("test_recovery_rules", "test_stored", "test_recovery_dispatch"),
    "loading": ("test_loads", "test_loading"),
    "operator": (
        "test_operator_rules",
        "test_transitions",
        "test_commands",
        "test_outcomes",
        "test_cancel_of_stored",
        "test_locks",
    ),
    "bulk": ("test_bulk_twins", "test_bulk"),
    "bulk_run": ("test_bulk_twins", "test_bulk"),
    "figures": ("test_service", "test_reads"),
    "search": ("test_read_twins", "test_search"),
    "doctor": ("test_doctor_twins", "test_doctor_rules", "test_doctor", "test_repair"),
    "doctor_server": ("test_doctor_rules", "test_doctor_twins", "test_doctor"),
    "repair": ("test_doctor_twins", "test_repair"),
    "retention": ("test_retention_twins", "test_retention", "test_retention_rules"),
    "retention_batches": ("test_retention_twins", "test_retention"),
    "limits": ("test_governance", "test_governance_rules", "test_governance_limits"),
    "governance": ("test_governance_rules", "test_governance", "test_governance_approvals"),
    "tokens": ("test_tokens",),
    "settings": ("test_support",),
    "flow": (
        "test_flow_guards",
        "test_flow_twins",
        "test_pause",
        "test_flow",
        "test_gates",
        "test_keys",
    ),
    "pause": (
        "test_next_pause_end",
        "test_flow_races",
        "test_flow_twins",
        "test_time_twins",
        "test_pause",
        "test_gates",
    ),
    "expiry": (
        "test_flow_races",
        "test_time_twins",
        "test_flow",
        "test_outcomes",
        "test_second_times",
    ),
    "timetable": ("test_timetable_guards", "test_flow", "test_reschedule"),
    "reschedule": (
        "test_reschedule_guards",
        "test_time_twins",
        "test_reschedule",
    ),
    "cancels": ("test_time_twins", "test_cancels", "test_outcomes", "test_second_times"),
    "gates": (
        "test_gate_guards",
        "test_flow_races",
        "test_flow_twins",
        "test_gates",
        "test_gate_races",
    ),
    "gate_places": (
        "test_gate_shares",
        "test_new_limits",
        "test_flow_races",
        "test_flow_twins",
        "test_gates",
        "test_gate_races",
    ),
    "gate_rules": (
        "test_new_limits",
        "test_flow_races",
        "test_flow_twins",
        "test_gates",
    ),
    "gate_reads": (
        "test_token_guards",
        "test_gate_guards",
        "test_gate_shares",
        "test_flow_twins",
        "test_gates",
        "test_emptying",
    ),
    "activity": ("test_activity",),
    "gate_upkeep": (
        "test_gate_doctor_twins",
        "test_place_guards",
        "test_chore_guards",
        "test_gate_guards",
        "test_gate_chore",
        "test_flow_races",
        "test_flow_twins",
        "test_gates",
        "test_gate_races",
        "test_doctor",
    ),
    "keys": (
        "test_key_twins",
        "test_flow_twins",
        "test_keys",
        "test_key_races",
        "test_key_interleavings",
    ),
    "key_turns": ("test_key_twins", "test_keys", "test_key_races", "test_key_interleavings"),
    "key_operator": (
        "test_flow_races",
        "test_flow_twins",
        "test_keys",
    ),
    "key_reads": (
        "test_key_twins",
        "test_key_repair",
        "test_flow_twins",
        "test_keys",
    ),
    "key_doctor": ("test_key_doctor_twins", "test_key_repair", "test_key_twins"),
    "levels": ("test_level_guards", "test_timetable_guards", "test_levels"),
    "schedules": (
        "test_flow_races",
        "test_time_twins",
        "test_schedules",
    ),
    "firing": (
        "test_flow_races",
        "test_time_twins",
        "test_schedules",
    ),
    "unique": ("test_unique_twins", "test_unique"),
    "unique_sends": ("test_unique_twins", "test_unique", "test_sending"),
    "progress": (
        "test_progress_guards",
        "test_cancels",
    ),
    "emptying": ("test_progress_guards", "test_emptying"),
    "handover": ("test_handed_over",),
    "shards": ("test_shard_guards", "test_moves", "test_left_in_domain", "test_shard_fence"),
    "moving": ("test_moves", "test_moving_chores", "test_moved_parts"),
    "moving_parts": ("test_moved_parts",),
    "moving_audit": ("test_moved_parts",),
    "audit_parts": ("test_audit_parts", "test_audit_part_locks", "test_audit_part_places"),
    "audit_drops": ("test_audit_parts", "test_audit_part_locks", "test_retention_behind"),
}


#: Tests that have every fault of the doctor in turn: they tell of most of its mutants.
OF_ALL_FAULTS = (
    "tests/sql/test_doctor.py::test_each_of_the_injected_faults_is_named_and_no_other",
    "tests/sql/test_doctor_twins.py::test_each_fault_is_found_in_its_own_domain_and_in_no_other",
)


#: How much more likely than any other caller a test is to tell: one that was written for this kind
#: of guard, one that has told of this function before, one that names it, one of its subject.
LIKELY, KILLER, NAMED, SUBJECT = 10.0, 8.0, 2.0, 8.0
#: Mutants of what is locked, and in which order.
LOCKS = {"lock order", "for update", "skip locked"}
#: What a test costs at least, in seconds, and what one costs of which that is not known.
LEAST_COST, USUAL_COST = 0.1, 1.0


class CallMap:
    """Test -> the functions it calls, and how long it takes."""

    def __init__(self, calls: Mapping[str, Sequence[str]], took: Mapping[str, float]) -> None:
        self.calls = calls
        self.took = took
        self._killers: dict[str, list[str]] = {}
        self._callers: dict[str, set[str]] = {}
        for test, names in calls.items():
            for name in names:
                self._callers.setdefault(name, set()).add(test)

    def killed_by(self, mutant: Mutant, test: str) -> None:
        """Remember who told: it is likely to tell of the next mutant of the function as well."""
        if test in self.calls:
            self._killers.setdefault(mutant.function, []).append(test)

    def callers(self, function: str) -> set[str]:
        """The tests that reach a function: of one that is inlined, those of what calls it."""
        found: set[str] = set()
        seen, wanted = set(), [function]
        while wanted:
            name = wanted.pop()
            seen.add(name)
            counted = self._callers.get(name, set())
            found |= counted or {test for test in self.calls if f".{name}(" in _text_of(test)}
            if not counted:
                wanted += [caller for caller in _sql_callers(name) if caller not in seen]
        return found

    def tests_for(self, mutant: Mutant) -> list[str]:
        """The tests of a mutant, in the order to run them."""
        subjects = SUBJECTS.get(mutant.file, ())
        # The server counts no call that ends with an error: what can refuse is tried by all tests
        # of its subject too.
        can_refuse = "raise exception" in mutant.statement
        callers = self.callers(mutant.function)
        callers |= {
            test
            for test in self.calls
            if mutant.function in _text_of(test) or (can_refuse and _file_of(test) in subjects)
        }
        first = _likely(mutant)
        is_lock = mutant.kind in LOCKS
        killers = self._killers.get(mutant.function, [])

        def worth(test: str) -> float:
            """How likely it tells, for the time it takes."""
            file, text = _file_of(test), _text_of(test)
            chance = 1.0
            if test in killers:
                chance *= KILLER
            if f"commandbus.{mutant.function}(" in text or test in OF_ALL_FAULTS:
                chance *= NAMED
            if file in subjects:
                chance *= SUBJECT / (1 + subjects.index(file) / 4)
            if mutant.kind == "if" and can_refuse and "raises" in text:
                chance *= NAMED
            if file in first:
                chance *= LIKELY
            if file not in first or is_lock:  # who calls much is about something else
                chance /= max(len(self.calls[test]), 10) ** 0.5
            return chance / (LEAST_COST + self.took.get(test, USUAL_COST))

        return sorted(callers, key=worth, reverse=True)


def _likely(mutant: Mutant) -> tuple[str, ...]:
    """The files that were written for this kind of guard."""
    if mutant.kind in LOCKS:
        return ("test_lock_order", "test_flow_races")
    if "pruning_since" in mutant.was:
        return ("test_retention",)
    if "domain" in mutant.was and mutant.kind in {"where", "if"}:
        return (
            "test_twins", "test_twins_apart", "test_bulk_twins", "test_retention_twins",
            "test_doctor_twins", "test_read_twins", "test_flow_twins", "test_time_twins",
            "test_key_twins", "test_gate_twins", "test_receive_guards", "test_lease_guards",
            "test_unique_twins", "test_gate_guards", "test_chore_guards", "test_timetable_guards",
            "test_token_guards", "test_reschedule_guards", "test_flow_guards",
            "test_key_doctor_twins", "test_shard_guards", "test_gate_doctor_twins",
            "test_progress_guards", "test_place_guards",
        )  # fmt: skip
    return ()


def _file_of(test: str) -> str:
    return Path(test.partition("::")[0]).stem


def _text_of(test: str) -> str:
    """What stands in a test."""
    file, _, name = test.partition("::")
    return _texts(file).get(name.partition("[")[0], "")


@cache
def _texts(file: str) -> Mapping[str, str]:
    path = ROOT / file
    if not path.exists():
        return {}
    source = path.read_text(encoding="utf-8")
    return {
        node.name: ast.get_source_segment(source, node) or ""
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@cache
def _sql_callers(function: str) -> list[str]:
    """The SQL functions in whose text a function is called."""
    return [
        name
        for file in FUNCTION_FILES
        for name, _, text in statements(function_source(file))
        if name != function and f".{function}(" in text
    ]


def load_calls(lab: Lab, path: Path) -> CallMap:
    """What the tests call; those are run once that are new or have changed."""
    kept: dict[str, Any] = {"files": {}, "calls": {}, "took": {}}
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
    files: dict[str, list[str]] = {}
    for test in lab.tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    # Those of files that are not collected this time too: they are not run for the next.
    same = {n for n, was in kept["files"].items() if (ROOT / n).exists() and was == _hash(n)}
    for part in ("files", "calls", "took"):
        kept[part] = {t: said for t, said in kept[part].items() if t.partition("::")[0] in same}
    for name in files.keys() - same:
        # Before: a file that is written meanwhile is new the next time.
        digest = _hash(name)
        ran = lab.record(files[name])
        seconds = sum(ran.took.values())
        counted = f"{len(ran.took)} of {len(files[name])} tests"
        print(f"  recorded {name}: {counted}, {seconds:.1f} s", flush=True)
        kept["calls"] |= {test: names for test, names in ran.calls.items() if test in ran.took}
        kept["took"] |= ran.took
        if len(ran.took) == len(files[name]):
            kept["files"][name] = digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    lab.took = kept["took"]
    here = set(lab.tests)
    return CallMap({t: names for t, names in kept["calls"].items() if t in here}, kept["took"])


def collected_files(subjects_of: Collection[str] | None = None) -> list[str]:
    """Where the tests are: all, or those of the subjects of these function files."""
    found: list[str] = []
    for place in RECORDED:
        path = ROOT / place
        paths = sorted(path.glob("test_*.py")) if path.is_dir() else [path]
        found += [str(p.relative_to(ROOT)) for p in paths if p.exists()]
    found = [name for name in found if name not in LEFT_OUT]
    if subjects_of is None:
        return found
    wanted = {subject for file in subjects_of for subject in SUBJECTS.get(file, ())}
    return [name for name in found if Path(name).stem in wanted]


def asked(tests: Sequence[str]) -> str:
    """What a mutant is asked by these tests; another text if one of them has changed."""
    text = "".join(sorted(test + _text_of(test) for test in tests))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hash(name: str) -> str:
    return hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
