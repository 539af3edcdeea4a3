"""What the harness adds to the database: the tap on changes of commands, and the side tables.

The tap writes down each change of state or lease in the transaction that makes it, under the lock
of the row. So the order of a command's lines is the order in which they happened, and a change that
went past the guards of the functions is seen as well.
"""

from __future__ import annotations

import psycopg

TAP = """
create schema faults;
create table faults.change (
    seq bigserial primary key, at timestamptz not null default clock_timestamp(),
    domain text not null, command_id uuid not null,
    old_status text, new_status text, old_epoch bigint, new_epoch bigint,
    old_holder text, new_holder text, held_until timestamptz,
    ordering_key text, key_seq bigint
);
create table faults.effect (
    domain text not null, command_id uuid not null, epoch bigint not null, pid int not null,
    at timestamptz not null default clock_timestamp()
);
create table faults.written (
    domain text not null, command_id uuid not null, epoch bigint not null, pid int not null
);

create function faults.tap() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        insert into faults.change (domain, command_id, new_status, old_epoch, new_epoch)
        values (new.domain, new.command_id, new.status, 0, new.lease_epoch);
    elsif tg_op = 'DELETE' then
        insert into faults.change (domain, command_id, old_status, old_epoch, new_epoch)
        values (old.domain, old.command_id, old.status, old.lease_epoch, old.lease_epoch);
    elsif (old.status, old.lease_epoch, old.leased_by)
          is distinct from (new.status, new.lease_epoch, new.leased_by) then
        insert into faults.change (domain, command_id, old_status, new_status, old_epoch, new_epoch,
                                   old_holder, new_holder, held_until, ordering_key, key_seq)
        values (new.domain, new.command_id, old.status, new.status,
                old.lease_epoch, new.lease_epoch, old.leased_by, new.leased_by,
                case when old.leased_by is not null then old.lease_expires_at end,
                new.ordering_key, new.key_seq);
    end if;
    return null;
end $$;
create trigger faults_tap after insert or update or delete on commandbus.command_bus_command
    for each row execute function faults.tap();
"""

#: I8 in one snapshot: batches whose counters differ from a recount. Those that ended a while ago
#: are left to the check at the end, or a look would take longer and longer.
MISMATCHES = """
with recent as materialized (
    select b.* from commandbus.command_bus_batch b
     where b.completed_at is null or b.completed_at > clock_timestamp() - interval '5 seconds'
)
select count(*) from recent b
 cross join lateral commandbus.recount_batch(b.batch_id) r
 where (b.total_count, b.completed_count, b.failed_count, b.canceled_count,
        b.in_troubleshooting_count)
       is distinct from (r.total, r.completed, r.failed, r.canceled, r.parked)
"""


def install(dsn: str) -> None:
    """Add tap and side tables to a database that has the schema."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(TAP)
