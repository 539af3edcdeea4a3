-- Limits of execution, as somebody sets them; gates.sql keeps them. Lock order: the row of the domain in
-- command_bus_flow, its rules, then as everywhere else. No worker waits for any of the first two.

-- Refuses a limit that cannot be.
create or replace function commandbus.check_limit(
    p_domain text, p_type text, p_by_key boolean, p_max_running int, p_rate double precision,
    p_per double precision, p_burst double precision
) returns void
language plpgsql as $$
declare
    v_problem text;
    v_hint    text;
begin
    perform commandbus.check_domain(p_domain);
    select p.problem, p.hint into v_problem, v_hint from (values
        (p_type !~ '^[A-Za-z][A-Za-z0-9_.:-]*$', 'the command type is not well formed',
         'use the type that commands are sent with'),
        (p_by_key and p_type is null, 'a limit by key needs a command type', 'name the type of the commands'),
        (num_nonnulls(p_max_running, p_rate) = 0, 'it has neither max_running nor a rate', 'give one of them, or both'),
        (p_max_running = 0 or p_rate = 0, 'a limit of 0 would stop everything: that is a pause',
         'pause the domain or the command type'),
        (not p_max_running between 1 and 1000000, 'max_running is not from 1 to 1,000,000', 'give another number'),
        (not p_rate between 0.000001 and 1000000, 'the rate is not from 0.000001 to 1,000,000',
         'give another rate'),
        (not p_per between 0.001 and 31622400, 'the rate is not per 0.001 seconds to a year', 'give other seconds'),
        (not p_burst between 1 and 1000000, 'burst is not from 1 to 1,000,000', 'a burst of 1 is the strictest'),
        (p_rate is null and num_nonnulls(p_per, p_burst) > 0, 'per and burst are parts of a rate', 'give a rate')
    ) p(is_bad, problem, hint) where p.is_bad limit 1;
    if found then
        raise exception 'the limit was refused: %', v_problem using errcode = 'CB012', hint = v_hint;
    end if;
end $$;

-- The row of a domain, locked: rules are changed by one session at a time.
create or replace function commandbus.lock_rules(p_domain text) returns void
language plpgsql as $$
begin
    insert into commandbus.command_bus_flow (domain) values (p_domain) on conflict do nothing;
    perform 1 from commandbus.command_bus_flow f where f.domain = p_domain for update;
end $$;

-- What the audit keeps of a rule.
create or replace function commandbus.rule_details(p_rule commandbus.command_bus_flow_rule) returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'max_running', p_rule.max_running, 'rate', p_rule.rate, 'per_seconds', p_rule.per_seconds,
        'burst', p_rule.burst))
$$;

-- Rules of a domain have changed: the audit line, and the look at the gates, which may have room now.
create or replace function commandbus.rule_changed(
    p_domain text, p_type text, p_by_key boolean, p_event text, p_details jsonb, p_actor text
) returns void
language plpgsql as $$
begin
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values (p_domain, commandbus.nobody(), p_event, clock_timestamp(), jsonb_strip_nulls(
                jsonb_build_object('type', nullif(p_type, ''), 'by_key', nullif(p_by_key, false)) || p_details),
            p_actor);
    update commandbus.command_bus_flow f set has_rules = true, updated_at = clock_timestamp()
     where f.domain = p_domain;
    -- The next token comes at another time now.
    update commandbus.command_bus_gate g set ready_at = clock_timestamp()
     where g.domain = p_domain and g.ready_at is not null;
    perform commandbus.wake_workers(p_domain);
end $$;

-- Sets a limit, in place of the one that was there. What runs goes on, and counts.
--   p_type null: all types of the domain together; p_by_key: each limit key of the type by itself
--   p_max_running: the number that is leased at once. p_rate leases in p_per seconds, and p_burst of them at once after
--   a pause; null: a fifth of a second's worth
create or replace function commandbus.set_limit(
    p_domain text, p_type text default null, p_by_key boolean default false, p_max_running int default null,
    p_rate double precision default null, p_per double precision default null,
    p_burst double precision default null, p_actor text default null, p_reason text default null
) returns void
language plpgsql as $$
declare
    v_old commandbus.command_bus_flow_rule;
    v_new commandbus.command_bus_flow_rule;
begin
    perform commandbus.check_limit(p_domain, p_type, p_by_key, p_max_running, p_rate, p_per, p_burst);
    perform commandbus.ensure_domain(p_domain);
    perform commandbus.lock_rules(p_domain);
    select * into v_old from commandbus.command_bus_flow_rule r
     where r.domain = p_domain and r.command_type = coalesce(p_type, '') and r.by_key = p_by_key;
    insert into commandbus.command_bus_flow_rule as r (
        domain, command_type, by_key, max_running, rate, per_seconds, burst, updated_by)
    values (p_domain, coalesce(p_type, ''), p_by_key, p_max_running, p_rate,
            case when p_rate is not null then coalesce(p_per, 1) end,
            case when p_rate is not null then coalesce(p_burst, greatest(1, ceil(p_rate / coalesce(p_per, 1) / 5))) end,
            p_actor)
    on conflict (domain, command_type, by_key) do update
       set max_running = excluded.max_running, rate = excluded.rate, per_seconds = excluded.per_seconds,
           burst = excluded.burst, updated_by = excluded.updated_by, updated_at = clock_timestamp()
    returning r.* into v_new;
    perform commandbus.rule_changed(
        p_domain, v_new.command_type, p_by_key, 'EXECUTION_LIMIT_SET', jsonb_build_object(
            'limit', commandbus.rule_details(v_new),
            'before', nullif(commandbus.rule_details(v_old), '{}'), 'reason', p_reason), p_actor);
    if p_max_running is not null and v_old.max_running is null then
        perform commandbus.count_running(v_new);
    end if;
end $$;

-- Gives places to what runs already when a limit is set. Their messages are locked, so that none ends meanwhile; what
-- is just ending is left out. A receive that began before the limit is not seen here. A lease that has lapsed counts
-- too: until another receive takes the command, its worker may extend it, late.
create or replace function commandbus.count_running(p_rule commandbus.command_bus_flow_rule) returns void
language plpgsql as $$
begin
    execute format(
        'with held as materialized ('
        '    select $1 as domain, q.msg_id, commandbus.message_command_id(q.message) as command_id from pgmq.%I q'
        '     where q.vt < ''infinity'' and q.read_ct > 0 for update skip locked)'
        ' insert into commandbus.command_bus_slot (domain, gate, command_id)'
        ' select h.domain, case when $3 then ''l:k:'' || $2 || ''/'' || coalesce(c.limit_key, c.ordering_key)'
        '                       when $2 = '''' then ''l:d'' else ''l:t:'' || $2 end, h.command_id'
        '   from held h join commandbus.command_bus_command c'
        '     on c.domain = h.domain and c.command_id = h.command_id'
        '  where c.msg_id = h.msg_id and c.leased_by is not null and ($2 = '''' or c.command_type = $2)'
        '    and (not $3 or coalesce(c.limit_key, c.ordering_key) is not null)'
        ' on conflict do nothing', 'q_' || commandbus.physical_queue(p_rule.domain || '.commands'))
      using p_rule.domain, p_rule.command_type, p_rule.by_key;
end $$;

-- Removes a limit; false if there was none. Those who wait there become due: release_waiting.
create or replace function commandbus.clear_limit(
    p_domain text, p_type text default null, p_by_key boolean default false, p_actor text default null,
    p_reason text default null
) returns boolean
language plpgsql as $$
declare
    v_old commandbus.command_bus_flow_rule;
begin
    perform commandbus.check_domain(p_domain);
    perform 1 from commandbus.command_bus_flow f where f.domain = p_domain for update;
    select * into v_old from commandbus.command_bus_flow_rule r
     where r.domain = p_domain and r.command_type = coalesce(p_type, '') and r.by_key = p_by_key;
    if num_nonnulls(v_old.max_running, v_old.rate) = 0 then
        return false;
    end if;
    update commandbus.command_bus_flow_rule r
       set max_running = null, rate = null, per_seconds = null, burst = null, updated_by = p_actor,
           updated_at = clock_timestamp()
     where r.domain = p_domain and r.command_type = v_old.command_type and r.by_key = p_by_key;
    delete from commandbus.command_bus_flow_rule r
     where r.domain = p_domain and r.command_type = v_old.command_type and r.by_key = p_by_key
       and r.paused_at is null;
    perform commandbus.rule_changed(
        p_domain, v_old.command_type, p_by_key, 'EXECUTION_LIMIT_CLEARED',
        jsonb_build_object('before', commandbus.rule_details(v_old), 'reason', p_reason), p_actor);
    return true;
end $$;

-- Pauses a command type: a mark of its own, so that setting a limit does not end it. Its commands wait when they are
-- read. One that is paused gets the newer reason and time; the audit has both.
create or replace function commandbus.pause_type(
    p_domain text, p_type text, p_reason text, p_until timestamptz default null, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_now timestamptz;
begin
    perform commandbus.check_limit(p_domain, coalesce(p_type, ''), false, 1, null, null, null);
    perform commandbus.check_pause(p_domain, p_reason, p_until);
    perform commandbus.lock_rules(p_domain);
    v_now := clock_timestamp();
    insert into commandbus.command_bus_flow_rule as r (
        domain, command_type, by_key, paused_at, paused_until, paused_by, pause_reason, updated_by)
    values (p_domain, p_type, false, v_now, p_until, p_actor, p_reason, p_actor)
    on conflict (domain, command_type, by_key) do update
       set paused_at = excluded.paused_at, paused_until = excluded.paused_until,
           paused_by = excluded.paused_by, pause_reason = excluded.pause_reason,
           updated_by = excluded.updated_by, updated_at = v_now;
    perform commandbus.rule_changed(p_domain, p_type, false, 'PAUSED', jsonb_build_object(
        'reason', p_reason, 'until', commandbus.iso8601(p_until)), p_actor);
    perform commandbus.hint_workers(p_domain);
end $$;

-- Ends the pause of a command type; false if it was not paused. Those who wait become due, or wait for its limit.
create or replace function commandbus.resume_type(
    p_domain text, p_type text, p_actor text default null, p_reason text default null)
returns boolean
language plpgsql as $$
declare
    v_old commandbus.command_bus_flow_rule;
begin
    perform commandbus.check_domain(p_domain);
    perform 1 from commandbus.command_bus_flow f where f.domain = p_domain for update;
    select * into v_old from commandbus.command_bus_flow_rule r
     where r.domain = p_domain and r.command_type = p_type and not r.by_key and r.paused_at is not null;
    if not found then
        return false;
    end if;
    perform commandbus.end_type_pause(v_old, p_actor, p_reason);
    return coalesce(v_old.paused_until > clock_timestamp(), true);
end $$;

-- The same for a pause that the caller has found, under the lock of the domain.
create or replace function commandbus.end_type_pause(
    p_rule commandbus.command_bus_flow_rule, p_actor text, p_reason text default null)
returns void
language plpgsql as $$
declare
    v_is_over boolean := p_rule.paused_until <= clock_timestamp();
begin
    update commandbus.command_bus_flow_rule r
       set paused_at = null, paused_until = null, paused_by = null, pause_reason = null, updated_by = p_actor,
           updated_at = clock_timestamp()
     where r.domain = p_rule.domain and r.command_type = p_rule.command_type and not r.by_key;
    delete from commandbus.command_bus_flow_rule r
     where r.domain = p_rule.domain and r.command_type = p_rule.command_type and not r.by_key
       and num_nonnulls(r.max_running, r.rate) = 0;
    perform commandbus.rule_changed(
        p_rule.domain, p_rule.command_type, false, 'RESUMED', jsonb_build_object(
            'paused_at', commandbus.iso8601(p_rule.paused_at), 'reason', coalesce(p_reason, p_rule.pause_reason),
            'pause_reason', case when p_reason is not null then p_rule.pause_reason end,
            'until', case when v_is_over then commandbus.iso8601(p_rule.paused_until) end),
        case when v_is_over is not true then p_actor end);
    perform commandbus.hint_workers(p_rule.domain);
end $$;

-- Ends the pauses of types whose time is over. The caller has locked the row of the domain: this is a statement after
-- that, and sees what others have resumed before.
create or replace function commandbus.end_type_pauses(p_domain text) returns void
language plpgsql as $$
declare
    v_rule commandbus.command_bus_flow_rule;
begin
    for v_rule in
        select * from commandbus.command_bus_flow_rule r
         where r.domain = p_domain and r.paused_until <= clock_timestamp() order by r.command_type
    loop
        perform commandbus.end_type_pause(v_rule, null);
    end loop;
end $$;

-- The types that are paused now, of these domains or of all.
create or replace function commandbus.paused_types(p_domains text[] default null)
returns table (domain text, command_type text, paused_at timestamptz, paused_until timestamptz, paused_by text,
               pause_reason text)
language sql stable as $$
    select r.domain, r.command_type, r.paused_at, r.paused_until, r.paused_by, r.pause_reason
      from commandbus.command_bus_flow_rule r
     where r.paused_at is not null and coalesce(r.paused_until > clock_timestamp(), true)
       and (p_domains is null or r.domain = any(p_domains))
     order by r.domain, r.command_type
$$;
