-- The audit of a domain that moves. Numbers belong to a database, so events get new ones in the other, in the same
-- order; command_bus_moved_audit says which had which. Chunks are added one after the other, and never changed: if one
-- turns out to differ from what it was copied from, it goes with all that came after it, and they are copied again.

-- Text of an event without its number: what must be the same on both sides.
create or replace function commandbus.moved_event(p_event commandbus.command_bus_audit) returns text
language sql stable as $$
    select row(p_event.domain, p_event.command_id, p_event.event_type, p_event.ts, p_event.details_json,
               p_event.batch_id, p_event.actor)::text
$$;

-- How far the audit can be copied: no open transaction may still add a number up to that one. Null: not known now,
-- because transactions are open that have taken one.
create or replace function commandbus.settled_audit() returns bigint
language plpgsql as $$
declare
    v_safe bigint;
begin
    v_safe := (commandbus.move_audit_horizon()).o_safe_to;
    return v_safe;
end $$;

-- The next chunk after a number: of p_limit numbers of the whole audit, those of the domain.
--   o_upto_id: where the next one begins; null: nothing is there
create or replace function commandbus.move_events(
    p_domain text, p_after_id bigint, p_safe_id bigint, p_limit int,
    out o_upto_id bigint, out o_old_ids bigint[], out o_rows text[], out o_digest bytea
)
language plpgsql stable set datestyle = 'ISO' set timezone = 'UTC' set intervalstyle = 'postgres'
    set extra_float_digits = 1 set bytea_output = 'hex' as $$
begin
    select max(w.audit_id) into o_upto_id
      from (select a.audit_id from commandbus.command_bus_audit a
             where a.audit_id > p_after_id and a.audit_id <= p_safe_id
             order by a.audit_id limit p_limit) w;
    if o_upto_id is null then
        return;
    end if;
    select array_agg(a.audit_id order by a.audit_id), array_agg(a::text order by a.audit_id),
           sha256(convert_to(string_agg(commandbus.moved_event(a), E'\n' order by a.audit_id), 'UTF8'))
      into o_old_ids, o_rows, o_digest
      from commandbus.command_bus_audit a
     where a.audit_id > p_after_id and a.audit_id <= o_upto_id and a.domain = p_domain;
end $$;

-- Count and digest of the events of a domain in ranges of numbers, one row for each range, in their order.
create or replace function commandbus.digest_events(p_domain text, p_after bigint[], p_upto bigint[])
returns table (n bigint, amount bigint, digest bytea)
language sql stable set datestyle = 'ISO' set timezone = 'UTC' set intervalstyle = 'postgres'
    set extra_float_digits = 1 set bytea_output = 'hex' as $$
    select r.n, d.amount, d.digest
      from unnest(p_after, p_upto) with ordinality r(after_id, upto_id, n)
     cross join lateral (
           select count(*) as amount,
                  sha256(convert_to(string_agg(commandbus.moved_event(a), E'\n' order by a.audit_id), 'UTF8')) as digest
             from commandbus.command_bus_audit a
            where a.audit_id > r.after_id and a.audit_id <= r.upto_id and a.domain = p_domain) d
     order by r.n
$$;

-- The chunks that are here, in their order: what they were copied from, and whether they are still whole.
create or replace function commandbus.moved_chunks(p_move_id uuid)
returns table (chunk_no int, after_id bigint, upto_id bigint, row_count int, digest bytea, is_whole boolean)
language sql stable set datestyle = 'ISO' set timezone = 'UTC' set intervalstyle = 'postgres'
    set extra_float_digits = 1 set bytea_output = 'hex' as $$
    select c.chunk_no, c.after_id, c.upto_id, c.row_count, c.digest,
           (c.row_count, c.digest) is not distinct from (d.amount, d.digest)
      from commandbus.command_bus_moved_audit c
      join commandbus.command_bus_move m on m.move_id = c.move_id
     cross join lateral (
           select count(*)::int as amount,
                  sha256(convert_to(string_agg(commandbus.moved_event(a), E'\n' order by a.audit_id), 'UTF8')) as digest
             from commandbus.command_bus_audit a
            where a.audit_id >= lower(c.new_ids) and a.audit_id < upper(c.new_ids)
              and c.new_ids @> a.audit_id and a.domain = m.domain) d
     where c.move_id = p_move_id
     order by c.chunk_no
$$;

-- Adds a chunk, with new numbers in the order of the old ones. False, and nothing is added: it does not follow the last
-- one, because another process has copied meanwhile.
create or replace function commandbus.put_moved_events(
    p_move_id uuid, p_chunk_no int, p_after_id bigint, p_upto_id bigint, p_old_ids bigint[], p_rows text[],
    p_digest bytea
) returns boolean
language plpgsql set datestyle = 'ISO' set timezone = 'UTC' set intervalstyle = 'postgres'
    set extra_float_digits = 1 set bytea_output = 'hex' as $$
declare
    v_move commandbus.command_bus_move := commandbus.require_move(p_move_id, false);
    v_last int;
    v_ids  bigint[];
    v_sum  bytea;
begin
    select max(c.chunk_no) into v_last from commandbus.command_bus_moved_audit c where c.move_id = p_move_id;
    if p_chunk_no <> coalesce(v_last, 0) + 1 then
        return false;
    end if;
    with added as (
        insert into commandbus.command_bus_audit as a (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select e.domain, e.command_id, e.event_type, e.ts, e.details_json, e.batch_id, e.actor
          from unnest(p_rows::commandbus.command_bus_audit[]) e
         where e.domain = v_move.domain
         order by e.audit_id
        returning a as event, a.audit_id as id
    )
    select array_agg(d.id order by d.id),
           sha256(convert_to(string_agg(commandbus.moved_event(d.event), E'\n' order by d.id), 'UTF8'))
      into v_ids, v_sum from added d;
    if v_sum is distinct from p_digest then
        raise exception 'events of domain % did not arrive as they were sent', quote_literal(v_move.domain)
            using errcode = 'CB008';
    end if;
    insert into commandbus.command_bus_moved_audit (
        move_id, chunk_no, after_id, upto_id, old_ids, new_ids, row_count, digest)
    select p_move_id, p_chunk_no, p_after_id, p_upto_id,
           (select range_agg(int8range(i, i, '[]')) from unnest(p_old_ids) i),
           (select range_agg(int8range(i, i, '[]')) from unnest(v_ids) i), cardinality(v_ids), p_digest;
    return true;
end $$;

-- The numbers that an event had before its domain moved, the newest move first.
create or replace function commandbus.former_audit_ids(p_audit_id bigint)
returns table (from_shard text, audit_id bigint, moved_at timestamptz)
language sql stable as $$
    select m.from_shard, o.id, m.finished_at
      from commandbus.command_bus_moved_audit c
      join commandbus.command_bus_move m on m.move_id = c.move_id
     cross join lateral (
           select sum(greatest(least(upper(r), p_audit_id) - lower(r), 0)) as before from unnest(c.new_ids) r) n
     cross join lateral (
           select i as id from unnest(c.old_ids) r cross join generate_series(lower(r), upper(r) - 1) i
            order by i offset n.before limit 1) o
     where c.new_ids @> p_audit_id
     order by m.started_at desc
$$;

-- Removes events that a move has made superfluous: those that were copied elsewhere, or copies that are not valid.
-- The second function that may delete from the audit: refuse_audit_change knows it by its name. The removal is on
-- record like any other, so that seals account for it.
create or replace function commandbus.remove_moved_events(p_move_id uuid, p_ids bigint[]) returns void
language plpgsql as $$
declare
    v_move commandbus.command_bus_move := commandbus.require_removal(p_move_id);
    v_ids  bigint[] := array(
        select a.audit_id from commandbus.command_bus_audit a
         where a.audit_id = any(p_ids) and a.domain = v_move.domain order by a.audit_id);
begin
    if v_ids <> '{}' then
        perform commandbus.record_removal(v_move.domain, v_ids, clock_timestamp(), 'move ' || p_move_id);
        delete from commandbus.command_bus_audit a where a.audit_id = any(v_ids);
    end if;
end $$;

-- Removes chunks that are here, from a number on, the last one first. False: none was left.
create or replace function commandbus.drop_moved_chunk(p_move_id uuid, p_from_no int) returns boolean
language plpgsql as $$
declare
    v_chunk commandbus.command_bus_moved_audit;
begin
    select * into v_chunk from commandbus.command_bus_moved_audit c
     where c.move_id = p_move_id and c.chunk_no >= p_from_no order by c.chunk_no desc limit 1 for update;
    if not found then
        return false;
    end if;
    perform commandbus.remove_moved_events(p_move_id, array(
        select i from unnest(v_chunk.new_ids) r cross join generate_series(lower(r), upper(r) - 1) i));
    delete from commandbus.command_bus_moved_audit c
     where c.move_id = p_move_id and c.chunk_no = v_chunk.chunk_no;
    return true;
end $$;

-- Removes the events of a domain that has left, of p_limit numbers of the whole audit after one. Returns where to go
-- on; null: that was all.
create or replace function commandbus.forget_moved_events(p_move_id uuid, p_after_id bigint, p_limit int)
returns bigint
language plpgsql as $$
declare
    v_move commandbus.command_bus_move := commandbus.require_removal(p_move_id);
    v_upto bigint;
begin
    select max(w.audit_id) into v_upto
      from (select a.audit_id from commandbus.command_bus_audit a
             where a.audit_id > p_after_id order by a.audit_id limit p_limit) w;
    if v_upto is not null then
        perform commandbus.remove_moved_events(p_move_id, array(
            select a.audit_id from commandbus.command_bus_audit a
             where a.audit_id > p_after_id and a.audit_id <= v_upto and a.domain = v_move.domain));
    end if;
    return v_upto;
end $$;
