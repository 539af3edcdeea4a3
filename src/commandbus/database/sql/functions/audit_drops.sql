-- Parts of the audit of which all is old are dropped as a whole; what is still in use is put elsewhere before.
-- parts.sql says what parts are, and how long a change of them waits.

-- How long events of these domains are kept, at least; a domain that is named in o_for_ever has no rule, or is none of ours.
create or replace function commandbus.audit_rule(
    p_domains text[], out o_before timestamptz, out o_for_ever text[]
)
language plpgsql stable as $$
begin
    select min(d.before), coalesce(array_agg(n.name) filter (where d.before is null), '{}')
      into o_before, o_for_ever
      from unnest(p_domains) n(name)
      left join commandbus.retention_due() d on d.domain = n.name and d.kind = 'audit';
end $$;

-- Drops the oldest parts of which all is old by every rule, with one record for all of them. What is in use there is put
-- into a part of what is kept: the trails of commands and batches that are open, parked, or ended lately, of those whose
-- trail begins in what was kept before, and the events of domains that are kept for ever. If that is more than a few
-- per cent, the parts stay, and their rows are pruned one by one.
create or replace function commandbus.drop_audit_parts(
    p_actor text default null, out o_did text, out o_events bigint, out o_before timestamptz
)
language plpgsql set lock_timeout = '250ms' as $$
declare
    v_part   record;
    v_rule   record;
    v_parts  regclass[] := '{}';
    v_first  bigint;
    v_below  bigint;
    v_from   bigint;                                    -- the first event that is there
    v_before timestamptz;
    v_newest timestamptz;
    v_rows   bigint := 0;
    v_counts jsonb := '{}';
    v_stay   text[] := '{}';
    v_ids    uuid[];
    v_keep   bigint[];
    v_most   bigint;
    v_place  record;
begin
    for v_part in
        select p.part, p.first_id, p.below_id, c.row_count, c.events, c.newest_ts, c.look_after
          from commandbus.audit_parts() p
          left join commandbus.command_bus_audit_part c on c.first_id = p.first_id and c.below_id = p.below_id
         where not p.is_kept and not p.is_tail order by p.first_id limit 64
    loop
        exit when v_part.row_count is null or v_part.look_after > now();
        v_rule := commandbus.audit_rule(array(select jsonb_object_keys(v_part.events)));
        exit when v_part.row_count > 0 and v_rule.o_before is null
            or greatest(v_newest, v_part.newest_ts) >= least(v_before, v_rule.o_before);
        v_parts := v_parts || v_part.part;
        v_first := coalesce(v_first, v_part.first_id);
        v_below := v_part.below_id;
        v_before := least(v_before, v_rule.o_before);
        v_newest := greatest(v_newest, v_part.newest_ts);
        v_rows := v_rows + v_part.row_count;
        v_stay := v_stay || v_rule.o_for_ever;
        v_counts := v_counts || coalesce((
            select jsonb_object_agg(e.key, e.value::bigint + coalesce((v_counts ->> e.key)::bigint, 0))
              from jsonb_each_text(v_part.events) e), '{}');
    end loop;
    if v_parts = '{}' then
        return;
    end if;
    v_from := (select min(a.audit_id) from commandbus.command_bus_audit a
                where a.audit_id >= v_first and a.audit_id < v_below);
    if v_from is not null then
        -- The one way back from an end is a batch retry of what FAILED: it waits for this, or is under way, and this comes
        -- again later. Rows are not locked: there can be millions, and others may wait for them.
        if not pg_try_advisory_xact_lock(hashtextextended('commandbus.audit.trails', 0)) then
            return;
        end if;
        v_ids := array(
            select c.command_id from commandbus.command_bus_command c
             where (c.status not in ('COMPLETED', 'CANCELED', 'FAILED') or c.updated_at >= v_before)
               and exists (select from commandbus.command_bus_audit a
                            where a.command_id = c.command_id and a.domain = c.domain
                              and a.audit_id >= v_from and a.audit_id < v_below)
            union
            select b.batch_id from commandbus.command_bus_batch b
             where (b.completed_at is null or b.completed_at >= v_before)
               and exists (select from commandbus.command_bus_audit a
                            where a.command_id = b.batch_id and a.audit_id >= v_from and a.audit_id < v_below)
            union
            select k.command_id from commandbus.command_bus_audit k
             where k.audit_id < v_from and k.command_id <> commandbus.nobody()
               and exists (select from commandbus.command_bus_audit a
                            where a.command_id = k.command_id and a.audit_id >= v_from and a.audit_id < v_below));
        v_most := greatest(1000, v_rows / 20);
        v_keep := array(
            select a.audit_id from commandbus.command_bus_audit a
             where v_ids <> '{}' and a.command_id = any(v_ids) and a.audit_id >= v_from and a.audit_id < v_below
             limit v_most + 1);
        if v_stay <> '{}' then
            v_keep := v_keep || array(
                select a.audit_id from commandbus.command_bus_audit a
                 where a.domain = any(v_stay) and a.audit_id >= v_from and a.audit_id < v_below
                   and a.command_id <> all(v_ids)
                 limit v_most + 1);
        end if;
        if cardinality(v_keep) > v_most then
            -- to look costs about as much as a few thousand rows: not at every turn
            update commandbus.command_bus_audit_part c
               set look_after = now() + least(greatest((now() - v_before) / 20, interval '10 seconds'), interval '1 hour')
             where c.first_id >= v_first and c.below_id <= v_below;
            o_did := 'leaves a part of which too much is in use';
            return;
        end if;
    end if;
    v_keep := coalesce(v_keep, '{}');
    v_counts := v_counts || coalesce((
        select jsonb_object_agg(k.domain, (v_counts ->> k.domain)::bigint - k.events)
          from (select a.domain, count(*) as events from commandbus.command_bus_audit a
                 where a.audit_id = any(v_keep) group by a.domain) k), '{}');
    o_events := (select coalesce(sum(e.value::bigint), 0) from jsonb_each_text(v_counts) e);

    lock table only commandbus.command_bus_audit in access exclusive mode;
    if exists (select from commandbus.command_bus_move m
                where m.finished_at is null and v_counts ? m.domain and m.domain <> all(v_stay)) then
        o_events := null;
        return;                                         -- it began to move meanwhile
    end if;
    if v_keep <> '{}' then
        select p.* into v_place from commandbus.audit_parts() p
         where p.is_kept and p.below_id <= v_first order by p.first_id desc limit 1;
        if found then
            execute format('alter table commandbus.command_bus_audit detach partition %s', v_place.part);
            v_first := v_place.first_id;
        else
            execute format('create table commandbus.command_bus_audit_kept_%s'
                           ' (like commandbus.command_bus_audit including all)', v_below);
            v_place.part := format('commandbus.command_bus_audit_kept_%s', v_below)::regclass;
            perform commandbus.protect_audit_part(v_place.part);
        end if;
        execute format('insert into %s select a.* from commandbus.command_bus_audit a where a.audit_id = any($1)',
                       v_place.part) using v_keep;
    end if;
    v_rows := 0;
    for v_part in select p.part, c.first_id from unnest(v_parts) p(part)
                    join commandbus.audit_parts() x on x.part = p.part
                    join commandbus.command_bus_audit_part c on c.first_id = x.first_id loop
        execute format('drop table %s', v_part.part);
        delete from commandbus.command_bus_audit_part c where c.first_id = v_part.first_id;
    end loop;
    if v_keep <> '{}' then
        execute format('alter table commandbus.command_bus_audit attach partition %s for values from (%s) to (%s)',
                       v_place.part, commandbus.part_begin(v_first), v_below);
    end if;
    o_did := 'dropped the parts up to ' || v_below - 1;
    o_before := v_before;
    if v_from is null then
        return;
    end if;
    -- Nobody has read the rows: the record claims nothing of them but their range.
    insert into commandbus.command_bus_audit_removal (
        domain, ids, row_count, sealed_to, rows_digest, before, keep_seconds, actor)
    select '*', int8multirange(int8range(v_from, v_below)) - coalesce(
               (select range_agg(int8range(k.id, k.id, '[]')) from unnest(v_keep) k(id)), '{}'),
           o_events, coalesce((select x.last_id from commandbus.command_bus_audit_seal x
                                order by x.seal_number desc limit 1), 0),
           '', v_before, floor(extract(epoch from now() - v_before))::bigint, p_actor;
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    select e.key, commandbus.nobody(), 'AUDIT_PRUNED', clock_timestamp(), jsonb_build_object(
               'before', commandbus.iso8601(v_before), 'events', e.value::bigint, 'dropped_to', v_below - 1), p_actor
      from jsonb_each_text(v_counts) e where e.key <> all(v_stay) order by e.key;
    insert into commandbus.command_bus_setting as s (name, value)
    select 'audit_pruned_before.' || e.key, commandbus.iso8601(v_before)
      from jsonb_each_text(v_counts) e where e.key <> all(v_stay) order by e.key
    on conflict (name) do update
       set value = greatest(s.value, excluded.value), updated_at = now();
exception when lock_not_available or deadlock_detected or dependent_objects_still_exist then
    o_did := null;                                      -- somebody reads or writes for long, or does the same, or a view reads the part
    o_events := null;
end $$;

-- One step of looking after the parts, a transaction of its own: to be called until it says that there is nothing to do.
--   o_did: null: nothing; o_events: how many events went with parts that were dropped, all of them older than o_before
create or replace function commandbus.tend_audit(
    p_actor text default null, out o_did text, out o_events bigint, out o_before timestamptz
)
language plpgsql as $$
begin
    -- One session at a time, or two that have read the parts wait for each other as they lock them.
    if not pg_try_advisory_xact_lock(hashtextextended('commandbus.audit.tend', 0)) then
        return;
    end if;
    o_did := commandbus.grow_audit();
    if o_did is null and (select count(*) > 1 from commandbus.audit_parts()) then
        perform commandbus.move_audit_horizon();
        o_did := commandbus.count_audit_part();
        if o_did is null then
            select d.o_did, d.o_events, d.o_before into o_did, o_events, o_before from commandbus.drop_audit_parts(p_actor) d;
        end if;
    end if;
end $$;

-- How many of the next p_limit events are in parts of what is kept, which come before all others. These are pruned row by
-- row in pages of their own, however quickly the other parts fill: what ended has no other way to go.
create or replace function commandbus.kept_events_after(p_after bigint, p_limit int) returns int
language sql stable as $$
    select count(*)::int
      from (select a.audit_id from commandbus.command_bus_audit a
             where a.audit_id > p_after order by a.audit_id limit p_limit) s
      join (select p.first_id, p.below_id from commandbus.audit_parts() p where p.is_kept) k
        on s.audit_id >= k.first_id and s.audit_id < k.below_id
$$;

-- Where pruning by the rows goes on: not in parts that fill so quickly that they will be dropped within a tenth of
-- the time, or ten minutes, after the rule wants it. What is overdue by more is pruned by rows.
create or replace function commandbus.after_quick_parts(p_after bigint, p_before timestamptz) returns bigint
language plpgsql stable as $$
declare
    v_grace interval := greatest(interval '10 minutes', (now() - p_before) / 10);
    v_last  bigint := (commandbus.audit_sequence()).o_last;
    v_part  record;
    v_begin record;
    v_end   timestamptz;
begin
    for v_part in
        select p.first_id, p.below_id, p.is_tail from commandbus.audit_parts() p
         where not p.is_kept and p.below_id > p_after + 1 order by p.first_id
    loop
        exit when v_part.first_id > v_last;
        select a.audit_id, a.ts into v_begin from commandbus.command_bus_audit a
         where a.audit_id >= v_part.first_id and a.audit_id < v_part.below_id order by a.audit_id limit 1;
        continue when not found;
        if v_part.is_tail then                          -- it will be cut about there
            v_part.below_id := greatest(v_last + 2, v_begin.audit_id + commandbus.audit_part_rows());
        end if;
        v_end := now();
        if v_part.below_id <= v_last + 1 then
            v_end := (select a.ts from commandbus.command_bus_audit a
                       where a.audit_id >= v_part.first_id and a.audit_id < v_part.below_id
                       order by a.audit_id desc limit 1);
        end if;
        exit when v_end < p_before - v_grace
            or (v_end - v_begin.ts) * ((v_part.below_id - v_begin.audit_id)::float8
                                       / greatest(1, least(v_last + 1, v_part.below_id) - v_begin.audit_id)) > v_grace;
        p_after := greatest(p_after, v_part.below_id - 1);
    end loop;
    return p_after;
end $$;
