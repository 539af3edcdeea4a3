-- 0020: order by key. Commands of one key run one after the other, in the order in which they were sent.

-- Numbers of the commands of a key, in the order of their commits: drawn under the lock of the key.
create sequence commandbus.command_bus_key_number;

-- The keys that have open commands, one row each: it is the lock of its key.
--   head: the command whose turn it is; all others of the key wait. Null only inside a transaction.
--   blocked_by: the head again, if it is parked and its domain lets a parked command block its key
create table commandbus.command_bus_key (
    domain       text not null,
    ordering_key text not null,
    head         uuid null,
    blocked_by   uuid null,
    blocked_at   timestamptz null,
    constraint pk_key primary key (domain, ordering_key),
    constraint valid_block check ((blocked_by is null) = (blocked_at is null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
create index ix_key_blocked on commandbus.command_bus_key (domain, blocked_at) where blocked_by is not null;

-- Keys to look at again, because another session had them. Without a unique key: who writes a row here must not
-- wait for another who writes the same.
create table commandbus.command_bus_key_due (
    due_id       bigint generated always as identity,
    domain       text not null,
    ordering_key text not null,
    constraint pk_key_due primary key (domain, due_id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
