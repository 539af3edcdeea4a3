-- Schedules: commands that are sent by the clock. Python computes the ticks; here each becomes one command.
--
-- Two guards, either of which is enough: a schedule moves on only from the tick that the caller expects, and
-- the id of a command is derived from its schedule and its tick. Any process may fire any schedule.
--
-- Lock order: the advisory lock of governed types, then schedule rows in the order of ids, then what sending
-- locks. Who fires skips rows that others have; only those who change a schedule wait for its row.

-- Creates a schedule, or replaces what it says. The caller has computed the next tick from the row that it saw.
--   p_spec: the columns under "what is sent" and "when" of the table, without counted_from
--   p_next, p_counted_from: used if the schedule is new, or due at other times than before; else it goes on as it stands
--   p_version: of the row that the caller saw; null: it saw none
--   returns created, changed, same, or stale: the row is another one by now, look again
create or replace function commandbus.put_schedule(
    p_domain text, p_name text, p_schedule_id uuid, p_spec jsonb, p_next timestamptz, p_counted_from timestamptz,
    p_version bigint, p_actor text default null, p_on_behalf jsonb default null
) returns text
language plpgsql as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_type  text := p_spec ->> 'command_type';
    -- The right to pass by governance is asked for at each act; a schedule would keep it for years.
    v_whom  jsonb := p_on_behalf - 'may_bypass';
    v_old   commandbus.command_bus_schedule;
    v_new   commandbus.command_bus_schedule;
    v_moves boolean;
begin
    perform commandbus.check_domain(p_domain);
    perform commandbus.check_shard(p_domain);
    if v_whom is not null then
        perform commandbus.require_ungoverned(p_domain, array[v_type], v_whom);
    end if;
    select * into v_old from commandbus.command_bus_schedule s
     where s.domain = p_domain and s.name = p_name for update;
    if v_old.version is distinct from p_version then
        return 'stale';
    end if;
    if v_old.schedule_id is not null and v_whom is not null then
        -- What is governed is not replaced by something else either.
        perform commandbus.require_ungoverned(p_domain, array[v_old.command_type], v_whom);
    end if;
    v_new := jsonb_populate_record(v_old, p_spec);
    -- An application that puts what a user has put answers for it from now on.
    if v_new is not distinct from v_old and (v_whom is not null or v_old.on_behalf is null) then
        return 'same';
    end if;
    v_moves := v_old.schedule_id is null
        or (v_new.cron, v_new.timezone, v_new.every_seconds, v_new.at)
           is distinct from (v_old.cron, v_old.timezone, v_old.every_seconds, v_old.at);
    if v_moves then
        v_new.counted_from := p_counted_from;
        v_new.next_tick_at := p_next;
    end if;
    v_new.look_at := v_new.next_tick_at;
    v_new.last_error := null;
    v_new.on_behalf := v_whom;
    v_new.updated_by := p_actor;
    v_new.updated_at := v_now;
    if v_old.schedule_id is null then
        v_new.schedule_id := p_schedule_id;
        v_new.domain := p_domain;
        v_new.name := p_name;
        v_new.version := 1;
        v_new.created_by := p_actor;
        v_new.created_at := v_now;
        insert into commandbus.command_bus_schedule select v_new.* on conflict do nothing;
        if not found then
            return 'stale';
        end if;
    else
        v_new.version := v_old.version + 1;
        update commandbus.command_bus_schedule s
           set (command_type, data, meta, reply_to, max_attempts, expires_in_seconds, priority, ordering_key,
                jitter_seconds, cron, timezone, every_seconds, at, counted_from, missed, missed_cap, overlap,
                next_tick_at, look_at, last_error, version, updated_by, updated_at, on_behalf)
             = (select v_new.command_type, v_new.data, v_new.meta, v_new.reply_to, v_new.max_attempts,
                       v_new.expires_in_seconds, v_new.priority, v_new.ordering_key, v_new.jitter_seconds,
                       v_new.cron, v_new.timezone, v_new.every_seconds, v_new.at, v_new.counted_from, v_new.missed,
                       v_new.missed_cap, v_new.overlap, v_new.next_tick_at, v_new.look_at, v_new.last_error,
                       v_new.version, v_new.updated_by, v_new.updated_at, v_new.on_behalf)
         where s.schedule_id = v_old.schedule_id;
    end if;
    perform commandbus.audit_schedule('SCHEDULE_PUT', v_new, p_actor, jsonb_build_object(
        'command_type', v_new.command_type, 'cron', v_new.cron, 'timezone', v_new.timezone,
        'every_seconds', v_new.every_seconds, 'at', commandbus.iso8601(v_new.at), 'missed', v_new.missed,
        'overlap', v_new.overlap, 'next_tick_at', commandbus.iso8601(v_new.next_tick_at),
        'is_new', v_old.schedule_id is null,
        'has_new_data', v_old.schedule_id is not null and v_new.data is distinct from v_old.data));
    return case when v_old.schedule_id is null then 'created' else 'changed' end;
end $$;

-- An event of a schedule. It stands where events of commands have the id of the command.
create or replace function commandbus.audit_schedule(
    p_event text, p_schedule commandbus.command_bus_schedule, p_actor text, p_details jsonb default '{}'
) returns void
language sql as $$
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values (p_schedule.domain, p_schedule.schedule_id, p_event, clock_timestamp(),
            jsonb_build_object('schedule', p_schedule.name) || jsonb_strip_nulls(p_details), p_actor);
$$;

-- Stops ticks until it is resumed; a second pause has the newer reason. False: there is no such schedule.
create or replace function commandbus.pause_schedule(
    p_domain text, p_name text, p_reason text default null, p_actor text default null
) returns boolean
language plpgsql as $$
declare
    v_found commandbus.command_bus_schedule;
begin
    update commandbus.command_bus_schedule s
       set paused_at = coalesce(s.paused_at, clock_timestamp()), paused_by = p_actor, pause_reason = p_reason,
           version = s.version + 1
     where s.domain = p_domain and s.name = p_name returning * into v_found;
    if not found then
        return false;
    end if;
    perform commandbus.audit_schedule(
        'SCHEDULE_PAUSED', v_found, p_actor, jsonb_build_object('reason', p_reason));
    return true;
end $$;

-- Lets a schedule fire again: from p_next on, or, if the caller catches up, from the tick that it stood at.
--   returns resumed, same (it was not paused), stale (look again), or null: there is no such schedule
create or replace function commandbus.resume_schedule(
    p_domain text, p_name text, p_version bigint, p_next timestamptz, p_catch_up boolean,
    p_actor text default null, p_reason text default null
) returns text
language plpgsql as $$
declare
    v_found commandbus.command_bus_schedule;
begin
    select * into v_found from commandbus.command_bus_schedule s
     where s.domain = p_domain and s.name = p_name for update;
    if not found then
        return null;
    elsif v_found.version <> p_version then
        return 'stale';
    elsif v_found.paused_at is null then
        return 'same';
    end if;
    update commandbus.command_bus_schedule s
       set paused_at = null, paused_by = null, pause_reason = null, version = s.version + 1,
           next_tick_at = case when p_catch_up then s.next_tick_at else p_next end,
           look_at = case when p_catch_up then s.next_tick_at else p_next end
     where s.schedule_id = v_found.schedule_id returning * into v_found;
    perform commandbus.audit_schedule('SCHEDULE_RESUMED', v_found, p_actor, jsonb_build_object(
        'catch_up', p_catch_up, 'next_tick_at', commandbus.iso8601(v_found.next_tick_at), 'reason', p_reason));
    return 'resumed';
end $$;

-- Removes a schedule; the commands that it has sent stay. False: there is none.
create or replace function commandbus.delete_schedule(
    p_domain text, p_name text, p_actor text default null, p_reason text default null)
returns boolean
language plpgsql as $$
declare
    v_found commandbus.command_bus_schedule;
begin
    delete from commandbus.command_bus_schedule s
     where s.domain = p_domain and s.name = p_name returning * into v_found;
    if not found then
        return false;
    end if;
    perform commandbus.audit_schedule('SCHEDULE_DELETED', v_found, p_actor, jsonb_build_object(
        'command_type', v_found.command_type, 'cron', v_found.cron, 'timezone', v_found.timezone,
        'every_seconds', v_found.every_seconds, 'at', commandbus.iso8601(v_found.at), 'reason', p_reason));
    return true;
end $$;

-- Sends the command of a schedule now, whatever its state, and moves no tick.
--   returns sent; repeat: this id was sent by this schedule before; known: by something else; null: no such schedule
create or replace function commandbus.trigger_schedule(
    p_domain text, p_name text, p_command_id uuid, p_actor text default null, p_on_behalf jsonb default null,
    p_reason text default null
) returns text
language plpgsql as $$
declare
    v_found    commandbus.command_bus_schedule;
    v_governed text[] := '{}';
begin
    if p_on_behalf is not null then
        perform commandbus.require_ungoverned(p_domain, '{}', p_on_behalf); -- for its lock, which is the first
    end if;
    select * into v_found from commandbus.command_bus_schedule s
     where s.domain = p_domain and s.name = p_name for update;
    if not found then
        return null;
    end if;
    if p_on_behalf is not null then
        v_governed := commandbus.require_ungoverned(p_domain, array[v_found.command_type], p_on_behalf);
    end if;
    if commandbus.offer_commands(p_domain, jsonb_build_array(commandbus.scheduled_command(
           v_found, p_command_id, null)), null, p_actor) <> '{}' then
        return case when exists (
            select from commandbus.command_bus_command c
             where c.domain = p_domain and c.command_id = p_command_id
               and c.correlation_id = v_found.schedule_id) then 'repeat' else 'known' end;
    end if;
    update commandbus.command_bus_schedule s set last_trigger_id = p_command_id
     where s.schedule_id = v_found.schedule_id;
    perform commandbus.audit_schedule(
        'SCHEDULE_TRIGGERED', v_found, p_actor, jsonb_build_object(
            'command_id', p_command_id, 'reason', p_reason));
    perform commandbus.audit_bypass(
        p_domain, array[p_command_id], array[v_found.command_type], v_governed, p_on_behalf, 'trigger');
    return 'sent';
end $$;

-- The command of a tick, as offer_commands takes it; null: of no tick, without jitter.
-- The jitter is a share of a hash of the id: the same for a tick in every process.
create or replace function commandbus.scheduled_command(
    p_schedule commandbus.command_bus_schedule, p_command_id uuid, p_tick timestamptz
) returns jsonb
language sql stable as $$
    select jsonb_build_object(
               'command_id', p_command_id, 'type', p_schedule.command_type, 'data', p_schedule.data,
               'reply_to', p_schedule.reply_to, 'correlation_id', p_schedule.schedule_id,
               'max_attempts', p_schedule.max_attempts)
        || jsonb_strip_nulls(jsonb_build_object(
               'deliver_at', case when p_schedule.jitter_seconds > 0 then
                   p_tick + p_schedule.jitter_seconds * interval '1 second'
                       * (('x' || left(md5(p_command_id::text), 8))::bit(32)::bigint / 4294967296.0) end,
               'expires_in_seconds', p_schedule.expires_in_seconds,
               'priority', p_schedule.priority, 'ordering_key', p_schedule.ordering_key, 'meta', p_schedule.meta))
$$;

-- Some of the schedules that are due, in any order, so that processes that ask at the same time get different
-- ones; and the time by which they are.
--   p_without: time zones that the caller does not know
create or replace function commandbus.due_schedules(p_limit int, p_without text[] default '{}')
returns table (now timestamptz, schedule_id uuid, version bigint, next_tick_at timestamptz, cron text,
               timezone text, every_seconds double precision, at timestamptz, counted_from timestamptz, missed text,
               missed_cap int)
language plpgsql volatile as $$
declare
    v_without text[] := commandbus.domains_on_the_way(); -- their ticks are fired where they are then
begin
    now := clock_timestamp();
    return query
    select due_schedules.now, d.schedule_id, d.version, d.next_tick_at, d.cron, d.timezone, d.every_seconds,
           d.at, d.counted_from, d.missed, d.missed_cap
      from (select s.* from commandbus.command_bus_schedule s
             where s.look_at <= due_schedules.now and s.paused_at is null
               and s.domain <> all(v_without)
               and (s.timezone is null or s.timezone <> all(p_without))
             order by s.look_at limit 10 * p_limit) d
     order by random() limit p_limit;
end $$;
