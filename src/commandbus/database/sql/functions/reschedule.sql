-- Reschedule: another time for what nobody has begun; also now, for what is delayed or backs off.

-- PENDING stays PENDING, with another time; returns the commands that got it. Attempts stay as they are. What stands
-- at a limit leaves it, and asks again when it is due. What is only stored keeps the time until it is queued.
--   p_deliver_at or p_delay_seconds: one of them; a time in the past is now
create or replace function commandbus.reschedule_commands(
    p_domain text, p_command_ids uuid[], p_deliver_at timestamptz default null,
    p_delay_seconds double precision default null, p_actor text default null, p_is_strict boolean default true
) returns setof uuid
language plpgsql as $$
declare
    v_now   timestamptz;
    v_due   timestamptz;
    v_moved uuid[];
    v_old   timestamptz[];
begin
    perform commandbus.check_domain(p_domain);
    if num_nonnulls(p_deliver_at, p_delay_seconds) <> 1 then
        raise exception 'a new time is deliver_at or a delay, one of them'
            using errcode = 'CB012', hint = 'a delay of 0 is now';
    end if;
    if not p_delay_seconds between 0 and 31622400 or p_deliver_at > clock_timestamp() + interval '366 days' then
        raise exception 'the new time is not within a year'
            using errcode = 'CB012', hint = 'delay a command by at most one year';
    end if;
    v_now := commandbus.lock_queued(p_domain, p_command_ids);
    perform commandbus.end_lapsed_paused(p_domain, p_command_ids, v_now);
    v_due := greatest(v_now, coalesce(p_deliver_at, v_now + make_interval(secs => p_delay_seconds)));
    perform commandbus.refuse_times(p_domain, p_command_ids, v_due, v_due > v_now, p_is_strict);
    with item as materialized (
        select distinct p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    )
    select array_agg(c.command_id order by c.command_id), array_agg(c.deliver_at order by c.command_id)
      into v_moved, v_old
      from item i
      join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id
     where c.status = 'PENDING' and c.leased_by is null
       and commandbus.time_problem(c, v_due, v_due > v_now) is null;
    if p_is_strict then
        perform commandbus.refuse_unmoved(
            p_domain, p_command_ids, v_moved, 'reschedule', 'a command that is PENDING');
    end if;
    if v_moved is null then
        return;
    end if;
    v_old := commandbus.move_messages(p_domain, v_moved, v_old, v_due);
    with item as materialized (
        select p_domain as domain, u.command_id from unnest(v_moved) u(command_id)
    )
    update commandbus.command_bus_command c set deliver_at = v_due, updated_at = v_now
      from item i where c.domain = i.domain and c.command_id = i.command_id;
    perform commandbus.leave_gates(p_domain, v_moved);
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, batch_id, actor)
    select p_domain, c.command_id, 'RESCHEDULED', v_now,
           jsonb_build_object('from', case when isfinite(i.old) then commandbus.iso8601(i.old) end,
                              'to', commandbus.iso8601(v_due)), c.batch_id, p_actor
      from unnest(v_moved, v_old) i(command_id, old)
      join commandbus.command_bus_command c on c.domain = p_domain and c.command_id = i.command_id;
    perform commandbus.wake_workers(p_domain);
    return query select unnest(v_moved);
end $$;

-- Why a command that nobody has begun cannot get this time; null: it can.
create or replace function commandbus.time_problem(
    p_command commandbus.command_bus_command, p_due timestamptz, p_is_later boolean
) returns text
language sql volatile as $$
    select case
        when p_command.expires_at <= p_due
            then 'it expires at ' || commandbus.iso8601(p_command.expires_at) || ', before the new time'
        when exists (select from commandbus.command_bus_waiting w
                      where w.domain = p_command.domain and w.command_id = p_command.command_id
                        and w.gate like 'k:%')
            then 'it waits behind others of its ordering key'
        -- Its place among those of its key is not known yet: delayed, it would hold up all that come after it.
        when p_is_later and p_command.ordering_key is not null and p_command.msg_id is null
            then 'it has an ordering key, and is not queued yet' end
$$;

-- An error for the first of these commands that cannot get this time.
create or replace function commandbus.refuse_times(
    p_domain text, p_command_ids uuid[], p_due timestamptz, p_is_later boolean, p_is_strict boolean
) returns void
language plpgsql as $$
declare
    v_bad record;
begin
    if not p_is_strict then
        return;
    end if;
    with item as materialized (
        select distinct p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    )
    select c.command_id, t.problem into v_bad
      from item i
      join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id
     cross join lateral commandbus.time_problem(c, p_due, p_is_later) t(problem)
     where c.status = 'PENDING' and c.leased_by is null and t.problem is not null
     order by c.command_id limit 1;
    if found then
        raise exception 'cannot reschedule command %: %', v_bad.command_id, v_bad.problem
            using errcode = 'CB003', detail = v_bad.command_id::text,
                  hint = 'leave it out, or cancel it and send the work again under a new id';
    end if;
end $$;

-- Makes the messages of these commands due at this time; returns when they were, in the order of the ids. The caller
-- has locked them. What has no message keeps what p_old says of it.
create or replace function commandbus.move_messages(
    p_domain text, p_command_ids uuid[], p_old timestamptz[], p_due timestamptz
) returns timestamptz[]
language plpgsql as $$
declare
    v_old timestamptz[];
begin
    if not commandbus.queue_exists(p_domain || '.commands') then
        return p_old;
    end if;
    execute format(
        'with item as materialized ('
        '    select i.n, i.old, c.msg_id from unnest($1, $2) with ordinality i(command_id, old, n)'
        '      join commandbus.command_bus_command c on c.domain = $3 and c.command_id = i.command_id'
        '), was as materialized ('
        '    select i.n, i.old, q.msg_id, q.vt from item i left join pgmq.%1$I q on q.msg_id = i.msg_id'
        '), moved as ('
        '    update pgmq.%1$I m set vt = $4 from was w where m.msg_id = w.msg_id returning m.msg_id)'
        ' select array_agg(coalesce(w.vt, w.old) order by w.n) from was w',
        'q_' || commandbus.physical_queue(p_domain || '.commands'))
       into v_old using p_command_ids, p_old, p_domain, p_due;
    return v_old;
end $$;

-- These wait at no limit any more. A row that another session has just now is not waited for: that one is about to
-- start the command, and would wait for its message, which the caller has.
create or replace function commandbus.leave_gates(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
declare
    v_gone int;
begin
    if not exists (select from commandbus.command_bus_waiting w
                    where w.domain = p_domain and w.command_id = any(p_command_ids)) then
        return;
    end if;
    delete from commandbus.command_bus_waiting w
     where w.ctid = any(array(
        select x.ctid from commandbus.command_bus_waiting x
         where x.domain = p_domain and x.command_id = any(p_command_ids) for update skip locked));
    get diagnostics v_gone = row_count;
    if exists (select from commandbus.command_bus_waiting w
                where w.domain = p_domain and w.command_id = any(p_command_ids)) then
        raise exception 'one of the commands is being started at this moment'
            using errcode = 'CB003', hint = 'look at it again';
    end if;
end $$;
