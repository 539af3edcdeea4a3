-- Visibility: who may see what belongs to a batch. The one place in the database that knows the rule; the
-- service says who looks (docs/adr/0037).
--
-- A governed batch, and everything of it, is for its owner, and for those who operate or approve in its
-- domain. Everything else of a domain is for everyone who reads there.
--   p_viewer: whose eyes; null: who sees the batches of all owners

-- Whether a batch, and so its commands, its events and its failures, may be shown. Of a batch that is gone
-- nobody can tell whose it was: it is for those who see everything.
create or replace function commandbus.sees_batch(p_viewer text, p_batch_id uuid) returns boolean
language plpgsql stable as $$
begin
    return p_viewer is null or p_batch_id is null or exists (
        select from commandbus.command_bus_batch b
         where b.batch_id = p_batch_id and (b.batch_type is null or b.created_by = p_viewer));
end $$;

-- The same for statements of the library: helpers are not called from outside.
create or replace function commandbus.visible_batch(p_viewer text, p_batch_id uuid) returns boolean
language plpgsql stable as $$
begin
    return commandbus.sees_batch(p_viewer, p_batch_id);
end $$;

-- Whether an event may be shown that has no batch: those of one command have that of the command. Bulk
-- operations and failure groups say of themselves whether they touch a governed batch; repairs name a command, perhaps.
create or replace function commandbus.sees_event(p_viewer text, p_event commandbus.command_bus_audit)
returns boolean
language plpgsql stable as $$
begin
    if p_viewer is null then
        return true;
    elsif p_event.batch_id is not null then
        return commandbus.sees_batch(p_viewer, p_event.batch_id);
    elsif starts_with(p_event.event_type, 'BULK_') then
        return exists (select from commandbus.command_bus_bulk_operation o
                        where o.operation_id = p_event.command_id and not o.is_governed);
    elsif starts_with(p_event.event_type, 'GROUP_') then
        return exists (select from commandbus.command_bus_failure_group g
                        where g.domain = p_event.domain
                          and g.fingerprint = p_event.details_json ->> 'group' and not g.is_governed);
    end if;
    return p_event.event_type <> 'DOCTOR_REPAIR' or not exists (
        select from commandbus.known_command(p_event.domain, p_event.command_id) c
         where not commandbus.sees_batch(p_viewer, c.batch_id));
end $$;
