-- 0022: what people who operate the bus look at: who works, how fast, which loads are open, what people did,
-- and what the doctor found last (docs/adr/0065).

-- What a worker says of itself. The counts are of what it has ended since it was put on the list.
alter table commandbus.command_bus_worker
    add column version     text null,
    add column stuck_types text[] not null default '{}', -- of handlers that did not end after their time-out
    add column completed   bigint not null default 0,
    add column failed      bigint not null default 0,
    add column parked      bigint not null default 0,
    add column retried     bigint not null default 0;

-- Loads, newest first; and those that are not done, which are few. A checkpoint writes both anew, twice a second
-- at most, beside its thousands of rows.
create index ix_load_created on commandbus.command_bus_load (created_at, batch_id);
create index ix_load_open on commandbus.command_bus_load (created_at, batch_id)
    where status in ('loading', 'failed') or status = 'sealed' and rows_dispatched < rows_committed;

-- What people did. Sends and receipts have an actor too, and are as many as commands.
create index ix_audit_people on commandbus.command_bus_audit (audit_id)
    where actor is not null and event_type not in ('SENT', 'RECEIVED', 'AUDIT_PRUNED');

-- Where the counters of a domain stood at the last sample, and what workers that are gone had ended.
create table commandbus.command_bus_tally (
    domain         text primary key,
    since          timestamptz not null,             -- it has been sampled
    queued         bigint not null default 0,        -- the last number that its queue gave to a message
    removed        bigint not null default 0,        -- messages taken out of it, by the server's statistics
    completed      bigint not null default 0,
    failed         bigint not null default 0,
    parked         bigint not null default 0,
    retried        bigint not null default 0,
    gone_completed bigint not null default 0,
    gone_failed    bigint not null default 0,
    gone_parked    bigint not null default 0,
    gone_retried   bigint not null default 0
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- What came and went in ten seconds (kept for two hours), and in a minute (kept for seven days). Without a row
-- nothing did.
create table commandbus.command_bus_sample (
    seconds   smallint not null,
    at        timestamptz not null,                  -- the beginning of that time
    domain    text not null,
    queued    bigint not null,
    removed   bigint not null,
    completed bigint not null,
    failed    bigint not null,
    parked    bigint not null,
    retried   bigint not null,
    constraint valid_seconds check (seconds in (10, 60)),
    constraint pk_sample primary key (seconds, at, domain)
) with (fillfactor = 70);

-- How often a failure group was seen in an hour; kept for seven days.
create table commandbus.command_bus_group_sample (
    domain      text not null,
    fingerprint text not null,
    hour        timestamptz not null,
    seen        bigint not null,
    total       bigint not null,                     -- total_seen of the group when it was last looked at
    constraint pk_group_sample primary key (domain, fingerprint, hour)
) with (fillfactor = 50);
create index ix_group_sample_hour on commandbus.command_bus_group_sample (hour);

-- Runs of the doctor, and verifications of the audit: the last fifty of each.
create table commandbus.command_bus_check_run (
    run_id      bigint generated always as identity primary key,
    kind        text not null,
    domain      text null,                           -- null: all
    is_fix      boolean not null default false,
    actor       text null,
    reason      text null,
    started_at  timestamptz not null,
    touched_at  timestamptz not null,                -- the last sign of life
    finished_at timestamptz null,
    error       text null,                           -- why there is no result
    result      jsonb null,
    constraint valid_check_kind check (kind in ('doctor', 'audit'))
);
