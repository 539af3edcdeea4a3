-- 0032: finished commands that retention moves out of the table of commands, into parts that are dropped as a whole.
-- docs/adr/0097 has the reasons.

-- A command as it was when it was moved, under a number of its domain in the order of moving. The columns from domain on are those
-- of command_bus_command, in its order: a column that is added there is added here. Parts are ranges of the numbers of one domain.
create table commandbus.command_bus_history (
    history_no          bigint not null,
    moved_at            timestamptz not null,
    sent_by             text null,                      -- who sent it over HTTP, and the keyed digest of what
    digest              bytea null,
    -- names of domains by their bytes: bounds of parts must not depend on a locale that is upgraded
    domain              text collate "C" not null,
    queue_name          text not null,
    msg_id              bigint null,
    command_id          uuid not null,
    command_type        text not null,
    status              text not null,
    attempts            int not null,
    max_attempts        int not null,
    lease_expires_at    timestamptz null,
    last_error_type     text null,
    last_error_code     text null,
    last_error_msg      text null,
    created_at          timestamptz not null,
    updated_at          timestamptz not null,
    lease_epoch         bigint not null,
    leased_by           text null,
    lapses              int not null,
    started_alone       boolean not null,
    last_attempt_at     timestamptz null,
    reply_queue         text not null,
    correlation_id      uuid not null,
    batch_id            uuid null,
    is_globally_unique  boolean not null,
    sequence_no         int null,
    attempt_count       int not null,
    dispatch_status     text not null,
    queue_attempt_count int not null,
    last_queue_error    text null,
    queued_at           timestamptz null,
    deliver_at          timestamptz null,
    expires_at          timestamptz null,
    priority            smallint null,
    ordering_key        text null,
    key_seq             bigint null,
    limit_key           text null,
    snoozes             int null,
    cancel_requested_at timestamptz null,
    cancel_requested_by text null,
    cancel_reason       text null,
    constraint pk_history primary key (domain, history_no)
) partition by range (domain, history_no);
create index ix_history_command on commandbus.command_bus_history (command_id, domain);
create index ix_history_created on commandbus.command_bus_history (created_at);
create index ix_history_correlation on commandbus.command_bus_history (correlation_id);
create index ix_history_batch on commandbus.command_bus_history (batch_id, sequence_no) where batch_id is not null;

-- Numbers the parts, for their names. Its first number says that this database has a history: who sends asks it without a
-- query, and it is there before the first row is.
create sequence commandbus.command_bus_history_part;

-- How far the history of a domain has come. A move of commands locks the row first.
create table commandbus.command_bus_history_domain (
    domain        text primary key,
    last_no       bigint not null default 0,
    -- The highest of the ids that begin with the time. One that is higher was never moved, and needs no look.
    newest_id     uuid null,
    has_other_ids boolean not null default false
);

alter table commandbus.command_bus_retention drop constraint valid_kind;
alter table commandbus.command_bus_retention add constraint valid_kind
    check (kind in ('audit', 'archives', 'replies', 'commands', 'history'));

-- A batch whose commands are all in the history stays, with its counters, as long as they do.
alter table commandbus.command_bus_batch
    add column moved_to bigint null,                    -- the number of the last of them
    add column history_since timestamptz null;
create index ix_batch_moved on commandbus.command_bus_batch (domain, moved_to) where moved_to is not null;
create index ix_batch_unmoved on commandbus.command_bus_batch (created_at, batch_id) where moved_to is null;

-- How many numbers a part has, at least.
insert into commandbus.command_bus_setting (name, value) values ('history_part_rows', '1000000');
