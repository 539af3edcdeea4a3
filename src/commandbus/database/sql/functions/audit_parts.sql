-- Parts of the audit: ranges of audit_id, each a table, made ahead and dropped as a whole when all in it is old (docs/adr/0079).
--
-- parts.sql says what parts are, and how long a change of them waits. Parts whose name begins with command_bus_audit_kept_ hold
-- what was still in use in parts that were dropped.

create or replace function commandbus.audit_parts()
returns table (part regclass, name text, first_id bigint, below_id bigint, is_tail boolean, is_kept boolean)
language sql stable as $$
    select p.part, p.name, p.first_id, p.below_id, p.is_tail, p.name like 'command\_bus\_audit\_kept\_%'
      from commandbus.parts_of('commandbus.command_bus_audit') p
$$;

-- How many numbers the next part has: more where much is there, so that there are some dozens of parts and not thousands.
-- What is kept does not count: it can be a hundred times as old as all else.
create or replace function commandbus.audit_part_rows() returns bigint
language sql stable as $$
    select greatest(
        commandbus.setting('audit_part_rows')::bigint,
        ((commandbus.audit_sequence()).o_last - coalesce(
            (select nullif(min(p.first_id), -9223372036854775808) from commandbus.audit_parts() p where not p.is_kept),
            (select min(a.audit_id) from commandbus.command_bus_audit a), 0)) / 32)
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

-- Cuts the tail; returns what it did, null: nothing was to be done.
create or replace function commandbus.grow_audit() returns text
language plpgsql as $$
declare
    v_done record := commandbus.grow_parts(
        'commandbus.command_bus_audit', 'audit_id', 'commandbus.command_bus_audit_audit_id_seq',
        commandbus.audit_part_rows(), 'command_bus_audit_', 'autovacuum_vacuum_insert_scale_factor = 0.1');
begin
    if v_done.o_part is not null then
        perform commandbus.protect_audit_part(v_done.o_part);
    end if;
    return v_done.o_did;
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
