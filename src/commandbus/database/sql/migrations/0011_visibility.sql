-- 0011: who may see what, and listings of very many batches (docs/adr/0037).

-- Whose governed batch a parked command belongs to; null: none. Rows of this table are written when a
-- command is parked, and never changed.
alter table commandbus.command_bus_troubleshooting add column owner text null;
update commandbus.command_bus_troubleshooting t set owner = b.created_by
  from commandbus.command_bus_command c
  join commandbus.command_bus_batch b on b.batch_id = c.batch_id and b.domain = c.domain
 where c.domain = t.domain and c.command_id = t.command_id and b.batch_type is not null;
create index ix_troubleshooting_owner
    on commandbus.command_bus_troubleshooting (domain, owner, parked_at, command_id)
    where owner is not null;

-- The token that took the place of a rotated one.
alter table commandbus.command_bus_api_token add column replaced_by text null;

-- Whether a command of a governed batch was ever counted into a group, or is an item of an operation. Of
-- what was there before nobody knows: where governed batches are, it counts as such.
alter table commandbus.command_bus_failure_group
    add column is_governed boolean not null default false;
update commandbus.command_bus_failure_group g set is_governed = true
 where exists (select from commandbus.command_bus_batch b
                where b.domain = g.domain and b.batch_type is not null);
alter table commandbus.command_bus_bulk_operation
    add column is_governed boolean not null default false;
update commandbus.command_bus_bulk_operation o set is_governed = true
 where exists (select from commandbus.command_bus_batch b
                where b.domain = o.domain and b.batch_type is not null);

-- Tickets by how they stand. Worked out from the counters, so that it cannot drift from them; its value
-- changes when the last open command ends or is parked, or the first is opened again: then is_pending, which
-- is indexed, changes as well. So no update of a counter writes an index for its sake.
alter table commandbus.command_bus_batch
    add column ticket_class text null generated always as (
        case when batch_type is null then null
             when total_count > completed_count + failed_count + canceled_count
                                + in_troubleshooting_count then 'OPEN'
             when completed_count = total_count then 'COMPLETED'
             when canceled_count = total_count then 'CANCELED'
             when completed_count > 0 then 'PARTIAL_SUCCESS'
             else 'FAILED' end
    ) stored;
create index ix_batch_ticket on commandbus.command_bus_batch
    (domain, batch_type, ticket_class, created_at desc, batch_id desc) where batch_type is not null;
create index ix_batch_ticket_owner on commandbus.command_bus_batch
    (created_by, domain, batch_type, ticket_class, created_at desc, batch_id desc)
    where batch_type is not null;
drop index commandbus.ix_batch_owner;
drop index commandbus.ix_batch_governed;
-- The others, newest first: what a reader who sees no governed batch is shown.
create index ix_batch_ungoverned on commandbus.command_bus_batch
    (domain, created_at desc, batch_id desc) where batch_type is null;
