"""A domain once more under another name: the same ids, message numbers, epochs and groups.

So only the domain tells one from the other, and a condition on it that is missing shows.
"""

from __future__ import annotations

from tests.sql.helpers import DOMAIN, Session

#: Batches first: commands refer to them.
TABLES = (
    "batch", "command", "dispatch", "payload_archive", "reply_inbox", "troubleshooting",
    "failure_group", "audit", "flow", "waiting", "gate", "slot", "key", "expiry",
)  # fmt: skip


async def clone(db: Session, target: str) -> None:
    """Copy all rows and messages of our domain. Batches get ids of their own: those are unique."""
    await db.value("select commandbus.ensure_domain(%s)", target)
    batch_id = f"md5(t.batch_id || '{target}')::uuid"
    changes = {
        "batch": f"'batch_id', {batch_id}",
        "command": f"'batch_id', {batch_id}, 'queue_name', '{target}.commands',"
        f" 'reply_queue', replace(t.reply_queue, '{DOMAIN}.', '{target}.')",
        "dispatch": f"'batch_id', {batch_id}",
        "audit": f"'batch_id', {batch_id},"
        " 'audit_id', nextval('commandbus.command_bus_audit_audit_id_seq')",
    }
    for table in TABLES:
        changed = ", ".join(filter(None, (f"'domain', '{target}'", changes.get(table))))
        name = f"commandbus.command_bus_{table}"
        columns = await db.value(
            "select string_agg(attname, ', ') from pg_attribute where attrelid = %s::regclass"
            " and attnum > 0 and attgenerated = ''",
            name,
        )
        await db.rows(
            f"insert into {name} ({columns}) select {columns} from jsonb_populate_recordset("
            f"null::{name}, (select jsonb_agg(to_jsonb(t) || jsonb_build_object({changed}))"
            f" from (select * from {name} where domain = '{DOMAIN}' order by 1) t))"
        )
    for table in ("q", "a"):
        for suffix in ("commands", "replies"):
            await db.rows(
                f"insert into pgmq.{table}_{target}__{suffix} overriding system value"
                f" select (jsonb_populate_record(t, jsonb_build_object('message',"
                f" t.message || jsonb_build_object('domain', '{target}')))).*"
                f" from pgmq.{table}_{DOMAIN}__{suffix} t"
            )
