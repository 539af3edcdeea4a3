-- Support: names, locks, audit, wake-ups. Nothing here changes the state of a command.
--
-- Lock order, everywhere: queue message -> command -> batch -> failure group -> audit; arrays sorted.
-- Whoever needs several takes them in that order, or two sessions deadlock exactly when a
-- lease lapses (receive holds the message and wants the command).
--
-- Refusals carry their own SQLSTATE, which commandbus.errors maps to a class:
--   CB001 duplicate command      CB002 command not found     CB003 not in a state that allows it
--   CB004 batch not found        CB005 badly formed name     CB006 payload no longer archived
--   CB007 setting refused        CB008 append-only table     CB009 other total than expected
--   CB010 bulk operation not found

create or replace function commandbus.check_domain(p_domain text) returns void
language plpgsql immutable as $$
begin
    -- 37 + length('__commands') = 47, the longest name PGMQ takes. `__` stands for the dot.
    if p_domain is null or p_domain !~ '^[a-z][a-z0-9_]{0,36}$' or p_domain ~ '__' then
        raise exception 'domain % is not well formed', coalesce(quote_literal(p_domain), 'null')
            using errcode = 'CB005',
                  hint = 'use a-z, 0-9 and single underscores, a letter first, at most 37 characters';
    end if;
end $$;

-- The one place where a logical, dotted queue name becomes the name of a PGMQ queue.
create or replace function commandbus.physical_queue(p_queue text) returns text
language sql immutable as $$ select replace(p_queue, '.', '__') $$;

create or replace function commandbus.queue_exists(p_queue text) returns boolean
language sql stable as $$
    select to_regclass('pgmq.' || quote_ident('q_' || commandbus.physical_queue(p_queue))) is not null
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
    if v_physical !~ '^[a-z][a-z0-9_]{0,46}$' then
        raise exception 'queue name % is not well formed', quote_literal(p_queue)
            using errcode = 'CB005', hint = 'use <domain>.<suffix>, at most 47 characters in all';
    end if;
    perform pgmq.create(v_physical);
    if p_queue like '%.commands' then
        -- PGMQ's own index, made fit for read_messages: what became due at once comes in its order.
        execute format('drop index pgmq.%I', 'q_' || v_physical || '_vt_idx');
        execute format('create index %I on pgmq.%I (vt, msg_id)', 'q_' || v_physical || '_vt_idx',
                       'q_' || v_physical);
    end if;
    execute format(
        'alter table pgmq.%I set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01,'
        ' autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)', 'q_' || v_physical);
end $$;

-- Puts messages into a queue, due at once, and returns their ids in order. What pgmq.send_batch does,
-- in one statement instead of four nested functions, which a single send would feel.
create or replace function commandbus.put_messages(p_queue text, p_messages jsonb[]) returns bigint[]
language plpgsql as $$
declare
    v_msg_ids bigint[];
    v_table   text := 'q_' || commandbus.physical_queue(p_queue);
begin
    if cardinality(p_messages) = 1 then
        execute format('insert into pgmq.%I (vt, message) values ($1, $2) returning array[msg_id]', v_table)
           into v_msg_ids using clock_timestamp(), p_messages[1];
        return v_msg_ids;
    end if;
    execute format(
        'with put as (insert into pgmq.%I (vt, message) select $1, m from unnest($2) m returning msg_id)'
        ' select array_agg(p.msg_id order by p.msg_id) from put p', v_table)
       into v_msg_ids using clock_timestamp(), p_messages;
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
-- now and then for what is due among the thousand oldest first: p_from_head.
create or replace function commandbus.read_messages(
    p_queue text, p_now timestamptz, p_vt int, p_quantity int, p_from_head boolean default false
) returns table (msg_id bigint, message jsonb)
language plpgsql
set enable_indexscan = on -- the caller has switched it off, see there; here it gives the order
as $$
declare
    v_table text := 'q_' || commandbus.physical_queue(p_queue);
    v_taken int := 0;
begin
    if p_from_head then
        return query execute format(
            'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.ctid = any(array('
            '     select q.ctid from pgmq.%1$I q'
            '      where q.msg_id = any(array('
            '                select h.msg_id from pgmq.%1$I h order by h.msg_id limit 1000))'
            '        and q.vt <= $1'
            '      order by q.msg_id limit $3 for update skip locked))'
            ' returning m.msg_id, m.message', v_table) using p_now, p_vt, p_quantity;
        get diagnostics v_taken = row_count;
    end if;
    if v_taken < p_quantity then
        return query execute format(
            'update pgmq.%1$I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.ctid = any(array('
            '     select q.ctid from pgmq.%1$I q where q.vt <= $1'
            '      order by q.vt, q.msg_id limit $3 for update skip locked))'
            ' returning m.msg_id, m.message', v_table) using p_now, p_vt, p_quantity - v_taken;
    end if;
end $$;

create or replace function commandbus.ensure_domain(p_domain text) returns void
language plpgsql as $$
begin
    perform commandbus.check_domain(p_domain);
    perform commandbus.ensure_queue(p_domain || '.commands');
    perform commandbus.ensure_queue(p_domain || '.replies');
end $$;

-- Locks the messages of an outcome in one order before the commands are touched: PGMQ's own
-- delete, archive and set_vt match on msg_id alone and know nothing of a lost lease.
create or replace function commandbus.lock_messages(p_queue text, p_msg_ids bigint[]) returns void
language plpgsql as $$
begin
    execute format(
        'select 1 from pgmq.%I where msg_id = any($1) order by msg_id for update',
        'q_' || commandbus.physical_queue(p_queue)) using p_msg_ids;
end $$;

create or replace function commandbus.setting(p_name text) returns text
language sql stable as $$
    select s.value from commandbus.command_bus_setting s where s.name = p_name
$$;

create or replace function commandbus.iso8601(p_ts timestamptz) returns text
language sql stable as $$
    select to_char(p_ts at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

create or replace function commandbus.milliseconds_since(p_began timestamptz) returns double precision
language sql volatile as $$
    select round(extract(epoch from clock_timestamp() - p_began) * 1000, 3)::double precision
$$;

-- One hint per call, and only if some worker of the domain says that it waits: NOTIFY takes a
-- lock on all commits of the server, so under load nobody should send one. Polling is what
-- delivery rests on; a lost hint costs latency, never a command.
create or replace function commandbus.wake_workers(p_domain text) returns void
language plpgsql as $$
begin
    if exists (select from commandbus.command_bus_worker w
                where w.domain = p_domain and w.is_idle
                  and w.heartbeat_at > clock_timestamp() - interval '30 seconds') then
        perform pg_notify('commandbus' || '.' || p_domain, p_domain || '.commands');
    end if;
end $$;

-- The audit is append-only for everyone, the owner included; only the pruning function may delete,
-- and it is known by its place in the call stack, which a setting could not prove. The stack shows the
-- schema only if it is not on the search path: prune_audit has a path of its own. The whole of its
-- first three lines must fit, from the start: statements and quoted names can hold line breaks and
-- anything after them, but nothing can follow this very statement and still be SQL.
create or replace function commandbus.refuse_audit_change() returns trigger
language plpgsql as $$
declare
    v_stack text;
begin
    get diagnostics v_stack = pg_context;
    if tg_op = 'DELETE' and v_stack ~ (
        '^PL/pgSQL function (commandbus\.)?refuse_audit_change\(\) line \d+ at GET DIAGNOSTICS\n'
        'SQL statement "delete from commandbus\.command_bus_audit a where a\.audit_id = any\(v_ids\)"\n'
        'PL/pgSQL function commandbus\.prune_audit\([a-z, ]*\) line \d+ at SQL statement(\n|$)') then
        return null;
    end if;
    raise exception '% on % is refused: the audit is append-only', tg_op, tg_table_name
        using errcode = 'CB008';
end $$;

create or replace trigger command_bus_audit_append_only
    before update or delete or truncate on commandbus.command_bus_audit
    for each statement execute function commandbus.refuse_audit_change();

-- Workers say that they are alive, and whether they wait. synchronous_commit is off because a
-- heartbeat lost in a crash is worth nothing anyway, and an idle worker should cost no fsync.
create or replace function commandbus.worker_heartbeat(
    p_worker text, p_domain text, p_is_idle boolean, p_concurrency int, p_in_flight int
) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into commandbus.command_bus_worker as w (worker_id, domain, is_idle, concurrency, in_flight)
    values (p_worker, p_domain, p_is_idle, p_concurrency, p_in_flight)
    on conflict (worker_id) do update
       set is_idle = excluded.is_idle, concurrency = excluded.concurrency,
           in_flight = excluded.in_flight, heartbeat_at = clock_timestamp();
end $$;

create or replace function commandbus.worker_gone(p_worker text) returns void
language sql as $$
    delete from commandbus.command_bus_worker
     where worker_id = p_worker or heartbeat_at < clock_timestamp() - interval '1 day'
$$;
