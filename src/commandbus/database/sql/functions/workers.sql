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
create or replace function commandbus.worker_heartbeat(
    p_worker text, p_domain text, p_is_idle boolean, p_concurrency int, p_in_flight int,
    p_stuck int default 0
) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into commandbus.command_bus_worker as w (
        worker_id, domain, is_idle, concurrency, in_flight, stuck)
    values (p_worker, p_domain, p_is_idle, p_concurrency, p_in_flight, p_stuck)
    on conflict (worker_id) do update
       set is_idle = excluded.is_idle, concurrency = excluded.concurrency,
           in_flight = excluded.in_flight, stuck = excluded.stuck, heartbeat_at = clock_timestamp();
end $$;

-- A worker has ended. Those that have been silent for a day go with it.
create or replace function commandbus.worker_gone(p_worker text) returns void
language sql as $$
    delete from commandbus.command_bus_worker
     where worker_id = p_worker or heartbeat_at < clock_timestamp() - interval '1 day'
$$;

-- Workers that vanished without a word. One that was only cut off comes back with its next heartbeat.
create or replace function commandbus.prune_workers(p_silent_for interval default interval '1 hour')
returns int
language plpgsql as $$
declare
    v_pruned int;
begin
    delete from commandbus.command_bus_worker w
     where w.heartbeat_at < clock_timestamp() - p_silent_for;
    get diagnostics v_pruned = row_count;
    return v_pruned;
end $$;

-- Whether the caller is to do this chore now: one process does, and not more often than p_every.
-- The lock keeps the others from waiting for one another, and ends with the transaction.
create or replace function commandbus.claim_chore(p_name text, p_every interval) returns boolean
language plpgsql as $$
begin
    if not pg_try_advisory_xact_lock(hashtextextended('commandbus.chore.' || p_name, 0)) then
        return false;
    end if;
    insert into commandbus.command_bus_chore as k (name, started_at)
    values (p_name, clock_timestamp())
    on conflict (name) do update set started_at = excluded.started_at
     where k.started_at <= excluded.started_at - p_every;
    return found;
end $$;

-- The same for the chores of time, which every process asks for, a service too. Only these: who may claim any chore
-- could keep the others from theirs.
create or replace function commandbus.claim_keeping(p_what text, p_every interval) returns boolean
language plpgsql as $$
begin
    if p_what not in ('end what has expired', 'look after execution limits') then
        raise exception 'there is no such chore: %', quote_literal(p_what) using errcode = 'CB012';
    end if;
    return commandbus.claim_chore(p_what, p_every);
end $$;
