-- Search: finding commands and audit events among very many, page by page, without a full scan.
--
-- No index stands on a column that changes (ADR 0002), so a status or an error code has none. What
-- has no index is found by walking an index that gives the order, newest first, in windows that
-- grow, and a walk is bounded: after p_scan rows it says how far it came, and the caller may go
-- on from there. So no call takes long, however rare the thing that is looked for.

-- Commands by what is known of them, null means any, newest first: by created_at, or by the time of
-- parking if p_status is IN_TROUBLESHOOTING_QUEUE. `place` is the time that gives the order; to go
-- on, give the place and the id of the last row as p_from_place and p_from_id.
-- A last row without a command means: the walk ended at this place, bounded, and there may be more;
-- to go on, give its place and no id.
--   p_viewer: through whose eyes, see visibility.sql; null: who sees everything
create or replace function commandbus.search_commands(
    p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid,
    p_created_after timestamptz, p_created_before timestamptz, p_command_id uuid,
    p_error_code text, p_from_place timestamptz, p_from_id uuid, p_limit int,
    p_scan int default 100000, p_viewer text default null
) returns table (place timestamptz, command commandbus.command_bus_command)
language plpgsql stable as $$
declare
    v_first  timestamptz := greatest(p_created_after, '-infinity');
    v_last   timestamptz := least(p_created_before, 'infinity');
    v_batch  commandbus.command_bus_batch;
    v_parked boolean := p_status is not distinct from 'IN_TROUBLESHOOTING_QUEUE';
    v_upper  timestamptz;
    v_floor  timestamptz;
    v_step   int := least(1000, p_scan);
    v_seen   int := 0;
    v_left   int := p_limit;
    v_rows   int;
begin
    if p_batch_id is not null then
        select b.* into v_batch from commandbus.command_bus_batch b where b.batch_id = p_batch_id;
        if not found or not commandbus.sees_batch(p_viewer, p_batch_id) then
            return;
        end if;
    end if;

    -- Few by nature: one id, one correlation, or one batch of a size that can be sorted.
    if p_command_id is not null or p_correlation_id is not null or v_batch.total_count <= 10000 then
        return query
        select k.place, k.command from commandbus.search_few(
                   p_domain, p_command_type, p_status, p_batch_id, p_correlation_id,
                   p_created_after, p_created_before, p_command_id, p_error_code, p_viewer) k
         where p_from_place is null or k.place < p_from_place
            or (k.place = p_from_place and (k.command).command_id > p_from_id)
         order by k.place desc, (k.command).command_id limit p_limit;
        return;
    end if;
    if p_batch_id is not null then
        -- A very large one: its commands are not older than it is.
        v_first := greatest(v_first, v_batch.created_at);
    end if;

    if p_from_id is not null then
        -- The rest of those that were created, or parked, in the same instant as the last row.
        return query
        select k.place, k.command from commandbus.search_window(
                   v_parked, p_domain, p_command_type, p_status, p_batch_id, p_created_after,
                   p_created_before, p_error_code, p_from_place, 'infinity', p_from_id, p_limit,
                   p_viewer) k
         order by k.place desc, (k.command).command_id limit v_left;
        get diagnostics v_rows = row_count;
        v_left := v_left - v_rows;
    end if;
    v_upper := case when v_parked then coalesce(p_from_place, 'infinity')
                    else least(p_from_place, v_last) end;
    while v_left > 0 loop
        -- The lower end of a window of about v_step rows. All rows of one instant are in one window.
        if v_parked then
            select t.parked_at into v_floor from commandbus.command_bus_troubleshooting t
             where t.parked_at < v_upper and (p_domain is null or t.domain = p_domain)
             order by t.parked_at desc offset v_step - 1 limit 1;
        else
            select c.created_at into v_floor from commandbus.command_bus_command c
             where c.created_at < v_upper and c.created_at >= v_first
             order by c.created_at desc offset v_step - 1 limit 1;
        end if;
        return query
        select k.place, k.command from commandbus.search_window(
                   v_parked, p_domain, p_command_type, p_status, p_batch_id, p_created_after,
                   p_created_before, p_error_code,
                   coalesce(v_floor, case when v_parked then '-infinity' else v_first end),
                   v_upper, null, v_left, p_viewer) k
         order by k.place desc, (k.command).command_id limit v_left;
        get diagnostics v_rows = row_count;
        v_left := v_left - v_rows;
        v_seen := v_seen + v_step;
        exit when v_floor is null or v_left = 0;
        v_upper := v_floor;
        if v_seen >= p_scan then
            place := v_floor;
            command := null;
            return next;
            exit;
        end if;
        v_step := least(v_step * 4, p_scan - v_seen);
    end loop;
end $$;

-- What search_commands looks at of one window [p_floor, p_upper) of its walk, in no order.
create or replace function commandbus.search_window(
    p_is_parked boolean, p_domain text, p_command_type text, p_status text, p_batch_id uuid,
    p_created_after timestamptz, p_created_before timestamptz, p_error_code text,
    p_floor timestamptz, p_upper timestamptz, p_beyond_id uuid, p_limit int, p_viewer text
) returns table (place timestamptz, command commandbus.command_bus_command)
language plpgsql stable as $$
begin
    if p_is_parked then
        return query
        select t.parked_at, c from commandbus.command_bus_troubleshooting t
          join commandbus.command_bus_command c
            on c.domain = t.domain and c.command_id = t.command_id
         where t.parked_at >= p_floor and t.parked_at < p_upper
           and (p_beyond_id is null or t.command_id > p_beyond_id and t.parked_at = p_floor)
           and (p_domain is null or t.domain = p_domain)
           and (p_command_type is null or t.command_type = p_command_type)
           and (p_batch_id is null or c.batch_id = p_batch_id)
           and (p_error_code is null or c.last_error_code = p_error_code)
           and (p_created_after is null or c.created_at >= p_created_after)
           and (p_created_before is null or c.created_at < p_created_before)
           and (p_viewer is null or t.owner is null or t.owner = p_viewer)
         order by t.parked_at desc, t.command_id limit p_limit;
        return;
    end if;
    -- `is not distinct from` is what no index serves: the walk must not leave that of created_at for
    -- one that would lead it through a whole domain or a whole batch.
    return query
    select c.created_at, c from commandbus.command_bus_command c
     where c.created_at >= p_floor and c.created_at < p_upper
       and (p_beyond_id is null or c.command_id > p_beyond_id and c.created_at = p_floor)
       and (p_domain is null or c.domain is not distinct from p_domain)
       and (p_command_type is null or c.command_type = p_command_type)
       and (p_status is null or c.status = p_status)
       and (p_batch_id is null or c.batch_id is not distinct from p_batch_id)
       and (p_error_code is null or c.last_error_code = p_error_code)
       and (p_created_after is null or c.created_at >= p_created_after)
       and (p_created_before is null or c.created_at < p_created_before)
       -- a batch that is asked for was looked at before the walk
       and (p_viewer is null or p_batch_id is not null or c.batch_id is null
            or commandbus.sees_batch(p_viewer, c.batch_id))
     order by c.created_at desc, c.command_id limit p_limit;
end $$;

-- The commands of one id, one correlation or one batch, each found by its own index.
create or replace function commandbus.search_few(
    p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid,
    p_created_after timestamptz, p_created_before timestamptz, p_command_id uuid, p_error_code text,
    p_viewer text
) returns table (place timestamptz, command commandbus.command_bus_command)
language plpgsql stable as $$
begin
    if p_command_id is not null and p_domain is null then
        -- Ids are indexed by domain: one probe for each domain.
        return query
        select k.place, k.command from commandbus.find_domains(p_command_id) d(domain)
         cross join lateral commandbus.search_few(
                   d.domain, p_command_type, p_status, p_batch_id, p_correlation_id,
                   p_created_after, p_created_before, p_command_id, p_error_code, p_viewer) k;
        return;
    end if;
    return query
    select coalesce(t.parked_at, c.created_at), c from commandbus.command_bus_command c
      left join commandbus.command_bus_troubleshooting t
        on p_status = 'IN_TROUBLESHOOTING_QUEUE' and t.domain = c.domain
       and t.command_id = c.command_id
     where (p_command_id is null or c.command_id = p_command_id)
       and (p_correlation_id is null or c.correlation_id = p_correlation_id)
       and (p_batch_id is null or c.batch_id = p_batch_id)
       and (p_domain is null or c.domain = p_domain)
       and (p_command_type is null or c.command_type = p_command_type)
       and (p_status is null or c.status = p_status)
       and (p_error_code is null or c.last_error_code = p_error_code)
       and (p_created_after is null or c.created_at >= p_created_after)
       and (p_created_before is null or c.created_at < p_created_before)
       and (p_viewer is null or p_batch_id is not null or c.batch_id is null
            or commandbus.sees_batch(p_viewer, c.batch_id));
end $$;

-- Commands by what is known of them, newest first; null means any. What is parked is read from
-- its own table, everything else backwards along created_at.
create or replace function commandbus.query_commands(
    p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid,
    p_created_after timestamptz, p_created_before timestamptz, p_limit int, p_offset int
) returns setof commandbus.command_bus_command
language plpgsql stable as $$
begin
    if p_status = 'IN_TROUBLESHOOTING_QUEUE' then
        return query
        select c.* from commandbus.command_bus_troubleshooting t
          join commandbus.command_bus_command c
            on c.domain = t.domain and c.command_id = t.command_id
         where (p_domain is null or t.domain = p_domain)
           and (p_command_type is null or t.command_type = p_command_type)
           and (p_batch_id is null or c.batch_id = p_batch_id)
           and (p_correlation_id is null or c.correlation_id = p_correlation_id)
           and (p_created_after is null or c.created_at >= p_created_after)
           and (p_created_before is null or c.created_at < p_created_before)
         order by c.created_at desc, c.command_id limit p_limit offset p_offset;
        return;
    end if;
    return query
    select c.* from commandbus.command_bus_command c
     where (p_domain is null or c.domain = p_domain)
       and (p_command_type is null or c.command_type = p_command_type)
       and (p_status is null or c.status = p_status)
       and (p_batch_id is null or c.batch_id = p_batch_id)
       and (p_correlation_id is null or c.correlation_id = p_correlation_id)
       and (p_created_after is null or c.created_at >= p_created_after)
       and (p_created_before is null or c.created_at < p_created_before)
     order by c.created_at desc, c.command_id limit p_limit offset p_offset;
end $$;

-- The domains that know an id, of a command or of a batch: one index probe for each domain.
create or replace function commandbus.find_domains(p_command_id uuid) returns setof text
language sql stable as $$
    select c.domain
      from pgmq.meta m
      join commandbus.command_bus_command c
        on c.domain = commandbus.queue_domain(m.queue_name) and c.command_id = p_command_id
     where m.queue_name like E'%\\_\\_commands'
    union
    select h.domain from commandbus.command_bus_history_domain h
     cross join lateral commandbus.history_rows(h.domain, array[p_command_id])
    union
    select b.domain from commandbus.command_bus_batch b where b.batch_id = p_command_id
     order by 1
$$;
