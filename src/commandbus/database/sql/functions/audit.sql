-- Audit: the events of commands and batches. They are only added; search goes through them page by page.

-- The audit is append-only for everyone, the owner included; only the pruning function may delete, and that of moves,
-- and they are known by their place in the call stack, which a setting could not prove. The stack shows the
-- schema only if it is not on the search path: prune_audit has a path of its own. The whole of its
-- first three lines must fit, from the start: statements and quoted names can hold line breaks and
-- anything after them, but nothing can follow this very statement and still be SQL.
create or replace function commandbus.refuse_audit_change() returns trigger
language plpgsql as $$
declare
    v_stack text;
begin
    get diagnostics v_stack = pg_context;
    if tg_op = 'DELETE' and v_stack ~ (
        E'^PL/pgSQL function (commandbus[.])?refuse_audit_change[(][)] line [0-9]+ at GET DIAGNOSTICS\n'
        'SQL statement "delete from commandbus[.]command_bus_audit a where a[.]audit_id = any[(]v_ids[)]"\n'
        'PL/pgSQL function commandbus[.](prune_audit|remove_moved_events)[(][]a-z, []*[)] line [0-9]+ at SQL statement(\n|$)') then
        return null;
    end if;
    raise exception '% on % is refused: the audit is append-only', tg_op, tg_table_name
        using errcode = 'CB008';
end $$;

create or replace trigger command_bus_audit_append_only
    before update or delete or truncate on commandbus.command_bus_audit
    for each statement execute function commandbus.refuse_audit_change();

-- A remark of a person, in the audit; nothing else changes.
create or replace function commandbus.add_note(
    p_domain text, p_command_id uuid, p_text text, p_actor text default null
) returns void
language plpgsql as $$
begin
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    select c.domain, c.command_id, 'NOTE', clock_timestamp(), jsonb_build_object('text', p_text),
           c.batch_id, p_actor
      from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = p_command_id;
    if not found then
        perform commandbus.refuse_moved(p_domain, p_command_id);
        raise exception 'no command % in domain %', p_command_id, quote_literal(p_domain)
            using errcode = 'CB002', detail = p_command_id::text;
    end if;
end $$;

-- The audit by what is known of its events, null means any. p_is_newest_first says in which
-- direction to walk, p_from_id after which event. Ordered by audit_id: the order of writing.
-- A last row that has an audit_id and nothing else but a time says how far a bounded walk came.
--   p_viewer: through whose eyes, see visibility.sql; null: who sees everything
--   p_hides_access: without the events of tokens and limits, which have the domain '*'
--   p_domains: only events of these; null: of all
create or replace function commandbus.list_audit(
    p_domain text, p_command_id uuid, p_batch_id uuid, p_actor text, p_event_types text[],
    p_since timestamptz, p_until timestamptz, p_from_id bigint, p_is_newest_first boolean,
    p_limit int, p_scan int default 100000, p_viewer text default null,
    p_hides_access boolean default false, p_domains text[] default null
) returns setof commandbus.command_bus_audit
language plpgsql stable as $$
declare
    -- Events are written within a moment of their `ts`; never longer apart than this.
    c_slack constant interval := interval '10 minutes';
    v_low   bigint;
    v_high  bigint;
    v_floor bigint;
    v_upper bigint;
    v_step  int := least(1000, p_scan);
    v_left  int := p_limit;
    v_seen  int := 0;
    v_rows  int;
    v_mark  commandbus.command_bus_audit;
begin
    if p_command_id is not null then
        return query
        select a.* from commandbus.command_bus_audit a
         where a.command_id = p_command_id
           and (p_domain is null or a.domain = p_domain)
           and (p_domains is null or a.domain = any(p_domains))
           and (p_batch_id is null or a.batch_id = p_batch_id)
           and (p_actor is null or a.actor = p_actor)
           and (p_event_types is null or a.event_type = any(p_event_types))
           and (p_since is null or a.ts >= p_since) and (p_until is null or a.ts < p_until)
           and (not p_hides_access or a.domain <> '*')
           and (p_viewer is null or commandbus.sees_event(p_viewer, a))
           and (p_from_id is null or case when p_is_newest_first then a.audit_id < p_from_id
                                          else a.audit_id > p_from_id end)
         order by case when p_is_newest_first then -a.audit_id else a.audit_id end limit p_limit;
        return;
    end if;
    -- Nothing was written of a batch before it was there.
    v_low := coalesce(commandbus.audit_id_at(greatest(p_since, (
        select b.created_at from commandbus.command_bus_batch b
         where b.batch_id = p_batch_id)) - c_slack), 0);
    v_high := coalesce(commandbus.audit_id_at(p_until + c_slack), 9223372036854775807);
    if p_is_newest_first then
        v_high := least(v_high, p_from_id - 1);
    else
        v_low := greatest(v_low, p_from_id + 1);
    end if;
    while v_left > 0 loop
        if p_is_newest_first then
            select a.audit_id into v_floor from commandbus.command_bus_audit a
             where a.audit_id <= v_high and a.audit_id >= v_low
             order by a.audit_id desc offset v_step - 1 limit 1;
            v_upper := v_high;
        else
            select a.audit_id into v_upper from commandbus.command_bus_audit a
             where a.audit_id <= v_high and a.audit_id >= v_low
             order by a.audit_id offset v_step - 1 limit 1;
            v_floor := v_low;
        end if;
        return query
        select a.* from commandbus.command_bus_audit a
         where a.audit_id between coalesce(v_floor, v_low) and coalesce(v_upper, v_high)
           and (p_domain is null or a.domain = p_domain)
           and (p_domains is null or a.domain = any(p_domains))
           and (p_batch_id is null or a.batch_id = p_batch_id)
           and (p_actor is null or a.actor = p_actor)
           and (p_event_types is null or a.event_type = any(p_event_types))
           and (p_since is null or a.ts >= p_since) and (p_until is null or a.ts < p_until)
           and (not p_hides_access or a.domain <> '*')
           and (p_viewer is null or commandbus.sees_event(p_viewer, a))
         order by case when p_is_newest_first then -a.audit_id else a.audit_id end limit v_left;
        get diagnostics v_rows = row_count;
        v_left := v_left - v_rows;
        v_seen := v_seen + v_step;
        exit when v_floor is null or v_upper is null or v_left = 0;
        if v_seen >= p_scan then
            select a.audit_id, a.ts into v_mark.audit_id, v_mark.ts
              from commandbus.command_bus_audit a
             where a.audit_id = case when p_is_newest_first then v_floor else v_upper end;
            return next v_mark;
            exit;
        end if;
        if p_is_newest_first then
            v_high := v_floor - 1;
        else
            v_low := v_upper + 1;
        end if;
        v_step := least(v_step * 4, p_scan - v_seen);
    end loop;
end $$;

-- About the first event that is not older than this, by halving: the time has no index, and ids
-- grow with it. Null is the open end: it comes back as null.
create or replace function commandbus.audit_id_at(p_ts timestamptz) returns bigint
language plpgsql stable as $$
declare
    v_low  bigint;
    v_high bigint;
    v_mid  bigint;
    v_ts   timestamptz;
begin
    if p_ts is null then
        return null;
    end if;
    select min(a.audit_id), max(a.audit_id) + 1 into v_low, v_high
      from commandbus.command_bus_audit a;
    while v_low < v_high loop
        v_mid := v_low + (v_high - v_low) / 2;
        -- the next one there is: ids have gaps
        select a.ts into v_ts from commandbus.command_bus_audit a
         where a.audit_id >= v_mid order by a.audit_id limit 1;
        if v_ts < p_ts then
            v_low := v_mid + 1;
        else
            v_high := v_mid;
        end if;
    end loop;
    return v_low;
end $$;

-- What people did, newest first: along the index of events that have an actor and are no sends. Events of one actor
-- that follow each other within a minute, of one kind and about single commands, are one row: a bulk operation is not
-- a thousand lines. `events` says how many it stands for, first_id and first_ts where they begin; the rest is of the
-- newest. To go on, give the first_id of the last row as p_from_id. A last row without a domain says how far a bounded
-- walk came.
--   p_viewer, p_hides_access: as in list_audit
create or replace function commandbus.list_people(
    p_domains text[], p_actor text, p_event_types text[], p_since timestamptz, p_until timestamptz,
    p_from_id bigint, p_limit int, p_scan int default 100000, p_viewer text default null,
    p_hides_access boolean default false
) returns table (
    audit_id bigint, first_id bigint, domain text, event_type text, actor text, ts timestamptz, first_ts timestamptz,
    events bigint, command_id uuid, batch_id uuid, details_json jsonb)
language plpgsql stable as $$
declare
    c_many  constant text[] := '{OPERATOR_RETRY,OPERATOR_CANCEL,OPERATOR_COMPLETE,CANCELED,CANCEL_REQUESTED,'
                               'RESCHEDULED,PRIORITY_CHANGED,DOCTOR_REPAIR}';
    c_slack constant interval := interval '10 minutes'; -- as in list_audit
    v_low   bigint := coalesce(commandbus.audit_id_at(p_since - c_slack), 0);
    v_high  bigint := coalesce(commandbus.audit_id_at(p_until + c_slack), 9223372036854775807);
    v_event commandbus.command_bus_audit;
    v_seen  int := 0;
    v_given int := 0;
begin
    for v_event in
        select a.* from commandbus.command_bus_audit a
         where a.actor is not null and a.event_type not in ('SENT', 'RECEIVED', 'AUDIT_PRUNED')
           and a.audit_id >= v_low and a.audit_id <= least(v_high, p_from_id - 1)
         order by a.audit_id desc limit p_scan
    loop
        v_seen := v_seen + 1;
        continue when p_actor is not null and v_event.actor <> p_actor
            or p_domains is not null and v_event.domain <> all(p_domains)
            or p_event_types is not null and v_event.event_type <> all(p_event_types)
            or v_event.ts < p_since or v_event.ts >= p_until
            or p_hides_access and v_event.domain = '*'
            or p_viewer is not null and not commandbus.sees_event(p_viewer, v_event);
        if events > 0 and (v_event.actor, v_event.event_type, v_event.domain) = (actor, event_type, list_people.domain)
           and v_event.event_type = any(c_many) and v_event.ts > first_ts - interval '1 minute' then
            events := events + 1;
            first_id := v_event.audit_id;
            first_ts := v_event.ts;
            continue;
        end if;
        if events > 0 then
            return next;
            v_given := v_given + 1;
        end if;
        if v_given = p_limit then
            return;
        end if;
        audit_id := v_event.audit_id;
        first_id := v_event.audit_id;
        domain := v_event.domain;
        event_type := v_event.event_type;
        actor := v_event.actor;
        ts := v_event.ts;
        first_ts := v_event.ts;
        events := 1;
        command_id := v_event.command_id;
        batch_id := v_event.batch_id;
        details_json := v_event.details_json;
    end loop;
    if events > 0 then
        return next;
    end if;
    if v_seen = p_scan then
        return query select v_event.audit_id, v_event.audit_id, null::text, null::text, null::text, v_event.ts,
                            v_event.ts, 0::bigint, null::uuid, null::uuid, null::jsonb;
    end if;
end $$;

-- How far the audit is sealed. Of what is not sealed yet p_most are counted.
create or replace function commandbus.seal_state(p_most int default 10000)
returns table (seal_number bigint, sealed_to bigint, sealed_at timestamptz, key_id text, unsealed bigint,
               oldest_unsealed_at timestamptz)
language plpgsql stable as $$
begin
    select s.seal_number, s.last_id, s.sealed_at, s.key_id into seal_number, sealed_to, sealed_at, key_id
      from commandbus.command_bus_audit_seal s order by s.seal_number desc limit 1;
    select count(*) into unsealed from (
        select from commandbus.command_bus_audit a
         where a.audit_id > coalesce(seal_state.sealed_to, 0) order by a.audit_id limit p_most + 1) n;
    select a.ts into oldest_unsealed_at from commandbus.command_bus_audit a
     where a.audit_id > coalesce(seal_state.sealed_to, 0) order by a.audit_id limit 1;
    return next;
end $$;
