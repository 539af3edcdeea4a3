-- Activity: what goes on in the domains, for somebody who looks every second. Each look costs the same however much
-- is queued, waits or has failed: of each domain p_most messages are counted, and from there on statistics are believed.

-- A look at each domain. queued_total and left_total are the statistics of the server about its queue: messages ever put into
-- it and taken out of it. They only grow, until the server forgets them after a crash; two looks give the rates.
-- A worker that is silent for a minute counts no more, as in scale_metric.
create or replace function commandbus.domain_activity(p_domain text default null, p_most int default 10000)
returns table (
    domain text, ready bigint, delayed bigint, is_estimate boolean, oldest_seconds double precision,
    queued_total bigint, left_total bigint, workers bigint, concurrency bigint, in_flight bigint,
    parked bigint, is_paused boolean)
language plpgsql stable as $$
declare
    v_name  text;
    v_table oid;
    v_seen  bigint;
    v_rows  bigint;
    v_now   timestamptz := clock_timestamp();
begin
    for domain in select d from commandbus.queued_domains(p_domain) d limit 500 loop
        v_name := 'q_' || commandbus.physical_queue(domain_activity.domain || '.commands');
        v_table := to_regclass('pgmq.' || quote_ident(v_name));
        execute format(
            'select count(*), count(*) filter (where h.vt <= $1), count(*) filter (where h.vt > $1),'
            '       coalesce(extract(epoch from $1 - min(h.enqueued_at) filter (where h.vt <= $1)), 0)'
            '  from (select q.vt, q.enqueued_at from pgmq.%I q order by q.msg_id limit $2) h', v_name)
           into v_seen, ready, delayed, oldest_seconds using v_now, p_most;
        is_estimate := v_seen >= p_most;
        if is_estimate then
            -- what is beyond is taken to be like what was counted
            v_rows := greatest(pg_stat_get_live_tuples(v_table), v_seen);
            ready := ready * v_rows / v_seen;
            delayed := v_rows - ready;
        end if;
        queued_total := pg_stat_get_tuples_inserted(v_table);
        left_total := pg_stat_get_tuples_deleted(v_table);
        select count(*), coalesce(sum(w.concurrency), 0), coalesce(sum(w.in_flight), 0)
          into workers, concurrency, in_flight from commandbus.command_bus_worker w
         where w.domain = domain_activity.domain and w.heartbeat_at > v_now - interval '1 minute';
        select coalesce(sum(g.parked_count), 0) into parked
          from commandbus.command_bus_failure_group g where g.domain = domain_activity.domain;
        is_paused := exists (select from commandbus.paused_domains(array[domain_activity.domain]));
        return next;
    end loop;
end $$;

-- The workers that have given a sign of life, the most silent first: they are the ones to look at.
create or replace function commandbus.worker_activity(p_domain text default null, p_most int default 500)
returns table (
    worker_id text, domain text, concurrency int, in_flight int, stuck int, is_idle boolean,
    heartbeat_seconds double precision, up_seconds double precision)
language sql stable as $$
    select w.worker_id, w.domain, w.concurrency, w.in_flight, w.stuck, w.is_idle,
           extract(epoch from clock_timestamp() - w.heartbeat_at)::double precision,
           extract(epoch from clock_timestamp() - w.started_at)::double precision
      from commandbus.command_bus_worker w
     where p_domain is null or w.domain = p_domain
     order by w.heartbeat_at, w.worker_id limit p_most
$$;

-- The execution limits, as list_limits has them, without tokens; of what waits p_most are counted.
create or replace function commandbus.limit_activity(p_domain text default null, p_most int default 10000)
returns table (
    domain text, command_type text, by_key boolean, max_running int, rate double precision,
    per_seconds double precision, burst double precision, is_paused boolean, running bigint, waiting bigint,
    oldest_seconds double precision)
language sql stable as $$
    select r.domain, nullif(r.command_type, ''), r.by_key, r.max_running, r.rate, r.per_seconds, r.burst,
           r.paused_at is not null and coalesce(r.paused_until > clock_timestamp(), true),
           (select count(*) from (select from commandbus.command_bus_slot s
             where s.domain = r.domain and s.gate >= b.first and s.gate < b.last limit p_most) n),
           w.n, coalesce(extract(epoch from clock_timestamp() - w.oldest), 0)::double precision
      from (select * from commandbus.command_bus_flow_rule r where p_domain is null or r.domain = p_domain
             order by r.domain, r.command_type, r.by_key limit 500) r
     cross join lateral (
           select case when r.command_type = '' then 'l:d' when r.by_key then 'l:k:' || r.command_type || '/'
                       else 'l:t:' || r.command_type end as first) a
     cross join lateral (
           -- 0 follows / in the order of bytes
           select a.first, case when r.by_key then 'l:k:' || r.command_type || '0' else a.first || chr(1) end
           as last) b
     cross join lateral (
           select count(*) as n, min(n.since) as oldest from (
                select w.since from commandbus.command_bus_waiting w
                 where w.domain = r.domain and w.gate >= b.first and w.gate < b.last limit p_most) n) w
     order by r.domain, r.command_type, r.by_key
$$;
