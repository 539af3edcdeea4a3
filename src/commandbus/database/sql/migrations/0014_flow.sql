-- 0014: when, in which order and how many at once. All new columns of a command are null where they are not
-- used, and no ordinary lease writes one of them: so an update of a command stays a HOT update, and who uses
-- none of it stores no byte more.

alter table commandbus.command_bus_command
    add column deliver_at   timestamptz null,   -- not before this time
    add column expires_at   timestamptz null,   -- not begun by then: CANCELED, with the event EXPIRED
    add column priority     smallint null,      -- -2 to 2; null: 0
    add column ordering_key text null,          -- commands of one key run one after the other
    add column key_seq      bigint null,        -- its number among those of its key
    add column limit_key    text null,          -- what a limit by key counts by
    add column snoozes      int null,           -- how often its handler has put it off; null: never
    add constraint valid_priority check (priority between -2 and 2);

-- What holds for all commands of a load that do not say it themselves, as offer_commands takes it.
alter table commandbus.command_bus_load add column options jsonb null;

-- What a domain uses: one row, read by its key at each receive. No row: it uses nothing of all this.
create table commandbus.command_bus_flow (
    domain        text primary key,
    paused_at     timestamptz null,
    paused_until  timestamptz null,             -- null: until somebody resumes it
    paused_by     text null,
    pause_reason  text null,
    has_levels    boolean not null default false, -- some command was sent with a priority
    level_seconds double precision not null default 60, -- how much waiting one level is worth
    has_rules     boolean not null default false, -- there are limits, or paused types
    has_keys      boolean not null default false, -- some command was sent with an ordering key
    on_park       text not null default 'block',  -- whether a parked command blocks its key
    updated_at    timestamptz not null default now(),
    constraint valid_level_seconds check (level_seconds >= 0),
    constraint valid_on_park check (on_park in ('block', 'skip'))
) with (fillfactor = 50);

-- Commands that may not start for another reason than their time. Their message has vt = 'infinity', at the far end
-- of the index of what is due, so that no read steps over them, however many there are.
--   gate: what it waits for. 'k:<key>', behind others of its key; other gates are limits and pauses.
--   seq: first come, first served
create table commandbus.command_bus_waiting (
    domain     text not null,
    gate       text not null,
    seq        bigint not null,
    msg_id     bigint not null,
    command_id uuid not null,
    since      timestamptz not null default clock_timestamp(),
    constraint pk_waiting primary key (domain, gate, seq, msg_id)
);
create unique index uq_waiting_command on commandbus.command_bus_waiting (domain, command_id);

-- When to look whether a command has expired. A row is there until then and no longer, so that the look needs
-- no index on the status of commands.
create table commandbus.command_bus_expiry (
    domain     text not null,
    command_id uuid not null,
    look_at    timestamptz not null,
    constraint pk_expiry primary key (domain, command_id)
);
create index ix_expiry_look_at on commandbus.command_bus_expiry (look_at);

-- The same of the commands of one call, one array for each column, in the order of the commands.
create type commandbus.flow_fields as (
    deliver_at timestamptz[], expires_at timestamptz[], priority smallint[], ordering_key text[],
    key_seq bigint[], limit_key text[]);
