-- Parts of archives of which all is old are dropped as a whole; what is still in use is put elsewhere before (docs/adr/0096).
-- parts.sql says what parts are, and how long a change of them waits.

-- One who prunes an archive by rows and one who drops its parts keep apart, so that both count what they removed.
create or replace function commandbus.archive_lock(p_physical text) returns bigint
language sql immutable as $$
    select hashtextextended('commandbus.archive/' || p_physical, 0)
$$;

-- The first parts, side by side, to which nothing can come any more and of which all is older than p_before (null: those
-- that are empty), with small ones of what is kept that are beside them: these become one.
create or replace function commandbus.droppable_parts(
    p_physical text, p_archive regclass, p_queue regclass, p_before timestamptz,
    out o_old regclass[], out o_kept regclass[], out o_first bigint, out o_below bigint
)
language plpgsql as $$
declare
    c_small constant bigint := 4 * 1024 * 1024;         -- bytes that are copied in milliseconds
    v_piece record;
    v_goes  boolean;
begin
    o_old := '{}';
    o_kept := '{}';
    for v_piece in
        select p.* from commandbus.archive_pieces(p_archive) p where not p.is_tail order by p.first_id
    loop
        if v_piece.is_kept then
            v_goes := pg_relation_size(v_piece.piece) <= c_small;
        else
            -- one statement after the other: what was live is archived by then
            v_goes := commandbus.is_closed_part(p_physical, p_queue, v_piece.first_id, v_piece.below_id);
            if v_goes then
                v_goes := (select coalesce(t.o_newest < p_before, t.o_newest is null)
                             from commandbus.part_times(v_piece.piece) t);
            end if;
        end if;
        exit when not v_goes and o_old <> '{}' or cardinality(o_old) = 32;
        if not v_goes then
            o_kept := '{}';
            o_first := null;
        elsif v_piece.is_kept then
            o_kept := o_kept || v_piece.piece;
        else
            o_old := o_old || v_piece.piece;
        end if;
        if v_goes then
            o_first := coalesce(o_first, v_piece.first_id);
            o_below := v_piece.below_id;
        end if;
    end loop;
end $$;

-- Drops these parts. What is in use there, messages of commands that are open or parked, is put into a part of what is kept,
-- which takes over their numbers. If that is more than a few per cent of a part, it stays, and is pruned by rows.
--
-- What ended comes back to life by one way, the batch retry of what FAILED: it reads the archive, so one waits for the
-- other. If the retry is first, its message is in the queue again.
create or replace function commandbus.drop_archive_parts(
    p_physical text, p_archive regclass, p_queue regclass, p_domain text, p_kind text, p_before timestamptz,
    out o_did text, out o_gone bigint
)
language plpgsql set lock_timeout = '250ms' as $$
declare
    v_begun  timestamptz := clock_timestamp();
    v_run    record;
    v_kept   text;
    v_part   regclass;
    v_rows   bigint;
    v_in_use bigint;
begin
    if not pg_try_advisory_xact_lock(commandbus.archive_lock(p_physical)) then
        return;                                         -- its rows are being pruned
    end if;
    v_run := commandbus.droppable_parts(p_physical, p_archive, p_queue, p_before);
    if v_run.o_old = '{}' then
        return;
    end if;
    -- A table that nobody else sees yet, filled and checked before others have to wait: to attach it takes no look at it.
    v_kept := 'a_' || p_physical || '#k' || v_run.o_below;
    execute format('create table pgmq.%I (like %s including all, constraint part_range check (%s msg_id < %s))',
                   v_kept || '_', p_archive,
                   case commandbus.part_begin(v_run.o_first)
                       when 'minvalue' then '' else 'msg_id >= ' || v_run.o_first || ' and' end, v_run.o_below);
    o_gone := 0;
    foreach v_part in array v_run.o_kept loop
        execute format('insert into pgmq.%I select a.* from %s a for share', v_kept || '_', v_part);
    end loop;
    foreach v_part in array v_run.o_old loop
        execute format('select count(*) from %s', v_part) into v_rows;
        v_in_use := 0;
        if v_rows > 0 and p_kind = 'archives' then
            execute format(
                'insert into pgmq.%I select a.* from %s a where exists ('
                '    select from commandbus.command_bus_command c'
                '     where c.domain = $1 and c.command_id = commandbus.message_command_id(a.message)'
                '       and c.status not in (''COMPLETED'', ''CANCELED'', ''FAILED'')) limit $2 for share of a',
                v_kept || '_', v_part) using p_domain, greatest(1000, v_rows / 20) + 1;
            get diagnostics v_in_use = row_count;
        end if;
        if v_in_use > greatest(1000, v_rows / 20) then
            update commandbus.command_bus_archive_part n
               set look_after = now() + least(greatest((now() - p_before) / 20, interval '10 seconds'), interval '1 hour')
              from commandbus.archive_pieces(p_archive) p
             where n.archive = p_physical and p.piece = v_part and n.first_id = p.first_id;
            execute format('drop table pgmq.%I', v_kept || '_');
            o_did := 'leaves a part of which too much is in use';
            o_gone := null;
            return;
        end if;
        o_gone := o_gone + v_rows - v_in_use;
    end loop;

    execute format('lock table only %s in access exclusive mode', p_archive);
    if commandbus.is_moving(p_domain) then
        execute format('drop table pgmq.%I', v_kept || '_');
        o_gone := null;
        return;                                         -- it began to move meanwhile
    end if;
    foreach v_part in array v_run.o_old || v_run.o_kept loop
        execute format('drop table %s', v_part);
    end loop;
    execute format('alter table pgmq.%I rename to %I', v_kept || '_', v_kept);
    execute format('alter table %s attach partition pgmq.%I for values from (%s) to (%s)',
                   p_archive, v_kept, commandbus.part_begin(v_run.o_first), v_run.o_below);
    execute format('alter table pgmq.%I drop constraint part_range', v_kept);
    delete from commandbus.command_bus_archive_part n
     where n.archive = p_physical and n.first_id >= v_run.o_first and n.below_id <= v_run.o_below;
    o_did := 'dropped the parts up to ' || v_run.o_below - 1;
exception when lock_not_available or dependent_objects_still_exist then
    -- Somebody reads or writes for long, or a view reads the part. Later, and rarely if it was much to look at.
    o_did := null;
    o_gone := null;
    update commandbus.command_bus_archive_part n
       set look_after = clock_timestamp() + 20 * (clock_timestamp() - v_begun)
     where n.archive = p_physical and n.first_id >= v_run.o_first and n.below_id <= v_run.o_below;
end $$;

-- One step of looking after the archives, a transaction of its own: to be called until it says that there is nothing to do.
--   p_after: the archive of the step before; p_kinds: archives, replies
--   o_did: null: nothing; o_gone: how many messages went with parts that were dropped, all of them older than o_before
create or replace function commandbus.tend_archives(
    p_domain text default null, p_after text default null, p_kinds text[] default null,
    out o_did text, out o_archive text, out o_domain text, out o_kind text, out o_gone bigint, out o_before timestamptz
)
language plpgsql as $$
declare
    v_each record;
begin
    for v_each in
        select t.* from commandbus.tended_archives(p_domain) t
         where t.physical >= coalesce(p_after, '') and (p_kinds is null or t.kind = any(p_kinds))
           and not commandbus.is_moving(t.domain)
         order by t.physical
    loop
        o_archive := v_each.physical;
        o_domain := v_each.domain;
        o_kind := v_each.kind;
        if not v_each.is_divided then
            o_did := commandbus.divide_archive(o_archive, v_each.archive, o_domain);
        else
            o_did := (commandbus.grow_parts(
                v_each.archive, 'msg_id', v_each.sequence,
                commandbus.archive_part_rows(v_each.archive, v_each.sequence), 'a_' || o_archive || '#',
                -- if somebody has tuned the archive, as that
                (select array_to_string(c.reloptions, ', ')
                   from commandbus.archive_pieces(v_each.archive) p join pg_class c on c.oid = p.piece
                  where p.is_tail))).o_did;
            if o_did is null then
                perform commandbus.note_archive_parts(o_archive, v_each.archive, v_each.queue, v_each.sequence);
                o_before := (select now() - r.keep from commandbus.command_bus_retention r
                              where r.kind = o_kind and r.domain in (o_domain, '*') order by r.domain = '*' limit 1);
                select d.o_did, d.o_gone into o_did, o_gone
                  from commandbus.drop_archive_parts(
                       o_archive, v_each.archive, v_each.queue, o_domain, o_kind, o_before) d;
            end if;
        end if;
        exit when o_did is not null;
    end loop;
end $$;
