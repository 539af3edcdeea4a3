-- 0019: limits of execution: how many commands run at once, and how often they start, over all workers.
--
-- A gate is what a command must pass to be leased: that of its domain ('l:d'), of its type ('l:t:<type>'), and of its
-- type and key ('l:k:<type>/<key>'). Gates are compared by bytes, so that those of one kind stand together.
alter table commandbus.command_bus_waiting alter column gate type text collate "C";

-- What somebody has set: a limit, a rate, a pause, or several of them.
create table commandbus.command_bus_flow_rule (
    domain       text not null,
    command_type text not null,               -- '': all types
    by_key       boolean not null,            -- for each limit key of the type by itself
    max_running  int null,                    -- null: any number
    rate         double precision null,       -- leases in per_seconds; null: any number
    per_seconds  double precision null,
    burst        double precision null,       -- of them at once after a pause
    paused_at    timestamptz null,
    paused_until timestamptz null,            -- null: until somebody resumes it
    paused_by    text null,
    pause_reason text null,
    updated_at   timestamptz not null default clock_timestamp(),
    updated_by   text null,
    constraint pk_flow_rule primary key (domain, command_type, by_key),
    constraint valid_max_running check (max_running >= 1),
    constraint valid_rate check (
        num_nonnulls(rate, per_seconds, burst) in (0, 3) and rate > 0 and per_seconds > 0 and burst >= 1),
    constraint valid_key_rule check (not by_key or command_type <> '' and paused_at is null)
);

-- The lock under which places and tokens of a gate are given, and its tokens. Made when a gate is first needed.
--   ready_at: when the next token is there, if commands wait for it
create table commandbus.command_bus_gate (
    domain      text not null,
    gate        text collate "C" not null,
    tokens      double precision null,        -- as of refilled_at; null: as many as fit
    refilled_at timestamptz null,
    ready_at    timestamptz null,
    constraint pk_gate primary key (domain, gate)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
create index ix_gate_ready on commandbus.command_bus_gate (domain, ready_at) where ready_at is not null;

-- The places that leased commands have. A place belongs to the command: who leases it again has its place.
create table commandbus.command_bus_slot (
    domain     text not null,
    gate       text collate "C" not null,
    command_id uuid not null,
    constraint pk_slot primary key (domain, gate, command_id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
create index ix_slot_command on commandbus.command_bus_slot (domain, command_id);
