-- 0002: governed batches: tickets, approvals, limits.
--
-- A governed batch is a row of command_bus_batch with a batch_type. None of the new indexes is on a
-- column that a counter changes, so the update of a counter is still a HOT update: is_pending is
-- worked out from the counters, but its value changes only when the last open command ends, or the
-- first is opened again (docs/adr/0024).

alter table commandbus.command_bus_batch
    add column updated_at        timestamptz not null default now(), -- counters, status or decision
    add column requires_approval boolean not null default false,
    add column decided_by        text null,
    add column decided_at        timestamptz null,
    add column decision          text null,
    add column decision_reason   text null,
    -- What the limits count. Generated, so that it cannot drift from the counters.
    add column is_pending        boolean not null generated always as (
        batch_type is not null
        and total_count > completed_count + failed_count + canceled_count + in_troubleshooting_count
    ) stored,
    add constraint valid_decision check (decision in ('approve', 'reject')),
    add constraint whole_decision check ((decision is null) = (decided_at is null)),
    add constraint governed_has_owner check (batch_type is null or created_by is not null);

-- A repeated request finds its batch here.
create unique index uq_batch_request
    on commandbus.command_bus_batch (created_by, batch_type, request_id)
    where request_id is not null;
-- Gauges: what is pending, in all and by user. As small as what is pending.
create index ix_batch_pending
    on commandbus.command_bus_batch (created_by) where is_pending;
-- Listings, newest first. These columns never change.
create index ix_batch_governed
    on commandbus.command_bus_batch (created_at desc, batch_id desc) where batch_type is not null;
create index ix_batch_owner
    on commandbus.command_bus_batch (created_by, created_at desc, batch_id desc)
    where batch_type is not null;

-- What is counted by time, and cannot be counted from live rows: the API requests of a minute
-- (window_start is its beginning), and a user's last submission (window_start is its time).
create table commandbus.rate_limit_counter (
    scope         text not null,
    subject_id    text not null,                     -- 'global', or the user
    limit_type    text not null,
    window_start  timestamptz not null,
    current_value int not null,
    constraint valid_limit_scope check (scope in ('global', 'user')),
    constraint pk_rate_limit_counter primary key (scope, subject_id, limit_type, window_start)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- Users whom the user layer does not bind.
create table commandbus.rate_limit_exemption (
    user_id     text primary key,
    exempted_by text not null,
    reason      text not null,
    expires_at  timestamptz null,                    -- null: until it is taken back
    -- added to the printed columns
    created_at  timestamptz not null default now()
);

-- Users with limits of their own; null: the default holds.
create table commandbus.rate_limit_override (
    user_id              text primary key,
    max_pending_batches  int null,
    max_pending_children int null,
    cooldown_seconds     int null,
    updated_by           text not null,
    updated_at           timestamptz not null default now(),
    constraint valid_override check (
        least(max_pending_batches, max_pending_children, cooldown_seconds) >= 0)
);
