"""Findings: what the doctor can report, how bad each is, what it means and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from commandbus.upkeep.known import SEAL_FINDINGS, KnownFinding, Severity

__all__ = [
    "FINDINGS",
    "Diagnosis",
    "Finding",
    "KnownFinding",
    "Repair",
    "Severity",
    "finding_of",
    "worst_first",
]

#: Places that a finding names at most.
EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found under one code in one domain."""

    code: str
    severity: Severity
    #: None: it is about the database as a whole.
    domain: str | None
    found: int
    #: At most five: ids of commands, batches or workers, names of tables. Never payloads.
    examples: tuple[str, ...]
    meaning: str
    advice: str
    can_fix: bool


@dataclass(frozen=True, slots=True)
class Repair:
    """What one repair function changed in one domain."""

    domain: str
    function: str
    repaired: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found, the worst first."""

    findings: tuple[Finding, ...]
    #: Only what was changed since then was looked at; None: everything.
    since: datetime | None
    #: What the server says of itself: version, sizes, the role.
    facts: Mapping[str, Any]
    #: What cannot be found out from here, and why.
    unknown: tuple[str, ...]
    repairs: tuple[Repair, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """No finding is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def finding_of(code: str, domain: str | None, found: int, examples: Sequence[str]) -> Finding:
    """What was found, with what is known of its code."""
    known = FINDINGS[code]
    return Finding(
        code, known.severity, domain, found, tuple(examples[:EXAMPLES]),
        known.meaning, known.advice, known.repair is not None,
    )  # fmt: skip


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """In the order in which they are shown: by severity, then as FINDINGS lists them."""
    severities, codes = list(Severity), list(FINDINGS)
    return tuple(
        sorted(
            findings,
            key=lambda f: (severities.index(f.severity), codes.index(f.code), f.domain or ""),
        )
    )


_FIX = "`commandbus doctor --fix`"

#: In the order in which they are shown, and repaired.
FINDINGS: dict[str, KnownFinding] = {
    # -- the messages of the queue against the commands
    "QUEUE_MISSING": KnownFinding(
        Severity.ERROR, "a domain has open commands but no queue",
        f"{_FIX} creates the queue again; find out who dropped it", "repair_queues",
    ),
    "MESSAGE_UNKNOWN": KnownFinding(
        Severity.ERROR, "a message in the queue belongs to no command",
        f"{_FIX} moves it to the archive; find out who writes to the queue", "repair_messages",
    ),
    "MESSAGE_OF_ENDED": KnownFinding(
        Severity.ERROR, "a message is still in the queue although its command has ended",
        f"{_FIX} moves it to the archive; a worker that reads it does the same", "repair_messages",
    ),
    "MESSAGE_OF_PARKED": KnownFinding(
        Severity.ERROR, "a message is still in the queue although its command is parked",
        f"{_FIX} moves it to the archive; a worker that reads it does the same", "repair_messages",
    ),
    "MESSAGE_SUPERSEDED": KnownFinding(
        Severity.ERROR, "an open command has a second, older message in the queue",
        f"{_FIX} moves the older one to the archive", "repair_messages",
    ),
    "MESSAGE_LOST": KnownFinding(
        Severity.ERROR, "an open command has no message, so no worker will ever get it",
        f"{_FIX} sends its archived payload again", "repair_lost_messages",
    ),
    "PAYLOAD_LOST": KnownFinding(
        Severity.ERROR, "an open command has neither a message nor a payload",
        "cancel it, and send the work again under a new id",
    ),
    "LEASE_STATE": KnownFinding(
        Severity.ERROR,
        "the row of a command names a worker although it is not leased, or is leased and names "
        "none",
        "somebody changed the row by hand: read its audit trail, and set leased_by to null",
    ),
    "ATTEMPTS_EXCEEDED": KnownFinding(
        Severity.ERROR, "an open command has had more attempts than its limit allows",
        "somebody changed the row by hand; the next worker that reads the command parks it",
    ),
    # -- troubleshooting
    "PARKED_UNLISTED": KnownFinding(
        Severity.ERROR, "a command is parked but is not in the troubleshooting list",
        f"{_FIX} adds it to the list", "repair_troubleshooting",
    ),
    "LISTED_NOT_PARKED": KnownFinding(
        Severity.ERROR, "the troubleshooting list contains a command that is not parked",
        f"{_FIX} removes it from the list", "repair_troubleshooting",
    ),
    "GROUP_COUNTERS": KnownFinding(
        Severity.ERROR, "the count of a failure group is not the number of its parked commands",
        f"{_FIX} locks the group and counts again", "repair_groups",
    ),
    "PARKED_WITHOUT_PAYLOAD": KnownFinding(
        Severity.ERROR, "the payload of a parked command is gone, so it cannot be retried",
        "cancel or complete it; do not purge PGMQ's archives by hand",
    ),
    # -- batches
    "BATCH_COUNTERS": KnownFinding(
        Severity.ERROR, "the counters of a batch differ from a count of its commands",
        f"{_FIX} locks the batch, counts again, and closes it if all commands have ended",
        "repair_batches",
    ),
    "BATCH_STATE": KnownFinding(
        Severity.ERROR,
        "a batch is open although all its commands have ended, or closed although some have not",
        f"{_FIX} closes or opens it", "repair_batches",
    ),
    # -- audit and replies
    "AUDIT_MISMATCH": KnownFinding(
        Severity.ERROR, "the last audit event of a command does not lead to the status of its row",
        "the row was changed by hand, so no reply was published: read its audit trail, and inform "
        "the caller who waits for the reply",
    ),
    "ENDED_TWICE": KnownFinding(
        Severity.ERROR, "a command ended twice, with no retry in between",
        "read its audit trail; consumers of its replies may have received two",
    ),
    "REPLY_TWICE": KnownFinding(
        Severity.ERROR, "a command has more replies in the queue than it has ends",
        "somebody copied a reply; delete the one with the higher msg_id unless consumers ignore "
        "repeated replies",
    ),
    "REPLY_MISSING": KnownFinding(
        Severity.WARNING, "a reply is not in its queue, although older ones are there unread",
        "the reply was removed, or replies are read out of order; `commandbus show` tells how the "
        "command ended",
    ),
    # -- what protects the data
    "AUDIT_UNPROTECTED": KnownFinding(
        Severity.ERROR,
        "the trigger that refuses changes and deletions in the audit is missing or disabled",
        "run `commandbus db migrate` as the owner of the schema; find out who disabled it",
    ),
    **SEAL_FINDINGS,
    "SERVER_ONLY_READS": KnownFinding(
        Severity.ERROR, "the server only reads: it is a standby, or was made read-only",
        "give workers and senders an address that names all servers (host=a,b,c), or that of the "
        "primary; after a failover, wait until one accepts writes",
    ),
    "SCHEMA_OLD": KnownFinding(
        Severity.ERROR, "the database lacks migrations of this release",
        "run `commandbus db migrate`",
    ),
    "FUNCTION_CHANGED": KnownFinding(
        Severity.ERROR, "functions in the database differ from those of this release",
        "run `commandbus db migrate`; if two releases are in use, run it with the newer one",
    ),
    "PGMQ_LACKS": KnownFinding(
        Severity.ERROR, "PGMQ lacks functions that commandbus calls",
        "upgrade it: alter extension pgmq update",
    ),
    "RIGHTS_MISSING": KnownFinding(
        Severity.ERROR, "the owner of the functions lacks rights on tables that they need",
        "`commandbus db roles --apply`, or alter table ... owner to the owner of the schema",
    ),
    "FUNCTION_OPEN": KnownFinding(
        Severity.ERROR,
        "functions can be called by roles that should not, or look names up as the caller says",
        "run `commandbus db migrate`; find out who changed them",
    ),
    "ROLE_RIGHTS": KnownFinding(
        Severity.ERROR, "a database role of commandbus has more rights than it should, or fewer",
        "`commandbus db roles` shows all of it, `commandbus db roles --apply` puts it right",
    ),
    "ROLE_OWNER": KnownFinding(
        Severity.WARNING,
        "this login can do everything to the tables, the audit among them, although there are "
        "roles with less",
        "give the process a login that is a member of the role that it needs, and keep this one "
        "for migrations",
    ),
    "TOKEN_PEPPER": KnownFinding(
        Severity.WARNING, "tokens in use were made with a pepper that this process does not have: "
        "a service with the same settings refuses them",
        "give every process that makes or checks tokens the same pepper, in "
        "COMMANDBUS_TOKEN_PEPPER or a copy of the file token_pepper.key; if it is lost, revoke "
        "those tokens",
    ),
    "TOKEN_UNPEPPERED": KnownFinding(
        Severity.NOTICE, "tokens in use may have been made without a pepper: as long as such are "
        "accepted, a user who can write the table of tokens can make one",
        "replace and revoke them, then set COMMANDBUS_UNPEPPERED_TOKENS to false",
    ),
    "TOKEN_ENDLESS": KnownFinding(
        Severity.NOTICE, "tokens in use have the scope admin and never expire",
        "replace them by tokens that were made with `--expires-in`",
    ),
    "INDEX_INVALID": KnownFinding(
        Severity.WARNING, "an index cannot be used, so statements may read whole tables",
        "reindex it, unless it is being built at this moment",
    ),
    "QUEUE_UNLOGGED": KnownFinding(
        Severity.WARNING, "a queue is an unlogged table: its messages are lost if the server "
        "crashes",
        "alter table ... set logged",
    ),
    "QUEUE_PARTITIONED": KnownFinding(
        Severity.WARNING, "a queue is partitioned, which commandbus does not support",
        "replace it by a queue that is not partitioned",
    ),
    "DURABILITY_OFF": KnownFinding(
        Severity.WARNING, "the server may lose committed transactions if it crashes",
        "switch fsync, full_page_writes and synchronous_commit on",
    ),
    # -- work
    "NO_WORKER": KnownFinding(
        Severity.WARNING,
        "commands have been due for more than five minutes, and no worker serves the domain",
        "start a worker for the domain",
    ),
    "LEASE_LAPSED": KnownFinding(
        Severity.WARNING,
        "leases ended more than five minutes ago, and no worker has taken the commands over",
        "the worker is gone: start another one for the domain",
    ),
    "WORKER_SILENT": KnownFinding(
        Severity.WARNING, "a worker has sent no heartbeat for more than a minute",
        f"look at its process; {_FIX} removes it from the list of workers, and its next heartbeat "
        "adds it again",
        "repair_workers",
    ),
    "WORKER_STUCK": KnownFinding(
        Severity.WARNING,
        "handlers of a worker did not end after their time-out and keep its threads or connections",
        "restart the worker, and find out what the handlers wait for: its log names their commands",
    ),
    "WAKEUPS_DEAD": KnownFinding(
        Severity.WARNING, "a worker waits for wake-ups, but no session listens for them",
        "the worker still polls; look for a connection pooler in between, or restart the worker",
    ),
    "NOTIFY_QUEUE_FULL": KnownFinding(
        Severity.WARNING, "the notification queue of the server fills up; when it is full, sending "
        "fails",
        "look for a session that listens and has a transaction open",
    ),
    "DISPATCH_STUCK": KnownFinding(
        Severity.WARNING, "commands were stored more than 30 minutes ago and are not queued yet",
        "start a worker with COMMANDBUS_MAINTENANCE on, or run: select * from "
        "commandbus.recover_dispatch('<domain>')",
    ),
    "REPLIES_UNREAD": KnownFinding(
        Severity.WARNING,
        "a thousand replies or more, or some for more than a day, lie in a queue unread",
        "read them with `bus.replies`, or stop them: set COMMANDBUS_REPLIES=none in the senders, "
        "or send with reply_to=''; `commandbus db retention set replies 7d` says how long they "
        "stay",
    ),
    "REPLIES_REFUSED": KnownFinding(
        Severity.NOTICE, "messages in a queue of replies were no replies, and were archived",
        "look at them in pgmq.a_<domain>__replies, and find out who writes to the queue",
    ),
    "DISPATCH_UNCONFIRMED": KnownFinding(
        Severity.WARNING, "a queue in another database accepted commands more than 30 minutes ago, "
        "and they have not come back (each example begins with the time)",
        "look for a relay of that queue; recovery queues them here after "
        "COMMANDBUS_UNCONFIRMED_AFTER_SECONDS, or now: select * from commandbus.recover_dispatch("
        "'<domain>', p_unconfirmed_after => interval '0')",
    ),
    "CHORE_LATE": KnownFinding(
        Severity.WARNING, "workers run, but none of them has done the chores for an hour",
        "switch COMMANDBUS_MAINTENANCE on in one of them",
    ),
    "DOMAIN_PAUSED": KnownFinding(
        Severity.NOTICE, "a domain is paused: none of its commands is started",
        "when its reason is over, end it with `commandbus resume`",
    ),
    "LOAD_INTERRUPTED": KnownFinding(
        Severity.NOTICE, "a load has stopped, and no process continues it",
        "continue it with `commandbus batch resume`, or end it with `commandbus batch seal` or "
        "`commandbus batch cancel`",
    ),
    "PRUNE_INTERRUPTED": KnownFinding(
        Severity.NOTICE, "a pruning run ended when it had removed only a part of a batch",
        "the next `commandbus db prune`, or the next chore, removes the rest",
    ),
    "RETENTION_BEHIND": KnownFinding(
        Severity.WARNING, "retention does not keep up: what a rule wants removed is still there",
        "see that workers run with maintenance; if they do, run `commandbus db prune` until it is "
        "done, and more often from then on",
    ),
    # -- the server
    "VACUUM_HELD_BACK": KnownFinding(
        Severity.WARNING,
        "an old transaction or replication slot keeps vacuum from removing dead rows; queues "
        "become slow",
        "end the session, the prepared transaction or the replication slot",
    ),
    "AUTOVACUUM_OFF": KnownFinding(
        Severity.WARNING, "autovacuum is off; queues become slow and the disk fills up",
        "switch it on",
    ),
    "DEAD_ROWS": KnownFinding(
        Severity.WARNING, "a table has more dead rows than live ones, so vacuum is too slow",
        "look for what delays vacuum, then vacuum the table",
    ),
    "KEY_STANDS": KnownFinding(
        Severity.ERROR, "the turn of a command of an ordering key is over, and the next is not due",
        f"{_FIX} makes the next one due, or removes the key", "repair_keys",
    ),
    "KEY_PLACE_LOST": KnownFinding(
        Severity.ERROR, "a command with an ordering key has no place in it",
        f"{_FIX} puts it where its number belongs", "repair_keys",
    ),
    "KEY_PLACE_UNKNOWN": KnownFinding(
        Severity.ERROR, "a place in an ordering key belongs to no command that waits",
        f"{_FIX} removes it", "repair_keys",
    ),
    "KEY_BLOCKED": KnownFinding(
        Severity.WARNING, "a parked command blocks its ordering key: nothing behind it starts",
        "retry, cancel or complete the command, or step over it with `commandbus keys skip`",
    ),
    "SCHEDULE_OVERDUE": KnownFinding(
        Severity.WARNING, "a schedule was due more than a minute ago, and nobody fired it",
        "start a worker of any domain, the HTTP service or `commandbus scheduler`; if one runs, "
        "its log says which time zone it does not know",
    ),
    "SCHEDULE_FAILS": KnownFinding(
        Severity.WARNING, "the command of a schedule cannot be sent",
        "`commandbus schedule show` says why; put the schedule again without that",
    ),
    # -- limits of execution
    "WAITING_FOR_NOTHING": KnownFinding(
        Severity.ERROR, "a message stands aside and nothing says why, so no worker will get it",
        f"{_FIX} makes it due; find out who changed command_bus_waiting or the queue",
        "repair_waiting",
    ),
    "WAITING_WITHOUT_MESSAGE": KnownFinding(
        Severity.WARNING, "a command is listed as waiting, and its message does not wait",
        f"{_FIX} removes it from the list; find out who changed the queue", "repair_waiting",
    ),
    "PLACE_WITHOUT_LEASE": KnownFinding(
        Severity.WARNING, "a place of an execution limit is taken by a command that is not leased",
        f"{_FIX} frees it; a worker does the same within seconds", "repair_places",
    ),
    "GATE_UNUSED": KnownFinding(
        Severity.NOTICE, "the row of an execution limit that is no more is still there",
        f"{_FIX} removes it; a worker does the same within seconds", "repair_places",
    ),
    "CLOCK_DIFFERENCE": KnownFinding(
        Severity.WARNING, "the clocks of this machine and of the server differ by more than 5 s",
        "set the clocks; leases use the server's clock only, but times in logs and `--since` are "
        "misleading",
    ),
    "ROLE_SUPERUSER": KnownFinding(
        Severity.NOTICE, "this role is a superuser",
        "give the workers a role of their own",
    ),
    "SHARD_MISSING": KnownFinding(
        Severity.ERROR, "a shard does not answer, so nothing is known of its domains",
        "`commandbus shards status` says why; the domains of the others are not concerned",
    ),
    "CHECK_FAILED": KnownFinding(
        Severity.WARNING, "a check could not be run, so its findings are not known",
        "run the doctor as a role that may read the tables (SQLSTATE 42501: lacks a right)",
    ),
}  # fmt: skip
