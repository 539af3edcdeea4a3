-- Retention: what is old and finished is removed, in chunks, each a transaction of its own.
--
-- Nothing is removed unless a rule says how long to keep it. What is open or parked is never
-- touched: not the command, not its batch, payload, archived message or audit. A run removes the
-- audit first and the commands last, so that what one kind looks at is there till the end.
--   kinds: audit; archives (PGMQ's, of commands); replies (unread, archived and in the inbox);
--   commands (finished ones, and finished batches as a whole, with payloads, loads and metrics); where there is a rule
--   for the history they are moved there, and a batch stays as long as its commands do (history.sql)
--   history (what was moved, in whole parts)

-- How long to keep a kind; p_domain null: in all domains that say nothing else; p_keep null: without limit.
create or replace function commandbus.set_retention(
    p_domain text, p_kind text, p_keep interval, p_actor text default null
) returns void
language plpgsql as $$
begin
    if p_domain is not null then
        perform commandbus.check_domain(p_domain);
    end if;
    if p_kind is null or p_kind not in ('audit', 'archives', 'replies', 'commands', 'history')
       or not p_keep between interval '1 minute' and interval '1000 years' then
        raise exception 'no such retention: % of %', coalesce(p_keep::text, 'no limit'),
            coalesce(quote_literal(p_kind), 'null')
            using errcode = 'CB007',
                  hint = 'use audit, archives, replies, commands or history, one minute at least, a thousand years at most';
    end if;
    insert into commandbus.command_bus_retention as r (domain, kind, keep, updated_by)
    values (coalesce(p_domain, '*'), p_kind, p_keep, p_actor)
    on conflict (domain, kind) do update
       set keep = excluded.keep, updated_by = excluded.updated_by, updated_at = now();
end $$;

-- A domain goes by the general rule again; p_domain null: the general rule is no more.
create or replace function commandbus.clear_retention(p_domain text, p_kind text) returns boolean
language plpgsql as $$
begin
    delete from commandbus.command_bus_retention r
     where r.domain = coalesce(p_domain, '*') and r.kind = p_kind;
    return found;
end $$;

-- What is to be removed now, by the rules, in the order in which to do it.
create or replace function commandbus.retention_due(p_domain text default null)
returns table (domain text, kind text, before timestamptz)
language sql stable as $$
    select d.name, k.kind, now() - r.keep
      from commandbus.doctor_domains(p_domain) d(name)
     cross join unnest(array['audit', 'archives', 'replies', 'history', 'commands'])
           with ordinality as k(kind, place)
     cross join lateral (
           select r.keep from commandbus.command_bus_retention r
            where r.kind = k.kind and r.domain in (d.name, '*') order by r.domain = '*' limit 1) r
     where r.keep is not null
       -- what moves is compared with its copy
       and not exists (select from commandbus.command_bus_move m where m.domain = d.name and m.finished_at is null)
     order by d.name, k.place
$$;

-- The chunks. Each looks at p_limit rows at most from p_after on (null: from the beginning) and
-- returns what it removed, where to go on, and whether that was all.

-- The one function that may delete from the audit: refuse_audit_change knows it by its name, which
-- the call stack shows in full only because commandbus is not on its search path (security.sql).
create or replace function commandbus.prune_audit(
    p_domain text, p_before timestamptz, p_limit int, p_after text default null,
    p_actor text default null, out o_pruned jsonb, out o_after text, out o_is_done boolean
)
language plpgsql as $$
declare
    v_from bigint := coalesce(p_after, '0')::bigint;
    v_last bigint;
    v_seen int;
    v_ids  bigint[];
begin
    select max(s.audit_id), count(*), bool_and(s.ts >= p_before)
      into v_last, v_seen, o_is_done
      from (select a.audit_id, a.ts from commandbus.command_bus_audit a
             where a.audit_id > v_from order by a.audit_id limit p_limit) s;
    o_after := coalesce(v_last, v_from)::text;
    o_is_done := v_seen < p_limit or o_is_done;
    -- The one way back from an end is a batch retry of what FAILED: it waits, or is waited for.
    perform 1 from commandbus.command_bus_command c
      where c.domain = p_domain and c.status = 'FAILED' and c.command_id in (
            select a.command_id from commandbus.command_bus_audit a
             where a.audit_id > v_from and a.audit_id <= v_last and a.ts < p_before)
      order by c.command_id for update;
    select array_agg(a.audit_id) into v_ids
      from commandbus.command_bus_audit a
     where a.audit_id > v_from and a.audit_id <= v_last
       and commandbus.is_prunable_event(a, p_domain, p_before)
       -- An end can be committed long after its time, when the pages before had left the beginning of
       -- the trail alone: then all of it stays, or the end would be missing. The next run takes it.
       and (a.command_id = commandbus.nobody() or not exists (
            select from commandbus.command_bus_audit e
             where e.command_id = a.command_id and e.domain = a.domain and e.audit_id <= v_from));
    o_pruned := jsonb_build_object('audit events', coalesce(cardinality(v_ids), 0));
    if v_ids is null then
        return;
    end if;
    perform commandbus.record_removal(p_domain, v_ids, p_before, p_actor);
    delete from commandbus.command_bus_audit a where a.audit_id = any(v_ids);
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values (p_domain, commandbus.nobody(), 'AUDIT_PRUNED', clock_timestamp(), jsonb_build_object(
                'before', commandbus.iso8601(p_before), 'events', cardinality(v_ids)), p_actor);
    -- so that the doctor knows why an old command has no trail
    insert into commandbus.command_bus_setting as s (name, value)
    values ('audit_pruned_before.' || p_domain, commandbus.iso8601(p_before))
    on conflict (name) do update
       set value = greatest(s.value, excluded.value), updated_at = now();
end $$;

-- An old event of a command, or batch, that is gone, or that ended before that time.
create or replace function commandbus.is_prunable_event(
    p_event commandbus.command_bus_audit, p_domain text, p_before timestamptz
) returns boolean
language sql stable as $$
    select p_event.domain = p_domain and p_event.ts < p_before
       and not exists (
           select from commandbus.command_bus_command c
            where c.domain = p_event.domain and c.command_id = p_event.command_id
              and (c.status not in ('COMPLETED', 'CANCELED', 'FAILED') or c.updated_at >= p_before))
       and not exists (
           select from commandbus.command_bus_batch b
            where b.batch_id = p_event.command_id
              and (b.completed_at is null or b.completed_at >= p_before))
$$;

-- Archived messages of commands that have ended: part for part, in each in the order in which they were archived.
--   p_spares_quick: parts that will soon be dropped are left to that
create or replace function commandbus.prune_archived(
    p_domain text, p_before timestamptz, p_limit int, p_after text, p_spares_quick boolean,
    out o_pruned jsonb, out o_after text, out o_is_done boolean
)
language plpgsql as $$
declare
    v_physical text := commandbus.physical_queue(p_domain || '.commands');
    v_archive  regclass := to_regclass('pgmq.' || quote_ident('a_' || v_physical));
    v_queue    regclass := to_regclass('pgmq.' || quote_ident('q_' || v_physical));
    v_from     timestamptz := coalesce(split_part(p_after, '/', 1), '-infinity')::timestamptz;
    v_msg_id   bigint := coalesce(split_part(p_after, '/', 2), '0')::bigint;
    v_first    bigint := coalesce(nullif(split_part(p_after, '/', 3), ''), '-9223372036854775808')::bigint;
    v_piece    record;
    v_seen     int := 0;
    v_gone     int := 0;
    v_page     record;
begin
    o_is_done := true;
    o_pruned := jsonb_build_object('archived messages', 0);
    if v_queue is null or v_archive is null then
        return;
    end if;
    -- the parts that are there stay there
    perform pg_advisory_xact_lock(commandbus.archive_lock(v_physical));
    for v_piece in
        select p.* from commandbus.archive_pieces(v_archive) p where p.first_id >= v_first order by p.first_id
    loop
        if v_piece.first_id > v_first then
            v_from := '-infinity';
            v_msg_id := 0;
        end if;
        continue when p_spares_quick and not v_piece.is_tail and not v_piece.is_kept
            and commandbus.is_quick_part(v_physical, v_queue, v_piece.piece, v_piece.first_id, v_piece.below_id, p_before);
        execute format($q$
            with page as materialized (
                select a.msg_id, a.archived_at, commandbus.message_command_id(a.message) as command_id
                  from %1$s a
                 where a.archived_at < $2 and a.archived_at >= $3
                   and (a.archived_at, a.msg_id) > ($3, $4)
                 order by a.archived_at, a.msg_id limit $5
            ), gone as (
                delete from %1$s a using page p
                 where a.msg_id = p.msg_id and not exists (
                       select from commandbus.command_bus_command c
                        where c.domain = $1 and c.command_id = p.command_id
                          and c.status not in ('COMPLETED', 'CANCELED', 'FAILED'))
                returning 1)
            select count(*) as seen, (select count(*) from gone) as gone,
                   (array_agg(commandbus.iso8601(p.archived_at) || '/' || p.msg_id
                              order by p.archived_at desc, p.msg_id desc))[1] as last
              from page p $q$, v_piece.piece)
           into v_page using p_domain, p_before, v_from, v_msg_id, p_limit - v_seen;
        v_seen := v_seen + v_page.seen;
        v_gone := v_gone + v_page.gone;
        if v_seen >= p_limit then
            o_is_done := false;
            o_after := v_page.last || '/' || v_piece.first_id;
            exit;
        end if;
    end loop;
    o_pruned := jsonb_build_object('archived messages', v_gone);
end $$;

-- The same with nothing spared.
create or replace function commandbus.prune_archives(
    p_domain text, p_before timestamptz, p_limit int, p_after text default null,
    p_actor text default null, out o_pruned jsonb, out o_after text, out o_is_done boolean
)
language sql as $$
    select p.* from commandbus.prune_archived(p_domain, p_before, p_limit, p_after, false) p
$$;

-- What is old in a queue of replies, or in its archive. Replies are known by their shape: a queue of the
-- same name may hold other things. In the archive of a queue of ours is what was no reply: it goes too.
create or replace function commandbus.is_old_reply(p_table text) returns text
language sql stable as $$
    select case when p_table like E'a\\_%\\_\\_replies' and commandbus.is_made_by_us(substr(p_table, 3))
                then 'q.archived_at < $1'
                when p_table like E'a\\_%' then 'q.archived_at < $1 and q.message ? ''outcome'''
                -- what a reader has leased is left to that reader
                else 'q.enqueued_at < $1 and q.vt <= now() and q.message ? ''outcome''' end
$$;

-- Looks at each queue from its head on, a page at a time, up to a page without anything old: there is a
-- rule for replies in every database, and most looks find nothing. An archive is looked at in the order
-- of its times, which have an index.
create or replace function commandbus.prune_replies(
    p_domain text, p_before timestamptz, p_limit int, p_after text default null,
    p_actor text default null, out o_pruned jsonb, out o_after text, out o_is_done boolean
)
language plpgsql as $$
declare
    v_after jsonb := coalesce(p_after, '{}')::jsonb;  -- the last msg_id of each queue
    v_table text;
    v_last  bigint;
    v_gone  int;
    v_all   int := 0;
begin
    o_is_done := true;
    for v_table in select t from commandbus.reply_tables(p_domain) t loop
        if v_table like E'a\\_%' then
            execute format(
                'delete from pgmq.%1$I where msg_id in ('
                '    select q.msg_id from pgmq.%1$I q where %2$s'
                '     order by q.archived_at limit $2 for update skip locked)',
                v_table, commandbus.is_old_reply(v_table)) using p_before, p_limit;
            get diagnostics v_gone = row_count;
            o_is_done := o_is_done and v_gone < p_limit;
        else
            execute format($q$
                with page as materialized (
                    select q.msg_id, q.enqueued_at from pgmq.%1$I q
                     where q.msg_id > $3 order by q.msg_id limit $2
                ), gone as (
                    delete from pgmq.%1$I where msg_id in (
                        select q.msg_id from pgmq.%1$I q
                         where q.msg_id in (select p.msg_id from page p) and %2$s
                         order by q.msg_id for update skip locked)
                    returning 1)
                select (select count(*) from gone),
                       (select max(p.msg_id) from page p
                        having count(*) = $2 and bool_or(p.enqueued_at < $1)) $q$,
                v_table, commandbus.is_old_reply(v_table))
               into v_gone, v_last using p_before, p_limit, coalesce((v_after ->> v_table)::bigint, 0);
            o_is_done := o_is_done and v_last is null;
            v_after := v_after || jsonb_build_object(v_table, coalesce(v_last, (v_after ->> v_table)::bigint, 0));
        end if;
        v_all := v_all + v_gone;
    end loop;
    delete from commandbus.command_bus_reply_inbox i where (i.domain, i.command_id) in (
        select n.domain, n.command_id from commandbus.command_bus_reply_inbox n
         where n.domain = p_domain and n.published_at < p_before limit p_limit for update skip locked);
    get diagnostics v_gone = row_count;
    o_pruned := jsonb_build_object('replies', v_all + v_gone);
    o_is_done := o_is_done and v_gone < p_limit;
    o_after := v_after::text;
end $$;

-- Queues and archives of replies that belong to a domain: those of its name, but for its commands.
create or replace function commandbus.reply_tables(p_domain text) returns setof text
language sql stable as $$
    select k.prefix || q.physical
      from commandbus.own_queues() q cross join (values ('q_'), ('a_')) k(prefix)
     where split_part(q.queue, '.', 1) = p_domain and q.queue like '%._%' and q.queue not like '%.commands'
     order by 1
$$;

-- Finished commands without a batch, in the order of their creation.
create or replace function commandbus.prune_commands(
    p_domain text, p_before timestamptz, p_limit int, p_after text default null,
    p_actor text default null, out o_pruned jsonb, out o_after text, out o_is_done boolean
)
language plpgsql as $$
declare
    v_from  timestamptz := coalesce(split_part(p_after, '/', 1), '-infinity')::timestamptz;
    v_id    uuid := coalesce(split_part(p_after, '/', 2), commandbus.nobody()::text)::uuid;
    v_seen  int;
    v_ids   uuid[];
    v_moves boolean := commandbus.goes_to_history(p_domain);
begin
    perform commandbus.refuse_while_moving(p_domain);
    if v_moves then
        perform commandbus.claim_history(p_domain);
    end if;
    select count(*), array_agg(p.command_id) filter (where p.domain = p_domain),
           (array_agg(commandbus.iso8601(p.created_at) || '/' || p.command_id
                      order by p.created_at desc, p.command_id desc))[1]
      into v_seen, v_ids, o_after
      from (select c.domain, c.command_id, c.created_at from commandbus.command_bus_command c
             where c.created_at < p_before and c.created_at >= v_from
               and (c.created_at, c.command_id) > (v_from, v_id)
             order by c.created_at, c.command_id limit p_limit) p;
    v_ids := array(select c.command_id from commandbus.command_bus_command c
                    where c.domain = p_domain and c.command_id = any(v_ids) and c.batch_id is null
                      and c.status in ('COMPLETED', 'CANCELED', 'FAILED') and c.updated_at < p_before
                    order by c.command_id for update);
    if v_moves then
        perform commandbus.put_in_history(p_domain, v_ids);
    else
        perform commandbus.remove_commands(p_domain, v_ids);
    end if;
    o_pruned := jsonb_build_object(commandbus.prune_word('commands', v_moves), cardinality(v_ids));
    o_is_done := v_seen < p_limit;
end $$;

-- What a run says of what it did.
create or replace function commandbus.prune_word(p_what text, p_moves boolean) returns text
language sql immutable as $$
    select case when p_moves then p_what || ' moved to the history' else p_what end
$$;

-- Rows of commands that have ended, locked by the caller, with their payloads and who sent them.
create or replace function commandbus.remove_commands(p_domain text, p_command_ids uuid[])
returns void
language plpgsql as $$
begin
    delete from commandbus.command_bus_payload_archive p
     where p.domain = p_domain and p.command_id = any(p_command_ids);
    delete from commandbus.command_bus_sender s
     where s.domain is not distinct from p_domain and s.command_id = any(p_command_ids);
    delete from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = any(p_command_ids)
       and c.status in ('COMPLETED', 'CANCELED', 'FAILED');
end $$;

-- Batches of which no command is left, with what belongs to them.
create or replace function commandbus.remove_batches(p_batch_ids uuid[]) returns void
language plpgsql as $$
begin
    delete from commandbus.command_bus_creation_metric m where m.batch_id = any(p_batch_ids);
    delete from commandbus.command_bus_dispatch d where d.batch_id = any(p_batch_ids);
    delete from commandbus.command_bus_batch b where b.batch_id = any(p_batch_ids); -- its load too
end $$;
