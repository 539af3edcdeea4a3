-- 0008: commands that a queue in another database has accepted, and that have not come back yet.

-- A row is there from the hand-over until the command is queued here. The key has the command in front: a look
-- for one must not read its domain while the statistics say that the table is empty.
create table commandbus.command_bus_unconfirmed (
    domain     text not null,
    command_id uuid not null,
    queue      text null,                               -- that accepted it, by its name
    handed_at  timestamptz not null default clock_timestamp(),
    constraint pk_unconfirmed primary key (command_id, domain)
);
create index ix_unconfirmed_handed on commandbus.command_bus_unconfirmed (domain, handed_at);

-- Those that were handed over before. Their payload is stored, and where payloads are not kept for other
-- reasons those are few.
insert into commandbus.command_bus_unconfirmed (domain, command_id, handed_at)
select c.domain, c.command_id, coalesce(c.queued_at, c.updated_at)
  from commandbus.command_bus_payload_archive p
  join commandbus.command_bus_command c on c.domain = p.domain and c.command_id = p.command_id
 where c.status = 'PENDING' and c.dispatch_status = 'queued' and c.msg_id is null;
