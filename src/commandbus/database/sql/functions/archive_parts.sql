-- Parts of PGMQ's archives: ranges of msg_id (docs/adr/0096). parts.sql says what parts are, and how long a change of them waits.
--
-- An archive is a plain table until it has grown: there can be a thousand domains. Its parts are named a_<queue>#<first number>;
-- those named a_<queue>#k<number> hold what was still in use in parts that were dropped. Every number has a part, also
-- those of parts that were dropped, so nothing that PGMQ, a move or a restore puts there fails.

-- The tables of our queues: with messages, archives, and their parts.
create or replace function commandbus.queue_tables() returns table (queue text, physical text, relation regclass)
language sql stable as $$
    select q.queue, q.physical, r.relation
      from commandbus.own_queues() q
     cross join lateral (
           select to_regclass('pgmq.' || quote_ident('q_' || q.physical)),
                  to_regclass('pgmq.' || quote_ident('a_' || q.physical))) t(queue, archive)
     cross join lateral (
           select t.queue union all select t.archive
           union all select i.inhrelid::regclass from pg_inherits i where i.inhparent = t.archive) r(relation)
     where r.relation is not null
$$;

-- Whether an archive is as PGMQ makes it, and nothing depends on it.
create or replace function commandbus.is_untouched_archive(p_archive regclass) returns boolean
language sql stable as $$
    select (select count(*) = 2 and bool_and(
                       i.indnatts = 1 and i.indpred is null and i.indisvalid
                       and pg_get_indexdef(i.indexrelid, 1, false) = case when i.indisprimary then 'msg_id' else 'archived_at' end)
              from pg_index i where i.indrelid = p_archive)
       and not exists (select from pg_inherits i where i.inhparent = p_archive)
       -- an extension that owns the table does not let go of it
       and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = p_archive and d.deptype = 'e')
       and not exists (select from pg_depend d join pg_class c on c.oid = p_archive
                        where (d.refclassid = 'pg_class'::regclass and d.refobjid = c.oid
                               or d.refclassid = 'pg_type'::regclass and d.refobjid = c.reltype)
                          and not (d.classid = 'pg_class'::regclass and d.objid in (
                                   select i.indexrelid from pg_index i where i.indrelid = c.oid
                                   union all select c.reltoastrelid))
                          and not (d.classid = 'pg_type'::regclass and d.deptype = 'i')
                          and not (d.classid = 'pg_attrdef'::regclass)
                          and not (d.classid = 'pg_constraint'::regclass and d.objid in (
                                   select k.oid from pg_constraint k where k.conrelid = c.oid and k.contype in ('p', 'n', 'c'))))
$$;

-- The archives that are looked after: of our queues of commands and of replies, those that are in parts, and those that have
-- grown so that they should be. One on which somebody has built something (a view, a trigger, a publication, an index of
-- their own), or that another program or role owns, stays as it is.
create or replace function commandbus.tended_archives(p_domain text default null)
returns table (
    physical text, domain text, kind text, archive regclass, queue regclass, sequence regclass, is_divided boolean)
language sql stable as $$
    select q.physical, split_part(q.queue, '.', 1),
           case when q.queue like '%.commands' then 'archives' else 'replies' end,
           a.oid::regclass, t.oid::regclass, pg_get_serial_sequence(t.oid::regclass::text, 'msg_id')::regclass,
           a.relkind = 'p'
      from commandbus.own_queues() q
      join pg_class t on t.oid = to_regclass('pgmq.' || quote_ident('q_' || q.physical)) and t.relkind = 'r'
      join pg_class a on a.oid = to_regclass('pgmq.' || quote_ident('a_' || q.physical))
     where (q.queue like '%.commands' or q.queue like '%.replies')
       and (p_domain is null or split_part(q.queue, '.', 1) = p_domain)
       and commandbus.is_made_by_us(q.physical)
       and a.relpersistence = 'p' and not a.relispartition and pg_get_userbyid(a.relowner) = current_user
       and case a.relkind
           when 'p' then exists (select from commandbus.parts_of(a.oid::regclass) p
                                  where p.is_tail and starts_with(p.name, 'a_' || q.physical || '#'))
           -- a row has some hundred bytes
           when 'r' then pg_relation_size(a.oid) >= 128 * commandbus.setting('archive_part_rows')::bigint
                         and commandbus.is_untouched_archive(a.oid::regclass) end
$$;

-- The tables that an archive consists of: itself, or its parts.
create or replace function commandbus.archive_pieces(p_archive regclass)
returns table (piece regclass, first_id bigint, below_id bigint, is_tail boolean, is_kept boolean)
language sql stable as $$
    select c.oid::regclass, -9223372036854775808, 9223372036854775807, true, false
      from pg_class c where c.oid = p_archive and c.relkind = 'r'
    union all
    select p.part, p.first_id, p.below_id, p.is_tail, p.name ~ '#k\d+$' from commandbus.parts_of(p_archive) p
     order by 2
$$;

-- How many numbers the next part has: more where much is there, so that there are some dozens of parts and not thousands.
-- What is kept does not count: it can be a hundred times as old as all else.
create or replace function commandbus.archive_part_rows(p_archive regclass, p_sequence regclass) returns bigint
language plpgsql stable as $$
declare
    v_first bigint := (select nullif(min(p.first_id), -9223372036854775808)
                         from commandbus.archive_pieces(p_archive) p where not p.is_kept);
begin
    if v_first is null then
        execute format('select min(a.msg_id) from %s a', p_archive) into v_first;
    end if;
    return greatest(commandbus.setting('archive_part_rows')::bigint,
                    (commandbus.last_number(p_sequence) - coalesce(v_first, 0)) / 32);
end $$;

-- Whether a domain is being moved: its tables are compared with a copy, and stay as they are.
create or replace function commandbus.is_moving(p_domain text) returns boolean
language sql stable as $$
    select exists (select from commandbus.command_bus_move m where m.domain = p_domain and m.finished_at is null)
$$;

-- Makes a plain archive one of a single part, which has all there is and no upper end: nothing is read or written.
-- Names go to the whole, so all statements stay as they are. Rights go over; storage settings stay with the part.
create or replace function commandbus.divide_archive(p_physical text, p_archive regclass, p_domain text) returns text
language plpgsql set lock_timeout = '250ms' as $$
declare
    c_first constant text := 'a_' || p_physical || '#first';
    v_names jsonb;
    v_right record;
begin
    execute format('lock table %s in access exclusive mode', p_archive);
    if commandbus.is_moving(p_domain) or not exists (
           select from pg_class c where c.oid = p_archive and c.relkind = 'r' and commandbus.is_untouched_archive(p_archive)) then
        return null;                                    -- somebody was quicker
    end if;
    v_names := (select jsonb_object_agg(case when i.indisprimary then 'key' else 'time' end, c.relname)
                  from pg_index i join pg_class c on c.oid = i.indexrelid where i.indrelid = p_archive);
    -- of a queue of the same name that is no more
    delete from commandbus.command_bus_archive_part p where p.archive = p_physical;
    execute format('alter table %s rename to %I', p_archive, c_first);
    execute format('alter index pgmq.%I rename to %I', v_names ->> 'key', left(c_first, 58) || '_pkey');
    execute format('alter index pgmq.%I rename to %I', v_names ->> 'time', left(c_first, 58) || '_time');
    execute format('create table pgmq.%I (like pgmq.%I including all excluding indexes,'
                   ' constraint %I primary key (msg_id)) partition by range (msg_id)',
                   'a_' || p_physical, c_first, v_names ->> 'key');
    execute format('create index %I on pgmq.%I (archived_at)', v_names ->> 'time', 'a_' || p_physical);
    execute format('alter table pgmq.%I attach partition pgmq.%I for values from (minvalue) to (maxvalue)',
                   'a_' || p_physical, c_first);
    for v_right in
        select a.grantee, a.privilege_type from pg_class c cross join aclexplode(c.relacl) a
         where c.oid = p_archive and a.grantee <> c.relowner
    loop
        execute format('grant %s on pgmq.%I to %s', v_right.privilege_type, 'a_' || p_physical,
                       case v_right.grantee when 0 then 'public' else v_right.grantee::regrole::text end);
        execute format('revoke %s on %s from %s', v_right.privilege_type, p_archive,
                       case v_right.grantee when 0 then 'public' else v_right.grantee::regrole::text end);
    end loop;
    return 'divides the archive of ' || p_physical;
exception when lock_not_available then
    return null;                                        -- somebody reads or writes for long: the next time
end $$;

-- Notes which parts can get new messages no more, but for messages that are live, and which transactions may still write.
-- A number is given by the sequence only to who holds a lock on the queue, or on the sequence, to the end of the transaction.
-- The sequence is read first and the open transactions after it: who has a number of the part is among them, or has ended.
create or replace function commandbus.note_archive_parts(p_physical text, p_archive regclass, p_queue regclass, p_sequence regclass)
returns void
language plpgsql as $$
declare
    v_last bigint;
    v_open text[];
begin
    -- A statement must see what was committed before it began, not before the transaction began.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'archives are looked after in read committed transactions only' using errcode = 'CB003';
    end if;
    -- a session that takes numbers ahead gives them late
    v_last := case when (select q.seqcache = 1 from pg_sequence q where q.seqrelid = p_sequence)
                   then commandbus.last_number(p_sequence) end;
    v_open := array(select distinct l.virtualtransaction from pg_locks l
                     where l.locktype = 'relation' and l.relation in (p_queue, p_sequence) and l.granted
                       and l.database = (select d.oid from pg_database d where d.datname = current_database())
                       and l.mode <> 'AccessShareLock' and l.pid is distinct from pg_backend_pid());
    insert into commandbus.command_bus_archive_part as n (archive, first_id, below_id, waits_for)
    select p_physical, p.first_id, p.below_id, v_open
      from commandbus.archive_pieces(p_archive) p
     where not p.is_tail and not p.is_kept and p.below_id <= v_last + 1
    on conflict (archive, first_id) do update
       set below_id = excluded.below_id, waits_for = excluded.waits_for, noted_at = now()
     where n.below_id <> excluded.below_id;
    update commandbus.command_bus_archive_part n
       set waits_for = array(select w from unnest(n.waits_for) w where w = any(v_open))
     where n.archive = p_physical and n.waits_for <> '{}' and not n.waits_for <@ v_open;
end $$;

-- Whether nothing can come into a part any more: all who might have written to it have ended, and no message with one of
-- its numbers is live. These are committed by then, so the next statement sees what they have archived.
create or replace function commandbus.is_closed_part(p_physical text, p_queue regclass, p_first bigint, p_below bigint)
returns boolean
language plpgsql as $$
declare
    v_is_live boolean;
begin
    if not exists (select from commandbus.command_bus_archive_part n
                    where n.archive = p_physical and n.first_id = p_first and n.below_id = p_below
                      and n.waits_for = '{}' and n.look_after <= now()) then
        return false;
    end if;
    execute format('select exists (select from %s q where q.msg_id >= $1 and q.msg_id < $2)', p_queue)
       into v_is_live using p_first, p_below;
    return not v_is_live;
end $$;

-- When the first and the last message of a part was archived; nulls: it has none.
create or replace function commandbus.part_times(p_part regclass, out o_oldest timestamptz, out o_newest timestamptz)
language plpgsql as $$
begin
    execute format('select min(a.archived_at), max(a.archived_at) from %s a', p_part) into o_oldest, o_newest;
end $$;

-- Whether a part will be dropped within a tenth of the time, or ten minutes, after the rule wants the first of it gone. Its
-- rows are left alone until then; what is overdue by more is pruned by rows.
create or replace function commandbus.is_quick_part(
    p_physical text, p_queue regclass, p_part regclass, p_first bigint, p_below bigint, p_before timestamptz
) returns boolean
language plpgsql as $$
declare
    v_grace interval := greatest(interval '10 minutes', (now() - p_before) / 10);
    v_times record;
begin
    if not commandbus.is_closed_part(p_physical, p_queue, p_first, p_below) then
        return false;
    end if;
    v_times := commandbus.part_times(p_part);
    return v_times.o_newest >= p_before - v_grace and v_times.o_newest - v_times.o_oldest <= v_grace;
end $$;
