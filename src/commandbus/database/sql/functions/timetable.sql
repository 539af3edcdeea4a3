-- Timetable: what waits for its time, and what waits for something else, page by page. Along the indexes that receives
-- use, from now on: no index on the status of commands is needed, and no call walks further than p_scan messages.

-- Commands of a domain that are due later: delayed, or backing off; those that are due first come first. To go on, give
-- place and msg_id of the last row. A last row without a command means: the walk ended there, bounded, and there may
-- be more.
--   p_viewer: through whose eyes, see visibility.sql; null: who sees everything
create or replace function commandbus.scheduled_commands(
    p_domain text, p_command_type text, p_from_place timestamptz, p_from_msg_id bigint, p_limit int,
    p_scan int default 10000, p_viewer text default null
) returns table (place timestamptz, msg_id bigint, command commandbus.command_bus_command)
language plpgsql stable as $$
declare
    v_now    timestamptz := clock_timestamp();
    v_place  timestamptz := coalesce(greatest(p_from_place, v_now), v_now);
    v_msg_id bigint := case when p_from_place >= v_now then p_from_msg_id else 0 end;
    v_levels text[] := case when exists (select from commandbus.command_bus_flow f
                                          where f.domain = p_domain and f.has_levels)
                            then '{2,1,0,-1,-2}' else '{}' end;
    v_seen   int := 0;
    v_left   int := p_limit;
    v_step   int := least(1000, p_scan);
    v_rows   int;
    v_due    timestamptz[];
    v_msgs   bigint[];
    v_ids    uuid[];
begin
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    while v_left > 0 loop
        execute format(
            'select array_agg(w.vt order by w.vt, w.msg_id), array_agg(w.msg_id order by w.vt, w.msg_id),'
            '       commandbus.command_ids_of(array_agg(w.message order by w.vt, w.msg_id))'
            '  from (select q.* from ('
            '            (select e.vt, e.msg_id, e.message from pgmq.%1$I e where e.headers is null'
            '                and (e.vt, e.msg_id) > ($1, $2) and e.vt < ''infinity'''
            '              order by e.vt, e.msg_id limit $3)'
            '            union all'
            '            (select e.* from unnest($4) s(level) cross join lateral ('
            '                select x.vt, x.msg_id, x.message from pgmq.%1$I x'
            '                 where x.headers is not null and x.headers ->> ''priority'' = s.level'
            '                   and (x.vt, x.msg_id) > ($1, $2) and x.vt < ''infinity'''
            '                 order by x.vt, x.msg_id limit $3) e)) q'
            '         order by q.vt, q.msg_id limit $3) w',
            'q_' || commandbus.physical_queue(p_domain || '.commands'))
           into v_due, v_msgs, v_ids using v_place, v_msg_id, v_step, v_levels;
        exit when v_due is null;
        return query
        select i.due, i.msg_id, c from unnest(v_due, v_msgs, v_ids) i(due, msg_id, id)
          join commandbus.command_bus_command c
            on c.domain = p_domain and c.command_id = i.id and c.msg_id = i.msg_id
         where c.status = 'PENDING' and c.leased_by is null
           and (p_command_type is null or c.command_type = p_command_type)
           and (p_viewer is null or c.batch_id is null or commandbus.sees_batch(p_viewer, c.batch_id))
         order by i.due, i.msg_id limit v_left;
        get diagnostics v_rows = row_count;
        v_left := v_left - v_rows;
        v_seen := v_seen + cardinality(v_due);
        exit when cardinality(v_due) < v_step or v_left = 0;
        v_place := v_due[cardinality(v_due)];
        v_msg_id := v_msgs[cardinality(v_msgs)];
        if v_seen >= p_scan then
            place := v_place;
            msg_id := v_msg_id;
            command := null;
            return next;
            exit;
        end if;
        v_step := least(v_step * 4, p_scan - v_seen);
    end loop;
end $$;

-- Commands of a domain that may not start for another reason than their time, by what they wait for, first come
-- first. To go on, give gate, seq and msg_id of the last row.
create or replace function commandbus.waiting_commands(
    p_domain text, p_command_type text, p_from_gate text, p_from_seq bigint, p_from_msg_id bigint, p_limit int,
    p_viewer text default null
) returns table (gate text, seq bigint, msg_id bigint, command commandbus.command_bus_command)
language sql stable as $$
    select w.gate, w.seq, w.msg_id, c
      from commandbus.command_bus_waiting w
      join commandbus.command_bus_command c on c.domain = w.domain and c.command_id = w.command_id
     where w.domain = p_domain
       and (p_from_gate is null or (w.gate, w.seq, w.msg_id) > (p_from_gate, p_from_seq, p_from_msg_id))
       and (p_command_type is null or c.command_type = p_command_type)
       and (p_viewer is null or c.batch_id is null or commandbus.sees_batch(p_viewer, c.batch_id))
     order by w.gate, w.seq, w.msg_id limit p_limit
$$;
