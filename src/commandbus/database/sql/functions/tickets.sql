-- Tickets: listings of governed batches, newest first, however many there are.
--
-- An index has the tickets by domain, type and class, each class newest first. There are few combinations of
-- the three, so a listing takes the first of each and merges them: it reads a page for each combination, and
-- nothing in between. The class of an ended batch is its status; all that are open are one class, because
-- a decision does not move counters, and as many as the limits allow. A ticket with edits that wait for a
-- decision is PENDING_APPROVAL whatever its class: those are few, and in an index of their own.

-- Null means any. p_owner: only those of this owner, by the index that begins with it. To go on, give the
-- time and the id of the last row.
create or replace function commandbus.list_tickets(
    p_owner text, p_domains text[], p_batch_types text[], p_status text, p_from_at timestamptz,
    p_from_id uuid, p_limit int
) returns table (ticket_id uuid, created_at timestamptz)
language plpgsql stable as $$
declare
    v_classes text[] := case
        when p_status in ('COMPLETED', 'CANCELED', 'PARTIAL_SUCCESS', 'FAILED') then array[p_status]
        when p_status in ('PENDING_APPROVAL', 'IN_PROGRESS') then array['OPEN']
        else array['OPEN', 'COMPLETED', 'CANCELED', 'PARTIAL_SUCCESS', 'FAILED'] end;
begin
    if p_owner is null then
        return query
        select t.batch_id, t.created_at
          from commandbus.ticket_kinds(p_owner, p_domains, p_batch_types) k
         cross join unnest(v_classes) s(class)
         cross join lateral (
            select b.batch_id, b.created_at from commandbus.command_bus_batch b
             where b.domain = k.domain and b.batch_type = k.batch_type and b.ticket_class = s.class
               and (p_from_at is null or (b.created_at, b.batch_id) < (p_from_at, p_from_id))
               and (p_status is null or commandbus.ticket_status(b) = p_status)
             order by b.created_at desc, b.batch_id desc limit p_limit) t
         union all
        select e.batch_id, e.created_at
          from commandbus.edited_tickets(
                   p_owner, p_domains, p_batch_types, p_status, p_from_at, p_from_id, p_limit) e
         order by 2 desc, 1 desc limit p_limit;
        return;
    end if;
    return query
    select t.batch_id, t.created_at
      from commandbus.ticket_kinds(p_owner, p_domains, p_batch_types) k
     cross join unnest(v_classes) s(class)
     cross join lateral (
        select b.batch_id, b.created_at from commandbus.command_bus_batch b
         where b.created_by = p_owner and b.domain = k.domain and b.batch_type = k.batch_type
           and b.ticket_class = s.class
           and (p_from_at is null or (b.created_at, b.batch_id) < (p_from_at, p_from_id))
           and (p_status is null or commandbus.ticket_status(b) = p_status)
         order by b.created_at desc, b.batch_id desc limit p_limit) t
     union all
    select e.batch_id, e.created_at
      from commandbus.edited_tickets(
               p_owner, p_domains, p_batch_types, p_status, p_from_at, p_from_id, p_limit) e
     order by 2 desc, 1 desc limit p_limit;
end $$;

-- The tickets that wait only because of edits, if that status is asked for: their class says how the other
-- commands ended.
create or replace function commandbus.edited_tickets(
    p_owner text, p_domains text[], p_batch_types text[], p_status text, p_from_at timestamptz,
    p_from_id uuid, p_limit int
) returns table (batch_id uuid, created_at timestamptz)
language sql stable as $$
    select b.batch_id, b.created_at from commandbus.command_bus_batch b
     where p_status = 'PENDING_APPROVAL' and b.edit_count > 0 and b.ticket_class <> 'OPEN'
       and (p_owner is null or b.created_by = p_owner)
       and (p_domains is null or b.domain = any(p_domains))
       and (p_batch_types is null or b.batch_type = any(p_batch_types))
       and (p_from_at is null or (b.created_at, b.batch_id) < (p_from_at, p_from_id))
     order by b.created_at desc, b.batch_id desc limit p_limit
$$;

-- The combinations of domain and type that there are, each found by one step along the index.
create or replace function commandbus.ticket_kinds(
    p_owner text, p_domains text[], p_batch_types text[]
) returns table (domain text, batch_type text)
language plpgsql stable as $$
#variable_conflict use_column
begin
    loop
        if p_owner is null then
            select b.domain, b.batch_type into domain, batch_type from commandbus.command_bus_batch b
             where b.batch_type is not null
               and (ticket_kinds.domain is null
                    or (b.domain, b.batch_type) > (ticket_kinds.domain, ticket_kinds.batch_type))
             order by b.domain, b.batch_type limit 1;
        else
            select b.domain, b.batch_type into domain, batch_type from commandbus.command_bus_batch b
             where b.created_by = p_owner and b.batch_type is not null
               and (ticket_kinds.domain is null
                    or (b.domain, b.batch_type) > (ticket_kinds.domain, ticket_kinds.batch_type))
             order by b.domain, b.batch_type limit 1;
        end if;
        exit when not found;
        if (p_domains is null or ticket_kinds.domain = any(p_domains))
           and (p_batch_types is null or ticket_kinds.batch_type = any(p_batch_types)) then
            return next;
        end if;
    end loop;
end $$;
