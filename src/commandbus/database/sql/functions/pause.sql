-- Pause: a domain of which nothing is started until somebody resumes it, or until its time. The mark is on the row of
-- the domain in command_bus_flow, which each receive reads first: none that begins after the commit of a pause leases
-- anything. What runs goes on and ends as always. Sends are accepted, and expiry goes on.

-- The domains that are paused now, of these or of all.
create or replace function commandbus.paused_domains(p_domains text[] default null)
returns table (domain text, paused_at timestamptz, paused_until timestamptz, paused_by text, pause_reason text)
language sql stable as $$
    select f.domain, f.paused_at, f.paused_until, f.paused_by, f.pause_reason
      from commandbus.command_bus_flow f
     where f.paused_at is not null and coalesce(f.paused_until > clock_timestamp(), true)
       and (p_domains is null or f.domain = any(p_domains))
     order by f.domain
$$;

-- A line of the audit about the pause of a domain.
create or replace function commandbus.audit_pause(p_domain text, p_event text, p_details jsonb, p_actor text)
returns void
language plpgsql as $$
begin
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values (p_domain, commandbus.nobody(), p_event, clock_timestamp(),
            nullif(jsonb_strip_nulls(p_details), '{}'), p_actor);
end $$;

-- Hints to all workers of a domain, also to busy ones: they give back what they have not started, or look again.
create or replace function commandbus.hint_workers(p_domain text) returns void
language sql as $$ select pg_notify(commandbus.channel(p_domain), p_domain || '.commands') $$;

-- Refuses a pause that cannot be. By the clock of the database.
create or replace function commandbus.check_pause(p_domain text, p_reason text, p_until timestamptz) returns void
language plpgsql as $$
begin
    perform commandbus.check_domain(p_domain);
    perform commandbus.check_shard(p_domain);
    if not commandbus.knows_domain(p_domain) then
        raise exception 'there is no domain %', quote_literal(p_domain)
            using errcode = 'CB012', hint = 'a domain begins with its first command or worker; check the name';
    end if;
    if coalesce(length(trim(p_reason)), 0) not between 1 and 1000 then
        raise exception 'the reason of a pause must have 1 to 1000 characters'
            using errcode = 'CB012', hint = 'say why: those who look for their commands will read it';
    end if;
    if p_until <= clock_timestamp() or not isfinite(p_until) then
        raise exception 'the end of a pause, %, is not in the future', coalesce(commandbus.iso8601(p_until), '')
            using errcode = 'CB012', hint = 'give a later time, by the clock of the database, or none';
    end if;
    if p_until >= '10000-01-01 00:00Z' then
        raise exception 'the end of a pause is after the year 9999'
            using errcode = 'CB012', hint = 'leave it out: it ends when somebody resumes it';
    end if;
end $$;

-- Ends a pause whose time is over, if it is; the caller has locked the row.
create or replace function commandbus.end_pause(p_flow commandbus.command_bus_flow) returns boolean
language plpgsql as $$
begin
    if p_flow.paused_at is null or coalesce(p_flow.paused_until > clock_timestamp(), true) then
        return false;
    end if;
    update commandbus.command_bus_flow f
       set paused_at = null, paused_until = null, paused_by = null, pause_reason = null,
           updated_at = clock_timestamp()
     where f.domain = p_flow.domain;
    perform commandbus.audit_pause(
        p_flow.domain, 'RESUMED', jsonb_build_object('until', commandbus.iso8601(p_flow.paused_until)), null);
    return true;
end $$;

-- Pauses a domain. One that is paused gets the newer reason and time; the audit has both.
--   p_until: over by itself then; null: until resume_domain
create or replace function commandbus.pause_domain(
    p_domain text, p_reason text, p_until timestamptz default null, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_now  timestamptz;
    v_flow commandbus.command_bus_flow;
begin
    perform commandbus.check_pause(p_domain, p_reason, p_until);
    insert into commandbus.command_bus_flow (domain) values (p_domain) on conflict do nothing;
    select * into v_flow from commandbus.command_bus_flow f where f.domain = p_domain for update;
    perform commandbus.end_pause(v_flow);
    v_now := clock_timestamp();
    update commandbus.command_bus_flow f
       set paused_at = v_now, paused_until = p_until, paused_by = p_actor, pause_reason = p_reason,
           updated_at = v_now
     where f.domain = p_domain;
    perform commandbus.audit_pause(p_domain, 'PAUSED', jsonb_build_object(
        'reason', p_reason, 'until', commandbus.iso8601(p_until)), p_actor);
    perform commandbus.hint_workers(p_domain);
end $$;

-- Ends the pause of a domain; false if it was not paused. The audit has why it ends, or else why it was paused.
create or replace function commandbus.resume_domain(
    p_domain text, p_actor text default null, p_reason text default null) returns boolean
language plpgsql as $$
declare
    v_flow commandbus.command_bus_flow;
begin
    perform commandbus.check_domain(p_domain);
    select * into v_flow from commandbus.command_bus_flow f where f.domain = p_domain for update;
    if v_flow.paused_at is null or commandbus.end_pause(v_flow) then
        return false;
    end if;
    update commandbus.command_bus_flow f
       set paused_at = null, paused_until = null, paused_by = null, pause_reason = null,
           updated_at = clock_timestamp()
     where f.domain = p_domain;
    perform commandbus.audit_pause(p_domain, 'RESUMED', jsonb_build_object(
        'paused_at', commandbus.iso8601(v_flow.paused_at), 'reason', coalesce(p_reason, v_flow.pause_reason),
        'pause_reason', case when p_reason is not null then v_flow.pause_reason end), p_actor);
    perform commandbus.hint_workers(p_domain);
    return true;
end $$;

-- Writes into the audit which pauses are over by themselves; returns how many. Receives have not waited for it.
create or replace function commandbus.end_pauses() returns int
language plpgsql as $$
declare
    v_flow  commandbus.command_bus_flow;
    v_ended int := 0;
begin
    for v_flow in
        select * from commandbus.command_bus_flow f
         where f.paused_until <= clock_timestamp() and f.domain <> all(commandbus.domains_on_the_way())
         order by f.domain for update skip locked
    loop
        if commandbus.end_pause(v_flow) then
            perform commandbus.hint_workers(v_flow.domain);
            v_ended := v_ended + 1;
        end if;
    end loop;
    return v_ended;
end $$;

-- The same, and for pauses of types. Returns the seconds until the next pause is over by itself, null if none will be:
-- the caller comes back then. Rows that somebody has are left to the next call.
create or replace function commandbus.keep_pauses() returns double precision
language plpgsql as $$
declare
    v_domain text;
begin
    perform commandbus.end_pauses();
    for v_domain in
        select f.domain from commandbus.command_bus_flow f
         where exists (select from commandbus.command_bus_flow_rule r
                        where r.domain = f.domain and r.paused_until <= clock_timestamp())
           and f.domain <> all(commandbus.domains_on_the_way())
         order by f.domain for update skip locked
    loop
        perform commandbus.end_type_pauses(v_domain);
    end loop;
    -- greatest leaves nulls out: without the case each process would look every 50 ms while no pause has an end.
    return (select case when min(u.paused_until) is not null
                        then greatest(extract(epoch from min(u.paused_until) - clock_timestamp()), 0.05) end
              from (select f.paused_until from commandbus.command_bus_flow f where f.paused_until is not null
                    union all
                    select r.paused_until from commandbus.command_bus_flow_rule r
                     where r.paused_until is not null) u);
end $$;
