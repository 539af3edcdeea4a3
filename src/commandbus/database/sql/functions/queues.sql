-- Queues: the PGMQ queues of commands and replies, their tables, and the messages in them. Nothing here
-- knows of commands.

-- Whether a queue has been made.
create or replace function commandbus.queue_exists(p_queue text) returns boolean
language sql stable as $$
    select to_regclass('pgmq.' || quote_ident('q_' || commandbus.physical_queue(p_queue))) is not null
$$;

-- The same of a domain, for callers from outside: queue_exists is part of each send, and must stay one that the
-- planner puts into its callers.
create or replace function commandbus.knows_domain(p_domain text) returns boolean
language sql stable as $$ select commandbus.queue_exists(p_domain || '.commands') $$;

-- The queues of this installation, by their logical names. Another schema's begin with its mark, and a
-- domain begins with a letter.
create or replace function commandbus.own_queues() returns table (queue text, physical text)
language sql stable as $$
    select regexp_replace(substr(m.queue_name, length(commandbus.queue_mark()) + 1), '__(?=[a-z])', '.'),
           m.queue_name::text
      from pgmq.meta m where m.queue_name ~ ('^' || commandbus.queue_mark() || '[a-z]')
$$;

-- Whether we made a queue, and not another program that uses PGMQ: by the storage parameters of ensure_queue. One
-- of them is enough, since somebody may have tuned the others.
create or replace function commandbus.is_made_by_us(p_physical text) returns boolean
language sql stable as $$
    select exists (select from pg_class t
                    where t.oid = to_regclass('pgmq.' || quote_ident('q_' || p_physical))
                      and t.reloptions && array['autovacuum_vacuum_threshold=1000', 'fillfactor=50',
                                                'autovacuum_vacuum_scale_factor=0.01'])
$$;

-- The domain of a queue of commands, by the name that PGMQ has for it.
create or replace function commandbus.queue_domain(p_physical text) returns text
language sql immutable as $$
    select substr(left(p_physical, -length('__commands')), length(commandbus.queue_mark()) + 1)
$$;

-- Creates a queue if it is missing. The storage parameters keep dead messages from piling up at the
-- head of the queue, where every read would have to step over them, and leave room in each page for
-- the leased version of its messages: the log then takes what changed, not the message.
create or replace function commandbus.ensure_queue(p_queue text) returns void
language plpgsql as $$
declare
    v_physical text := commandbus.physical_queue(p_queue);
begin
    if commandbus.queue_exists(p_queue) then
        return;
    end if;
    if v_physical !~ ('^' || commandbus.queue_mark() || '[a-z][a-z0-9_]*$') or length(v_physical) > 47 then
        raise exception 'queue name % is not well formed', quote_literal(p_queue)
            using errcode = 'CB005',
                  hint = format('use <domain>.<suffix>, at most %s characters in all',
                                47 - length(commandbus.queue_mark()));
    end if;
    perform pgmq.create(v_physical);
    if p_queue like '%.commands' then
        -- PGMQ's own index, made fit for read_messages: what became due at once comes in its order. Messages that
        -- have a level are in the other one (levels.sql), each in one of the two.
        execute format('drop index pgmq.%I', 'q_' || v_physical || '_vt_idx');
        execute format('create index %I on pgmq.%I (vt, msg_id) where headers is null',
                       'q_' || v_physical || '_vt_idx', 'q_' || v_physical);
        -- if not: another session may have made the queue at the same moment
        execute format('create index if not exists %I on pgmq.%I ((headers ->> ''priority''), vt, msg_id)'
                       ' where headers is not null', 'q_' || v_physical || '_level_idx', 'q_' || v_physical);
    end if;
    execute format(
        'alter table pgmq.%I set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01,'
        ' autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)', 'q_' || v_physical);
    perform commandbus.make_queue_verbs(v_physical);
end $$;

-- The two queues of a domain, made on first use.
create or replace function commandbus.ensure_domain(p_domain text) returns void
language plpgsql as $$
begin
    perform commandbus.check_domain(p_domain);
    perform commandbus.check_shard(p_domain);
    perform commandbus.ensure_queue(p_domain || '.commands');
    perform commandbus.ensure_queue(p_domain || '.replies');
end $$;

-- Puts messages into a queue, due at once, and returns their ids in order. What pgmq.send_batch does,
-- in one statement instead of four nested functions, which a single send would feel.
create or replace function commandbus.put_messages(p_queue text, p_messages jsonb[]) returns bigint[]
language plpgsql as $$
declare
    v_physical text := commandbus.physical_queue(p_queue);
    v_is_one   boolean := cardinality(p_messages) = 1;
    v_put      text := commandbus.queue_verb(case when v_is_one then 'put' else 'fill' end, v_physical);
    v_msg_ids  bigint[];
begin
    if v_put is null then
        execute format(
            'with put as (insert into pgmq.%I (vt, message) select $1, m from unnest($2) m returning msg_id)'
            ' select array_agg(p.msg_id order by p.msg_id) from put p', 'q_' || v_physical)
           into v_msg_ids using clock_timestamp(), p_messages;
    elsif v_is_one then
        execute 'select ' || v_put || '($1)' into v_msg_ids using p_messages[1];
    else
        execute 'select ' || v_put || '($1)' into v_msg_ids using p_messages;
    end if;
    return v_msg_ids;
end $$;

-- The same for lines, each a message without its beginning, which all have in common.
create or replace function commandbus.put_packed(p_queue text, p_head text, p_lines text) returns bigint[]
language plpgsql as $$
declare
    v_msg_ids bigint[];
begin
    execute format(
        'with put as (insert into pgmq.%I (vt, message)'
        '     select $1, ($2 || line)::jsonb from string_to_table($3, E''\n'') line returning msg_id)'
        ' select array_agg(p.msg_id order by p.msg_id) from put p', 'q_' || commandbus.physical_queue(p_queue))
       into v_msg_ids using clock_timestamp(), p_head, p_lines;
    return v_msg_ids;
end $$;

-- Leases the messages that have been due for longest. In the order of vt, not of msg_id as pgmq.read
-- does: there a read steps over every message that backs off before it finds one that is due, and
-- after an outage those are a hundred thousand at the head of the queue (docs/adr/0019). p_now is a
-- parameter, because clock_timestamp() could not be looked up in an index.
-- In that order a message whose lease lapsed stands behind all that waited meanwhile. A worker asks
-- now and then for what is due among the thousand oldest first, and for leases that have lapsed lately: p_from_head.
-- p_except: command types that the worker leaves to others. It looks for the rest among the ten thousand
-- that have been due for longest, not behind them: the others may be millions.
create or replace function commandbus.read_messages(
    p_queue text, p_now timestamptz, p_vt int, p_quantity int, p_from_head boolean default false,
    p_except text[] default '{}'
) returns table (msg_id bigint, message jsonb)
language plpgsql as $$
declare
    v_table text := 'q_' || commandbus.physical_queue(p_queue);
    v_taken int := 0;
begin
    if p_except <> '{}' then
        return query execute format(
            'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.ctid = any(array('
            '     select q.ctid from pgmq.%1$I q'
            '      where q.msg_id = any(array('
            '                select d.msg_id from ('
            '                    select e.msg_id, e.vt, e.message from pgmq.%1$I e'
            '                     where e.headers is null and e.vt <= $1'
            '                     order by e.vt, e.msg_id limit 10000) d'
            '                 where (d.message ->> ''type'' = any($4)) is not true'
            '                 order by d.vt, d.msg_id limit $3))'
            '        and q.vt <= $1 for update skip locked))'
            ' returning m.msg_id, m.message', v_table) using p_now, p_vt, p_quantity, p_except;
        return;
    end if;
    if p_from_head then
        return query execute format(
            'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.ctid = any(array('
            '     select q.ctid from pgmq.%1$I q'
            '      where q.msg_id = any(array('
            '                select h.msg_id from pgmq.%1$I h order by h.msg_id limit 1000) || $4)'
            '        and q.vt <= $1'
            '      order by q.msg_id limit $3 for update skip locked))'
            ' returning m.msg_id, m.message', v_table)
           using p_now, p_vt, p_quantity, commandbus.lapsed_lately(p_queue, p_now);
        get diagnostics v_taken = row_count;
    end if;
    if v_taken < p_quantity then
        return query execute format(
            'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.ctid = any(array('
            '     select q.ctid from pgmq.%1$I q where q.headers is null and q.vt <= $1'
            '      order by q.vt, q.msg_id limit $3 for update skip locked))'
            ' returning m.msg_id, m.message', v_table) using p_now, p_vt, p_quantity - v_taken;
    end if;
end $$;

-- Messages of leases that have lapsed, among the two thousand of each level that became due last: a lease lapses when
-- its message becomes due. Not one that backs off, or was delayed: for these it is the order of all others. So a
-- lapsed lease is found although thousands of older messages stand aside, unless thousands come each second as well.
create or replace function commandbus.lapsed_lately(p_queue text, p_now timestamptz) returns bigint[]
language plpgsql stable as $$
declare
    v_found bigint[];
begin
    execute format(
        'select array_agg(h.msg_id) from ('
        '    (select e.msg_id, e.read_ct, e.message from pgmq.%1$I e where e.headers is null and e.vt <= $1'
        '      order by e.vt desc, e.msg_id desc limit 2000)'
        '    union all'
        '    select l.* from unnest($3) s(level) cross join lateral ('
        '        select e.msg_id, e.read_ct, e.message from pgmq.%1$I e'
        '         where e.headers is not null and e.headers ->> ''priority'' = s.level and e.vt <= $1'
        '         order by e.vt desc, e.msg_id desc limit 2000) l) h'
        ' where h.read_ct > 0 and exists ('
        '    select from commandbus.command_bus_command c'
        '     where c.domain = $2 and c.command_id = commandbus.message_command_id(h.message)'
        '       and c.leased_by is not null and c.msg_id = h.msg_id)',
        'q_' || commandbus.physical_queue(p_queue))
       into v_found using p_now, split_part(p_queue, '.', 1), '{2,1,0,-1,-2}'::text[];
    return v_found;
end $$;
