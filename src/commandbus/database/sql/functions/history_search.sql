-- Search in the history: as in search.sql, newest first by created_at, page by page, and a walk is bounded.

-- Commands of the history by what is known of them, null means any. To go on, give the place and the id of the last row as
-- p_from_place and p_from_id. A last row without a command means: the walk ended at this place, bounded, and there may be more.
--   p_viewer: through whose eyes, see visibility.sql; null: who sees everything
create or replace function commandbus.search_history(
    p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid,
    p_created_after timestamptz, p_created_before timestamptz, p_command_id uuid,
    p_error_code text, p_from_place timestamptz, p_from_id uuid, p_limit int,
    p_scan int default 100000, p_viewer text default null
) returns table (place timestamptz, command commandbus.command_bus_history)
language plpgsql stable as $$
declare
    v_first timestamptz := greatest(p_created_after, '-infinity');
    v_last  timestamptz := least(p_created_before, 'infinity');
    v_batch commandbus.command_bus_batch;
    v_upper timestamptz;
    v_floor timestamptz;
    v_step  int := least(1000, p_scan);
    v_seen  int := 0;
    v_left  int := p_limit;
    v_rows  int;
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
        select h.created_at, h from commandbus.command_bus_history h
         where (p_command_id is null or h.command_id = p_command_id)
           and (p_correlation_id is null or h.correlation_id = p_correlation_id)
           and (p_batch_id is null or h.batch_id = p_batch_id)
           and (p_domain is null or h.domain = p_domain)
           and (p_command_type is null or h.command_type = p_command_type)
           and (p_status is null or h.status = p_status)
           and (p_error_code is null or h.last_error_code = p_error_code)
           and (p_created_after is null or h.created_at >= p_created_after)
           and (p_created_before is null or h.created_at < p_created_before)
           and (p_viewer is null or p_batch_id is not null or h.batch_id is null
                or commandbus.sees_batch(p_viewer, h.batch_id))
           and (p_from_place is null or h.created_at < p_from_place
                or h.created_at = p_from_place and h.command_id > p_from_id)
         order by h.created_at desc, h.command_id limit p_limit;
        return;
    end if;
    if p_batch_id is not null then
        v_first := greatest(v_first, v_batch.created_at);
    end if;
    if p_from_id is not null then
        -- The rest of those that were created in the same instant as the last row.
        return query
        select w.place, w.command from commandbus.history_window(
                   p_domain, p_command_type, p_status, p_batch_id, p_error_code, p_from_place,
                   p_from_place + interval '1 microsecond', p_from_id, v_left, p_viewer) w;
        get diagnostics v_rows = row_count;
        v_left := v_left - v_rows;
    end if;
    v_upper := least(p_from_place, v_last);
    while v_left > 0 loop
        -- The lower end of a window of about v_step rows. All rows of one instant are in one window.
        v_floor := commandbus.history_floor(p_domain, v_first, v_upper, v_step);
        return query
        select w.place, w.command from commandbus.history_window(
                   p_domain, p_command_type, p_status, p_batch_id, p_error_code,
                   coalesce(v_floor, v_first), v_upper, null, v_left, p_viewer) w;
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

-- When the row was created that stands at this place below p_upper.
create or replace function commandbus.history_floor(
    p_domain text, p_first timestamptz, p_upper timestamptz, p_step int
) returns timestamptz
language plpgsql stable as $$
begin
    return (select h.created_at from commandbus.command_bus_history h
             where (p_domain is null or h.domain = p_domain) and h.created_at < p_upper and h.created_at >= p_first
             order by h.created_at desc offset p_step - 1 limit 1);
end $$;

-- What search_history looks at of one window [p_floor, p_upper) of its walk, newest first.
create or replace function commandbus.history_window(
    p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_error_code text,
    p_floor timestamptz, p_upper timestamptz, p_beyond_id uuid, p_limit int, p_viewer text
) returns table (place timestamptz, command commandbus.command_bus_history)
language plpgsql stable as $$
begin
    return query
    select h.created_at, h from commandbus.command_bus_history h
     where h.created_at >= p_floor and h.created_at < p_upper
       and (p_beyond_id is null or h.command_id > p_beyond_id)
       and (p_domain is null or h.domain = p_domain)
       and (p_command_type is null or h.command_type = p_command_type)
       and (p_status is null or h.status = p_status)
       and (p_batch_id is null or h.batch_id = p_batch_id)
       and (p_error_code is null or h.last_error_code = p_error_code)
       and (p_viewer is null or p_batch_id is not null or h.batch_id is null
            or commandbus.sees_batch(p_viewer, h.batch_id))
     order by h.created_at desc, h.command_id limit p_limit;
end $$;

-- The commands of a batch that are in the history, in their order, as rows of commands: from a number on, after a row, below a number.
create or replace function commandbus.moved_children(
    p_domain text, p_batch_id uuid, p_status text, p_from int, p_from_at timestamptz, p_from_id uuid,
    p_below int, p_limit int
) returns table (command commandbus.command_bus_command, moved_at timestamptz)
language plpgsql stable as $$
begin
    return query
    select r, (k.h).moved_at from (
        select h from commandbus.command_bus_history h
         where h.batch_id = p_batch_id and h.domain = p_domain
           and case when p_from is null then h.sequence_no is null else h.sequence_no >= p_from end
           and (p_below is null or h.sequence_no < p_below)
           and (p_from_at is null
                or (coalesce(h.sequence_no, 0), h.created_at, h.command_id) > (coalesce(p_from, 0), p_from_at, p_from_id))
           and (p_status is null or h.status = p_status)
         order by h.sequence_no, h.created_at, h.command_id limit p_limit) k
     cross join lateral jsonb_populate_record(null::commandbus.command_bus_command, to_jsonb(k.h)) r;
end $$;
