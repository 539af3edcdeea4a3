-- Figures: the domains there are, and what metrics show of each.

-- All domains: those with commands (one index probe each), and those with queues, also of replies only.
create or replace function commandbus.doctor_domains(p_domain text) returns setof text
language sql stable as $$
    with recursive known(name) as (
        select min(c.domain) from commandbus.command_bus_command c
        union all
        select (select min(c.domain) from commandbus.command_bus_command c where c.domain > k.name)
          from known k where k.name is not null
    )
    select d.name
      from (select k.name from known k where k.name is not null
            union
            select split_part(q.queue, '.', 1) from commandbus.own_queues() q
             where q.queue like '%.commands'
                or q.queue like '%.replies' and commandbus.is_made_by_us(q.physical)) d
     where p_domain is null or d.name = p_domain
     order by d.name
$$;

-- Those of them that have a queue of commands.
create or replace function commandbus.queued_domains(p_domain text default null) returns setof text
language sql stable as $$
    select d from commandbus.doctor_domains(p_domain) d where commandbus.queue_exists(d || '.commands')
$$;

-- The queues of replies of a domain: how many replies lie there, how many of them nobody has read, since
-- when, and how many messages were archived because they are no replies. Never a scan of a large
-- table: p_limit rows are looked at, and from there on the statistics are believed.
create or replace function commandbus.reply_backlog(p_domain text, p_limit int default 10000)
returns table (queue text, waiting bigint, unread bigint, unread_since timestamptz, refused bigint)
language plpgsql stable as $$
declare
    v_physical text;
    v_seen     bigint;
begin
    for queue, v_physical in
        select q.queue, q.physical from commandbus.own_queues() q
         where split_part(q.queue, '.', 1) = p_domain and q.queue like '%._%'
           and q.queue not like '%.commands' and q.queue not like '%.dispatch'
         order by 1
    loop
        execute format(
            'select count(*), count(*) filter (where h.is_reply),'
            '       count(*) filter (where h.is_reply and h.read_ct = 0),'
            '       min(h.enqueued_at) filter (where h.is_reply and h.read_ct = 0),'
            '       (select count(*) from (select from pgmq.%2$I limit $1) a)'
            '  from (select q.read_ct, q.enqueued_at, q.message ? ''outcome'' as is_reply'
            '          from pgmq.%1$I q order by q.msg_id limit $1) h', 'q_' || v_physical, 'a_' || v_physical)
           into v_seen, waiting, unread, unread_since, refused using p_limit;
        if v_seen = p_limit then
            waiting := greatest(waiting, (
                select t.reltuples::bigint from pg_class t
                 where t.oid = to_regclass('pgmq.' || quote_ident('q_' || v_physical))));
        end if;
        return next;
    end loop;
end $$;

-- The figures of all domains, for metrics: never a look at the table of commands. `delayed` is what
-- is leased, backs off or waits. Of each kind 100,000 are counted; more are an estimate (overview.sql). The caller
-- keeps the result for some seconds.
create or replace function commandbus.domain_figures()
returns table (
    domain text, ready bigint, delayed bigint, oldest_seconds double precision, parked bigint,
    workers bigint, concurrency bigint, in_flight bigint, heartbeat_seconds double precision,
    batch_remaining bigint, replies bigint, replies_refused bigint)
language plpgsql as $$
declare
    v_now    timestamptz := clock_timestamp();
    v_counts record;
begin
    for domain in select * from commandbus.doctor_domains(null) loop
        if commandbus.queue_exists(domain_figures.domain || '.commands') then
            v_counts := commandbus.queue_counts(domain_figures.domain, v_now, 100000);
            ready := v_counts.ready;
            delayed := v_counts.delayed + v_counts.waiting;
            -- among those that have been due for longest
            execute format(
                'select coalesce(extract(epoch from $1 - min(h.enqueued_at)), 0) from ('
                '    (select q.enqueued_at from pgmq.%1$I q where q.headers is null and q.vt <= $1'
                '      order by q.vt, q.msg_id limit 1000)'
                '    union all'
                '    select e.enqueued_at from unnest($2) s(level) cross join lateral ('
                '        select q.enqueued_at from pgmq.%1$I q where q.headers is not null'
                '           and q.headers ->> ''priority'' = s.level and q.vt <= $1'
                '         order by q.vt, q.msg_id limit 1000) e) h',
                'q_' || commandbus.physical_queue(domain_figures.domain || '.commands'))
               into oldest_seconds using v_now, '{2,1,0,-1,-2}'::text[];
        elsif commandbus.queue_exists(domain_figures.domain || '.replies') then
            -- a queue of replies that domains share
            select 0, 0, 0 into ready, delayed, oldest_seconds;
        else
            continue;
        end if;
        select coalesce(sum(b.waiting), 0), coalesce(sum(b.refused), 0) into replies, replies_refused
          from commandbus.reply_backlog(domain_figures.domain) b;
        select coalesce(sum(g.parked_count), 0) into parked
          from commandbus.command_bus_failure_group g where g.domain = domain_figures.domain;
        select count(*), coalesce(sum(w.concurrency), 0), coalesce(sum(w.in_flight), 0),
               coalesce(extract(epoch from clock_timestamp() - min(w.heartbeat_at)), 0)
          into workers, concurrency, in_flight, heartbeat_seconds
          from commandbus.command_bus_worker w where w.domain = domain_figures.domain;
        select coalesce(sum(b.total_count - b.completed_count - b.failed_count - b.canceled_count), 0)
          into batch_remaining
          from commandbus.command_bus_batch b
         where b.domain = domain_figures.domain and b.status in ('PENDING', 'IN_PROGRESS');
        return next;
    end loop;
end $$;

-- How much work a domain has at this moment, for an autoscaler: messages that are due, and commands that workers
-- have. Without the latter, workers that are busy with the last commands would be ended. What is delayed, backs off or
-- waits behind a key or a limit does not count, nor does what is due in a paused domain: more workers would not help.
-- Walks along the indexes of what is due, at most p_most entries of each level: the same cost however much is delayed.
-- What workers have is as old as their last heartbeat; that of one which is silent for a minute does not count: its
-- commands become due again. Calls are answered for domains that have no queue yet: 0.
create or replace function commandbus.scale_metric(p_domain text, p_most int default 10000) returns bigint
language plpgsql stable as $$
declare
    v_table text;
    v_now   timestamptz := clock_timestamp();
    v_due   bigint := 0;
    v_busy  bigint;
begin
    if commandbus.queue_exists(p_domain || '.commands')
       and not exists (select from commandbus.command_bus_flow f
                        where f.domain = p_domain and f.paused_at is not null
                          and coalesce(f.paused_until > v_now, true)) then
        v_table := 'q_' || commandbus.physical_queue(p_domain || '.commands');
        execute format(
            'select (select count(*) from (select from pgmq.%1$I q where q.headers is null and q.vt <= $1'
            '                               order by q.vt, q.msg_id limit $2) d)'
            '     + (select coalesce(sum(d.n), 0) from unnest($3) s(level) cross join lateral ('
            '            select count(*) as n from (select from pgmq.%1$I q'
            '             where q.headers is not null and q.headers ->> ''priority'' = s.level and q.vt <= $1'
            '             order by q.vt, q.msg_id limit $2) e) d)', v_table)
           into v_due using v_now, p_most, '{2,1,0,-1,-2}'::text[];
    end if;
    select coalesce(sum(w.in_flight), 0) into v_busy from commandbus.command_bus_worker w
     where w.domain = p_domain and w.heartbeat_at > v_now - interval '1 minute';
    return v_due + v_busy;
end $$;

-- What of a domain is on its way to its queue: how long the oldest command has waited to be queued, how many
-- wait for a retry, how many a queue in another database has and since when. Of each kind the oldest
-- 10,000 are looked at, so that a look costs the same however many there are.
create or replace function commandbus.dispatch_figures(
    p_domain text, out lag_seconds double precision, out pending_retry bigint,
    out unconfirmed bigint, out unconfirmed_seconds double precision)
language plpgsql stable as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    select coalesce(extract(epoch from v_now - min(w.created_at)), 0),
           count(*) filter (where w.dispatch_status = 'pending_retry')
      into lag_seconds, pending_retry
      from (select c.created_at, c.dispatch_status from commandbus.command_bus_command c
             where (c.domain, c.created_at) >= (p_domain, timestamptz '-infinity')
               and (c.domain, c.created_at) <= (p_domain, timestamptz 'infinity')
               and c.dispatch_status in ('pending_retry', 'pending_queue')
             order by c.domain, c.created_at limit 10000) w;
    select count(*), coalesce(extract(epoch from v_now - min(w.handed_at)), 0)
      into unconfirmed, unconfirmed_seconds
      from (select u.handed_at from commandbus.command_bus_unconfirmed u
             where (u.domain, u.handed_at) >= (p_domain, timestamptz '-infinity')
               and (u.domain, u.handed_at) <= (p_domain, timestamptz 'infinity')
             order by u.domain, u.handed_at limit 10000) w;
end $$;
