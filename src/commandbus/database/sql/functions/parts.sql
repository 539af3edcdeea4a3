-- Parts of a table: ranges of its key, each a table, made ahead and dropped as a whole when all in it is old. What the audit
-- (audit_parts.sql) and archives (archive_parts.sql) have in common.
--
-- The last part, the tail, has no upper end: a row always finds its part, whether or not somebody looks after them.
--
-- A change of parts locks the whole table for some milliseconds and waits for that a quarter of a second at most, since
-- all that is written waits behind it. It comes again later. After that lock it waits for no row of another
-- transaction: these have rows locked and wait for the table.

-- The parts of a table as the catalogs have them, and where they begin and end; the tail ends at the highest number there
-- is. A part whose end is not such a number has nulls: it is none of ours.
create or replace function commandbus.parts_of(p_table regclass)
returns table (part regclass, name text, first_id bigint, below_id bigint, is_tail boolean)
language sql stable as $$
    select c.oid::regclass, c.relname::text,
           case b.bound[1] when 'MINVALUE' then -9223372036854775808 else b.bound[1]::bigint end,
           case b.bound[2] when 'MAXVALUE' then 9223372036854775807 else b.bound[2]::bigint end,
           b.bound[2] = 'MAXVALUE'
      from pg_inherits i join pg_class c on c.oid = i.inhrelid
     cross join lateral (
           select regexp_match(pg_get_expr(c.relpartbound, c.oid),
                               'FROM \(''?(-?\d+|MINVALUE)''?\) TO \(''?(-?\d+|MAXVALUE)''?\)') as bound) b
     where i.inhparent = p_table
     order by 3
$$;

-- The last number that a sequence gave; read as a table, because pg_sequence_last_value locks it like one who takes a number.
create or replace function commandbus.last_number(p_sequence regclass) returns bigint
language plpgsql volatile as $$
declare
    v_last bigint;
begin
    execute format('select case when s.is_called then s.last_value else s.last_value - 1 end from %s s', p_sequence)
       into v_last;
    return v_last;
end $$;

-- Where a part begins, as a bound of a partition.
create or replace function commandbus.part_begin(p_first_id bigint) returns text
language sql immutable as $$
    select case p_first_id when -9223372036854775808 then 'minvalue' else p_first_id::text end
$$;

-- Cuts the tail, so that there is an empty part ahead of what is written. A tail that is empty or small is looked at under
-- the lock. One that has grown, as a table that was no part before, gets a condition that is checked while everybody works, in
-- transactions of their own, and then is cut as quickly; the cut is far ahead, because until it is done no row may go beyond.
--   p_rows: how many numbers the new part is to have; p_prefix: its name, up to the number that it begins with
--   o_did: null: nothing was to be done, or somebody reads or writes for long; o_part: the new tail
create or replace function commandbus.grow_parts(
    p_table regclass, p_key text, p_sequence regclass, p_rows bigint, p_prefix text, p_options text,
    out o_did text, out o_part regclass
)
language plpgsql set lock_timeout = '250ms' as $$
declare
    c_small     constant bigint := 64 * 1024 * 1024;    -- bytes that are looked at in milliseconds
    c_condition constant text := split_part(p_key, '_', 1) || '_part_below';
    v_last      bigint := commandbus.last_number(p_sequence);
    v_schema    text := (select c.relnamespace::regnamespace::text from pg_class c where c.oid = p_table);
    v_tail      record;
    v_cut       bigint;
    v_valid     boolean;
begin
    select p.* into strict v_tail from commandbus.parts_of(p_table) p where p.is_tail;
    if v_tail.first_id > v_last + p_rows then
        return;
    end if;
    select (regexp_match(pg_get_constraintdef(k.oid), format('\m%s < ''?(\d+)', p_key)))[1]::bigint, k.convalidated
      into v_cut, v_valid
      from pg_constraint k where k.conrelid = v_tail.part and k.conname = c_condition;
    if v_cut < v_last + p_rows then                     -- too near by now
        execute format('alter table %s drop constraint %I', v_tail.part, c_condition);
        o_did := 'began to cut anew';
        return;
    elsif not v_valid then
        execute format('alter table %s validate constraint %I', v_tail.part, c_condition);
        o_did := 'looked through the last part';
        return;
    elsif v_cut is null and pg_relation_size(v_tail.part) > c_small then
        execute format('alter table %s add constraint %I check (%s %I < %s) not valid', v_tail.part, c_condition,
                       case commandbus.part_begin(v_tail.first_id)
                           when 'minvalue' then '' else format('%I >= %s and', p_key, v_tail.first_id) end,
                       p_key, v_last + 10 * p_rows);
        o_did := 'begins to cut the last part';
        return;
    end if;
    execute format('lock table only %s in access exclusive mode', p_table);
    if not exists (select from commandbus.parts_of(p_table) p where p.part = v_tail.part and p.is_tail) then
        return;                                         -- another session was quicker
    end if;
    -- numbers were given while this waited
    v_cut := coalesce(v_cut, greatest(v_tail.first_id, commandbus.last_number(p_sequence) + 1) + p_rows);
    execute format('alter table %s detach partition %s', p_table, v_tail.part);
    execute format('alter table %s attach partition %s for values from (%s) to (%s)',
                   p_table, v_tail.part, commandbus.part_begin(v_tail.first_id), v_cut);
    if v_valid then
        execute format('alter table %s drop constraint %I', v_tail.part, c_condition);
    end if;
    execute format('create table %s.%I partition of %s for values from (%s) to (maxvalue) %s',
                   v_schema, p_prefix || v_cut, p_table, v_cut,
                   case when p_options ~ '^\w+ ?= ?[\w.+-]+(, \w+ ?= ?[\w.+-]+)*$' then 'with (' || p_options || ')' else '' end);
    o_part := format('%s.%I', v_schema, p_prefix || v_cut)::regclass;
    o_did := 'made the part from ' || v_cut || ' on';
exception when lock_not_available or deadlock_detected then
    o_did := null;                                      -- the next time
end $$;
