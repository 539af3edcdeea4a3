"""Every statement that the PostgreSQL store sends: calls of our functions, and plain reads."""

from __future__ import annotations

from typing import LiteralString

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

FIELDS: LiteralString = (
    "t.token_id, t.user_id, t.scopes, t.domains, t.label, t.created_at, t.expires_at,"
    " t.revoked_at, t.last_used_at"
)

#: Every statement that this store sends, by the name of its verb.
STATEMENTS: dict[str, LiteralString] = {
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
    "create_token": (
        "select {schema}.create_api_token(%s, %s, cast(%s as text[]), cast(%s as text[]), %s, %s,"
        " cast(%s as timestamptz), %s)"
    ),
    "revoke_token": "select {schema}.revoke_api_token(%s, %s)",
    "touch_token": "select {schema}.touch_api_token(%s)",
    "find_token": (
        "select "  # noqa: S608  (literals only)
        + FIELDS
        + ", t.secret_hash from {schema}.command_bus_api_token t where t.token_id = %s"
    ),
    "list_tokens": (
        "select "  # noqa: S608  (literals only)
        + FIELDS
        + " from {schema}.command_bus_api_token t"
        " where (cast(%s as text) is null or t.user_id = %s)"
        " and (%s or t.revoked_at is null and (t.expires_at is null or t.expires_at > now()))"
        " order by t.created_at desc, t.token_id desc limit %s"
    ),
}
