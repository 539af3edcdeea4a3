"""Which tests a mutant has to pass: those that call its function, the most focused first."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.mutants.calls import CallRecorder
from tests.mutants.forks import ROOT, run_tests
from tests.mutants.lab import Lab
from tests.mutants.sql_sites import Mutant

#: What the calls are recorded of. Not the plans, which look at speed, nor the catalog's texts.
RECORDED = (
    "tests/sql", "tests/models/test_interleavings.py", "tests/integration/test_bulk.py",
    "tests/integration/test_dispatch.py", "tests/integration/test_recovery.py",
    "tests/integration/test_recovery_dispatch.py", "tests/integration/test_loading.py",
    "tests/integration/test_governance.py", "tests/integration/test_governance_approvals.py",
    "tests/integration/test_governance_limits.py", "tests/integration/test_batches.py",
)  # fmt: skip
LEFT_OUT = ("tests/sql/test_plans.py", "tests/sql/test_catalog.py")
#: Of a function that everything calls, no more than so many tests are run.
MOST_TESTS = 80
#: And of those of the likely files no more than so many before the others.
MOST_LIKELY = 20
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
    "receiving": ("test_second_times", "test_commands", "test_locks", "test_transitions"),
    "leases": ("test_second_times", "test_outcomes", "test_commands", "test_locks"),
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
    "flow": ("test_flow_twins", "test_pause", "test_flow", "test_gates", "test_keys"),
    "pause": ("test_flow_races", "test_flow_twins", "test_time_twins", "test_pause", "test_gates"),
    "expiry": (
        "test_flow_races",
        "test_time_twins",
        "test_flow",
        "test_outcomes",
        "test_second_times",
    ),
    "timetable": ("test_time_twins", "test_flow", "test_reschedule"),
    "reschedule": (
        "test_time_twins",
        "test_reschedule",
    ),
    "cancels": ("test_time_twins", "test_cancels", "test_outcomes", "test_second_times"),
    "gates": ("test_flow_races", "test_flow_twins", "test_gates", "test_gate_races"),
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
        "test_gate_shares",
        "test_flow_twins",
        "test_gates",
    ),
    "activity": ("test_activity",),
    "gate_upkeep": (
        "test_flow_races",
        "test_flow_twins",
        "test_gates",
        "test_gate_races",
        "test_doctor",
    ),
    "keys": ("test_flow_twins", "test_keys", "test_key_races", "test_key_interleavings"),
    "key_turns": ("test_flow_twins", "test_keys", "test_key_races", "test_key_interleavings"),
    "key_operator": (
        "test_flow_races",
        "test_flow_twins",
        "test_keys",
    ),
    "key_reads": (
        "test_flow_twins",
        "test_keys",
    ),
    "key_doctor": ("test_key_repair", "test_doctor"),
    "levels": (
        "test_time_twins",
        "test_levels",
    ),
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
    "unique": (
        "test_time_twins",
        "test_unique",
    ),
    "unique_sends": ("test_time_twins", "test_unique", "test_sending"),
    "progress": (
        "test_time_twins",
        "test_cancels",
    ),
    "emptying": ("test_emptying",),
}


#: Tests that have every fault of the doctor in turn: they tell of most of its mutants.
OF_ALL_FAULTS = (
    "tests/sql/test_doctor.py::test_each_of_the_injected_faults_is_named_and_no_other",
    "tests/sql/test_doctor_twins.py::test_each_fault_is_found_in_its_own_domain_and_in_no_other",
)


class CallMap:
    """Test -> the functions it calls. Kept in a file: recording runs every test once."""

    def __init__(self, calls: Mapping[str, Sequence[str]]) -> None:
        self.calls = calls
        self._killers: dict[str, list[str]] = {}

    def killed_by(self, mutant: Mutant, test: str) -> None:
        """Remember who told: it is likely to tell of the next mutant of the function as well."""
        killers = self._killers.setdefault(mutant.function, [])
        if test in self.calls and test not in killers:
            killers.append(test)

    def tests_for(self, mutant: Mutant) -> list[str]:
        """The tests of a mutant, in the order to run them."""
        subjects = SUBJECTS.get(mutant.file, ())
        # The server counts no call that ends with an error: what can refuse is tried by all tests
        # of its subject too.
        can_refuse = "raise exception" in mutant.statement
        is_counted = any(mutant.function in names for names in self.calls.values())
        callers = [
            test
            for test, names in self.calls.items()
            if mutant.function in names
            or mutant.function in _text_of(test)
            or ((can_refuse or not is_counted) and _file_of(test) in subjects)
            or (not is_counted and _is_named_in(test.partition("::")[0], mutant.function))
        ]
        first = _likely(mutant)

        def rank(test: str) -> tuple[bool, bool, bool, bool, int, int]:
            file, text = _file_of(test), _text_of(test)
            place = subjects.index(file) if file in subjects else len(subjects)
            is_named = f"commandbus.{mutant.function}(" in text or test in OF_ALL_FAULTS
            is_refusal = mutant.kind == "if" and can_refuse and "raises" in text
            calls = len(self.calls[test])
            is_slow = not test.startswith("tests/sql/")
            return not is_named, file not in first, is_slow, not is_refusal, place, calls

        killers = [test for test in self._killers.get(mutant.function, []) if test in callers]
        others = sorted((test for test in callers if test not in killers), key=rank)
        # Those of the likely files are many: they must not leave the subject's own out.
        likely = [test for test in others if _file_of(test) in first]
        later = likely[MOST_LIKELY:]
        return (killers[-4:] + [test for test in others if test not in later] + later)[:MOST_TESTS]


def _likely(mutant: Mutant) -> tuple[str, ...]:
    """The files that were written for this kind of guard."""
    if mutant.kind in {"lock order", "for update", "skip locked"}:
        return ("test_lock_order", "test_flow_races")
    if "pruning_since" in mutant.was:
        return ("test_retention",)
    if "domain" in mutant.was and mutant.kind in {"where", "if"}:
        return (
            "test_twins", "test_twins_apart", "test_bulk_twins", "test_retention_twins",
            "test_doctor_twins", "test_read_twins", "test_flow_twins", "test_time_twins",
        )  # fmt: skip
    return ()


def _file_of(test: str) -> str:
    return Path(test.partition("::")[0]).stem


def _text_of(test: str) -> str:
    """What stands in a test."""
    file, _, name = test.partition("::")
    return _texts(file).get(name.partition("[")[0], "")


@cache
def _is_named_in(file: str, function: str) -> bool:
    path = ROOT / file
    return path.exists() and f"{function}(" in path.read_text(encoding="utf-8")


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


def load_calls(lab: Lab, path: Path) -> CallMap:
    """The recorded calls, recorded now if there are none or the tests have changed."""
    digest = _digest()
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["digest"] == digest:
            return CallMap(kept["calls"])
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"files": {}}
    # Before: a file that is written meanwhile is new the next time.
    files = {name: _hash(name) for name in _test_files()}
    calls = _record(lab, known)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"digest": digest, "files": files, "calls": calls}, indent=1))
    return CallMap(calls)


def _record(lab: Lab, known: Mapping[str, Mapping[str, object]]) -> dict[str, list[str]]:
    """Run what is new or changed once, and ask the server what was called."""
    same = {name for name, digest in known["files"].items() if digest == _hash(name)}
    calls: dict[str, list[str]] = {
        test: list(names)  # type: ignore[call-overload]
        for test, names in known.get("calls", {}).items()
        if test.partition("::")[0] in same
    }
    fresh = [name for name in _test_files() if name not in same]
    for name in fresh:
        print(f"  recording {name}", flush=True)
        part = ROOT / ".mutants" / "sql-part.json"
        recorder = _Writer(part)
        run_tests([name], 900, environment={"PYTEST_XDIST_TESTRUNUID": lab.run_id},
                  plugins=[recorder], stops_at_failure=False)  # fmt: skip
        if part.exists():
            calls.update(json.loads(part.read_text(encoding="utf-8")))
            part.unlink()
    return calls


class _Writer(CallRecorder):
    """Hands the calls of a forked run back through a file; those of failed tests are left out."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        found = {test: names for test, names in self.calls.items() if test not in self.failed}
        self._path.write_text(json.dumps(found), encoding="utf-8")


def _test_files() -> list[str]:
    found: list[str] = []
    for place in RECORDED:
        path = ROOT / place
        paths = sorted(path.glob("test_*.py")) if path.is_dir() else [path]
        found += [str(p.relative_to(ROOT)) for p in paths if p.exists()]
    return [name for name in found if name not in LEFT_OUT]


def _hash(name: str) -> str:
    path = ROOT / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _digest() -> str:
    return hashlib.sha256("".join(n + _hash(n) for n in _test_files()).encode()).hexdigest()
