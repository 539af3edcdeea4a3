-- Firing: the ticks of many schedules become commands, in one transaction.

-- Sends what is due of these schedules, and moves each on to its next tick. One that is not as the caller saw it,
-- or that another process has just now, is left alone.
--   p_fires: [{"schedule_id", "version", "expected": the tick that it stands at, "ticks": those to send, oldest
--     first, "ids": of their commands, "last": the last tick that is settled by this, "next": the next one or null,
--     "missed"?: {"count", "first", "last", "made_up", "is_exact"}}]
--   verdict: fired; refused: its type is governed by now, and it was put over HTTP. It is paused
create or replace function commandbus.fire_schedules(p_fires jsonb)
returns table (schedule_id uuid, verdict text, sent int, skipped int)
language plpgsql as $$
declare
    v_now      timestamptz := clock_timestamp();
    v_firing   jsonb;
    v_domain   text;
    v_commands jsonb;
begin
    if exists (select from jsonb_to_recordset(p_fires) as f(schedule_id uuid)
                 join commandbus.command_bus_schedule s on s.schedule_id = f.schedule_id
                where s.on_behalf is not null) then
        perform commandbus.require_ungoverned('', '{}', '{}'); -- for its lock, which is the first
    end if;
    v_firing := commandbus.lock_firing(p_fires, v_now);
    if v_firing is null then
        return;
    end if;

    for v_domain, v_commands in
        select f.firing ->> 'domain', jsonb_agg(c.command order by c.tick, c.command ->> 'command_id')
          from jsonb_array_elements(v_firing) f(firing)
         cross join jsonb_to_recordset(f.firing -> 'sends') as c(tick timestamptz, command jsonb)
         group by 1 order by 1
    loop
        perform commandbus.send_ticks(v_domain, v_commands);
    end loop;

    update commandbus.command_bus_schedule s
       set next_tick_at = f.next, look_at = f.next, last_tick_at = f.last, last_error = null,
           last_command_id = coalesce(f.last_id, s.last_command_id)
      from jsonb_to_recordset(v_firing) as f(
               schedule_id uuid, next timestamptz, last timestamptz, last_id uuid, is_refused boolean)
     where s.schedule_id = f.schedule_id and not f.is_refused;
    perform commandbus.audit_schedule('SCHEDULE_PAUSED', s, null, jsonb_build_object('reason', s.pause_reason))
       from commandbus.pause_governed(array(
                select (f ->> 'schedule_id')::uuid from jsonb_array_elements(v_firing) f
                 where (f ->> 'is_refused')::boolean), v_now) s;
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    select f.domain, f.schedule_id, e.event, v_now,
           jsonb_build_object('schedule', f.name) || jsonb_strip_nulls(e.details), null
      from jsonb_to_recordset(v_firing) as f(
               domain text, schedule_id uuid, name text, missed jsonb, skipped jsonb, is_refused boolean)
     cross join lateral (values (1, 'SCHEDULE_MISSED', f.missed), (2, 'SCHEDULE_SKIPPED', f.skipped))
                as e(n, event, details)
     where e.details <> 'null' and not f.is_refused
     order by f.domain, f.schedule_id, e.n;
    return query
    select f.schedule_id, case when f.is_refused then 'refused' else 'fired' end,
           jsonb_array_length(f.sends), coalesce((f.skipped ->> 'ticks')::int, 0)
      from jsonb_to_recordset(v_firing) as f(
               schedule_id uuid, is_refused boolean, sends jsonb, skipped jsonb);
end $$;

-- Whether a schedule that was put over HTTP sends a type that is governed by now. Under the lock of the types.
create or replace function commandbus.is_governed_for(p_schedule commandbus.command_bus_schedule)
returns boolean
language sql stable as $$
    select p_schedule.on_behalf is not null and (
        exists (select from commandbus.command_bus_governed_type g
                 where g.domain = p_schedule.domain and g.command_type = p_schedule.command_type)
        or exists (select from jsonb_to_recordset(p_schedule.on_behalf -> 'declared') as d(command_type text)
                    where d.command_type = p_schedule.command_type))
$$;

-- Locks the schedules that are still as the caller saw them, and says what becomes of each. A command of a tick
-- that is not open any more, or parked, holds nothing: a parked one would stop its schedule without a sound.
create or replace function commandbus.lock_firing(p_fires jsonb, p_now timestamptz) returns jsonb
language sql volatile as $$
    with given as (
        select f.* from jsonb_to_recordset(p_fires) as f(
                   schedule_id uuid, version bigint, expected timestamptz, ticks timestamptz[], ids uuid[],
                   last timestamptz, next timestamptz, missed jsonb)
         -- a clock that was set back since: what is in the future again is not due
         where f.last <= p_now and f.last >= f.expected and (f.next is null or f.next > f.last)
    ), locked as (
        select s.schedule_id, s as schedule, g.ticks, g.ids, g.last, g.next, g.missed
          from commandbus.command_bus_schedule s join given g on g.schedule_id = s.schedule_id
         where s.version = g.version and s.next_tick_at = g.expected and s.paused_at is null
         order by s.schedule_id for update of s skip locked
    ), decided as (
        select l.*, (l.schedule).overlap = 'skip' as is_single,
               case when (l.schedule).overlap = 'skip' then (
                   select c.command_id
                     from (select k.command_id, k.status from commandbus.command_bus_command k
                            where k.domain = (l.schedule).domain
                              and k.command_id = any(array[(l.schedule).last_command_id,
                                                           (l.schedule).last_trigger_id])
                           offset 0) c -- a fence: by its key, not among all that is open
                    where c.status in ('PENDING', 'IN_PROGRESS') limit 1) end as open_command,
               commandbus.is_governed_for(l.schedule) as is_refused
          from locked l
    ), chosen as (
        select d.*, case when d.is_refused or d.open_command is not null then 0
                         when d.is_single then least(1, cardinality(d.ids))
                         else cardinality(d.ids) end as sent
          from decided d
    )
    select jsonb_agg(jsonb_build_object(
               'schedule_id', c.schedule_id, 'domain', (c.schedule).domain, 'name', (c.schedule).name,
               'is_refused', c.is_refused, 'next', c.next, 'last', c.last, 'missed', c.missed,
               'last_id', c.ids[c.sent],
               'sends', coalesce((
                   select jsonb_agg(jsonb_build_object(
                              'tick', c.ticks[n],
                              'command', commandbus.scheduled_command(c.schedule, c.ids[n], c.ticks[n])) order by n)
                     from generate_series(1, c.sent) n), '[]'::jsonb),
               'skipped', case when c.sent < cardinality(c.ids) and not c.is_refused then jsonb_build_object(
                   'ticks', cardinality(c.ids) - c.sent,
                   'first', commandbus.iso8601(c.ticks[c.sent + 1]),
                   'last', commandbus.iso8601(c.ticks[cardinality(c.ids)]),
                   'open_command', coalesce(c.open_command, c.ids[c.sent])) end))
      from chosen c
$$;

-- Pauses schedules that may not send what they were put for.
create or replace function commandbus.pause_governed(p_ids uuid[], p_now timestamptz)
returns setof commandbus.command_bus_schedule
language sql as $$
    update commandbus.command_bus_schedule s
       set paused_at = p_now, paused_by = null, version = s.version + 1,
           pause_reason = s.command_type || ' is governed by now, and this schedule was put over HTTP;'
                          ' an application must put it'
     where s.schedule_id = any(p_ids)
    returning s.*
$$;

-- Sends the commands of ticks. An id that is known was sent for its tick before: nothing is missing.
create or replace function commandbus.send_ticks(p_domain text, p_commands jsonb) returns void
language plpgsql as $$
declare
    v_commands jsonb := p_commands;
    v_known    uuid[];
begin
    while v_commands is not null loop
        v_known := commandbus.offer_commands(p_domain, v_commands, null, 'schedule');
        exit when v_known = '{}';
        v_commands := (select jsonb_agg(c order by n)
                         from jsonb_array_elements(v_commands) with ordinality as e(c, n)
                        where (c ->> 'command_id')::uuid <> all(v_known));
    end loop;
end $$;

-- The command of a schedule could not be sent: it stands where it is, is looked at again after a while, and says
-- why. The audit has each reason once.
create or replace function commandbus.fail_schedule(
    p_schedule_id uuid, p_version bigint, p_expected timestamptz, p_error text, p_wait_seconds double precision
) returns boolean
language plpgsql as $$
declare
    v_found commandbus.command_bus_schedule;
begin
    select * into v_found from commandbus.command_bus_schedule s
     where s.schedule_id = p_schedule_id and s.version = p_version and s.next_tick_at = p_expected
       and s.paused_at is null
       for update skip locked;
    if not found then
        return false;
    end if;
    update commandbus.command_bus_schedule s
       set look_at = clock_timestamp() + make_interval(secs => p_wait_seconds), last_error = p_error
     where s.schedule_id = p_schedule_id;
    if v_found.last_error is distinct from p_error then
        perform commandbus.audit_schedule('SCHEDULE_FAILED', v_found, null, jsonb_build_object(
            'tick', commandbus.iso8601(p_expected), 'error', p_error));
    end if;
    return true;
end $$;

-- Ticks that nobody has fired for a minute. What is overdue is so now, whenever it was changed.
create or replace function commandbus.check_schedules(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language plpgsql stable as $$
begin
    return query
    select case when s.last_error is null then 'SCHEDULE_OVERDUE' else 'SCHEDULE_FAILS' end,
           s.domain, s.name, null::bigint
      from commandbus.command_bus_schedule s
     where s.next_tick_at < clock_timestamp() - interval '1 minute' and s.paused_at is null
       and (p_domain is null or s.domain = p_domain);
end $$;

-- The payload that a schedule sends.
create or replace function commandbus.schedule_data(p_domain text, p_names text[])
returns table (name text, data jsonb)
language plpgsql stable as $$
begin
    return query select s.name, s.data from commandbus.command_bus_schedule s
                  where s.domain = p_domain and s.name = any(p_names);
end $$;
