"""Every statement that the PostgreSQL store sends: calls of our functions, and plain reads."""

from __future__ import annotations

from typing import LiteralString

COMMAND_COLUMNS: LiteralString = (
    "c.domain, c.queue_name, c.msg_id, c.command_id, c.command_type, c.status, c.attempts, "
    "c.max_attempts, c.lease_expires_at, c.last_error_type, c.last_error_code, c.last_error_msg, "
    "c.created_at, c.updated_at, c.reply_queue, c.correlation_id, c.batch_id, c.lease_epoch, "
    "c.leased_by"
)

BATCH_COLUMNS: LiteralString = (
    "b.batch_id, b.domain, b.name, b.custom_data, b.status, b.total_count, b.completed_count, "
    "b.failed_count, b.canceled_count, b.in_troubleshooting_count, b.created_at, b.started_at, "
    "b.completed_at"
)

BULK_COLUMNS: LiteralString = (
    "o.operation_id, o.domain, o.verb, o.filter, o.arguments, o.rate, o.actor, o.status, o.total,"
    " o.done, o.skipped, o.failed, o.executor, o.heartbeat_at, o.created_at, o.started_at,"
    " o.finished_at"
)

#: In the order of commandbus.governance.model.BatchTicket.
TICKET_COLUMNS: LiteralString = (
    "t.ticket_id, t.domain, t.batch_type, t.child_count, t.success_count, t.failed_count,"
    " t.pending_count, t.canceled_count, t.status, t.reason, t.created_by, t.created_at,"
    " t.updated_at, t.completed_at, t.requires_approval, t.decided_by, t.decided_at,"
    " t.decision_reason, t.request_id"
)

# What is pending is in an index of its own; of the rest there may be years.
_TICKET_FILTER: LiteralString = (
    "(cast(%s as text[]) is null or t.domain = any(%s))"
    " and (cast(%s as text[]) is null or t.batch_type = any(%s))"
    " and (cast(%s as text) is null or t.status = %s) and (not %s or t.is_pending)"
    " and (cast(%s as timestamptz) is null or (t.created_at, t.ticket_id) < (%s, %s))"
    " order by t.created_at desc, t.ticket_id desc limit %s"
)

#: Every statement that this store sends, by the name of its verb.
STATEMENTS: dict[str, LiteralString] = {
    "ensure_domain": "select {schema}.ensure_domain(%s)",
    "offer": "select {schema}.offer_commands(%s, cast(%s as jsonb), cast(%s as uuid))",
    "offer_one": (
        "select {schema}.offer_one(%s, %s, %s, %s, %s, cast(%s as int), %s, cast(%s as uuid))"
    ),
    "send_packed": "select {schema}.send_packed(%s, %s, %s, %s, %s, %s, %s, cast(%s as uuid))",
    "sent_ids": (
        "select c.command_id from {schema}.command_bus_command c"
        " where c.domain = %s and c.command_id = any(cast(%s as uuid[]))"
    ),
    "receive": (
        "select command_id, command_type, msg_id, lease_epoch, attempt, max_attempts, is_suspect,"
        " correlation_id, reply_queue, batch_id, created_at, data"
        " from {schema}.receive_commands(%s, %s, %s, %s, cast(%s as jsonb), %s, %s)"
    ),
    "complete": "select * from {schema}.complete_commands(%s, cast(%s as jsonb))",
    "settle": "select * from {schema}.settle_commands(%s, cast(%s as jsonb))",
    "settle_own": "select * from {schema}.settle_own(%s, cast(%s as jsonb))",
    "confirm_start": "select {schema}.confirm_start(%s, %s, %s)",
    "extend": "select * from {schema}.extend_leases(%s, cast(%s as jsonb), %s)",
    "operator_retry": "select {schema}.operator_retry(%s, %s, %s, %s, true, cast(%s as jsonb))",
    "operator_cancel": "select {schema}.operator_cancel(%s, %s, %s, %s)",
    "operator_complete": "select {schema}.operator_complete(%s, %s, cast(%s as jsonb), %s)",
    "cancel": (
        "select {schema}.cancel_commands("
        "%s, cast(%s as uuid[]), cast(%s as text), cast(%s as text))"
    ),
    "get_command": (
        "select "  # noqa: S608  (literals only)
        + COMMAND_COLUMNS
        + " from {schema}.command_bus_command c"
        " where c.domain = %s and c.command_id = %s"
    ),
    "find_domains": "select * from {schema}.find_domains(%s)",
    "query": (
        "select "  # noqa: S608  (literals only)
        + COMMAND_COLUMNS
        + " from {schema}.query_commands("
        "%s, %s, %s, cast(%s as uuid), cast(%s as uuid), cast(%s as timestamptz),"
        " cast(%s as timestamptz), %s, %s) c"
    ),
    "search": (
        "select s.place, "  # noqa: S608  (literals only)
        + COMMAND_COLUMNS
        + " from {schema}.search_commands("
        "%s, %s, %s, cast(%s as uuid), cast(%s as uuid), cast(%s as timestamptz),"
        " cast(%s as timestamptz), cast(%s as uuid), %s, cast(%s as timestamptz),"
        " cast(%s as uuid), %s, %s) s cross join lateral (select (s.command).*) c"
    ),
    "list_audit": (
        "select a.audit_id, a.domain, a.command_id, a.event_type, a.ts, a.details_json, a.batch_id,"
        " a.actor from {schema}.list_audit(%s, cast(%s as uuid), cast(%s as uuid), %s,"
        " cast(%s as text[]), cast(%s as timestamptz), cast(%s as timestamptz),"
        " cast(%s as bigint), %s, %s, %s) a"
    ),
    "add_note": "select {schema}.add_note(%s, %s, %s, %s)",
    "declare_secrets": "select {schema}.declare_secrets(%s, cast(%s as jsonb))",
    "secret_keys": (
        "select k.key from {schema}.command_bus_secret_key k"
        " where k.domain = %s and k.command_type = %s"
    ),
    "list_troubleshooting": "select * from {schema}.list_troubleshooting(%s, %s, %s, %s, %s)",
    "get_payload": "select {schema}.command_payload(%s, %s)",
    "audit": (
        "select a.audit_id, a.domain, a.command_id, a.event_type, a.ts, a.details_json, a.batch_id,"
        " a.actor from {schema}.command_bus_audit a where a.command_id = %s"
        " and (cast(%s as text) is null or a.domain = %s) order by a.ts, a.audit_id limit %s"
    ),
    "create_batch": (
        "select {schema}.create_batch(cast(%s as text), cast(%s as uuid), cast(%s as jsonb),"
        " cast(%s as text), cast(%s as jsonb), cast(%s as text), cast(%s as jsonb),"
        " cast(%s as boolean))"
    ),
    "list_batches": (
        "select "  # noqa: S608  (literals only)
        + BATCH_COLUMNS
        + " from {schema}.command_bus_batch b where b.domain = %s"
        " and (cast(%s as text) is null or b.status = %s)"
        " order by b.created_at desc, b.batch_id limit %s offset %s"
    ),
    "list_batch_commands": (
        "select "  # noqa: S608  (literals only)
        + COMMAND_COLUMNS
        + " from {schema}.command_bus_command c where c.batch_id = %s and c.domain = %s"
        " and (cast(%s as text) is null or c.status = %s)"
        " order by c.sequence_no, c.created_at, c.command_id limit %s offset %s"
    ),
    "cancel_batch": "select {schema}.cancel_batch(%s, %s, %s, %s)",
    "retry_batch": "select {schema}.retry_batch(%s, %s, %s, 10000000)",
    "closed_batches": (
        "select "  # noqa: S608  (literals only)
        + BATCH_COLUMNS
        + " from {schema}.command_bus_batch b"
        " where b.batch_id = any(%s) and b.completed_at is not null"
    ),
    "transaction": "select cast(pg_current_xact_id() as text)",
    # By the snapshot, not by the state of the transaction now: what has ended before the snapshot
    # is either in it or will never be.
    "settled_batches": (
        "select u.batch_id, b.batch_id is not null"
        " from unnest(cast(%s as uuid[]), cast(%s as xid8[])) as u(batch_id, transaction)"
        " left join {schema}.command_bus_batch b on b.batch_id = u.batch_id"
        " where pg_visible_in_snapshot(u.transaction, pg_current_snapshot())"
    ),
    "get_batch": (
        "select "  # noqa: S608  (literals only)
        + BATCH_COLUMNS
        + " from {schema}.command_bus_batch b"
        " where b.domain = %s and b.batch_id = %s"
    ),
    "count_by_status": (
        "select c.domain, c.status, count(*) from {schema}.command_bus_command c"
        " where cast(%s as text) is null or c.domain = %s group by 1, 2"
    ),
    "read_replies": "select msg_id, body from {schema}.read_replies(%s, %s, %s)",
    "delete_replies": "select pgmq.delete({schema}.physical_queue(%s), cast(%s as bigint[]))",
    "take_inbox_reply": "select {schema}.take_inbox_reply(%s, %s)",
    "heartbeat": "select {schema}.worker_heartbeat(%s, %s, %s, %s, %s)",
    "worker_gone": "select {schema}.worker_gone(%s)",
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
    "list_retention": (
        "select r.domain, r.kind, r.keep, r.updated_by, r.updated_at"
        " from {schema}.command_bus_retention r order by r.domain, r.kind"
    ),
    "set_retention": "select {schema}.set_retention(%s, %s, cast(%s as interval), %s)",
    "clear_retention": "select {schema}.clear_retention(%s, %s)",
    "retention_due": "select domain, kind, before from {schema}.retention_due(%s)",
    "doctor_domains": "select * from {schema}.doctor_domains(%s)",
    "count_prunable": "select what, prunable from {schema}.count_prunable(%s, %s, %s)",
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
    "begin_submission": (
        "select verdict, ticket_id, refusal, limits from {schema}.begin_submission("
        "%s, %s, %s, cast(%s as uuid), %s, cast(%s as jsonb))"
    ),
    "create_ticket": (
        "select created_at, limits from {schema}.create_ticket(%s, %s, cast(%s as jsonb), %s, %s,"
        " cast(%s as text), cast(%s as uuid), %s, %s, cast(%s as jsonb), cast(%s as jsonb))"
    ),
    "get_tickets": (
        "select "  # noqa: S608  (literals only)
        + TICKET_COLUMNS
        + " from {schema}.batch_approval_tickets t where t.ticket_id = any(cast(%s as uuid[]))"
    ),
    "list_tickets": (
        "select "  # noqa: S608  (literals only)
        + TICKET_COLUMNS
        + " from {schema}.batch_approval_tickets t where "
        + _TICKET_FILTER
    ),
    # With a condition of its own, so that the plan goes by the owner.
    "list_own_tickets": (
        "select "  # noqa: S608  (literals only)
        + TICKET_COLUMNS
        + " from {schema}.batch_approval_tickets t where t.created_by = %s and "
        + _TICKET_FILTER
    ),
    "list_children": (
        "select c.ticket_id, c.parent_ticket_id, c.sequence_no, c.status, c.error_message,"
        " c.attempt_count, c.last_attempt_at from {schema}.approval_tickets c"
        " where c.parent_ticket_id = %s and c.sequence_no > %s"
        " and (cast(%s as text) is null or c.status = %s) order by c.sequence_no limit %s"
    ),
    "retry_ticket": (
        "select retried, exhausted from {schema}.retry_ticket(%s, %s, %s, %s, cast(%s as text))"
    ),
    "decide_ticket": (
        "select {schema}.decide_ticket(cast(%s as text), cast(%s as uuid), cast(%s as text),"
        " cast(%s as text), cast(%s as text), cast(%s as boolean))"
    ),
    "decision_maker": (
        "select {schema}.decision_maker(cast(%s as text), cast(%s as uuid), cast(%s as text))"
    ),
    "count_request": "select current_value, reset_seconds from {schema}.count_request()",
    "limit_states": (
        "select limit_type, scope, current_value, max_value, reset_seconds"
        " from {schema}.limit_states(cast(%s as text), cast(%s as jsonb))"
    ),
    "pending_users": (
        "select user_id, limit_type, scope, current_value, max_value, reset_seconds"
        " from {schema}.pending_users(cast(%s as jsonb))"
    ),
    "set_exemption": "select {schema}.set_exemption(%s, %s, %s, cast(%s as timestamptz))",
    "clear_exemption": "select {schema}.clear_exemption(%s, %s)",
    "list_exemptions": (
        "select e.user_id, e.exempted_by, e.reason, e.expires_at, e.created_at"
        " from {schema}.rate_limit_exemption e"
        " where e.expires_at is null or e.expires_at > clock_timestamp() order by e.user_id"
    ),
    "set_user_limits": (
        "select user_id, max_pending_batches, max_pending_children, cooldown_seconds, updated_by,"
        " updated_at from {schema}.set_user_limits(%s, %s, cast(%s as int), cast(%s as int),"
        " cast(%s as int))"
    ),
    "list_user_limits": (
        "select o.user_id, o.max_pending_batches, o.max_pending_children, o.cooldown_seconds,"
        " o.updated_by, o.updated_at from {schema}.rate_limit_override o order by o.user_id"
    ),
}
