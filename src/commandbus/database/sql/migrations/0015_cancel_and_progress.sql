-- 0015: cancels of what runs, and progress (docs/adr/0045). All columns are null in commands that use none of
-- it, and take no room there.

alter table commandbus.command_bus_command
    -- a worker has it, and is asked to end it: since when, by whom, why
    add column cancel_requested_at timestamptz null,
    add column cancel_requested_by text null,
    add column cancel_reason text null;

-- How far a running command has come, as its handler last said. Unlogged: it is worth nothing after a crash. A row
-- counts as long as lease_epoch is that of the command, so nothing is removed when a command ends; a chore
-- sweeps. Half of each page is free for the next versions of its rows.
create unlogged table commandbus.command_bus_progress (
    domain      text not null,
    command_id  uuid not null,
    lease_epoch bigint not null,
    fraction    float8 not null,
    message     text null,
    at          timestamptz not null,
    constraint pk_progress primary key (command_id, domain)
) with (fillfactor = 50);
