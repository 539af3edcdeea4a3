-- Overview: how the domains stand, for a page that people look at. What it costs does not depend on how much is
-- queued: a figure is exact up to a bound, and above it an estimate that is called one.

-- How many rows the planner expects of a queue; only to share out what the statistics say of the whole. `explain`
-- needs a function that is not `stable`, and so do its callers.
create or replace function commandbus.expected_rows(p_table text, p_first timestamptz, p_last timestamptz)
returns numeric
language plpgsql as $$
declare
    v_plan json;
begin
    execute format('explain (format json) select from pgmq.%I q where q.vt between $1 and $2', p_table)
       into v_plan using p_first, p_last;
    return greatest((v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric, 1);
end $$;

-- What is in the queue of a domain: ready, delayed (leased, backing off, due later), waiting (for a key, a limit or a
-- pause). Each is counted along the indexes of what is due, up to p_most; `about` names those that are more, and
-- are estimates. due_since: since when the first of the ready ones has been due.
create or replace function commandbus.queue_counts(
    p_domain text, p_now timestamptz, p_most int,
    out ready bigint, out delayed bigint, out waiting bigint, out about text[], out due_since timestamptz)
language plpgsql as $$
declare
    c_names constant text[] := array['ready', 'delayed', 'waiting'];
    -- when those of each kind are due; there is no later time than the second but infinity
    v_first timestamptz[] := array['-infinity', p_now + interval '1 microsecond', 'infinity'];
    v_last  timestamptz[] := array[p_now, '294276-12-31 23:59:59.999999+00', 'infinity'];
    v_table text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
    v_oid   oid := to_regclass('pgmq.' || quote_ident(v_table));
    v_due   timestamptz;
    v_found numeric[] := '{}';
    v_shown numeric[];
    v_parts numeric[] := '{0,0,0}';
    v_count numeric;
    v_rest  numeric;
begin
    about := '{}';
    for v_kind in 1 .. 3 loop
        execute format(
            'select n.found + l.found, least(n.first, l.first)'
            '  from (select count(*) as found, min(d.vt) as first from ('
            '            select q.vt from pgmq.%1$I q where q.headers is null and q.vt between $1 and $2'
            '             order by q.vt, q.msg_id limit $3) d) n'
            ' cross join (select coalesce(sum(k.found), 0) as found, min(k.first) as first'
            '     from unnest($4) s(level) cross join lateral ('
            '        select count(*) as found, min(e.vt) as first from ('
            '            select q.vt from pgmq.%1$I q'
            '             where q.headers is not null and q.headers ->> ''priority'' = s.level'
            '               and q.vt between $1 and $2'
            '             order by q.vt, q.msg_id limit $3) e) k) l', v_table)
           into v_count, v_due
          using v_first[v_kind], v_last[v_kind], p_most + 1, '{2,1,0,-1,-2}'::text[];
        v_found := v_found || v_count;
        if v_kind = 1 then
            due_since := v_due;
        end if;
        if v_count > p_most then
            about := about || c_names[v_kind];
            v_parts[v_kind] := commandbus.expected_rows(v_table, v_first[v_kind], v_last[v_kind]);
        end if;
    end loop;
    v_shown := v_found;
    if about <> '{}' then
        -- After a crash the server has forgotten its statistics.
        v_rest := coalesce(nullif(pg_stat_get_live_tuples(v_oid), 0),
                           (select t.reltuples::bigint from pg_class t where t.oid = v_oid));
        for v_kind in 1 .. 3 loop
            v_rest := v_rest - case when v_parts[v_kind] = 0 then v_found[v_kind] else 0 end;
        end loop;
        for v_kind in 1 .. 3 loop
            if v_parts[v_kind] > 0 then
                v_shown[v_kind] := greatest(
                    v_found[v_kind], round(v_rest * v_parts[v_kind] / (v_parts[1] + v_parts[2] + v_parts[3])));
            end if;
        end loop;
    end if;
    ready := v_shown[1];
    delayed := v_shown[2];
    waiting := v_shown[3];
end $$;

-- The domains that have a queue of commands, by name.
create or replace function commandbus.domain_names(p_limit int) returns setof text
language sql stable as $$
    select d from commandbus.queued_domains() d order by d limit p_limit
$$;

-- All domains that have a queue of commands, or those that are named; 500 at most. From 50 ms on, which is many deep
-- queues, fewer are counted of those that follow. A worker that is silent for a minute counts as silent.
create or replace function commandbus.domain_overview(p_domains text[] default null, p_most int default 10000)
returns table (
    domain text, ready bigint, delayed bigint, waiting bigint, about text[], due_seconds double precision,
    parked bigint, workers bigint, silent bigint, concurrency bigint, in_flight bigint, stuck bigint,
    is_paused boolean, paused_until timestamptz)
language plpgsql as $$
declare
    v_now    timestamptz := clock_timestamp();
    v_counts record;
begin
    for domain, parked, workers, silent, concurrency, in_flight, stuck, is_paused, paused_until in
        select d, coalesce(g.parked, 0), coalesce(w.workers, 0), coalesce(w.silent, 0),
               coalesce(w.concurrency, 0), coalesce(w.in_flight, 0), coalesce(w.stuck, 0),
               f.domain is not null, f.paused_until
          from commandbus.queued_domains() d
          left join (select g.domain, sum(g.parked_count) as parked
                       from commandbus.command_bus_failure_group g group by 1) g on g.domain = d
          left join (select w.domain, count(*) filter (where w.heartbeat_at > v_now - interval '1 minute') as workers,
                            count(*) filter (where w.heartbeat_at <= v_now - interval '1 minute') as silent,
                            sum(w.concurrency) filter (where w.heartbeat_at > v_now - interval '1 minute')
                                as concurrency,
                            sum(w.in_flight) filter (where w.heartbeat_at > v_now - interval '1 minute')
                                as in_flight,
                            sum(w.stuck) as stuck
                       from commandbus.command_bus_worker w group by 1) w on w.domain = d
          left join commandbus.paused_domains() f on f.domain = d
         where p_domains is null or d = any(p_domains)
         order by d limit 500
    loop
        v_counts := commandbus.queue_counts(
            domain_overview.domain, v_now,
            case when clock_timestamp() > v_now + interval '50 milliseconds' then p_most / 10 else p_most end);
        ready := v_counts.ready;
        delayed := v_counts.delayed;
        waiting := v_counts.waiting;
        about := v_counts.about;
        due_seconds := coalesce(extract(epoch from v_now - v_counts.due_since), 0);
        return next;
    end loop;
end $$;
