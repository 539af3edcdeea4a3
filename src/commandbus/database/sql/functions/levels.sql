-- Levels: priority. A message of level 0 has no headers; another one carries {"priority": n}. A level is worth
-- level_seconds of waiting: among what is due, messages go in the order of `due time - level * level_seconds`. So a
-- low level ages at the read: no row is rewritten, and nobody has to do it.

-- A domain uses levels from now on. Writes only if that is not known, or the row was last written longer ago than
-- p_within. Senders of the library call it every ten minutes, in a transaction of its own; who puts a message calls it
-- with an hour, and so nearly never writes: the row of the domain must not be held by somebody's open transaction.
create or replace function commandbus.use_levels(p_domain text, p_within interval default '20 minutes')
returns void
language plpgsql as $$
begin
    if not exists (select from commandbus.command_bus_flow f
                    where f.domain = p_domain and f.has_levels and f.updated_at > clock_timestamp() - p_within) then
        insert into commandbus.command_bus_flow as f (domain, has_levels) values (p_domain, true)
        on conflict (domain) do update set has_levels = true, updated_at = clock_timestamp()
         where not f.has_levels or f.updated_at <= clock_timestamp() - p_within;
    end if;
end $$;

-- The chore of levels: a domain that has not used any for two hours, and of which no message has one, is read without
-- them. A transaction that was open for longer than an hour may still bring one: then the domain is read with levels
-- again, at the next turn. Rows that somebody has are left to that turn. Returns how many domains were changed.
create or replace function commandbus.tend_levels() returns int
language plpgsql as $$
declare
    v_flow    commandbus.command_bus_flow;
    v_is_used boolean;
    v_changed int := 0;
begin
    for v_flow in
        select * from commandbus.command_bus_flow f
         where (not f.has_levels or f.updated_at < clock_timestamp() - interval '2 hours')
           and f.domain <> all(commandbus.domains_on_the_way())
         order by f.domain for update skip locked
    loop
        continue when not commandbus.queue_exists(v_flow.domain || '.commands');
        execute format('select exists (select from pgmq.%I q where q.headers is not null)',
                       'q_' || commandbus.physical_queue(v_flow.domain || '.commands')) into v_is_used;
        if v_is_used <> v_flow.has_levels then
            update commandbus.command_bus_flow f set has_levels = v_is_used where f.domain = v_flow.domain;
            v_changed := v_changed + 1;
        end if;
    end loop;
    return v_changed;
end $$;

-- When the first message of a queue is due that will be by itself; null: none.
create or replace function commandbus.first_due(p_domain text, p_has_levels boolean) returns timestamptz
language plpgsql stable as $$
declare
    v_table text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
    v_due   timestamptz;
    v_other timestamptz;
begin
    execute format('select q.vt from pgmq.%I q where q.headers is null and q.vt < ''infinity'''
                   ' order by q.vt, q.msg_id limit 1', v_table) into v_due;
    if p_has_levels then
        execute format(
            'select min(q.vt) from unnest($1) s(level) cross join lateral ('
            '    select e.vt from pgmq.%I e'
            '     where e.headers is not null and e.headers ->> ''priority'' = s.level and e.vt < ''infinity'''
            '     order by e.vt, e.msg_id limit 1) q', v_table)
           into v_other using '{2,1,0,-1,-2}'::text[];
    end if;
    return least(v_due, v_other);
end $$;

-- What a receive takes where the domain has levels, in two lists; null: nothing is due.
create or replace function commandbus.take_levels(
    p_flow commandbus.command_bus_flow, p_now timestamptz, p_vt int, p_quantity int, p_from_head boolean,
    p_except text[], out o_msg_ids bigint[], out o_messages jsonb[]
)
language plpgsql as $$
declare
    v_queue text := p_flow.domain || '.commands';
begin
    if p_except <> '{}' then
        select array_agg(r.msg_id order by r.msg_id), array_agg(r.message order by r.msg_id)
          into o_msg_ids, o_messages
          from commandbus.read_levels_except(
               v_queue, p_now, p_vt, p_quantity, p_flow.level_seconds, p_except) r;
    else
        select array_agg(r.msg_id order by r.msg_id), array_agg(r.message order by r.msg_id)
          into o_msg_ids, o_messages
          from commandbus.read_levels(
               v_queue, p_now, p_vt, p_quantity, p_flow.level_seconds, p_from_head) r;
    end if;
end $$;

-- read_messages by level. First, without a lock, how many of the group each level gets; then these are taken, each
-- level in the order of its time. What other sessions have locked at that moment is counted and stepped over: the
-- group is then a little smaller, and the next call finds the rest.
-- p_from_head: the look at the oldest messages, for commands whose lease has lapsed (read_messages). Without levels
-- below 0: an old backlog of these would get a whole group each second.
create or replace function commandbus.read_levels(
    p_queue text, p_now timestamptz, p_vt int, p_quantity int, p_level_seconds float8, p_from_head boolean
) returns table (msg_id bigint, message jsonb)
language plpgsql as $$
declare
    v_table  text := 'q_' || commandbus.physical_queue(p_queue);
    v_taken  int := 0;
    v_plain  int;
    v_levels text[];
    v_shares int[];
begin
    if p_from_head then
        return query execute format(
            'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.ctid = any(array('
            '     select q.ctid from pgmq.%1$I q'
            '      where q.msg_id = any(array('
            '                select h.msg_id from pgmq.%1$I h order by h.msg_id limit 1000) || $4)'
            '        and q.vt <= $1'
            '        and (q.headers is null or (q.headers ->> ''priority'' in (''-1'', ''-2'')) is not true)'
            '      order by q.msg_id limit $3 for update skip locked))'
            ' returning m.msg_id, m.message', v_table)
           using p_now, p_vt, p_quantity, commandbus.lapsed_lately(p_queue, p_now);
        get diagnostics v_taken = row_count;
        if v_taken >= p_quantity then
            return;
        end if;
    end if;
    execute format(
        'select coalesce(sum(d.n) filter (where d.level is null), 0),'
        '       array_agg(d.level) filter (where d.level is not null),'
        '       array_agg(d.n) filter (where d.level is not null)'
        '  from (select c.level, count(*)::int as n from ('
        '            select u.level from ('
        '                select s.level, q.vt - make_interval(secs => s.level::int * $3) as counts_from'
        '                  from unnest($4) s(level) cross join lateral ('
        '                      select e.vt from pgmq.%1$I e'
        '                       where e.headers is not null and e.headers ->> ''priority'' = s.level'
        '                         and e.vt <= $1 order by e.vt, e.msg_id limit $2) q'
        '                union all'
        '                select null, q.vt from ('
        '                    select e.vt from pgmq.%1$I e where e.headers is null and e.vt <= $1'
        '                     order by e.vt, e.msg_id limit $2) q) u'
        '             order by u.counts_from, u.level limit $2) c'
        '         group by c.level) d', v_table)
       into v_plain, v_levels, v_shares
      using p_now, p_quantity - v_taken, p_level_seconds, '{2,1,0,-1,-2}'::text[];
    if v_plain > 0 then
        return query execute format(
            'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.ctid = any(array('
            '     select q.ctid from pgmq.%1$I q where q.headers is null and q.vt <= $1'
            '      order by q.vt, q.msg_id limit $3 for update skip locked))'
            ' returning m.msg_id, m.message', v_table) using p_now, p_vt, v_plain;
    end if;
    if v_levels is not null then
        return query execute format(
            'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.ctid = any(array('
            '     select q.ctid from unnest($3, $4) s(level, share) cross join lateral ('
            '         select e.ctid from pgmq.%1$I e'
            '          where e.headers is not null and e.headers ->> ''priority'' = s.level and e.vt <= $1'
            '          order by e.vt, e.msg_id limit s.share for update skip locked) q))'
            ' returning m.msg_id, m.message', v_table) using p_now, p_vt, v_levels, v_shares;
    end if;
end $$;

-- The same without some command types, among the two thousand of each level that have been due for longest.
create or replace function commandbus.read_levels_except(
    p_queue text, p_now timestamptz, p_vt int, p_quantity int, p_level_seconds float8, p_except text[]
) returns table (msg_id bigint, message jsonb)
language plpgsql as $$
begin
    return query execute format(
        'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
        ' where m.ctid = any(array('
        '     select q.ctid from pgmq.%1$I q'
        '      where q.msg_id = any(array('
        '                select u.msg_id from ('
        '                    select d.msg_id, d.message,'
        '                           d.vt - make_interval(secs => s.level::int * $5) as counts_from'
        '                      from unnest($6) s(level) cross join lateral ('
        '                          select e.msg_id, e.vt, e.message from pgmq.%1$I e'
        '                           where e.headers is not null and e.headers ->> ''priority'' = s.level'
        '                             and e.vt <= $1 order by e.vt, e.msg_id limit 2000) d'
        '                    union all'
        '                    select d.msg_id, d.message, d.vt from ('
        '                        select e.msg_id, e.vt, e.message from pgmq.%1$I e'
        '                         where e.headers is null and e.vt <= $1'
        '                         order by e.vt, e.msg_id limit 2000) d) u'
        '                 where (u.message ->> ''type'' = any($4)) is not true'
        '                 order by u.counts_from, u.msg_id limit $3))'
        '        and q.vt <= $1 for update skip locked))'
        ' returning m.msg_id, m.message', 'q_' || commandbus.physical_queue(p_queue))
       using p_now, p_vt, p_quantity, p_except, p_level_seconds, '{2,1,0,-1,-2}'::text[];
end $$;

-- Gives waiting commands another level; those that a worker has are refused. By default all or none.
create or replace function commandbus.set_priority(
    p_domain text, p_command_ids uuid[], p_priority int, p_actor text default null,
    p_is_strict boolean default true
) returns setof uuid
language plpgsql as $$
declare
    v_now   timestamptz;
    v_level smallint := nullif(p_priority, 0);
    v_moved record;
begin
    if p_priority is null or not p_priority between -2 and 2 then
        raise exception 'priority is %, not from -2 to 2', coalesce(p_priority::text, 'null')
            using errcode = 'CB012', hint = 'use -2, -1, 0, 1 or 2; 2 goes first';
    end if;
    perform commandbus.check_domain(p_domain);
    v_now := commandbus.lock_queued(p_domain, p_command_ids);
    perform commandbus.end_lapsed_paused(p_domain, p_command_ids, v_now);
    with before as (
        select c.domain, c.command_id, coalesce(c.priority, 0) as priority
          from commandbus.command_bus_command c
         where c.domain = p_domain and c.command_id = any(p_command_ids)
    ), moved as (
        update commandbus.command_bus_command c set priority = v_level, updated_at = v_now
          from before b
         where c.domain = b.domain and c.command_id = b.command_id
           and c.status = 'PENDING' and c.leased_by is null
        returning c.command_id, c.msg_id, c.batch_id, b.priority
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select p_domain, m.command_id, 'PRIORITY_CHANGED', v_now,
               jsonb_build_object('from', m.priority, 'to', p_priority), m.batch_id, p_actor
          from moved m where m.priority <> p_priority
    )
    select array_agg(m.command_id) as ids, array_agg(m.msg_id) filter (where m.msg_id is not null) as msgs
      into v_moved from moved m;
    if p_is_strict then
        perform commandbus.refuse_unmoved(
            p_domain, p_command_ids, v_moved.ids, 'prioritize', 'a command that is PENDING');
    end if;
    if v_moved.msgs is not null then
        if v_level is not null then
            perform commandbus.use_levels(p_domain, interval '1 hour');
        end if;
        execute format('update pgmq.%I q set headers = $2 where q.msg_id = any($1)',
                       'q_' || commandbus.physical_queue(p_domain || '.commands'))
          using v_moved.msgs, case when v_level is not null then jsonb_build_object('priority', v_level) end;
        -- Where it waits at a limit, another turn.
        update commandbus.command_bus_waiting w set seq = commandbus.turn_of(c, f.level_seconds)
          from commandbus.command_bus_command c join commandbus.command_bus_flow f on f.domain = c.domain
         where w.ctid = any(commandbus.waiting_rows(p_domain, v_moved.ids))
           and c.domain = p_domain and c.command_id = w.command_id;
    end if;
    return query select unnest(v_moved.ids);
end $$;

-- How many seconds of waiting one level is worth in a domain; 0: levels are ignored.
create or replace function commandbus.set_level_seconds(
    p_domain text, p_seconds double precision, p_actor text default null
) returns void
language plpgsql as $$
begin
    if p_seconds is null or not p_seconds between 0 and 31622400 then
        raise exception 'level_seconds is %, not from 0 to 31622400', coalesce(p_seconds::text, 'null')
            using errcode = 'CB012', hint = 'use seconds; 0 lets levels be ignored';
    end if;
    perform commandbus.check_domain(p_domain);
    insert into commandbus.command_bus_flow as f (domain, level_seconds) values (p_domain, p_seconds)
    on conflict (domain) do update set level_seconds = excluded.level_seconds, updated_at = clock_timestamp();
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values (p_domain, commandbus.nobody(), 'LEVELS_CHANGED', clock_timestamp(),
            jsonb_build_object('level_seconds', p_seconds), p_actor);
end $$;
