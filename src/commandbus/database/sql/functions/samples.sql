-- Samples: how much comes and goes, by domain, and how often each cause of failure was seen. No command pays for it:
-- once in ten seconds one process compares counters that are there anyway with where they stood before.
--   queued:    numbers that the queue gave to messages; exact, but for sends that were rolled back. What an operator
--              or a batch sends again counts again
--   removed:   messages that left the queue, no matter who took them out, as the statistics of the server tell: about a
--              second late, and after a crash the server counts from 0 again
--   completed, failed, parked, retried: as heartbeats of workers tell, up to five seconds late; not what consumers
--              without handlers and operators settle

-- Takes a sample of all domains, if none was taken for p_every; returns whether this call did.
create or replace function commandbus.sample_domains(p_every interval default '8 seconds') returns boolean
language plpgsql as $$
declare
    v_now    timestamptz := clock_timestamp();
    v_before timestamptz := (select k.started_at from commandbus.command_bus_chore k
                              where k.name = 'sample the domains');
    v_gap    double precision := extract(epoch from v_now - v_before);
begin
    if not commandbus.claim_chore('sample the domains', p_every) then
        return false;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    with found as materialized (
        select d as domain,
               coalesce(pg_sequence_last_value(pg_get_serial_sequence(q.place, 'msg_id')::regclass), 0) as queued,
               pg_stat_get_tuples_deleted(q.place::regclass) as removed
          from commandbus.queued_domains() d
         cross join lateral (select 'pgmq.' || quote_ident(
                   'q_' || commandbus.physical_queue(d || '.commands')) as place) q
    ), stand as materialized (
        select f.*, coalesce(t.gone_completed, 0) + coalesce(w.completed, 0) as completed,
               coalesce(t.gone_failed, 0) + coalesce(w.failed, 0) as failed,
               coalesce(t.gone_parked, 0) + coalesce(w.parked, 0) as parked,
               coalesce(t.gone_retried, 0) + coalesce(w.retried, 0) as retried
          from found f
          left join commandbus.command_bus_tally t on t.domain = f.domain
          left join (select w.domain, sum(w.completed) as completed, sum(w.failed) as failed,
                            sum(w.parked) as parked, sum(w.retried) as retried
                       from commandbus.command_bus_worker w group by 1) w on w.domain = f.domain
    ), moved as materialized (
        -- a counter that is behind has begun anew; of workers that vanished nothing more is known
        select s.domain, s.queued - case when s.queued < t.queued then 0 else t.queued end as queued,
               s.removed - case when s.removed < t.removed then 0 else t.removed end as removed,
               greatest(s.completed - t.completed, 0) as completed, greatest(s.failed - t.failed, 0) as failed,
               greatest(s.parked - t.parked, 0) as parked, greatest(s.retried - t.retried, 0) as retried
          from stand s join commandbus.command_bus_tally t on t.domain = s.domain
    ), noted as (
        insert into commandbus.command_bus_sample as s (
            seconds, at, domain, queued, removed, completed, failed, parked, retried)
        select k.seconds, date_bin(make_interval(secs => k.seconds), v_now, timestamptz 'epoch'), m.domain,
               round(m.queued * k.share), round(m.removed * k.share), round(m.completed * k.share),
               round(m.failed * k.share), round(m.parked * k.share), round(m.retried * k.share)
          from moved m
         -- after a time in which nobody took samples, only the share of this one
         cross join (values (10::smallint, case when v_gap > 30 then 10 / v_gap else 1 end),
                            (60::smallint, case when v_gap > 90 then 60 / v_gap else 1 end)) k(seconds, share)
         where greatest(m.queued, m.removed, m.completed, m.failed, m.parked, m.retried) > 0
         order by k.seconds, m.domain
        on conflict (seconds, at, domain) do update
           set queued = s.queued + excluded.queued, removed = s.removed + excluded.removed,
               completed = s.completed + excluded.completed, failed = s.failed + excluded.failed,
               parked = s.parked + excluded.parked, retried = s.retried + excluded.retried
    )
    insert into commandbus.command_bus_tally as t (
        domain, since, queued, removed, completed, failed, parked, retried)
    select s.domain, v_now, s.queued, s.removed, s.completed, s.failed, s.parked, s.retried
      from stand s order by s.domain
    on conflict (domain) do update
       set queued = excluded.queued, removed = excluded.removed, completed = excluded.completed,
           failed = excluded.failed, parked = excluded.parked, retried = excluded.retried
     where (t.queued, t.removed, t.completed, t.failed, t.parked, t.retried) is distinct from
           (excluded.queued, excluded.removed, excluded.completed, excluded.failed, excluded.parked,
            excluded.retried);
    if commandbus.claim_chore('sample the failures', interval '55 seconds') then
        perform commandbus.sample_groups(v_now);
        delete from commandbus.command_bus_sample s
         where s.seconds = 10 and s.at < v_now - interval '2 hours'
            or s.seconds = 60 and s.at < v_now - interval '7 days';
    end if;
    return true;
end $$;

-- How often each failure group of the last hour was seen since it was last looked at.
create or replace function commandbus.sample_groups(p_now timestamptz) returns void
language plpgsql as $$
begin
    insert into commandbus.command_bus_group_sample as s (domain, fingerprint, hour, seen, total)
    select g.domain, g.fingerprint, date_trunc('hour', p_now),
           case when l.total is null and g.first_seen > p_now - interval '1 hour' then g.total_seen
                when l.total is null then 1  -- it came back; how often, nobody has counted
                when l.total > g.total_seen then g.total_seen
                else g.total_seen - l.total end,
           g.total_seen
      from commandbus.command_bus_failure_group g
      left join lateral (select k.total from commandbus.command_bus_group_sample k
                          where k.domain = g.domain and k.fingerprint = g.fingerprint
                          order by k.hour desc limit 1) l on true
     where g.last_seen > p_now - interval '1 hour' and g.total_seen is distinct from l.total
     order by g.domain, g.fingerprint
    on conflict (domain, fingerprint, hour) do update
       set seen = s.seen + excluded.seen, total = excluded.total;
    delete from commandbus.command_bus_group_sample s where s.hour < p_now - interval '7 days';
end $$;

-- What comes and goes in all domains, or in those that are named: of the last minute, in a second; and of each whole
-- minute of the last hour in which there was something (0 is an hour ago, 59 the minute that has just ended).
--   as_of: the last sample; old: nobody takes samples. over_seconds: the time that the rates are of
create or replace function commandbus.domain_rates(p_domains text[] default null)
returns table (
    domain text, as_of timestamptz, since timestamptz, over_seconds double precision, queued bigint, removed bigint,
    completed bigint, failed bigint, parked bigint, retried bigint, hour_from timestamptz, minutes int[],
    queued_in bigint[], removed_in bigint[], lost_in bigint[])
language plpgsql stable as $$
declare
    v_as_of timestamptz := (select k.started_at from commandbus.command_bus_chore k
                             where k.name = 'sample the domains');
    v_last  timestamptz := date_bin('10 seconds', v_as_of, timestamptz 'epoch') - interval '1 minute';
    v_hour  timestamptz := date_trunc('minute', clock_timestamp()) - interval '1 hour';
begin
    return query
    select t.domain, v_as_of, t.since,
           least(60, extract(epoch from v_as_of - t.since))::double precision,
           coalesce(n.queued, 0)::bigint, coalesce(n.removed, 0)::bigint, coalesce(n.completed, 0)::bigint,
           coalesce(n.failed, 0)::bigint, coalesce(n.parked, 0)::bigint, coalesce(n.retried, 0)::bigint,
           v_hour, coalesce(h.minutes, '{}'), coalesce(h.queued_in, '{}'), coalesce(h.removed_in, '{}'),
           coalesce(h.lost_in, '{}')
      from commandbus.command_bus_tally t
      left join (select s.domain, sum(s.queued) as queued, sum(s.removed) as removed,
                        sum(s.completed) as completed, sum(s.failed) as failed, sum(s.parked) as parked,
                        sum(s.retried) as retried
                   from commandbus.command_bus_sample s
                  where s.seconds = 10 and s.at > v_last group by 1) n on n.domain = t.domain
      left join (select s.domain,
                        array_agg((extract(epoch from s.at - v_hour) / 60)::int order by s.at) as minutes,
                        array_agg(s.queued order by s.at) as queued_in,
                        array_agg(s.removed order by s.at) as removed_in,
                        array_agg(s.failed + s.parked order by s.at) as lost_in
                   from commandbus.command_bus_sample s
                  where s.seconds = 60 and s.at >= v_hour and s.at < v_hour + interval '1 hour'
                  group by 1) h on h.domain = t.domain
     where p_domains is null or t.domain = any(p_domains)
     order by t.domain limit 500;
end $$;

-- How often failure groups were seen, hour by hour, in the last p_hours; without a row it was not.
--   p_viewer: through whose eyes, see visibility.sql: groups with governed batches of others are left out
create or replace function commandbus.group_trends(
    p_domain text, p_fingerprints text[] default null, p_hours int default 24, p_viewer text default null)
returns table (domain text, fingerprint text, hour timestamptz, seen bigint)
language plpgsql stable as $$
begin
    return query
    select s.domain, s.fingerprint, s.hour, s.seen from commandbus.command_bus_group_sample s
     where s.hour > clock_timestamp() - make_interval(hours => least(p_hours, 168))
       and (p_domain is null or s.domain = p_domain)
       and (p_fingerprints is null or s.fingerprint = any(p_fingerprints))
       and (p_viewer is null or exists (
            select from commandbus.command_bus_failure_group g
             where g.domain = s.domain and g.fingerprint = s.fingerprint and not g.is_governed))
     order by s.domain, s.fingerprint, s.hour limit 20000;
end $$;
