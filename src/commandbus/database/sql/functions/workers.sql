-- Workers: signs of life, wake-ups, and the chores that one of them does for all.

-- One hint per call, and only if some worker of the domain says that it waits: NOTIFY takes a
-- lock on all commits of the server, so under load nobody should send one. Polling is what
-- delivery rests on; a lost hint costs latency, never a command.
create or replace function commandbus.wake_workers(p_domain text) returns void
language plpgsql as $$
begin
    if exists (select from commandbus.command_bus_worker w
                where w.domain = p_domain and w.is_idle
                  and w.heartbeat_at > clock_timestamp() - interval '30 seconds') then
        perform pg_notify(commandbus.channel(p_domain), p_domain || '.commands');
    end if;
end $$;

-- Workers say that they are alive, and whether they wait. synchronous_commit is off because a
-- heartbeat lost in a crash is worth nothing anyway, and an idle worker should cost no fsync.
--   p_more: {"version", "stuck_types", "completed", "failed", "parked", "retried"}; the counts are of what was
--   committed since the heartbeat before. Workers of earlier versions do not give it.
create or replace function commandbus.worker_heartbeat(
    p_worker text, p_domain text, p_is_idle boolean, p_concurrency int, p_in_flight int,
    p_stuck int default 0, p_more jsonb default '{}'
) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into commandbus.command_bus_worker as w (
        worker_id, domain, is_idle, concurrency, in_flight, stuck, version, stuck_types,
        completed, failed, parked, retried)
    values (p_worker, p_domain, p_is_idle, p_concurrency, p_in_flight, p_stuck, p_more ->> 'version',
            array(select jsonb_array_elements_text(p_more -> 'stuck_types')),
            coalesce((p_more ->> 'completed')::bigint, 0), coalesce((p_more ->> 'failed')::bigint, 0),
            coalesce((p_more ->> 'parked')::bigint, 0), coalesce((p_more ->> 'retried')::bigint, 0))
    on conflict (worker_id) do update
       set is_idle = excluded.is_idle, concurrency = excluded.concurrency,
           in_flight = excluded.in_flight, stuck = excluded.stuck, stuck_types = excluded.stuck_types,
           completed = w.completed + excluded.completed, failed = w.failed + excluded.failed,
           parked = w.parked + excluded.parked, retried = w.retried + excluded.retried,
           heartbeat_at = clock_timestamp();
end $$;

-- Takes a worker off the list, and those that have been silent for p_silent_for. What they have ended is kept for the
-- next sample (samples.sql). Returns how many there were.
create or replace function commandbus.forget_workers(p_worker text, p_silent_for interval) returns int
language plpgsql as $$
declare
    v_gone record;
    v_all  int := 0;
begin
    for v_gone in
        with gone as (
            delete from commandbus.command_bus_worker w
             where w.worker_id = p_worker or w.heartbeat_at < clock_timestamp() - p_silent_for
            returning w.*)
        select g.domain, count(*)::int as workers, sum(g.completed) as completed, sum(g.failed) as failed,
               sum(g.parked) as parked, sum(g.retried) as retried
          from gone g group by g.domain order by g.domain
    loop
        update commandbus.command_bus_tally t
           set gone_completed = t.gone_completed + v_gone.completed, gone_failed = t.gone_failed + v_gone.failed,
               gone_parked = t.gone_parked + v_gone.parked, gone_retried = t.gone_retried + v_gone.retried
         where t.domain = v_gone.domain;
        v_all := v_all + v_gone.workers;
    end loop;
    return v_all;
end $$;

-- A worker has ended. Those that have been silent for a day go with it.
create or replace function commandbus.worker_gone(p_worker text) returns void
language plpgsql as $$
begin
    perform commandbus.forget_workers(p_worker, interval '1 day');
end $$;

-- Workers that vanished without a word. One that was only cut off comes back with its next heartbeat.
create or replace function commandbus.prune_workers(p_silent_for interval default interval '1 hour')
returns int
language plpgsql as $$
begin
    return commandbus.forget_workers(null, p_silent_for);
end $$;

-- Whether the caller is to do this chore now: one process does, and not more often than p_every.
-- The lock keeps the others from waiting for one another, and ends with the transaction.
create or replace function commandbus.claim_chore(p_name text, p_every interval) returns boolean
language plpgsql as $$
begin
    if not pg_try_advisory_xact_lock(hashtextextended('commandbus.chore.' || p_name, 0)) then
        return false;
    end if;
    insert into commandbus.command_bus_chore as k (name, started_at, every)
    values (p_name, clock_timestamp(), p_every)
    on conflict (name) do update set started_at = excluded.started_at, every = excluded.every
     where k.started_at <= excluded.started_at - p_every;
    return found;
end $$;

-- What a chore has done, for those who look; no text of it may come from a command.
--   p_told: {"<domain>": "<what was done there>"}; '*' for what is about all domains
create or replace function commandbus.note_chore(p_name text, p_told jsonb, p_failed boolean default false)
returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    update commandbus.command_bus_chore k
       set ended_at = clock_timestamp(), failed = p_failed, told = p_told
     where k.name = p_name;
end $$;

-- claim_chore for the chores of time, which every process asks for, a service too. Only these: who may claim any chore
-- could keep the others from theirs.
create or replace function commandbus.claim_keeping(p_what text, p_every interval) returns boolean
language plpgsql as $$
begin
    if p_what not in ('end what has expired', 'look after execution limits') then
        raise exception 'there is no such chore: %', quote_literal(p_what) using errcode = 'CB012';
    end if;
    return commandbus.claim_chore(p_what, p_every);
end $$;

-- What a process has counted since it was here last. All processes lock the rows in one order.
--   items: domain, command_type, outcome, count, seconds
create or replace function commandbus.add_worker_counts(p_items jsonb) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into commandbus.command_bus_worker_count as c (domain, command_type, outcome, count, seconds)
    select i.domain, i.command_type, i.outcome, sum(i.count), sum(coalesce(i.seconds, 0))
      from jsonb_to_recordset(p_items) i(
           domain text, command_type text, outcome text, count bigint, seconds double precision)
     where i.count > 0
     group by 1, 2, 3 order by 1, 2, 3
    on conflict (domain, command_type, outcome) do update
       set count = c.count + excluded.count, seconds = c.seconds + excluded.seconds;
end $$;

-- All of it: as many rows as there are command types, times what becomes of them.
create or replace function commandbus.worker_counts(p_limit int default 10000)
returns table (domain text, command_type text, outcome text, count bigint, seconds double precision)
language sql stable as $$
    select c.domain, c.command_type, c.outcome, c.count, c.seconds
      from commandbus.command_bus_worker_count c
     order by c.domain, c.command_type, c.outcome limit p_limit
$$;
