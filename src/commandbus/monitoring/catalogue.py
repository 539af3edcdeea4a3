"""Catalogue: every metric that a worker, a sender or the database has, described once.

Labels have values from closed sets only: no id, no user, nothing that a client wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

#: Series of types of their own, in one process; the others are summed under OTHER.
MAX_TYPES = 200
MAX_DOMAINS = 200
#: Codes of errors of their own, in one process.
MAX_CODES = 50
OTHER = "other"

#: What became of a lease. `stale`: its result came after it, and was ignored.
OUTCOMES = (
    "completed", "retried", "parked", "failed", "released", "snoozed", "discarded", "stale",
)  # fmt: skip

#: Upper bounds, in seconds. 5 is among them because the alerts count what waits longer.
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
ATTEMPTS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, what it means, its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    #: Upper bounds of a histogram.
    bounds: tuple[float, ...] = ()
    #: How what several collectors say becomes one.
    merge: Literal["sum", "max"] = "sum"


_TYPE = ("domain", "type")

COMMANDS = Family(
    "commandbus_commands_total", "counter", "Leases that ended, by outcome.", (*_TYPE, "outcome")
)
HANDLE = Family(
    "commandbus_handle_seconds", "histogram", "How long handlers run.", _TYPE, SECONDS
)  # fmt: skip
WAIT = Family(
    "commandbus_wait_seconds", "histogram",
    "From the time a command was due to the first start of its handler.", _TYPE, SECONDS,
)  # fmt: skip
ATTEMPT = Family(
    "commandbus_attempts", "histogram", "The attempt with which a command ended or was parked.",
    _TYPE, ATTEMPTS,
)  # fmt: skip
ERRORS = Family(
    "commandbus_errors_total", "counter", "Failed attempts, by the code of the error.",
    (*_TYPE, "code"),
)  # fmt: skip
SLOTS = Family(
    "commandbus_slots", "gauge",
    "Handlers that run (busy), commands leased ahead (buffered), places that are free.",
    ("domain", "state"),
)  # fmt: skip
LEASES_LOST = Family(
    "commandbus_leases_lost_total", "counter",
    "Leases that another worker may have taken while the command was here.", ("domain",),
)  # fmt: skip
STUCK = Family(
    "commandbus_stuck_threads", "gauge",
    "Places kept by handlers that did not end after their time-out.", ("domain",),
)  # fmt: skip
LOOP_LAG = Family(
    "commandbus_loop_lag_seconds", "gauge",
    "Longest delay of the event loop in the last 30 seconds.", merge="max",
)  # fmt: skip
SETTLE = Family(
    "commandbus_settle_seconds", "histogram", "How long a commit of outcomes takes.", ("domain",),
    SECONDS,
)  # fmt: skip
SENT = Family("commandbus_sent_total", "counter", "Commands that this process sent.", _TYPE)
SEND = Family(
    "commandbus_send_seconds", "histogram", "How long a call of send or send_many takes.", _TYPE,
    SECONDS,
)  # fmt: skip
POOL = {
    name: Family(f"commandbus_db_pool_{name}", "gauge", text, ("pool",))
    for name, text in (
        ("max", "Connections that a pool may have."),
        ("size", "Connections that a pool has."),
        ("available", "Connections of a pool that nobody uses."),
        ("waiting", "Requests that wait for a connection of a pool."),
    )
}

#: What a process tells of itself.
OWN = (
    COMMANDS, HANDLE, WAIT, ATTEMPT, ERRORS, SLOTS, LEASES_LOST, STUCK, LOOP_LAG, SETTLE, SENT,
    SEND, *POOL.values(),
)  # fmt: skip

# -- what the parent of several worker processes adds

PROCESSES = Family(
    "commandbus_processes", "gauge", "Worker processes of one parent: running, or down.", ("state",)
)
RESTARTS = Family(
    "commandbus_process_restarts_total", "counter", "Worker processes that were started again."
)
SUPERVISED = (PROCESSES, RESTARTS)

# -- what the database tells; asked for by the HTTP service or `commandbus exporter` alone

DATABASE_UP = Family(
    "commandbus_database_up", "gauge", "1 if the database answered the exporter, else 0."
)
SHARD_UP = Family(
    "commandbus_shard_up", "gauge", "1 if the database of the shard answered, else 0.", ("shard",)
)
DEPTH = Family(
    "commandbus_queue_depth", "gauge", "Messages in the queue.", ("domain", "state")
)  # fmt: skip
#: By the field of DomainFigures that each shows.
DOMAIN_GAUGES = {
    field: Family(f"commandbus_{name}", "gauge", text, ("domain",))
    for field, name, text in (
        ("oldest_seconds", "oldest_age_seconds", "Age of the oldest command that is due."),
        ("parked", "tsq_depth", "Commands in troubleshooting."),
        ("in_flight", "in_flight", "Commands that workers report as leased."),
        ("workers", "workers", "Workers that are known."),
        ("concurrency", "concurrency", "Handlers that these workers may run at once."),
        ("heartbeat_seconds", "worker_heartbeat_seconds",
         "Age of the oldest heartbeat of a worker."),
        ("batch_remaining", "batch_remaining",
         "Commands of open batches that have not ended."),
        ("replies", "replies_depth", "Replies that lie in the queues of the domain."),
        ("replies_refused", "replies_refused",
         "Archived messages of these queues that were no replies."),
        ("dispatch_lag_seconds", "dispatch_lag_seconds",
         "Age of the oldest command that is stored and not queued yet."),
        ("pending_retry", "pending_retry",
         "Commands that wait to be queued again because that failed, up to 10,000."),
        ("unconfirmed", "unconfirmed",
         "Commands that a queue in another database has not brought back, up to 10,000."),
        ("unconfirmed_seconds", "unconfirmed_age_seconds",
         "Time since such a queue accepted the oldest of them."),
        ("paused", "paused", "1 while nothing of the domain is started, else 0."),
        ("blocked_keys", "blocked_keys",
         "Ordering keys that a parked command blocks, up to 10,000."),
        ("blocked_seconds", "blocked_keys_age_seconds",
         "Time since the first of them was blocked."),
    )
}  # fmt: skip
#: By the field of LimitFigures; by the rule, not by the key: keys are many.
LIMIT_GAUGES = {
    field: Family(f"commandbus_limit_{field}", "gauge", text, ("domain", "limit"))
    for field, text in (
        ("running", "Commands that have a place of an execution limit."),
        ("waiting", "Commands that wait for an execution limit, or for a paused type."),
    )
}
#: Sums of all workers that add their counts to the database; other names than those of one worker,
#: or who scrapes both would count twice.
WORKERS_COMMANDS = Family(
    "commandbus_workers_commands_total", "counter",
    "Leases that ended, by outcome, of all workers with --counts.", (*_TYPE, "outcome"),
)  # fmt: skip
WORKERS_HANDLED = Family(
    "commandbus_workers_handled_total", "counter", "Calls of handlers of these workers.", _TYPE
)
WORKERS_SECONDS = Family(
    "commandbus_workers_handle_seconds_total", "counter", "How long these calls took.", _TYPE
)
WORKERS = (WORKERS_COMMANDS, WORKERS_HANDLED, WORKERS_SECONDS)
DATABASE = (DATABASE_UP, SHARD_UP, DEPTH, *DOMAIN_GAUGES.values(), *LIMIT_GAUGES.values(), *WORKERS)

#: In the order in which they are printed.
FAMILIES = {family.name: family for family in (*OWN, *SUPERVISED, *DATABASE)}
