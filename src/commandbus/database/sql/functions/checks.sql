-- Checks: runs of the doctor, and verifications of the audit, whose results are kept for those who look later.

-- A run begins, if none of its kind goes on; one whose process has been silent for a minute does not. Returns its
-- number. A repair says which run it goes by: the last one that has a result, or it is refused.
create or replace function commandbus.begin_check(
    p_kind text, p_domain text, p_actor text, p_reason text default null, p_seen_run bigint default null)
returns bigint
language plpgsql as $$
declare
    v_now  timestamptz := clock_timestamp();
    v_open commandbus.command_bus_check_run;
    v_run  bigint;
begin
    perform pg_advisory_xact_lock(hashtextextended('commandbus.check.' || p_kind, 0));
    update commandbus.command_bus_check_run r
       set finished_at = v_now, error = 'its process ended before it did'
     where r.kind = p_kind and r.finished_at is null and r.touched_at < v_now - interval '1 minute';
    select * into v_open from commandbus.command_bus_check_run r where r.kind = p_kind and r.finished_at is null;
    if found then
        raise exception 'run % is going on since %, begun by %', v_open.run_id,
            commandbus.iso8601(v_open.started_at), coalesce(v_open.actor, 'nobody who said so')
            using errcode = 'CB003', hint = 'wait for its result';
    end if;
    if p_seen_run is not null and p_seen_run is distinct from (
        select max(r.run_id) from commandbus.command_bus_check_run r
         where r.kind = p_kind and r.result is not null) then
        raise exception 'run % is not the last one', p_seen_run
            using errcode = 'CB003', hint = 'look at the findings of the last run, then repair by that';
    end if;
    insert into commandbus.command_bus_check_run (kind, domain, is_fix, actor, reason, started_at, touched_at)
    values (p_kind, p_domain, p_seen_run is not null, p_actor, p_reason, v_now, v_now) returning run_id into v_run;
    if p_seen_run is not null then
        insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
        values (coalesce(p_domain, '*'), commandbus.nobody(), 'DOCTOR_REPAIR', v_now, jsonb_build_object(
                    'code', 'RUN', 'run', v_run, 'by_run', p_seen_run, 'reason', p_reason), p_actor);
    end if;
    delete from commandbus.command_bus_check_run r
     where r.kind = p_kind and r.finished_at is not null and r.run_id <= (
           select o.run_id from commandbus.command_bus_check_run o where o.kind = p_kind
            order by o.run_id desc offset 50 limit 1);
    return v_run;
end $$;

-- Its process lives.
create or replace function commandbus.touch_check(p_run_id bigint) returns void
language sql as $$
    update commandbus.command_bus_check_run r set touched_at = clock_timestamp()
     where r.run_id = p_run_id and r.finished_at is null
$$;

-- It has ended: with a result, or an error in its place.
create or replace function commandbus.finish_check(p_run_id bigint, p_result jsonb, p_error text default null)
returns void
language sql as $$
    update commandbus.command_bus_check_run r
       set finished_at = clock_timestamp(), touched_at = clock_timestamp(), result = p_result, error = p_error
     where r.run_id = p_run_id and r.finished_at is null
$$;

-- One that somebody made without asking first, as the command line does.
create or replace function commandbus.record_check(
    p_kind text, p_domain text, p_actor text, p_is_fix boolean, p_started_at timestamptz, p_result jsonb)
returns bigint
language sql as $$
    insert into commandbus.command_bus_check_run (
        kind, domain, is_fix, actor, started_at, touched_at, finished_at, result)
    values (p_kind, p_domain, p_is_fix, p_actor, p_started_at, clock_timestamp(), clock_timestamp(), p_result)
    returning run_id
$$;
