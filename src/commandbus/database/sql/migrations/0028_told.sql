-- 0028: for those who look: of each chore how often it is done and what it did last, and of a load how many rows
-- its source has.
alter table commandbus.command_bus_chore
    add column every    interval null,                   -- at most this often; null: a worker of before has begun it
    add column ended_at timestamptz null,                -- older than started_at: it runs, or its process ended
    add column failed   boolean not null default false,
    add column told     jsonb not null default '{}';     -- what it did, by domain; '*': what is about all of them

alter table commandbus.command_bus_load
    add column rows_total int null;                      -- null: its source has no length
