-- Parts of the audit: ranges of audit_id, each a table, made ahead and dropped as a whole when all in it is old (docs/adr/0079).
--
-- The last part, the tail, has no upper end: an event always finds its part, whether or not somebody looks after them. Parts
-- whose name begins with command_bus_audit_kept_ hold what was still in use in parts that were dropped.
--
-- A change of parts locks the whole audit for some milliseconds and waits for that a quarter of a second at most, since
-- all that is written waits behind it. It comes again later. After that lock it waits for no row of another
-- transaction: these have rows locked and wait for the audit.

-- The parts as the catalogs have them, and where they begin and end; the tail ends at the highest number there is.
create or replace function commandbus.audit_parts()
returns table (part regclass, name text, first_id bigint, below_id bigint, is_tail boolean, is_kept boolean)
language sql stable as $$
    select c.oid::regclass, c.relname::text,
           case b.bound[1] when 'MINVALUE' then -9223372036854775808 else b.bound[1]::bigint end,
           case b.bound[2] when 'MAXVALUE' then 9223372036854775807 else b.bound[2]::bigint end,
           b.bound[2] = 'MAXVALUE', c.relname like 'command\_bus\_audit\_kept\_%'
      from pg_inherits i join pg_class c on c.oid = i.inhrelid
     cross join lateral (
           select regexp_match(pg_get_expr(c.relpartbound, c.oid),
                               'FROM \(''?(-?\d+|MINVALUE)''?\) TO \(''?(-?\d+|MAXVALUE)''?\)') as bound) b
     where i.inhparent = 'commandbus.command_bus_audit'::regclass
     order by 3
$$;

-- How many numbers the next part has: more where much is kept, so that there are some dozens of parts and not thousands.
create or replace function commandbus.audit_part_rows() returns bigint
language sql stable as $$
    select greatest(
        commandbus.setting('audit_part_rows')::bigint,
        ((commandbus.audit_sequence()).o_last
         - coalesce((select min(a.audit_id) from commandbus.command_bus_audit a), 0)) / 32)
$$;

-- Statement triggers of the audit do not see statements on a part, so each has one of its own.
create or replace function commandbus.protect_audit_part(p_part regclass) returns void
language plpgsql as $$
begin
    execute format(
        'create or replace trigger command_bus_audit_append_only before update or delete or truncate on %s'
        ' for each statement execute function commandbus.refuse_audit_change()', p_part);
end $$;

do $protect$
begin
    perform commandbus.protect_audit_part(p.part) from commandbus.audit_parts() p;
end $protect$;

-- Cuts the tail, so that there is an empty part ahead of what is written; returns what it did, null: nothing was to be done.
-- A tail that is empty or small is looked at under the lock. One that has grown, as the table of an earlier version,
-- gets a condition that is checked while everybody works, in transactions of their own, and then is cut as quickly; the cut is
-- far ahead, because until it is done no event may go beyond.
create or replace function commandbus.grow_audit() returns text
language plpgsql set lock_timeout = '250ms' as $$
declare
    c_small     constant bigint := 64 * 1024 * 1024;    -- bytes that are looked at in milliseconds
    c_condition constant text := 'audit_part_below';
    v_rows      bigint := commandbus.audit_part_rows();
    v_last      bigint := (commandbus.audit_sequence()).o_last;
    v_tail      record;
    v_begins    text;
    v_cut       bigint;
    v_valid     boolean;
begin
    select p.* into strict v_tail from commandbus.audit_parts() p where p.is_tail;
    if v_tail.first_id > v_last + v_rows then
        return null;
    end if;
    v_begins := case v_tail.first_id when -9223372036854775808 then 'minvalue' else v_tail.first_id::text end;
    select (regexp_match(pg_get_constraintdef(k.oid), 'audit_id < ''?(\d+)'))[1]::bigint, k.convalidated
      into v_cut, v_valid
      from pg_constraint k where k.conrelid = v_tail.part and k.conname = c_condition;
    if v_cut < v_last + v_rows then                     -- too near by now
        execute format('alter table %s drop constraint %I', v_tail.part, c_condition);
        return 'began to cut anew';
    elsif not v_valid then
        execute format('alter table %s validate constraint %I', v_tail.part, c_condition);
        return 'looked through the last part';
    elsif v_cut is null and pg_relation_size(v_tail.part) > c_small then
        execute format('alter table %s add constraint %I check (%s audit_id < %s) not valid', v_tail.part, c_condition,
                       case v_begins when 'minvalue' then '' else 'audit_id >= ' || v_begins || ' and' end,
                       v_last + 10 * v_rows);
        return 'begins to cut the last part';
    end if;
    lock table only commandbus.command_bus_audit in access exclusive mode;
    if not exists (select from commandbus.audit_parts() p where p.part = v_tail.part and p.is_tail) then
        return null;                                    -- another session was quicker
    end if;
    -- numbers were given while this waited
    v_cut := coalesce(v_cut, greatest(v_tail.first_id, (commandbus.audit_sequence()).o_last + 1) + v_rows);
    execute format('alter table commandbus.command_bus_audit detach partition %s', v_tail.part);
    execute format('alter table commandbus.command_bus_audit attach partition %s for values from (%s) to (%s)',
                   v_tail.part, v_begins, v_cut);
    if v_valid then
        execute format('alter table %s drop constraint %I', v_tail.part, c_condition);
    end if;
    execute format('create table commandbus.command_bus_audit_%s partition of commandbus.command_bus_audit'
                   ' for values from (%s) to (maxvalue) with (autovacuum_vacuum_insert_scale_factor = 0.1)',
                   v_cut, v_cut);
    perform commandbus.protect_audit_part(format('commandbus.command_bus_audit_%s', v_cut)::regclass);
    return 'made the part from ' || v_cut || ' on';
exception when lock_not_available or deadlock_detected then
    return null;                                        -- somebody reads or writes for long, or does the same: the next time
end $$;

-- Counts what is in the next part to which nothing can be added any more.
create or replace function commandbus.count_audit_part() returns text
language plpgsql as $$
declare
    v_safe bigint := (select h.safe_to from commandbus.command_bus_audit_horizon h);
    v_part record;
begin
    select p.* into v_part from commandbus.audit_parts() p
     where not p.is_tail and not p.is_kept and p.below_id <= v_safe + 1
       and not exists (select from commandbus.command_bus_audit_part c
                        where c.first_id = p.first_id and c.below_id = p.below_id)
     order by p.first_id limit 1;
    if not found then
        return null;
    end if;
    insert into commandbus.command_bus_audit_part as c (first_id, below_id, row_count, events, newest_ts)
    select v_part.first_id, v_part.below_id, coalesce(sum(d.events), 0),
           coalesce(jsonb_object_agg(d.domain, d.events), '{}'), max(d.newest)
      from (select a.domain, count(*) as events, max(a.ts) as newest from commandbus.command_bus_audit a
             where a.audit_id >= v_part.first_id and a.audit_id < v_part.below_id
             group by a.domain) d
    on conflict (first_id) do update
       set below_id = excluded.below_id, row_count = excluded.row_count, events = excluded.events,
           newest_ts = excluded.newest_ts, counted_at = now(), look_after = '-infinity';
    return 'counted the part up to ' || v_part.below_id - 1;
end $$;
