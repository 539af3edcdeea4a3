"""Rows that are there before a drain begins, put in by SQL: through the engine it takes hours.

They look as the engine leaves them: a finished command has its row and three audit events; its
message is gone. Their ids are in the order of time, as `commandbus.new_id` makes them, or random.
A backing-off one has its message, read once and hidden for an hour.
"""

from __future__ import annotations

_COMMANDS = """
insert into commandbus.command_bus_command
    (domain, queue_name, msg_id, command_id, command_type, status, attempts, max_attempts,
     created_at, updated_at, reply_queue, correlation_id, lease_epoch, queued_at)
"""

#: How the finished ones got their ids.
IN_ORDER = """
create function pg_temp.new_id(n int) returns uuid
return uuidv7(interval '-1 day' + n * interval '1 ms')
"""
AT_RANDOM = "create function pg_temp.new_id(n int) returns uuid return gen_random_uuid()"

FINISHED = (
    "select commandbus.ensure_domain('bench')",
    _COMMANDS
    + """
select 'bench', 'bench.commands', n, pg_temp.new_id(n), 'Work', 'COMPLETED', 1, 3,
       now() - interval '1 day' + n * interval '1 ms',
       now() - interval '1 day' + n * interval '1 ms',
       'bench.replies', uuidv7(interval '-1 day' + n * interval '1 ms'), 1, now() - interval '1 day'
  from generate_series(1, %(rows)s) n
""",
    """
insert into commandbus.command_bus_audit (domain, command_id, event_type, ts)
select c.domain, c.command_id, e.event_type, c.created_at
  from commandbus.command_bus_command c
 cross join (values ('SENT'), ('RECEIVED'), ('COMPLETED')) e(event_type)
""",
)

BACKING_OFF = (
    FINISHED[0],
    """
insert into pgmq.q_bench__commands (read_ct, vt, last_read_at, message)
select 1, now() + interval '1 hour', now(), jsonb_build_object(
           'command_id', uuidv7(), 'type', 'Work', 'note', repeat('x', 120))
  from generate_series(1, %(rows)s) n
""",
    _COMMANDS
    + """
select 'bench', 'bench.commands', q.msg_id, (q.message ->> 'command_id')::uuid, 'Work', 'PENDING',
       1, 3, now(), now(), 'bench.replies', uuidv7(), 1, now()
  from pgmq.q_bench__commands q
""",
)

FILLS = {
    "finished": (IN_ORDER, *FINISHED),
    "finished, random ids": (AT_RANDOM, *FINISHED),
    "backing-off": BACKING_OFF,
}
