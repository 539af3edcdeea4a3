-- 0009: the rights to submit and to pass by governance; which command types are governed; who sent a
-- command over HTTP.

alter table commandbus.command_bus_api_token drop constraint valid_token_scopes;
alter table commandbus.command_bus_api_token add constraint valid_token_scopes check (
    cardinality(scopes) > 0
    and scopes <@ array['read', 'read-payload', 'send', 'submit', 'operate', 'approve', 'admin',
                        'bypass-governance']);
-- Who could send could submit, until these became two rights.
update commandbus.command_bus_api_token
   set scopes = array_append(scopes, 'submit')
 where 'send' = any(scopes) and not 'submit' = any(scopes);

-- A command type is governed as long as a batch type is registered for it here, by whichever process
-- declared it: a service that declared none must refuse it too.
create table commandbus.command_bus_governed_type (
    domain            text not null,
    command_type      text not null,
    batch_type        text not null,
    path              text null,                      -- where it is submitted; null: where all are
    requires_approval boolean not null,
    registered_at     timestamptz not null default now(),
    primary key (domain, command_type, batch_type)
);
-- Decisions about batches are submitted as a batch themselves, in every database.
insert into commandbus.command_bus_governed_type (domain, command_type, batch_type, path, requires_approval)
values ('approvals', 'DecideTicket', 'BATCH_APPROVE', '/api/v1/approvals/batch', false);
-- What was submitted before is governed at once, not only when its program has started again.
insert into commandbus.command_bus_governed_type (domain, command_type, batch_type, path, requires_approval)
select b.domain, c.command_type, b.batch_type, null, bool_or(b.requires_approval)
  from commandbus.command_bus_batch b
 cross join lateral (select c.command_type from commandbus.command_bus_command c
                      where c.batch_id = b.batch_id limit 1) c
 where b.batch_type is not null
 group by b.domain, c.command_type, b.batch_type
on conflict do nothing;

-- Who sent a command over HTTP, and the keyed digest of what: a repeat is its sender's alone to make.
-- Commands that were not sent over HTTP have no row.
create table commandbus.command_bus_sender (
    domain     text not null,
    command_id uuid not null,
    sent_by    text not null,
    digest     bytea not null,
    primary key (command_id, domain)
);
