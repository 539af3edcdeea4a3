-- One command's life: its events, and what stands beside its row. These functions only read, and by key.

-- The events of a command, oldest first: all of them, or, if there are more than p_most, the p_ends oldest and
-- the p_ends newest. `left_out`, the same in each row, says how many are between them; it is counted up to
-- 10,000, and -1 stands for more. p_viewer: through whose eyes, see visibility.sql.
create or replace function commandbus.command_events(
    p_domain text, p_command_id uuid, p_viewer text default null, p_most int default 200,
    p_ends int default 50
) returns table (event commandbus.command_bus_audit, left_out int)
language plpgsql stable as $$
declare
    c_counted constant int := 10000;
    v_found int;
begin
    select count(*) into v_found from (
        select from commandbus.command_bus_audit a
         where a.command_id = p_command_id and a.domain = p_domain
           and commandbus.sees_event(p_viewer, a)
         limit c_counted + p_most + 1) counted;
    if v_found <= p_most then
        return query
        select a, 0 from commandbus.command_bus_audit a
         where a.command_id = p_command_id and a.domain = p_domain
           and commandbus.sees_event(p_viewer, a)
         order by a.ts, a.audit_id;
        return;
    end if;
    left_out := case when v_found > c_counted + p_most then -1 else v_found - 2 * p_ends end;
    return query
    select ends.a, command_events.left_out from (
        (select a, a.ts, a.audit_id from commandbus.command_bus_audit a
          where a.command_id = p_command_id and a.domain = p_domain
            and commandbus.sees_event(p_viewer, a)
          order by a.ts, a.audit_id limit p_ends)
        union all
        (select a, a.ts, a.audit_id from commandbus.command_bus_audit a
          where a.command_id = p_command_id and a.domain = p_domain
            and commandbus.sees_event(p_viewer, a)
          order by a.ts desc, a.audit_id desc limit p_ends)) ends
     order by ends.ts, ends.audit_id;
end $$;

-- What is not in the row of a command, or not shown with it: how it stands with its dispatch, its failure
-- group, whether its payload is still there, and whether somebody has proposed an edit or asked to cancel it.
create or replace function commandbus.command_facts(p_domain text, p_command_id uuid)
returns table (
    dispatch_status text, fingerprint text, parked_at timestamptz, has_payload boolean, has_edit boolean,
    cancel_requested_at timestamptz, cancel_requested_by text, worker_seen_at timestamptz)
language sql stable as $$
    select c.dispatch_status, t.fingerprint, t.parked_at,
           commandbus.command_payload(c.domain, c.command_id) is not null,
           exists (select from commandbus.command_bus_edit e
                    where e.command_id = c.command_id and e.domain = c.domain),
           c.cancel_requested_at, c.cancel_requested_by,
           (select w.heartbeat_at from commandbus.command_bus_worker w where w.worker_id = c.leased_by)
      from commandbus.command_bus_command c
      left join commandbus.command_bus_troubleshooting t
        on t.domain = c.domain and t.command_id = c.command_id
     where c.domain = p_domain and c.command_id = p_command_id
$$;
