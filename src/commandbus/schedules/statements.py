"""The statements of schedules."""

from __future__ import annotations

from typing import LiteralString

COLUMNS: LiteralString = (
    "s.schedule_id, s.domain, s.name, s.command_type, s.cron, s.timezone, s.every_seconds, s.at,"
    " s.counted_from, s.missed, s.missed_cap, s.overlap, s.jitter_seconds, s.expires_in_seconds,"
    " s.priority, s.ordering_key, s.reply_to, s.max_attempts, s.next_tick_at, s.last_tick_at,"
    " s.last_command_id, s.last_error, s.version, s.created_by, s.created_at, s.updated_by,"
    " s.updated_at, s.paused_at, s.paused_by, s.pause_reason, s.on_behalf ->> 'user', s.meta"
)
FIND: LiteralString = (
    "select clock_timestamp(), "  # noqa: S608  (literals only)
    + COLUMNS
    + " from (select 1) one left join {schema}.command_bus_schedule s"
    " on s.domain = %s and s.name = %s"
)
PAGE: LiteralString = (
    "select "  # noqa: S608  (literals only)
    + COLUMNS
    + " from {schema}.command_bus_schedule s"
    " where (cast(%s as text[]) is null or s.domain = any(cast(%s as text[])))"
    " and (cast(%s as text) is null or (s.domain, s.name) > (%s, %s))"
    " order by s.domain, s.name limit %s"
)
PUT: LiteralString = (
    "select {schema}.put_schedule(%s, %s, %s, cast(%s as jsonb), cast(%s as timestamptz),"
    " cast(%s as timestamptz), cast(%s as bigint), %s, cast(%s as jsonb))"
)
DATA: LiteralString = "select name, data from {schema}.schedule_data(%s, cast(%s as text[]))"
PAUSE: LiteralString = "select {schema}.pause_schedule(%s, %s, %s, %s)"
RESUME: LiteralString = (
    "select {schema}.resume_schedule(%s, %s, %s, cast(%s as timestamptz), %s, %s, %s)"
)
DELETE: LiteralString = "select {schema}.delete_schedule(%s, %s, %s, %s)"
TRIGGER: LiteralString = "select {schema}.trigger_schedule(%s, %s, %s, %s, cast(%s as jsonb), %s)"
