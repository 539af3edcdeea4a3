-- Retention of batches: as a whole, or its counters would say nothing any more.
--
-- A batch that is to go is marked first, in a commit of its own: from then on it cannot be opened
-- again (move_batch_counters refuses), so its commands stay as they are and can be removed in chunks,
-- and the batch last. A run that is cut off in between is gone on with by the next. Where commands are moved to the history,
-- the batch is not removed but says so (moved_to, history_since), and goes with the last of them.

-- Removes, or moves, p_limit commands at most of batches that are marked, and marks some more.
create or replace function commandbus.prune_batches(
    p_domain text, p_before timestamptz, p_limit int, p_after text default null,
    p_actor text default null, out o_pruned jsonb, out o_after text, out o_is_done boolean
)
language plpgsql as $$
declare
    v_from     timestamptz := coalesce(split_part(p_after, '/', 1), '-infinity')::timestamptz;
    v_id       uuid := coalesce(split_part(p_after, '/', 2), commandbus.nobody()::text)::uuid;
    v_batch    uuid;
    v_ids      uuid[];
    v_commands int := 0;
    v_batches  int := 0;
    v_marked   int;
    v_seen     int;
    v_moves    boolean := commandbus.goes_to_history(p_domain);
begin
    perform commandbus.refuse_while_moving(p_domain);
    if v_moves then
        perform commandbus.claim_history(p_domain);
    end if;
    for v_batch in
        select b.batch_id from commandbus.command_bus_batch b
         where b.pruning_since is not null and b.moved_to is null and b.domain = p_domain
         order by b.batch_id limit p_limit
    loop
        -- command -> batch: nobody else wants both, but the order is one everywhere.
        v_ids := array(select c.command_id from commandbus.command_bus_command c
                        where c.batch_id = v_batch and c.domain = p_domain
                          and c.status in ('COMPLETED', 'CANCELED', 'FAILED')
                        order by c.command_id limit p_limit - v_commands for update);
        if v_moves then
            perform commandbus.put_in_history(p_domain, v_ids);
        else
            perform commandbus.remove_commands(p_domain, v_ids);
        end if;
        v_commands := v_commands + cardinality(v_ids);
        if exists (select from commandbus.command_bus_command c where c.batch_id = v_batch) then
            if v_ids = '{}' and v_commands < p_limit then
                -- It holds what has not ended, and should not have been closed: the doctor's business.
                update commandbus.command_bus_batch b set pruning_since = null
                 where b.batch_id = v_batch;
            end if;
        else
            if v_moves then
                update commandbus.command_bus_batch b
                   set history_since = clock_timestamp(),
                       moved_to = (select h.last_no from commandbus.command_bus_history_domain h where h.domain = p_domain)
                 where b.batch_id = v_batch;
            else
                perform commandbus.remove_batches(array[v_batch]);
            end if;
            v_batches := v_batches + 1;
        end if;
        exit when v_commands >= p_limit;
    end loop;

    with page as (
        select b.batch_id, b.created_at from commandbus.command_bus_batch b
         where b.moved_to is null and b.created_at < p_before and b.created_at >= v_from
           and (b.created_at, b.batch_id) > (v_from, v_id)
         order by b.created_at, b.batch_id limit p_limit
    ), due as (
        select b.batch_id from page p join commandbus.command_bus_batch b on b.batch_id = p.batch_id
         where b.domain = p_domain and b.completed_at < p_before and b.pruning_since is null
           for update of b skip locked
    ), marked as (
        update commandbus.command_bus_batch b set pruning_since = now()
          from due d where b.batch_id = d.batch_id
        returning 1
    )
    select count(*), (select count(*) from marked),
           coalesce((array_agg(commandbus.iso8601(p.created_at) || '/' || p.batch_id
                               order by p.created_at desc, p.batch_id desc))[1], p_after)
      into v_seen, v_marked, o_after from page p;
    o_pruned := jsonb_build_object(commandbus.prune_word('commands', v_moves), v_commands,
                                   commandbus.prune_word('batches', v_moves), v_batches);
    o_is_done := v_seen < p_limit and v_marked = 0 and not exists (
        select from commandbus.command_bus_batch b
         where b.pruning_since is not null and b.moved_to is null and b.domain = p_domain);
end $$;

-- How many a run would remove, exactly, if nothing changed meanwhile. Reads, and writes nothing.
create or replace function commandbus.count_prunable(p_domain text, p_kind text, p_before timestamptz)
returns table (what text, prunable bigint)
language plpgsql stable as $$
declare
    v_table text;
    v_found bigint;
    v_all   bigint := 0;
begin
    if p_kind = 'audit' then
        return query
        select 'audit events', count(*) from commandbus.command_bus_audit a
         where commandbus.is_prunable_event(a, p_domain, p_before);
    elsif p_kind = 'archives' and commandbus.queue_exists(p_domain || '.commands') then
        return query execute format($q$
            select 'archived messages', count(*) from pgmq.%I a
             where a.archived_at < $2 and not exists (
                   select from commandbus.command_bus_command c
                    where c.domain = $1 and c.command_id = commandbus.message_command_id(a.message)
                      and c.status not in ('COMPLETED', 'CANCELED', 'FAILED')) $q$,
            'a_' || commandbus.physical_queue(p_domain || '.commands')) using p_domain, p_before;
    elsif p_kind = 'replies' then
        for v_table in select t from commandbus.reply_tables(p_domain) t loop
            execute format('select count(*) from pgmq.%I q where %s', v_table,
                           commandbus.is_old_reply(v_table))
               into v_found using p_before;
            v_all := v_all + v_found;
        end loop;
        return query
        select 'replies', v_all + count(*) from commandbus.command_bus_reply_inbox i
         where i.domain = p_domain and i.published_at < p_before;
    elsif p_kind = 'commands' then
        return query
        with batch as (
            select b.batch_id from commandbus.command_bus_batch b
             where b.domain = p_domain and b.moved_to is null
               and (b.completed_at < p_before or b.pruning_since is not null)
        )
        select commandbus.prune_word('commands', commandbus.goes_to_history(p_domain)), count(*) from commandbus.command_bus_command c
         where c.domain = p_domain and c.status in ('COMPLETED', 'CANCELED', 'FAILED')
           and (c.batch_id is null and c.updated_at < p_before
                or c.batch_id in (select b.batch_id from batch b))
        union all
        select commandbus.prune_word('batches', commandbus.goes_to_history(p_domain)), count(*) from batch;
    elsif p_kind = 'history' then
        return query select * from commandbus.count_due_history(p_domain, p_before);
    end if;
end $$;

-- A chunk of pruning by the rules, for workers: of what a rule wants removed and no more, whatever p_before says.
-- The functions that do it are the owner's, because they remove what they are told to.
--   p_what: audit, archives, replies, history, commands or batches
create or replace function commandbus.prune_due(
    p_what text, p_domain text, p_before timestamptz, p_limit int, p_after text default null,
    p_actor text default null, out o_pruned jsonb, out o_after text, out o_is_done boolean
)
language plpgsql as $$
declare
    v_before timestamptz := (
        select now() - r.keep from commandbus.command_bus_retention r
         where r.kind = case p_what when 'batches' then 'commands' else p_what end
           and r.domain in (p_domain, '*')
         order by r.domain = '*' limit 1);
    v_kept   int;
begin
    o_pruned := '{}';
    o_is_done := true;
    if v_before is null or exists (select from commandbus.command_bus_move m
                                    where m.domain = p_domain and m.finished_at is null) then
        return;                                         -- no rule any more, or one that keeps it; or it is moving
    end if;
    v_before := least(v_before, p_before);
    case p_what
    when 'audit' then
        v_kept := commandbus.kept_events_after(coalesce(p_after, '0')::bigint, p_limit);
        if v_kept > 0 then
            select p.o_pruned, p.o_after, false into o_pruned, o_after, o_is_done
              from commandbus.prune_audit(p_domain, v_before, v_kept, p_after, p_actor) p;
        else
            select p.* into o_pruned, o_after, o_is_done
              from commandbus.prune_audit(
                   p_domain, v_before, p_limit,
                   commandbus.after_quick_parts(coalesce(p_after, '0')::bigint, v_before)::text, p_actor) p;
        end if;
    when 'archives' then
        select p.* into o_pruned, o_after, o_is_done
          from commandbus.prune_archived(p_domain, v_before, p_limit, p_after, true) p;
    when 'replies' then
        select p.* into o_pruned, o_after, o_is_done
          from commandbus.prune_replies(p_domain, v_before, p_limit, p_after, p_actor) p;
    when 'history' then
        select p.* into o_pruned, o_after, o_is_done
          from commandbus.prune_history(p_domain, v_before, p_limit, p_after, p_actor) p;
    when 'commands' then
        select p.* into o_pruned, o_after, o_is_done
          from commandbus.prune_commands(p_domain, v_before, p_limit, p_after, p_actor) p;
    when 'batches' then
        select p.* into o_pruned, o_after, o_is_done
          from commandbus.prune_batches(p_domain, v_before, p_limit, p_after, p_actor) p;
    end case;
end $$;

-- For the doctor: what the rules want removed and nobody has, although there was time: an hour, or a tenth of the
-- time that it is kept for. A run begins with the oldest, so a look at the oldest thousand tells.
--   p_look: rows that are looked at of each kind and domain
create or replace function commandbus.retention_behind(p_domain text default null, p_look int default 1000)
returns table (domain text, kind text, oldest timestamptz)
language plpgsql stable as $$
declare
    v_due   record;
    v_piece regclass;
    v_table text;
begin
    for v_due in
        select d.domain, d.kind, d.before - greatest(interval '1 hour', r.keep / 10) as before
          from commandbus.retention_due(p_domain) d
         cross join lateral (
               select x.keep, x.updated_at from commandbus.command_bus_retention x
                where x.kind = d.kind and x.domain in (d.domain, '*') order by x.domain = '*' limit 1) r
         -- a rule that is new needs some runs first
         where r.updated_at < now() - greatest(interval '1 hour', r.keep / 10)
    loop
        domain := v_due.domain;
        kind := v_due.kind;
        oldest := null;
        if v_due.kind = 'audit' then
            select min(a.ts) into oldest
              from (select e.* from commandbus.command_bus_audit e
                     -- what is kept stands first
                     where e.audit_id >= (select min(p.first_id) from commandbus.audit_parts() p where not p.is_kept)
                     order by e.audit_id limit p_look) s
              join commandbus.command_bus_audit a on a.audit_id = s.audit_id
             where commandbus.is_prunable_event(a, v_due.domain, v_due.before);
        elsif v_due.kind = 'commands' then
            select min(c.updated_at) into oldest
              from (select e.domain, e.batch_id, e.status, e.updated_at from commandbus.command_bus_command e
                     order by e.created_at limit p_look) c
             where c.domain = v_due.domain and c.batch_id is null and c.updated_at < v_due.before
               and c.status in ('COMPLETED', 'CANCELED', 'FAILED');
        elsif v_due.kind = 'archives' and commandbus.queue_exists(v_due.domain || '.commands') then
            for v_piece in
                select p.piece from commandbus.archive_pieces(to_regclass('pgmq.' || quote_ident(
                           'a_' || commandbus.physical_queue(v_due.domain || '.commands')))) p
                 order by p.first_id
            loop
                execute format($q$
                    select min(a.archived_at)
                      from (select m.archived_at, commandbus.message_command_id(m.message) as command_id
                              from %s m order by m.archived_at limit $3) a
                     where a.archived_at < $2 and not exists (
                           select from commandbus.command_bus_command c
                            where c.domain = $1 and c.command_id = a.command_id
                              and c.status not in ('COMPLETED', 'CANCELED', 'FAILED')) $q$, v_piece)
                   into oldest using v_due.domain, v_due.before, p_look;
                exit when oldest is not null;
            end loop;
        elsif v_due.kind = 'replies' then
            oldest := (select min(i.published_at) from commandbus.command_bus_reply_inbox i
                        where i.domain = v_due.domain and i.published_at < v_due.before);
            for v_table in select t from commandbus.reply_tables(v_due.domain) t loop
                execute format(
                    'select least($3, min(q.%1$I)) from (select * from pgmq.%2$I m order by %3$s limit $2) q where %4$s',
                    case when v_table like E'a\\_%' then 'archived_at' else 'enqueued_at' end, v_table,
                    case when v_table like E'a\\_%' then 'm.archived_at' else 'm.msg_id' end,
                    commandbus.is_old_reply(v_table))
                   into oldest using v_due.before, p_look, oldest;
            end loop;
        end if;
        if v_due.kind = 'history' then
            oldest := (select min(h.moved_at) from commandbus.command_bus_history h
                        where h.domain = v_due.domain and h.history_no in (
                              select p.first_no from commandbus.history_parts(v_due.domain) p
                               where p.part = any((commandbus.due_history(v_due.domain, v_due.before)).o_parts)));
        end if;
        if oldest is not null then
            return next;
        end if;
    end loop;
end $$;
