"""The statements of the HTTP service: calls of our functions, and plain reads by key."""

from __future__ import annotations

from typing import LiteralString

from commandbus.store.statements import BATCH_COLUMNS, COMMAND_COLUMNS

FIELDS: LiteralString = (
    "t.token_id, t.user_id, t.scopes, t.domains, t.label, t.created_at, t.expires_at,"
    " t.revoked_at, t.last_used_at"
)

SERVING_STATEMENTS: dict[str, LiteralString] = {
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
    "page_troubleshooting": (
        "select * from {schema}.page_troubleshooting(%s, %s, %s, cast(%s as uuid),"
        " cast(%s as timestamptz), cast(%s as uuid), %s)"
    ),
    "page_batches": (
        "select "  # noqa: S608  (literals only)
        + BATCH_COLUMNS
        + " from {schema}.command_bus_batch b where b.domain = %s"
        " and (cast(%s as text) is null or b.status = %s)"
        " and (cast(%s as timestamptz) is null or (b.created_at, b.batch_id) < (%s, %s))"
        " order by b.created_at desc, b.batch_id desc limit %s"
    ),
    # Commands that were sent into the batch later have no number, and come last.
    "page_batch_commands": (
        "select coalesce(c.sequence_no, 2147483647), "  # noqa: S608  (literals only)
        + COMMAND_COLUMNS
        + " from {schema}.command_bus_command c where c.batch_id = %s and c.domain = %s"
        " and (cast(%s as text) is null or c.status = %s)"
        " and (cast(%s as int) is null or (c.sequence_no >= %s or c.sequence_no is null)"
        " and (coalesce(c.sequence_no, 2147483647), c.created_at, c.command_id) > (%s, %s, %s))"
        " order by c.sequence_no, c.created_at, c.command_id limit %s"
    ),
    "lease_replies": "select msg_id, receipt, body from {schema}.lease_replies(%s, %s, %s)",
    "acknowledge_replies": (
        "select * from {schema}.acknowledge_replies(%s, cast(%s as bigint[]), cast(%s as bigint[]))"
    ),
    "knows_domain": "select {schema}.queue_exists(%s || '.commands')",
    "domain_figures": (
        "select domain, ready, delayed, oldest_seconds, parked, workers, concurrency, in_flight,"
        " heartbeat_seconds, batch_remaining from {schema}.domain_figures()"
    ),
    "governed_figures": (
        "select b.batch_id, b.batch_type, b.created_at, b.completed_at, b.completed_count,"
        " b.failed_count + b.in_troubleshooting_count, b.canceled_count"
        " from {schema}.command_bus_batch b where b.batch_type is not null"
        " and (b.completed_at is null or b.completed_at > %s)"
    ),
}
