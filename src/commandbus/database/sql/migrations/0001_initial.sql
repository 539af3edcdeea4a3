-- 0001: commands, audit, batches, and what the engine needs beside them.
--
-- Every update of a command row should be a HOT update: no index on a column that changes
-- (status, attempts, lease, updated_at) except a BRIN, which does not stand in its way
-- (PostgreSQL 16 and later), and half of each page kept free. docs/adr/0002 has the measurements.

create table commandbus.command_bus_batch (
    batch_id                 uuid primary key,
    domain                   varchar(255) not null,
    name                     varchar(255),
    custom_data              jsonb,
    status                   varchar(50) not null default 'PENDING',
    total_count              integer not null default 0,
    completed_count          integer not null default 0,
    failed_count             integer not null default 0,
    canceled_count           integer not null default 0,
    in_troubleshooting_count integer not null default 0,
    created_at               timestamptz not null default now(),
    started_at               timestamptz,
    completed_at             timestamptz,
    -- added to the printed columns
    batch_type               text,
    created_by               text,
    reason                   text,
    request_id               uuid,
    request_digest           bytea,
    total_sealed             boolean not null default true,
    on_complete              jsonb,                  -- the command to send at each closing
    close_count              integer not null default 0,
    notifies                 boolean not null default false, -- somebody waits for the closing
    pruning_since            timestamptz null,       -- retention removes it, commands first
    constraint valid_status check (
        status in ('PENDING', 'IN_PROGRESS', 'COMPLETED', 'COMPLETED_WITH_FAILURES')),
    constraint valid_counts check (
        least(total_count, completed_count, failed_count, canceled_count,
              in_troubleshooting_count) >= 0),
    constraint uq_batch_domain_batch_id unique (domain, batch_id)
) with (fillfactor = 50);

create index idx_batch_domain on commandbus.command_bus_batch (domain);
create index idx_batch_status on commandbus.command_bus_batch (status);
create index idx_batch_created_at on commandbus.command_bus_batch (created_at desc);
create index ix_batch_pruning on commandbus.command_bus_batch (domain, batch_id)
    where pruning_since is not null;

create table commandbus.command_bus_command (
    domain              text not null,
    queue_name          text not null,
    msg_id              bigint null,
    command_id          uuid not null,
    command_type        text not null,
    status              text not null,
    attempts            int not null default 0,
    max_attempts        int not null,
    lease_expires_at    timestamptz null,
    last_error_type     text null,
    last_error_code     text null,
    last_error_msg      text null,
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    -- Added to the printed columns, and among them: what a lease and its end change stands together,
    -- because the log takes an update from its first changed byte to its last.
    lease_epoch         bigint not null default 0,      -- the fence: +1 at each receive, never reset
    leased_by           text null,                      -- the worker; null when nobody holds a lease
    -- leases in a row that ended without a word; negative: and given back since, without a run
    lapses              int not null default 0,
    started_alone       boolean not null default false, -- a suspect, known to run by itself
    last_attempt_at     timestamptz null,
    reply_queue         text not null,
    correlation_id      uuid not null,
    -- added to the printed columns as well
    batch_id            uuid null,
    is_globally_unique  boolean not null default false,
    sequence_no         int null,
    attempt_count       int not null default 1,         -- dispatches; never reset
    dispatch_status     text not null default 'queued',
    queue_attempt_count int not null default 0,
    last_queue_error    text null,
    queued_at           timestamptz null,
    constraint valid_command_status check (status in (
        'PENDING', 'IN_PROGRESS', 'COMPLETED', 'CANCELED', 'FAILED', 'IN_TROUBLESHOOTING_QUEUE')),
    constraint valid_dispatch_status check (dispatch_status in (
        'awaiting_approval', 'scheduled', 'pending_queue', 'queued', 'pending_retry', 'failed')),
    constraint fk_command_batch foreign key (domain, batch_id)
        references commandbus.command_bus_batch (domain, batch_id)
) with (
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1
);

create unique index uq_command_bus_command_domain_cmdid
    on commandbus.command_bus_command (domain, command_id);
create unique index uq_command_bus_command_global
    on commandbus.command_bus_command (command_id) where is_globally_unique;
create index ix_command_bus_command_updated
    on commandbus.command_bus_command using brin (updated_at);
create index ix_command_bus_command_created
    on commandbus.command_bus_command (created_at);
-- correlation_id never changes: the index costs an insert something, and updates nothing.
create index ix_command_bus_command_correlation
    on commandbus.command_bus_command (correlation_id);
create index idx_command_batch_id
    on commandbus.command_bus_command (batch_id, sequence_no) where batch_id is not null;

-- What is stored but not in its queue yet (002): small, because `queued` is not in it.
create index idx_command_dispatch
    on commandbus.command_bus_command (batch_id, dispatch_status, sequence_no)
    where dispatch_status <> 'queued';
-- Keyed by created_at: an index on a column that changes, even a partial one that does not hold the
-- row, makes every update of every command write all indexes anew.
create index idx_command_pending_retry
    on commandbus.command_bus_command (domain, created_at)
    where dispatch_status in ('pending_retry', 'pending_queue');

-- Batches whose commands some process is queueing in several commits. An old heartbeat says that the
-- process is gone. The row also says how fast its commands may go out. The row is there until
-- all of them are queued.
create table commandbus.command_bus_dispatch (
    batch_id      uuid primary key references commandbus.command_bus_batch (batch_id),
    domain        text not null,
    pattern       text not null,
    dispatch_rate double precision null,               -- commands per second; null: no limit
    queue         text null,                           -- a queue in another database, by its name
    heartbeat_at  timestamptz not null default now(),
    ended_at      timestamptz null,                    -- its process is done and left some behind
    constraint valid_pattern check (pattern in ('two_phase', 'optimistic'))
);
create index ix_dispatch_domain on commandbus.command_bus_dispatch (domain);

-- How long the creation of a batch took (002, "Key Metrics to Track").
create table commandbus.command_bus_creation_metric (
    batch_id         uuid primary key,
    pattern          text not null,
    batch_size       int not null,
    db_insert_ms     double precision not null,
    queue_send_ms    double precision not null,
    status_update_ms double precision not null,
    total_ms         double precision not null,
    retry_needed     boolean not null,
    created_at       timestamptz not null default now()
);
create index ix_creation_metric_created on commandbus.command_bus_creation_metric (created_at desc);

-- When each chore was last begun, by whichever worker.
create table commandbus.command_bus_chore (
    name       text primary key,
    started_at timestamptz not null
);

-- Loads: batches too large for one transaction, committed in checkpoints (002, pattern 2).
create table commandbus.command_bus_load (
    batch_id         uuid primary key
        references commandbus.command_bus_batch (batch_id) on delete cascade,
    domain           text not null,
    source           text not null,                  -- what it was called, for people
    row_format       jsonb not null,                 -- how its rows become commands
    start_mode       text not null,
    status           text not null default 'loading',
    checkpoint_size  int null,                       -- null: adaptive
    rows_committed   int not null default 0,
    checkpoints_done int not null default 0,
    rows_dispatched  int not null default 0,         -- rows that have been queued
    insert_ms        double precision not null default 0, -- spent in its checkpoints
    last_error       text null,
    created_at       timestamptz not null default now(),
    updated_at       timestamptz not null default now(),
    constraint valid_start_mode check (start_mode in ('sealed', 'as_it_loads')),
    constraint valid_load_status check (status in ('loading', 'sealed', 'failed'))
) with (fillfactor = 50);

create table commandbus.command_bus_load_checkpoint (
    batch_id      uuid not null
        references commandbus.command_bus_load (batch_id) on delete cascade,
    checkpoint_no int not null,
    first_row     int not null,
    row_count     int not null,
    digest        bytea not null,                    -- of its rows: a repeat must bring the same
    committed_at  timestamptz not null default now(),
    constraint valid_row_count check (row_count > 0),
    constraint pk_load_checkpoint primary key (batch_id, checkpoint_no)
);

-- What waits for an operator, and only while it waits: so that a listing by state never
-- needs an index on command_bus_command.status.
create table commandbus.command_bus_troubleshooting (
    domain       text not null,
    command_id   uuid not null,
    command_type text not null,
    reason       text not null,
    parked_at    timestamptz not null,
    fingerprint  text not null,                      -- of its failure group
    constraint valid_reason check (reason in ('PERMANENT', 'EXHAUSTED')),
    constraint pk_troubleshooting primary key (domain, command_id)
);
create index ix_troubleshooting_parked
    on commandbus.command_bus_troubleshooting (domain, parked_at, command_id);
create index ix_troubleshooting_type
    on commandbus.command_bus_troubleshooting (domain, command_type, parked_at);
create index ix_troubleshooting_group
    on commandbus.command_bus_troubleshooting (domain, fingerprint, parked_at, command_id);

-- What is parked, by cause: see functions/groups.sql. No index but the key, so that every change of
-- a counter is a HOT update.
create table commandbus.command_bus_failure_group (
    domain            text not null,
    fingerprint       text not null,
    command_type      text not null,
    error_class       text null,
    error_code        text null,
    message           text not null,                 -- normalised
    sample_message    text null,                     -- of the failure that came last
    sample_command_id uuid not null,
    parked_count      int not null,                  -- exact
    total_seen        bigint not null,               -- how often a command was parked with it
    first_seen        timestamptz not null,
    last_seen         timestamptz not null,
    constraint valid_parked_count check (parked_count >= 0),
    constraint pk_failure_group primary key (domain, fingerprint)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- One decision for many parked commands: see functions/bulk.sql.
create table commandbus.command_bus_bulk_operation (
    operation_id uuid primary key,
    domain       text not null,
    verb         text not null,
    filter       jsonb not null,
    arguments    jsonb not null,
    digest       bytea not null,                     -- of domain, verb, filter and arguments
    rate         double precision null,              -- commands per second; null: no limit
    actor        text null,
    status       text not null,
    total        int not null,
    done         int not null default 0,
    skipped      int not null default 0,
    failed       int not null default 0,
    executor     text null,                          -- who acted last, and when
    heartbeat_at timestamptz null,
    next_due_at  timestamptz not null default now(), -- no item before this time
    created_at   timestamptz not null default now(),
    started_at   timestamptz null,
    finished_at  timestamptz null,
    constraint valid_bulk_verb check (verb in ('retry', 'cancel', 'complete')),
    constraint valid_bulk_status check (status in ('running', 'stopped', 'finished')),
    constraint valid_bulk_counts check (done + skipped + failed <= total)
) with (fillfactor = 50);
create index ix_bulk_running
    on commandbus.command_bus_bulk_operation (domain, created_at) where status = 'running';
create index ix_bulk_created
    on commandbus.command_bus_bulk_operation (created_at, operation_id);

-- Its members, frozen at the start. They are acted on in their order, so the operation's counters
-- say which is next.
create table commandbus.command_bus_bulk_item (
    operation_id uuid not null
        references commandbus.command_bus_bulk_operation (operation_id) on delete cascade,
    item_no      int not null,
    command_id   uuid not null,
    parked_at    timestamptz not null,               -- the failure that was chosen
    outcome      text null,                          -- null: not yet acted on
    detail       text null,
    acted_at     timestamptz null,
    constraint valid_bulk_outcome check (outcome in ('done', 'skipped', 'failed')),
    constraint pk_bulk_item primary key (operation_id, item_no)
);
-- The few that people look for.
create index ix_bulk_item_undone
    on commandbus.command_bus_bulk_item (operation_id, outcome, item_no)
    where outcome in ('skipped', 'failed');

create index ix_troubleshooting_newest
    on commandbus.command_bus_troubleshooting (parked_at, command_id);

-- Keys of payloads that handlers have marked as secret; never removed by itself.
create table commandbus.command_bus_secret_key (
    domain       text not null,
    command_type text not null,
    key          text not null,
    constraint pk_secret_key primary key (domain, command_type, key)
);

create table commandbus.command_bus_audit (
    audit_id     bigserial primary key,
    domain       text not null,
    command_id   uuid not null,
    event_type   text not null,
    ts           timestamptz not null default now(),
    details_json jsonb null,
    -- added to the printed columns
    batch_id     uuid null,
    actor        text null
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

create index ix_command_bus_audit_cmdid_ts on commandbus.command_bus_audit (command_id, ts);

create table commandbus.command_bus_payload_archive (
    domain       text not null,
    command_id   uuid not null,
    payload_json jsonb not null,
    archived_at  timestamptz not null default now(),
    primary key (domain, command_id)
);

-- Answers that `call` waits for: found by key, where a shared queue would have to be searched.
create table commandbus.command_bus_reply_inbox (
    domain       text not null,
    command_id   uuid not null,
    reply        jsonb not null,
    published_at timestamptz not null default now(),
    primary key (domain, command_id)
);

-- Who works, and who waits: senders only read `is_idle`, so no sender waits for another.
create table commandbus.command_bus_worker (
    worker_id    text primary key,
    domain       text not null,
    is_idle      boolean not null default false,
    concurrency  int not null,
    in_flight    int not null default 0,
    started_at   timestamptz not null default now(),
    heartbeat_at timestamptz not null default now()
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

create table commandbus.command_bus_setting (
    name       text primary key,
    value      text not null,
    updated_at timestamptz not null default now()
);
insert into commandbus.command_bus_setting (name, value) values
    ('command_id_scope', 'domain'),   -- or 'global': one id in all domains
    ('payload_archive', 'off');       -- or 'on': parked payloads are kept apart from PGMQ's archive

-- How long to keep what is finished. Without a row nothing is removed.
create table commandbus.command_bus_retention (
    domain     text not null,                        -- '*': all that have no row of their own
    kind       text not null,
    keep       interval null,                        -- null: for ever
    updated_by text null,
    updated_at timestamptz not null default now(),
    constraint valid_kind check (kind in ('audit', 'archives', 'replies', 'commands')),
    constraint pk_retention primary key (domain, kind)
);
