-- Cancels of what a worker has. Nobody takes a lease away: the row is marked, the worker learns of it (a hint, or the
-- next extension of the lease) and ends the handler. What the handler comes to counts: success, a failure for good
-- and a discard stand. Whatever would lead to another start (a retry, a snooze, a release) ends the command instead,
-- because end_leases leaves marked commands to cancel_leased. So does the next receive, if the worker has died.

-- Ends what nobody works on, as cancel_commands does, and marks what a worker has. Returns the commands that are
-- marked, also those that were before: their first mark, and its event, stay.
create or replace function commandbus.request_cancel(
    p_domain text, p_command_ids uuid[], p_reason text, p_actor text default null,
    p_is_strict boolean default true
) returns setof uuid
language plpgsql as $$
declare
    v_now   timestamptz;
    v_ended uuid[];
    v_new   uuid[];
    v_asked uuid[];
begin
    perform commandbus.check_domain(p_domain);
    -- Messages before commands: the end of a lease does the same, so none of them ends in between.
    v_now := commandbus.lock_queued(p_domain, p_command_ids);
    v_ended := array(
        select commandbus.cancel_commands(p_domain, p_command_ids, p_reason, p_actor, false));
    with marked as (
        update commandbus.command_bus_command c
           set cancel_requested_at = v_now, cancel_requested_by = p_actor, cancel_reason = p_reason
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.status in ('PENDING', 'IN_PROGRESS') and c.leased_by is not null
           and c.cancel_requested_at is null
        returning c.command_id, c.batch_id
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select p_domain, m.command_id, 'CANCEL_REQUESTED', v_now, jsonb_build_object('reason', p_reason),
               m.batch_id, p_actor
          from marked m
    )
    select array_agg(m.command_id) into v_new from marked m;
    v_asked := array(
        select c.command_id from commandbus.command_bus_command c
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.leased_by is not null and c.cancel_requested_at is not null);
    if p_is_strict then
        perform commandbus.refuse_unmoved(p_domain, p_command_ids, v_ended || v_asked, 'cancel',
                                          'a command that is PENDING or that a worker has');
    end if;
    if v_new is not null then
        perform pg_notify(commandbus.channel(p_domain || '.cancels'), '');
    end if;
    return query select unnest(v_asked);
end $$;

-- Marks what workers have of a batch. Returns how many were not marked before: call it again, and cancel_batch,
-- until both return 0.
create or replace function commandbus.request_batch_cancel(
    p_domain text, p_batch_id uuid, p_reason text, p_actor text default null, p_limit int default 5000
) returns int
language plpgsql as $$
declare
    v_ids uuid[];
begin
    perform commandbus.require_batch(p_domain, p_batch_id);
    perform commandbus.claim_ticket(p_batch_id);
    v_ids := array(
        select c.command_id from commandbus.command_bus_command c
         where c.batch_id = p_batch_id and c.domain = p_domain
           and c.status in ('PENDING', 'IN_PROGRESS') and c.leased_by is not null
           and c.cancel_requested_at is null
         order by c.sequence_no limit p_limit);
    perform commandbus.request_cancel(p_domain, v_ids, p_reason, p_actor, false);
    return cardinality(v_ids);
end $$;

-- Of these leases, the commands whose cancel was requested.
--   p_items: [{"command_id", "lease_epoch"}]
create or replace function commandbus.cancel_requests(p_domain text, p_items jsonb) returns setof uuid
language plpgsql stable as $$
begin
    return query
    with item as materialized (
        select p_domain as domain, r.command_id, r.lease_epoch
          from jsonb_to_recordset(p_items) as r(command_id uuid, lease_epoch bigint)
    )
    select c.command_id
      from item i
      join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id
     where c.lease_epoch = i.lease_epoch and c.leased_by is not null and c.cancel_requested_at is not null;
end $$;

-- Who requested the cancel of a command, and why.
create or replace function commandbus.cancel_request(p_domain text, p_command_id uuid)
returns table (reason text, actor text)
language sql stable as $$
    select c.cancel_reason, c.cancel_requested_by from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = p_command_id
$$;

-- The end of an outcome after which commands start again: those that it did not move have lost their lease, or
-- their cancel was requested. Nearly always there is none.
create or replace function commandbus.end_others(p_domain text, p_items jsonb, p_moved uuid[])
returns setof uuid
language plpgsql as $$
begin
    if jsonb_array_length(p_items) > coalesce(cardinality(p_moved), 0) then
        return query select * from commandbus.reject_stale(
            p_domain, p_items, p_moved || commandbus.cancel_leased(p_domain, p_items));
    end if;
end $$;

-- IN_PROGRESS -> CANCELED, under the lease: ends marked commands, with a reply, in place of what would start them
-- again. The caller has locked the messages, and of these items only marked commands still have their lease.
--   items: what the caller was given; an error of the last attempt is kept in the event
create or replace function commandbus.cancel_leased(p_domain text, p_items jsonb) returns uuid[]
language sql as $$ select commandbus.cancel_leases(p_domain, p_items, 'CANCELED', clock_timestamp()) $$;
