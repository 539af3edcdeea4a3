-- Queue names that two installations in one database do not share, and a rule for replies nobody reads.
--
-- PGMQ's queues belong to the whole database. queue_mark() is what the names of our queues begin with:
-- nothing for the default schema; for others a digit, which no domain begins with, and four digits of the
-- hash of the schema's name (docs/adr/0033). It is a function with a constant, not a row: the names
-- of queues are made in every call. Only this file creates it, so that a queue keeps its name for good.
do $$
declare
    v_schema   text := split_part('commandbus.here', '.', 1);
    v_mark     text := '0' || left(encode(sha256(v_schema::bytea), 'hex'), 4) || '_';
    v_is_used  boolean := exists (select from commandbus.command_bus_command)
                          or exists (select from commandbus.command_bus_audit)
                          or exists (select from commandbus.command_bus_chore);
    v_is_taken boolean;  -- an installation of another schema has the names without a mark
    v_is_moved boolean;
    v_queue    text;
    v_old      text;
    v_new      text;
    v_rows     text := 'msg_id, read_ct, enqueued_at, vt, message, headers';
begin
    if exists (select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                where p.proname = 'queue_mark' and n.nspname <> v_schema
                  and p.prosrc = format('select %L::text', v_mark)) then
        raise exception 'the queues of schema % would have the names of those of another schema', v_schema
            using errcode = 'CB007', hint = 'choose another name for the schema';
    end if;
    v_is_taken := exists (
        select from pg_class t join pg_namespace n on n.oid = t.relnamespace
         where t.relname = 'command_bus_migration' and n.nspname <> v_schema
           and not exists (select from pg_proc p where p.pronamespace = n.oid and p.proname = 'queue_mark'
                              and p.prosrc <> 'select ''''::text'));
    -- What is in use keeps its names, unless it shares them: then the default schema keeps them.
    v_is_moved := v_is_used and v_is_taken and v_schema <> 'command' || 'bus';
    if v_is_moved and exists (
        select from commandbus.command_bus_command c
         where length(v_mark || c.domain || '__commands') > 47
            or length(v_mark || replace(c.reply_queue, '.', '__')) > 47) then
        raise warning 'schema % goes on sharing its queues with another one: a domain or reply queue is too long '
            'for a mark in front of it', v_schema;
        v_is_moved := false;
    end if;
    if v_is_used and not v_is_moved
       or not v_is_used and not v_is_taken and v_schema = 'command' || 'bus' then
        v_mark := '';
    end if;
    execute format('create function commandbus.queue_mark() returns text language sql immutable as %L',
                   format('select %L::text', v_mark));
    if not v_is_moved then
        return;
    end if;
    -- The messages of our commands, and their replies, leave the queues that were shared. Ids stay: the
    -- rows of commands name them. Stop the processes of this schema first: one that has just looked up
    -- the old name would write to the old queue.
    for v_queue in
        select c.domain || '.commands' from commandbus.command_bus_command c
        union select c.domain || '.replies' from commandbus.command_bus_command c
        union select c.reply_queue from commandbus.command_bus_command c
         where c.reply_queue not in ('', '@inbox')
         order by 1
    loop
        v_old := replace(v_queue, '.', '__');
        continue when to_regclass('pgmq.' || quote_ident('q_' || v_old)) is null;
        v_new := v_mark || v_old;
        -- As ensure_queue does it: that of the former version refuses the name.
        perform pgmq.create(v_new);
        execute format(
            'alter table pgmq.%I set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01,'
            ' autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)', 'q_' || v_new);
        execute format($q$
            with own as (
                delete from pgmq.%1$I q using commandbus.command_bus_command c
                 where q.message ->> 'command_id' = c.command_id::text and %3$s
                returning q.*)
            insert into pgmq.%2$I (%4$s) overriding system value select %4$s from own $q$,
            'q_' || v_old, 'q_' || v_new,
            case when v_queue like '%.commands'
                 then format('c.msg_id = q.msg_id and c.domain = %L', left(v_queue, -length('.commands')))
                 else format('c.reply_queue = %L and q.message ->> ''domain'' = c.domain', v_queue) end,
            v_rows);
        if v_queue like '%.commands' then
            execute format('drop index pgmq.%I', 'q_' || v_new || '_vt_idx');
            execute format('create index %I on pgmq.%I (vt, msg_id)', 'q_' || v_new || '_vt_idx', 'q_' || v_new);
            execute format($q$
                with own as (
                    delete from pgmq.%1$I a using commandbus.command_bus_command c
                     where c.msg_id = a.msg_id and a.message ->> 'command_id' = c.command_id::text
                       and c.domain = %3$L
                    returning a.*)
                insert into pgmq.%2$I (%4$s, archived_at) select %4$s, archived_at from own $q$,
                'a_' || v_old, 'a_' || v_new, left(v_queue, -length('.commands')), v_rows);
        end if;
        perform setval(pg_get_serial_sequence('pgmq.' || quote_ident('q_' || v_new), 'msg_id'),
                       nextval(pg_get_serial_sequence('pgmq.' || quote_ident('q_' || v_old), 'msg_id')));
    end loop;
end $$;

-- Replies that nobody reads would be kept without limit. A rule that an operator has set stays.
insert into commandbus.command_bus_retention (domain, kind, keep)
values ('*', 'replies', interval '7 days')
on conflict (domain, kind) do nothing;
