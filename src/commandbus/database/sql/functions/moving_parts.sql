-- Parts of a domain: every table that has rows of it, how they are walked, compared and copied to another database
-- (docs/adr/0091). Both databases run the same functions; a program carries the rows from one to the other.
--
-- A part is walked in the order of its key in chunks. A chunk is a range of keys, so it is the same range on the other
-- side; where count and digest are the same there is nothing to do. So a copy goes on after any end, and to verify it
-- is to walk once more.

-- The parts, those that others refer to first.
--   keys: what is walked along; unique_by: a unique key of the table; scope: what belongs to the domain $1
--   early: what is copied while traffic goes on: no chore of the other database acts on it; null: nothing
create or replace function commandbus.move_parts(p_domain text) returns table (
    place int, part text, relation regclass, keys text[], unique_by text[], scope text, early text)
language sql stable as $$
    with known(place, part, keys, unique_by, scope, early) as (values
        (1, 'command_bus_batch', 'batch_id', 'batch_id', null, 'true'),
        (2, 'command_bus_command', 'command_id', 'domain command_id', null,
            't.status in (''COMPLETED'', ''CANCELED'', ''FAILED'')'),
        (3, 'command_bus_payload_archive', 'command_id', 'domain command_id', null, 'true'),
        (4, 'command_bus_history_domain', 'domain', 'domain', null, null),
        (5, 'command_bus_history', 'history_no', 'domain history_no', null, 'true'),
        (10, 'command_bus_sender', 'command_id', 'command_id domain', null, 'true'),
        (11, 'command_bus_failure_group', 'fingerprint', 'domain fingerprint', null, null),
        (12, 'command_bus_group_sample', 'fingerprint hour', 'domain fingerprint hour', null, null),
        (13, 'command_bus_troubleshooting', 'command_id', 'command_id domain', null, null),
        (14, 'command_bus_bulk_operation', 'operation_id', 'operation_id', null, null),
        (15, 'command_bus_bulk_item', 'operation_id item_no', 'operation_id item_no', 'operation', null),
        (16, 'command_bus_content', 'batch_id', 'batch_id', 'batch', null),
        (17, 'command_bus_look', 'batch_id user_id', 'batch_id user_id', 'batch', null),
        (18, 'command_bus_edit', 'command_id', 'command_id domain', null, null),
        (19, 'command_bus_dispatch', 'batch_id', 'batch_id', null, null),
        (20, 'command_bus_creation_metric', 'batch_id', 'batch_id', 'batch', null),
        (21, 'command_bus_load', 'batch_id', 'batch_id', null, null),
        (22, 'command_bus_load_checkpoint', 'batch_id checkpoint_no', 'batch_id checkpoint_no', 'batch', null),
        (23, 'command_bus_unconfirmed', 'command_id', 'command_id domain', null, null),
        (24, 'command_bus_reply_inbox', 'command_id', 'domain command_id', null, null),
        (25, 'command_bus_flow', 'domain', 'domain', null, null),
        (26, 'command_bus_flow_rule', 'command_type by_key', 'domain command_type by_key', null, null),
        (27, 'command_bus_gate', 'gate', 'domain gate', null, null),
        (28, 'command_bus_slot', 'command_id gate', 'domain gate command_id', null, null),
        (29, 'command_bus_waiting', 'command_id', 'domain command_id', null, null),
        (30, 'command_bus_key', 'ordering_key', 'domain ordering_key', null, null),
        (31, 'command_bus_key_due', 'due_id', 'domain due_id', null, null),
        (32, 'command_bus_unique', 'unique_key', 'domain unique_key', null, null),
        (33, 'command_bus_expiry', 'command_id', 'domain command_id', null, null),
        (34, 'command_bus_schedule', 'schedule_id', 'schedule_id', null, null),
        (35, 'command_bus_secret_key', 'command_type key', 'domain command_type key', null, null),
        (36, 'command_bus_governed_type', 'command_type batch_type', 'domain command_type batch_type', null, null),
        (37, 'command_bus_retention', 'kind', 'domain kind', null, null),
        (38, 'command_bus_setting', 'name', 'name', 'setting', null)
    )
    select k.place, k.part, to_regclass(split_part('commandbus.here', '.', 1) || '.' || k.part), string_to_array(k.keys, ' '),
           string_to_array(k.unique_by, ' '),
           case k.scope
               when 'batch' then 't.batch_id in (select b.batch_id from commandbus.command_bus_batch b'
                                 ' where b.domain = $1)'
               when 'operation' then 't.operation_id in (select o.operation_id'
                                     ' from commandbus.command_bus_bulk_operation o where o.domain = $1)'
               when 'setting' then 't.name = ''audit_pruned_before.'' || $1'
               else 't.domain = $1' end,
           k.early
      from known k
    union all
    -- Its queues, and their archives: whole tables. Archives are history, and replies are read where the domain is: only
    -- its commands would be work here.
    select 40, c.relname, c.oid::regclass, '{msg_id}', '{msg_id}', 'true',
           case when starts_with(c.relname, 'a_') or q.queue not like '%.commands' then 'true' end
      from commandbus.own_queues() q
     cross join (values ('q_'), ('a_')) k(prefix)
      join pg_class c on c.oid = to_regclass('pgmq.' || quote_ident(k.prefix || q.physical))
     where split_part(q.queue, '.', 1) = p_domain and q.queue like '%._%'
     order by 1, 2
$$;

-- Tables with a column `domain` whose rows stay where they are: each is about the database, or gone in a moment.
create or replace function commandbus.parts_that_stay() returns table (part text)
language sql immutable as $$
    select unnest('{command_bus_audit_removal,command_bus_check_run,command_bus_progress,command_bus_sample,
                    command_bus_tally,command_bus_worker,command_bus_worker_count,command_bus_move}'::text[])
$$;

-- The columns of a part, without those that are worked out, in the order of the table.
create or replace function commandbus.move_columns(p_relation regclass)
returns table (name text, type text, is_stored boolean)
language sql stable as $$
    select a.attname::text, format_type(a.atttypid, a.atttypmod), a.attgenerated = ''
      from pg_attribute a
     where a.attrelid = p_relation and a.attnum > 0 and not a.attisdropped
     order by a.attnum
$$;

-- What both databases must have alike for rows to be carried as they are: tables and columns, in their order.
create or replace function commandbus.move_layout(p_domain text) returns table (part text, columns text)
language sql stable as $$
    select p.part, string_agg(c.name || ' ' || c.type, ', ' order by c.n)
      from commandbus.move_parts(p_domain) p
     cross join lateral (select m.name, m.type, row_number() over () as n
                           from commandbus.move_columns(p.relation) m) c
     group by p.part
    union all
    select 'command_bus_audit', string_agg(c.name || ' ' || c.type, ', ')
      from commandbus.move_columns('commandbus.command_bus_audit') c
$$;

-- The condition for the rows of a part in a range of keys: after $2, up to and with $3, which are objects; null is
-- the open end. Texts by their bytes, as everywhere: two databases may sort them otherwise.
create or replace function commandbus.move_condition(
    p_domain text, p_part text, p_is_early boolean, p_after jsonb, p_upto jsonb,
    out o_relation regclass, out o_where text, out o_key text, out o_key_object text,
    out o_unique_by text[]
)
language plpgsql stable as $$
declare
    v_part  record;
    v_after text;
    v_upto  text;
begin
    select * into strict v_part from commandbus.move_parts(p_domain) p where p.part = p_part;
    select string_agg(format(case when c.type in ('text', 'character varying(255)') then 't.%I collate "C"'
                                  else 't.%I' end, k.name), ', ' order by k.n),
           string_agg(format('($2 ->> %L)::%s', k.name, c.type), ', ' order by k.n),
           string_agg(format('($3 ->> %L)::%s', k.name, c.type), ', ' order by k.n),
           'jsonb_build_object(' || string_agg(format('%L, t.%I', k.name, k.name), ', ' order by k.n) || ')'
      into o_key, v_after, v_upto, o_key_object
      from unnest(v_part.keys) with ordinality k(name, n)
      join commandbus.move_columns(v_part.relation) c on c.name = k.name;
    o_relation := v_part.relation;
    o_unique_by := v_part.unique_by;
    o_where := v_part.scope
        || case when p_is_early then ' and ' || v_part.early else '' end
        || case when p_after is null then '' else format(' and (%s) > (%s)', o_key, v_after) end
        || case when p_upto is null then '' else format(' and (%s) <= (%s)', o_key, v_upto) end;
end $$;

-- The chunk of p_limit rows at most after a key: how far it goes (null: to the end), its count, its digest, and the
-- bytes of its text. The digest is of digests, so that a chunk may be larger than what one value holds.
create or replace function commandbus.move_chunk(
    p_domain text, p_part text, p_is_early boolean, p_after jsonb, p_limit int,
    out o_upto jsonb, out o_rows int, out o_digest bytea, out o_bytes bigint
)
language plpgsql stable set datestyle = 'ISO' set timezone = 'UTC' set intervalstyle = 'postgres'
    set extra_float_digits = 1 set bytea_output = 'hex' as $$
declare
    v_c record;
begin
    v_c := commandbus.move_condition(p_domain, p_part, p_is_early, p_after, null);
    execute format(
        'select (array_agg(r.key order by r.n desc))[1], count(*),'
        '       sha256(coalesce(string_agg(sha256(r.text), '''' order by r.n), '''')),'
        '       coalesce(sum(octet_length(r.text)), 0)'
        '  from (select convert_to(t::text, ''UTF8'') as text, %3$s as key, row_number() over (order by %2$s) as n'
        '          from %1$s t where %4$s order by %2$s limit $4) r',
        v_c.o_relation, v_c.o_key, v_c.o_key_object, v_c.o_where)
       into o_upto, o_rows, o_digest, o_bytes using p_domain, p_after, null::jsonb, p_limit;
    if o_rows < p_limit then
        o_upto := null;
    end if;
end $$;

-- Count and digest of a range of keys.
create or replace function commandbus.move_digest(
    p_domain text, p_part text, p_is_early boolean, p_after jsonb, p_upto jsonb,
    out o_rows int, out o_digest bytea
)
language plpgsql stable set datestyle = 'ISO' set timezone = 'UTC' set intervalstyle = 'postgres'
    set extra_float_digits = 1 set bytea_output = 'hex' as $$
declare
    v_c record;
begin
    v_c := commandbus.move_condition(p_domain, p_part, p_is_early, p_after, p_upto);
    execute format(
        'select count(*), sha256(coalesce(string_agg(sha256(convert_to(t::text, ''UTF8'')), '''' order by %2$s), ''''))'
        '  from %1$s t where %3$s', v_c.o_relation, v_c.o_key, v_c.o_where)
       into o_rows, o_digest using p_domain, p_after, p_upto;
end $$;

-- The rows of a range, each as its text.
create or replace function commandbus.move_rows(
    p_domain text, p_part text, p_is_early boolean, p_after jsonb, p_upto jsonb
) returns setof text
language plpgsql stable set datestyle = 'ISO' set timezone = 'UTC' set intervalstyle = 'postgres'
    set extra_float_digits = 1 set bytea_output = 'hex' as $$
declare
    v_c record;
begin
    v_c := commandbus.move_condition(p_domain, p_part, p_is_early, p_after, p_upto);
    return query execute format('select t::text from %s t where %s', v_c.o_relation, v_c.o_where)
       using p_domain, p_after, p_upto;
end $$;

-- Makes a range what it is in the other database: rows that are not among these go, others come or are changed.
-- Returns its count and digest, as move_digest does. The same again changes nothing.
create or replace function commandbus.put_moved_rows(
    p_move_id uuid, p_part text, p_is_early boolean, p_after jsonb, p_upto jsonb, p_rows text[],
    out o_rows int, out o_digest bytea
)
language plpgsql set datestyle = 'ISO' set timezone = 'UTC' set intervalstyle = 'postgres'
    set extra_float_digits = 1 set bytea_output = 'hex' as $$
declare
    v_move    commandbus.command_bus_move := commandbus.require_move(p_move_id, false);
    v_c       record;
    v_columns text[];
    v_changed text[];
    v_stored  text;
begin
    v_c := commandbus.move_condition(v_move.domain, p_part, p_is_early, p_after, p_upto);
    if p_part = 'command_bus_history' and p_rows <> '{}' then
        perform commandbus.make_history_parts(v_move.domain, min(x.history_no), max(x.history_no))
          from unnest(p_rows::commandbus.command_bus_history[]) x;
    end if;
    v_columns := array(select quote_ident(m.name) from commandbus.move_columns(v_c.o_relation) m where m.is_stored);
    v_stored := array_to_string(v_columns, ', ');
    execute format(
        'delete from %1$s t where %2$s and (%3$s) not in ('
        '    select %3$s from unnest($4::text[]::%1$s[]) t)', v_c.o_relation, v_c.o_where, v_c.o_key)
      using v_move.domain, p_after, p_upto, p_rows;
    v_changed := array(select c from unnest(v_columns) c
                        where c <> all(array(select quote_ident(u) from unnest(v_c.o_unique_by) u)));
    execute format(
        'insert into %1$s as o (%2$s) overriding system value'
        ' select %3$s from unnest($1::text[]::%1$s[]) x on conflict (%4$s) do ',
        v_c.o_relation, v_stored, 'x.' || array_to_string(v_columns, ', x.'),
        (select string_agg(quote_ident(c), ', ') from unnest(v_c.o_unique_by) c))
        || case when v_changed = '{}' then 'nothing' else format(
               'update set (%s) = row(%s) where row(%s) is distinct from row(%s)',
               array_to_string(v_changed, ', '), 'excluded.' || array_to_string(v_changed, ', excluded.'),
               'o.' || array_to_string(v_changed, ', o.'),
               'excluded.' || array_to_string(v_changed, ', excluded.')) end
      using p_rows;
    select d.o_rows, d.o_digest into o_rows, o_digest
      from commandbus.move_digest(v_move.domain, p_part, p_is_early, p_after, p_upto) d;
end $$;

-- Whether a database has something of a domain: how many rows of each part it has, none left out.
create or replace function commandbus.count_parts(p_domain text) returns table (part text, amount bigint)
language plpgsql stable as $$
declare
    v_part record;
begin
    for v_part in select * from commandbus.move_parts(p_domain) loop
        part := v_part.part;
        execute format('select count(*) from %s t where %s', v_part.relation, v_part.scope)
           into amount using p_domain;
        return next;
    end loop;
end $$;

-- Removes what a move has left here, the rows that refer to others first: p_limit rows of a part at most. Returns what
-- it removed; nothing is left of the part when that is less than p_limit.
create or replace function commandbus.forget_moved_rows(p_move_id uuid, p_part text, p_limit int) returns int
language plpgsql as $$
declare
    v_move commandbus.command_bus_move := commandbus.require_removal(p_move_id);
    v_c    record;
    v_gone int := 0;
begin
    if p_part = 'command_bus_history' then
        -- as a whole; and in a table of parts a ctid is no single row
        perform set_config('lock_timeout', '2s', true); -- who looks for an id waits behind us
        for v_c in select p.part from commandbus.history_parts(v_move.domain) p loop
            execute format('drop table %s', v_c.part);
        end loop;
        return v_gone;
    end if;
    v_c := commandbus.move_condition(v_move.domain, p_part, false, null, null);
    -- Of an archive in parts more may go: it has several rows of one place, and all of them belong to the domain.
    execute format('delete from %1$s t where t.ctid = any(array(select t.ctid from %1$s t where %2$s limit $2))',
                   v_c.o_relation, v_c.o_where)
      using v_move.domain, p_limit;
    get diagnostics v_gone = row_count;
    return v_gone;
end $$;
