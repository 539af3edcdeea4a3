"""The faults that the doctor knows: how bad, what each means, what to do, who can mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is."""

    #: Something that must always hold does not: commands may be lost, late or wrong.
    ERROR = "error"
    #: It works, and is likely to cause trouble.
    WARNING = "warning"
    #: Good to know.
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is known of a code."""

    severity: Severity
    meaning: str
    advice: str
    #: The SQL function that mends it.
    repair: str | None = None


_FIX = "`commandbus doctor --fix`"

#: In the order in which they are shown, and mended.
FAULTS: dict[str, Fault] = {
    # -- the queue against the commands: I11
    "QUEUE_MISSING": Fault(
        Severity.ERROR, "a domain has open commands and no queue",
        f"{_FIX} makes the queue again; find out who dropped it", "repair_queues",
    ),
    "MESSAGE_UNKNOWN": Fault(
        Severity.ERROR, "a message in the queue belongs to no command",
        f"{_FIX} moves it to the archive; find out who writes to the queue", "repair_messages",
    ),
    "MESSAGE_OF_ENDED": Fault(
        Severity.ERROR, "a message is still queued although its command has ended",
        f"{_FIX} moves it to the archive; a worker would do the same", "repair_messages",
    ),
    "MESSAGE_OF_PARKED": Fault(
        Severity.ERROR, "a message is still queued although its command waits for an operator",
        f"{_FIX} moves it to the archive; a worker would do the same", "repair_messages",
    ),
    "MESSAGE_SUPERSEDED": Fault(
        Severity.ERROR, "an open command has a second, older message in the queue",
        f"{_FIX} moves the older one to the archive", "repair_messages",
    ),
    "MESSAGE_LOST": Fault(
        Severity.ERROR, "an open command has no message, so no worker will ever get it",
        f"{_FIX} sends its archived payload again", "repair_lost_messages",
    ),
    "PAYLOAD_LOST": Fault(
        Severity.ERROR, "an open command has neither a message nor a payload",
        "cancel it, and send the work again under a new id",
    ),
    "LEASE_STATE": Fault(
        Severity.ERROR, "a row says that it is worked on and names no worker, or the reverse",
        "somebody changed the row by hand: look at its trail, and set leased_by to null",
    ),
    "ATTEMPTS_EXCEEDED": Fault(
        Severity.ERROR, "an open command has had more attempts than it may have (I13)",
        "it is parked when a worker next reads it; somebody changed the row by hand",
    ),
    # -- the list of what waits for an operator
    "PARKED_UNLISTED": Fault(
        Severity.ERROR, "a command is in troubleshooting and not in the list of what waits there",
        f"{_FIX} puts it on the list", "repair_troubleshooting",
    ),
    "LISTED_NOT_PARKED": Fault(
        Severity.ERROR, "the list of what waits for an operator names a command that does not",
        f"{_FIX} strikes it off", "repair_troubleshooting",
    ),
    "GROUP_COUNTERS": Fault(
        Severity.ERROR, "a failure group counts other commands than are parked for its cause",
        f"{_FIX} counts it again under its lock", "repair_groups",
    ),
    "PARKED_WITHOUT_PAYLOAD": Fault(
        Severity.ERROR, "the payload of a parked command is gone: it cannot be retried",
        "cancel or complete it; do not purge PGMQ's archives by hand",
    ),
    # -- batches: I8
    "BATCH_COUNTERS": Fault(
        Severity.ERROR, "the counters of a batch are not what a recount gives (I8)",
        f"{_FIX} counts it again under its lock, and closes it if all have ended",
        "repair_batches",
    ),
    "BATCH_STATE": Fault(
        Severity.ERROR, "a batch is open although all have ended, or closed although not",
        f"{_FIX} closes or opens it", "repair_batches",
    ),
    # -- audit and replies: I10 and I12
    "AUDIT_MISMATCH": Fault(
        Severity.ERROR, "the last event in the audit does not lead to the state of the row (I12)",
        "the row was changed without our functions, so no reply went out: look at its trail, and "
        "tell whoever waits",
    ),
    "ENDED_TWICE": Fault(
        Severity.ERROR, "a command ended twice, with no retry in between",
        "look at its trail; whoever reads replies may have got two",
    ),
    "REPLY_TWICE": Fault(
        Severity.ERROR, "more replies of a command are queued than it has ends (I10)",
        "somebody copied a reply; delete the one with the higher msg_id if nobody can cope",
    ),
    "REPLY_MISSING": Fault(
        Severity.WARNING, "a reply is not in its queue, though older ones lie there unread",
        "the reply was removed, or is read out of order; the state and `commandbus show` tell "
        "what it said",
    ),
    # -- the protection of the data
    "AUDIT_UNPROTECTED": Fault(
        Severity.ERROR, "the trigger that keeps the audit append-only is missing or disabled",
        "run `commandbus db migrate` as the owner, and ask who switched it off",
    ),
    "SCHEMA_OLD": Fault(
        Severity.ERROR, "the database lacks migrations that this package brings",
        "run `commandbus db migrate`",
    ),
    "FUNCTION_CHANGED": Fault(
        Severity.ERROR, "functions in the database are not those of this package",
        "run `commandbus db migrate`; if another release is in use too, migrate with the newer one",
    ),
    "PGMQ_LACKS": Fault(
        Severity.ERROR, "PGMQ lacks functions that commandbus calls",
        "upgrade it: alter extension pgmq update",
    ),
    "RIGHTS_MISSING": Fault(
        Severity.ERROR, "this role lacks rights on tables that every process needs",
        "grant them, or run the doctor as the role of the workers",
    ),
    "INDEX_INVALID": Fault(
        Severity.WARNING, "an index is not usable; statements may read whole tables",
        "reindex it, unless it is just being built",
    ),
    "QUEUE_UNLOGGED": Fault(
        Severity.WARNING, "a queue is not crash-safe: its messages are lost if the server crashes",
        "alter table ... set logged",
    ),
    "QUEUE_PARTITIONED": Fault(
        Severity.WARNING, "a queue is partitioned, which commandbus is not made for",
        "make it a plain queue",
    ),
    "DURABILITY_OFF": Fault(
        Severity.WARNING, "the server may lose what it has acknowledged if it crashes",
        "switch fsync, full_page_writes and synchronous_commit on",
    ),
    # -- work
    "NO_WORKER": Fault(
        Severity.WARNING, "commands have waited for more than five minutes and nobody serves them",
        "start a worker for the domain",
    ),
    "LEASE_LAPSED": Fault(
        Severity.WARNING, "leases ended more than five minutes ago and nobody took them over",
        "start a worker for the domain: the one that held them is gone",
    ),
    "WORKER_SILENT": Fault(
        Severity.WARNING, "a worker has said nothing for more than a minute",
        f"look at its process; {_FIX} strikes it off, and it is back with its next heartbeat",
        "repair_workers",
    ),
    "WAKEUPS_DEAD": Fault(
        Severity.WARNING, "a worker waits for wake-ups and no session listens",
        "it still polls; look for a pooler in between, or restart the worker",
    ),
    "NOTIFY_QUEUE_FULL": Fault(
        Severity.WARNING, "the notification queue fills up; when it is full, sends fail",
        "look for a session that listens and sits in an open transaction",
    ),
    "DISPATCH_STUCK": Fault(
        Severity.WARNING, "commands were stored more than 30 minutes ago and are not queued yet",
        "is a worker running, with COMMANDBUS_MAINTENANCE on? Or: select * from "
        "commandbus.recover_dispatch('<domain>')",
    ),
    "CHORE_LATE": Fault(
        Severity.WARNING, "workers run, and none of them has done its chores for an hour",
        "switch COMMANDBUS_MAINTENANCE on in one of them",
    ),
    "LOAD_INTERRUPTED": Fault(
        Severity.NOTICE, "a load stopped and nobody continues it",
        "load the same source again to resume it, or cancel its batch and seal it",
    ),
    "PRUNE_INTERRUPTED": Fault(
        Severity.NOTICE, "a batch was half removed by retention when the run ended",
        "the next `commandbus db prune`, or chore, goes on with it",
    ),
    # -- the server
    "VACUUM_HELD_BACK": Fault(
        Severity.WARNING, "something old keeps vacuum from removing dead rows; queues become slow",
        "end the session, the prepared transaction or the replication slot",
    ),
    "AUTOVACUUM_OFF": Fault(
        Severity.WARNING, "autovacuum is off; queues become slow and the disk fills up",
        "switch it on",
    ),
    "DEAD_ROWS": Fault(
        Severity.WARNING, "a table has more dead rows than live ones",
        "vacuum does not keep up: look for what holds it back, then vacuum the table",
    ),
    "CLOCK_DIFFERENCE": Fault(
        Severity.WARNING, "this machine's clock and the server's differ by more than 5 s",
        "set the clocks; only the server's counts for leases, but logs and `--since` mislead",
    ),
    "ROLE_SUPERUSER": Fault(
        Severity.NOTICE, "this role is a superuser",
        "give the workers a role of their own",
    ),
    "CHECK_FAILED": Fault(
        Severity.WARNING, "a check could not be run, so nothing is known of what it looks at",
        "run the doctor as a role that may read the tables (SQLSTATE 42501: lacks a right)",
    ),
}  # fmt: skip
