-- Expiry: a command that was not begun by its time ends as CANCELED, with the event EXPIRED and a reply. No receive
-- begins one late (receiving.sql), and a chore ends the others: delayed, backing off, paused, waiting, stored.
-- A running one goes on; its retry may come too late. A parked one waits for its operator, whose retry lifts the expiry.

-- IN_PROGRESS -> CANCELED, under the lease that the receiver took for it: ended, with a reply.
--   items: reason
create or replace function commandbus.expire_leased(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql as $$
declare
    v_now timestamptz := commandbus.lock_leases(p_domain, p_items);
begin
    return query select * from commandbus.reject_stale(
        p_domain, p_items, commandbus.cancel_leases(p_domain, p_items, 'EXPIRED', v_now));
end $$;

-- Why an expired command ended, for the audit and the reply.
create or replace function commandbus.expired_since(p_expires_at timestamptz) returns text
language sql stable as $$ select 'not begun by ' || commandbus.iso8601(p_expires_at) $$;

-- Ends what has expired and no worker has, at most p_limit, in one domain: that of the one that is due for longest. So
-- a transaction locks the messages of one domain before its batches, and does not come back to messages. Returns how
-- many were looked at: call it again until that is 0. Rows of command_bus_expiry are locked after their commands, as
-- an operator's retry does.
create or replace function commandbus.end_expired(p_limit int default 1000) returns int
language plpgsql as $$
declare
    v_now    timestamptz := clock_timestamp();
    v_domain text;
    v_due    uuid[];
    v_others text[] := commandbus.domains_on_the_way();
begin
    select e.domain into v_domain from commandbus.command_bus_expiry e
     where e.look_at <= v_now and e.domain <> all(v_others) order by e.look_at limit 1;
    if not found then
        return 0;
    end if;
    -- Among the first of all domains: where one has very many, the look for another's must end.
    v_due := array(
        select d.command_id from (
            select e.domain, e.command_id from commandbus.command_bus_expiry e
             where e.look_at <= v_now and e.domain <> all(v_others) order by e.look_at limit p_limit) d
         where d.domain = v_domain);
    perform commandbus.expire_in(v_domain, v_due);
    return cardinality(v_due);
end $$;

-- The same for commands of one domain that may have expired. What is leased is looked at again when its lease may
-- have ended; what has ended, is parked or expires no more is not looked at again.
create or replace function commandbus.expire_in(p_domain text, p_command_ids uuid[]) returns int
language plpgsql as $$
declare
    v_now     timestamptz := commandbus.lock_queued(p_domain, p_command_ids);
    v_since   timestamptz;
    v_expired uuid[];
    v_ended   int := 0;
begin
    perform commandbus.end_lapsed_paused(p_domain, p_command_ids, v_now);
    for v_since, v_expired in
        select c.expires_at, array_agg(c.command_id) from commandbus.command_bus_command c
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.status = 'PENDING' and c.leased_by is null and c.expires_at <= v_now
         group by c.expires_at
    loop
        v_ended := v_ended + (select count(*) from commandbus.end_unleased(
            p_domain, v_expired, 'PENDING', 'CANCELED', 'CANCELED', 'EXPIRED', null,
            commandbus.expired_since(v_since), null, false));
    end loop;
    with item as materialized (
        select p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    ), open as (
        select c.domain, c.command_id, greatest(c.expires_at, c.lease_expires_at, v_now + interval '5 seconds') as look_at
          from item i
          join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id
         where c.status in ('PENDING', 'IN_PROGRESS') and c.expires_at is not null
    ), again as (
        update commandbus.command_bus_expiry e set look_at = o.look_at
          from open o where e.domain = o.domain and e.command_id = o.command_id
        returning e.command_id
    )
    delete from commandbus.command_bus_expiry e
     where e.domain = p_domain and e.command_id = any(p_command_ids)
       and not exists (select from open o where o.command_id = e.command_id);
    return v_ended;
end $$;
