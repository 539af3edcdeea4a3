"""What is known of a finding, wherever it is found; and what can be found in the audit's seals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import LiteralString


class Severity(StrEnum):
    """How bad a finding is."""

    #: Something that must always be true is not: commands may be lost, late or wrong.
    ERROR = "error"
    #: It works, and is likely to cause trouble.
    WARNING = "warning"
    #: Good to know.
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """What is known of a code, wherever it is found."""

    severity: Severity
    meaning: str
    advice: str
    #: The SQL function that repairs it.
    repair: LiteralString | None = None


_LOOK = "find out who has the rights of the owner, and when: its seal tells the time"

#: Of the seals of the audit; most by `commandbus doctor --audit` alone.
SEAL_FINDINGS: dict[str, KnownFinding] = {
    "AUDIT_ROW_CHANGED": KnownFinding(
        Severity.ERROR, "an event of the audit was changed after it was sealed",
        f"compare it with a backup; {_LOOK}",
    ),
    "AUDIT_ROW_REMOVED": KnownFinding(
        Severity.ERROR, "an event of the audit was removed after it was sealed, not by retention",
        f"look for it in a backup; {_LOOK}",
    ),
    "AUDIT_ROW_INSERTED": KnownFinding(
        Severity.ERROR, "an event was put among events that were sealed before it",
        f"do not believe it; {_LOOK}",
    ),
    "SEAL_FORGED": KnownFinding(
        Severity.ERROR, "a seal is not as it was made",
        "the rows of its range are no longer proven: compare them with a backup; find out who has "
        "the rights of the owner",
    ),
    "SEAL_MISSING": KnownFinding(
        Severity.ERROR, "a seal that was made is missing",
        "the rows of its range are no longer proven: compare them with a backup. After a restore "
        "of an older backup the end is missing: that is its reason",
    ),
    "SEAL_KEY_NEEDED": KnownFinding(
        Severity.ERROR, "seals cannot be verified here: their key is not at hand",
        "run the doctor with the key, in COMMANDBUS_SEAL_KEY or the folder of keys. If nobody "
        "knows that key, somebody made the seals anew",
    ),
    "REMOVAL_FORGED": KnownFinding(
        Severity.ERROR, "the record of a removal from the audit is not as a seal signed it",
        "the removal was not by retention, or its record was changed: compare with a backup",
    ),
    "REMOVAL_UNLAWFUL": KnownFinding(
        Severity.ERROR, "events were removed that the rule of the removal keeps",
        f"look for them in a backup; {_LOOK}",
    ),
    "REMOVAL_BY_HAND": KnownFinding(
        Severity.ERROR, "events were removed from the audit, and no retention rule asked for it",
        "ask the one whom it names, since the owner can write a record too. If it was meant "
        "(`commandbus db prune --older-than`), name it: `commandbus doctor --audit --approved N`",
    ),
    "AUDIT_SEQUENCE": KnownFinding(
        Severity.ERROR, "the numbers of the audit do not come from its sequence one by one, so "
        "that it cannot be sealed",
        "an id above the sequence was written by hand; `alter sequence ... cache 1` undoes a cache",
    ),
    "AUDIT_UNSEALED": KnownFinding(
        Severity.WARNING, "events of more than an hour ago are not sealed: a change of them would "
        "not show",
        "start a worker that has the key of the seals (its log says why it does not seal), or run "
        "`commandbus seals now`",
    ),
    "SEAL_KEY_OTHER": KnownFinding(
        Severity.WARNING, "this process has another key than the one that seals the audit",
        "give all processes the same key in COMMANDBUS_SEAL_KEY, or change it for good with "
        "`commandbus seals now --new-key`",
    ),
    "SEAL_LATE": KnownFinding(
        Severity.WARNING, "events waited for more than an hour to be sealed: a change in that time "
        "does not show",
        "see that a worker with the key always runs. If one did, the end of the chain was cut off "
        "and sealed again: compare with exported heads",
    ),
    "SEAL_WAITS": KnownFinding(
        Severity.NOTICE, "a transaction that is open for long keeps the audit from being sealed",
        "wait for its end, or end the session; then sealing goes on",
    ),
    "REMOVAL_UNSIGNED": KnownFinding(
        Severity.NOTICE, "records of removals wait for the next seal to sign them",
        "nothing; the next seal signs them",
    ),
    "IN_HISTORY_TOO": KnownFinding(
        Severity.ERROR,
        "a command has the id of one that is in the history: nobody who sends can do that",
        "find out who inserts into command_bus_command, or restored a part of the history; "
        "`commandbus list --id` shows the one, with `--history` the other",
    ),
    "AUDIT_PART_MISSING": KnownFinding(
        Severity.ERROR,
        "a part of the audit, with all of its events, was taken away, not by retention",
        "look for it in a backup; find out who has the rights of the owner. If it was meant, "
        "remove its row from commandbus.command_bus_audit_part",
    ),
    "AUDIT_PART_READ": KnownFinding(
        Severity.WARNING,
        "a view reads one part of the audit: it lacks what is in the others, and keeps the part "
        "from being dropped",
        "make it anew on commandbus.command_bus_audit (the guide of upgrading says how)",
    ),
    "AUDIT_PARTS_LATE": KnownFinding(
        Severity.WARNING,
        "the last part of the audit grows, because no part is made after it: retention cannot drop "
        "it",
        "see that workers run with maintenance, and that no session keeps the audit locked for "
        "long; `commandbus db prune` looks after the parts at once",
    ),
}  # fmt: skip
