-- 0031: archives of PGMQ in parts by ranges of msg_id, so that what is old goes as a whole (docs/adr/0096). Only what their
-- upkeep has to remember: an archive becomes parts when it has grown, by a chore.

-- Parts whose numbers have all been given. Messages with these numbers may still be live, or be written by transactions that
-- were open when that was noted.
create table commandbus.command_bus_archive_part (
    archive    text not null,                           -- the queue, by the name that PGMQ has for it
    first_id   bigint not null,
    below_id   bigint not null,
    waits_for  text[] not null,                         -- virtual transactions that may still add to it
    noted_at   timestamptz not null default now(),
    look_after timestamptz not null default '-infinity', -- it could not be dropped
    constraint pk_archive_part primary key (archive, first_id)
);

-- How many numbers a part has, at least.
insert into commandbus.command_bus_setting (name, value) values ('archive_part_rows', '250000');
