"""Every statement that the PostgreSQL store sends: calls of our functions, and plain reads."""

from __future__ import annotations

from typing import LiteralString

BULK_COLUMNS: LiteralString = (
    "o.operation_id, o.domain, o.verb, o.filter, o.arguments, o.rate, o.actor, o.status, o.total,"
    " o.done, o.skipped, o.failed, o.executor, o.heartbeat_at, o.created_at, o.started_at,"
    " o.finished_at"
)

#: Every statement that this store sends, by the name of its verb.
STATEMENTS: dict[str, LiteralString] = {
    "create_held_batch": (
        "select {schema}.create_held_batch(%s, %s, cast(%s as jsonb), %s, cast(%s as jsonb), %s,"
        " cast(%s as jsonb), %s, %s, cast(%s as float8), %s)"
    ),
    "queue_held": (
        "select cardinality({schema}.queue_held(%s, cast(%s as uuid[]),"
        " array['pending_queue', 'pending_retry', 'queued']))"
    ),
    "held_envelopes": (
        "select command_id, envelope from {schema}.held_envelopes(%s, cast(%s as uuid[]))"
    ),
    "mark_dispatched": "select {schema}.mark_dispatched(%s, cast(%s as uuid[]))",
    "mark_dispatch_failed": (
        "select {schema}.mark_dispatch_failed(%s, cast(%s as uuid[]), %s, %s)"
    ),
    "adopt_messages": (
        "select verdict from {schema}.adopt_messages(%s, cast(%s as jsonb)) order by n"
    ),
    "dispatch_heartbeat": "select {schema}.dispatch_heartbeat(%s)",
    "finish_dispatch": "select {schema}.finish_dispatch(%s, cast(%s as jsonb))",
    "recover_dispatch": (
        "select queued, failed, given_up, overdue from {schema}.recover_dispatch("
        "%s, make_interval(secs => cast(%s as float8)), %s, %s, %s)"
    ),
    "claim_chore": "select {schema}.claim_chore(%s, make_interval(secs => cast(%s as float8)))",
    "interrupted_loads": (
        "select l.batch_id, l.domain, l.source, l.rows_committed, l.updated_at,"
        " l.status = 'sealed'"
        " from {schema}.command_bus_load l where (l.status = 'loading'"
        " or l.status = 'sealed' and l.rows_dispatched < l.rows_committed) and l.updated_at"
        " < clock_timestamp() - make_interval(secs => cast(%s as float8)) order by l.updated_at"
    ),
    "prune_workers": "select {schema}.prune_workers()",
    "list_failure_groups": (
        "select g.domain, g.fingerprint, g.command_type, g.error_class, g.error_code, g.message,"
        " g.sample_message, g.sample_command_id, g.parked_count, g.total_seen, g.first_seen,"
        " g.last_seen from {schema}.list_failure_groups(%s, %s, %s, %s, %s) g"
    ),
    "preview_bulk": "select * from {schema}.preview_bulk(%s, cast(%s as jsonb))",
    "start_bulk": (
        "select {schema}.start_bulk(%s, %s, %s, cast(%s as jsonb), cast(%s as jsonb),"
        " cast(%s as float8), %s, %s)"
    ),
    "run_bulk_chunk": (
        "select status, acted, wait_seconds from {schema}.run_bulk_chunk(%s, %s, %s)"
    ),
    "next_bulk": "select {schema}.next_bulk(%s, %s)",
    "stop_bulk": "select {schema}.stop_bulk(%s, %s)",
    "resume_bulk": "select {schema}.resume_bulk(%s, %s, cast(%s as float8))",
    "get_bulk": (
        "select "  # noqa: S608  (literals only)
        + BULK_COLUMNS
        + " from {schema}.command_bus_bulk_operation o where o.operation_id = %s"
    ),
    "list_bulks": (
        "select "  # noqa: S608  (literals only)
        + BULK_COLUMNS
        + " from {schema}.command_bus_bulk_operation o"
        " where (cast(%s as text) is null or o.domain = %s)"
        " and (cast(%s as text) is null or o.status = %s)"
        " and (cast(%s as uuid) is null or (o.created_at, o.operation_id) < (select"
        " l.created_at, l.operation_id from {schema}.command_bus_bulk_operation l"
        " where l.operation_id = %s)) order by o.created_at desc, o.operation_id desc limit %s"
    ),
    "list_bulk_items": (
        "select i.item_no, i.command_id, i.outcome, i.detail, i.acted_at"
        " from {schema}.command_bus_bulk_item i where i.operation_id = %s and i.item_no > %s"
        " and (cast(%s as text) is null or i.outcome = %s) order by i.item_no limit %s"
    ),
    "begin_load": (
        "select {schema}.begin_load(%s, %s, %s, cast(%s as jsonb), %s, cast(%s as int), %s,"
        " cast(%s as jsonb), %s, cast(%s as jsonb))"
    ),
    "load_chunk": "select {schema}.load_chunk(%s, %s, %s, %s, cast(%s as jsonb), %s)",
    "seal_load": "select {schema}.seal_load(%s, %s, %s)",
    "dispatch_load": "select {schema}.dispatch_load(%s, %s, %s)",
    "fail_load": "select {schema}.fail_load(%s, %s, %s)",
    "get_load": (
        "select l.batch_id, l.domain, l.source, l.row_format, l.start_mode, l.status,"
        " l.checkpoint_size, l.rows_committed, l.checkpoints_done, l.rows_dispatched, l.last_error,"
        " l.created_at, l.updated_at, coalesce(c.first_row, 1), c.digest"
        " from {schema}.command_bus_load l left join {schema}.command_bus_load_checkpoint c"
        " on c.batch_id = l.batch_id and c.checkpoint_no = l.checkpoints_done"
        " where l.domain = %s and l.batch_id = %s"
    ),
}
