-- 0015: what a handler can say beside success and failure, cancels of what runs, and progress
-- (docs/adr/0044, docs/adr/0045). All columns are null in commands that use none of it, and take no room there.

alter table commandbus.command_bus_command
    add column if not exists snoozes int null,           -- how often its handler asked for it later
    -- a worker has it, and is asked to end it: since when, by whom, why
    add column if not exists cancel_requested_at timestamptz null,
    add column if not exists cancel_requested_by text null,
    add column if not exists cancel_reason text null;

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

-- It returns another row now.
drop function if exists commandbus.receive_commands(
    text, int, int, text, jsonb, boolean, boolean, text[], text[]);
