"""The runbook's table of the doctor's codes is the catalogue."""

from __future__ import annotations

import re

from commandbus.upkeep.doctor import CHECKS
from commandbus.upkeep.findings import FINDINGS
from commandbus.upkeep.known import SEAL_FINDINGS
from tests.docs.functions import all_functions, function_texts
from tests.docs.markdown import DOCS, codes, table_with


def test_every_code_is_in_the_runbook_as_the_program_tells_it() -> None:
    rows = table_with(DOCS / "runbook.md", "code", "severity", "it means", "what to do")

    assert [
        (codes(r["code"])[0], r["severity"], r["it means"], r["what to do"], r["`--fix`"])
        for r in rows
    ] == [
        (code, f.severity, f.meaning, f.advice, "yes" if f.repair else "no")
        for code, f in FINDINGS.items()
    ]


def test_every_code_that_the_sql_returns_is_known() -> None:
    functions = all_functions(function_texts())
    told = {
        code
        for name in CHECKS
        for code in re.findall(r"(?:select|then|else|\()\s*'([A-Z_]{2,})'", functions[name].body)
    }
    states = {"PENDING", "COMPLETED", "SENT", "RECEIVED", "FAILED", "RELEASED", "CANCELED"}
    states |= {
        "EXPIRED",
        "SNOOZED",
        "DISCARDED",
        "OPERATOR_RETRY",
        "OPERATOR_COMPLETE",
        "OPERATOR_CANCEL",
        "GIVEN_UP",
    }
    states |= {"MOVED_TO_TROUBLESHOOTING_QUEUE"}
    by_the_program = {
        "SERVER_ONLY_READS",
        "SCHEMA_OLD", "FUNCTION_CHANGED", "PGMQ_LACKS", "CLOCK_DIFFERENCE", "CHECK_FAILED",
        "TOKEN_PEPPER", "TOKEN_UNPEPPERED", "TOKEN_ENDLESS",
        "SEAL_KEY_OTHER", "SHARD_MISSING",
    }  # fmt: skip
    # by `doctor --audit`, which does not ask the functions of the database
    by_the_program |= set(SEAL_FINDINGS) - told

    assert told - states == set(FINDINGS) - by_the_program


def test_every_repair_is_there() -> None:
    repairs = {name for name in all_functions(function_texts()) if name.startswith("repair_")}

    assert {known.repair for known in FINDINGS.values()} - {None} == repairs
