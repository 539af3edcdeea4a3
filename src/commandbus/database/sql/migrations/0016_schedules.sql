-- 0016: schedules. docs/adr/0046 has the reasons.

create table commandbus.command_bus_schedule (
    schedule_id        uuid primary key,
    domain             text not null,
    name               text not null,
    -- what is sent
    command_type       text not null,
    data               jsonb not null,
    reply_to           text not null,                   -- '': no reply
    max_attempts       int not null,
    expires_in_seconds double precision null,
    priority           int null,
    ordering_key       text null,
    jitter_seconds     double precision not null,
    -- when
    cron               text null,
    timezone           text null,
    every_seconds      double precision null,
    at                 timestamptz null,
    counted_from       timestamptz not null,            -- what an interval is counted from
    missed             text not null,
    missed_cap         int not null,
    overlap            text not null,
    -- how it stands
    next_tick_at       timestamptz null,                -- null: it is finished
    look_at            timestamptz null,                -- next_tick_at, or later after a failure
    last_tick_at       timestamptz null,
    last_command_id    uuid null,
    last_trigger_id    uuid null,
    last_error         text null,
    version            bigint not null default 1,       -- grows with each change, not with ticks
    created_by         text null,
    created_at         timestamptz not null,
    updated_by         text null,
    updated_at         timestamptz not null,
    paused_at          timestamptz null,
    paused_by          text null,
    pause_reason       text null,
    on_behalf          jsonb null,                      -- put over HTTP for whom; null: by an application
    constraint uq_schedule_name unique (domain, name),
    constraint ck_schedule_time check (num_nonnulls(cron, every_seconds, at) = 1
                                       and (cron is null) = (timezone is null)),
    constraint ck_schedule_missed check (missed in ('once', 'skip', 'all')),
    constraint ck_schedule_overlap check (overlap in ('skip', 'allow'))
);
-- What is due is the beginning of this index, however many schedules there are.
create index ix_schedule_due on commandbus.command_bus_schedule (look_at) where paused_at is null;
