-- Gates: how many commands run at once and how often they start, over all workers (docs/adr/0049). gate_rules.sql has
-- the limits that somebody sets.
--
-- A command has up to three gates: its domain, its type, its type and key; in this order. It is leased if all of them
-- have room, and then has a place (command_bus_slot) at each and has taken a token of each. Otherwise it waits at the
-- first that has none, and has nothing: its message has vt = 'infinity', and a row of command_bus_waiting says where.
--
-- Exact because places are given under the lock of the gate's row only, and counted by a statement after the lock.
-- They are given back without it: that only makes the count smaller. A worker never waits for such a lock: a gate
-- that another session has is as good as full. Who changes the row of a command in command_bus_waiting or
-- command_bus_slot has locked its message first.

-- The type that a gate is about; '' for the domain.
create or replace function commandbus.gate_type(p_gate text) returns text
language sql immutable as $$
    select case substr(p_gate, 3, 1) when 'd' then '' when 't' then substr(p_gate, 5)
                else split_part(substr(p_gate, 5), '/', 1) end
$$;

-- Whether a gate is about one key of its type.
create or replace function commandbus.is_key_gate(p_gate text) returns boolean
language sql immutable as $$ select substr(p_gate, 3, 1) = 'k' $$;

-- The bucket of a gate at a time: what was in it, and what has come since. If the clock went back nothing comes until
-- it has caught up, for at most as long as the bucket takes to fill.
create or replace function commandbus.tokens_at(
    p_now timestamptz, p_tokens double precision, p_refilled_at timestamptz, p_per_second double precision,
    p_burst double precision
) returns double precision
language sql immutable as $$
    select case when p_per_second is null then null
                when p_refilled_at is null or p_tokens is null then p_burst
                else least(p_burst, p_tokens + p_per_second
                           * greatest(extract(epoch from p_now - p_refilled_at)::double precision, 0)) end
$$;

-- Makes the rows of gates that have none. A session that cannot, because another one is at it, does without.
create or replace function commandbus.make_gates(p_domain text, p_gates text[]) returns void
language plpgsql as $$
declare
    v_missing text[] := array(
        select n.gate from unnest(p_gates) n(gate)
         where not exists (select from commandbus.command_bus_gate g
                            where g.domain = p_domain and g.gate = n.gate));
begin
    if v_missing <> '{}'
       and pg_try_advisory_xact_lock(hashtextextended('commandbus.gates/' || p_domain, 0)) then
        insert into commandbus.command_bus_gate (domain, gate)
        select p_domain, m.gate from unnest(v_missing) m(gate)
        on conflict do nothing;
    end if;
end $$;

-- The gates of commands, each with a rule, and where it has places already because a lease of it has lapsed. What must
-- not run any more has none: it passes, to be turned away.
create or replace function commandbus.gates_of(
    p_domain text, p_now timestamptz, p_msg_ids bigint[], p_command_ids uuid[]
) returns table (n bigint, of_domain text, of_type text, of_key text, is_leased boolean, had jsonb)
language plpgsql as $$
begin
    return query
    with item as materialized (
        select p_domain as domain, u.msg_id, u.command_id, u.n
          from unnest(p_msg_ids, p_command_ids) with ordinality u(msg_id, command_id, n)
    )
    select i.n, case when d.domain is not null then 'l:d' end,
           case when t.domain is not null then 'l:t:' || c.command_type end,
           case when k.domain is not null
                then 'l:k:' || c.command_type || '/' || coalesce(c.limit_key, c.ordering_key) end,
           c.leased_by is not null,
           case when c.leased_by is not null then (
               select jsonb_agg(s.gate) from commandbus.command_bus_slot s
                where s.domain = i.domain and s.command_id = i.command_id) end
      from item i
      left join commandbus.command_bus_command c
        on c.domain = i.domain and c.command_id = i.command_id
       and (c.msg_id = i.msg_id or c.msg_id is null and c.dispatch_status = 'queued')
       and c.status in ('PENDING', 'IN_PROGRESS') and (c.expires_at is null or c.expires_at > p_now)
      left join commandbus.command_bus_flow_rule d
        on d.domain = c.domain and d.command_type = '' and not d.by_key
      left join commandbus.command_bus_flow_rule t
        on t.domain = c.domain and t.command_type = c.command_type and not t.by_key
      left join commandbus.command_bus_flow_rule k
        on k.domain = c.domain and k.command_type = c.command_type and k.by_key;
end $$;

-- Gives places to commands, in their order; the caller has locked their messages. Writes places, tokens, and where
-- the others wait; their messages are left to the caller.
--   p_places: the greatest number to admit of those that have a gate at all
--   p_has_waited: they are from command_bus_waiting, and their turn has come. Others wait behind those who wait.
--   o_admitted: the messages that may be leased; o_stopped: the others; o_given: how many of the first have a gate
--   o_is_short: some were stopped only for want of p_places
create or replace function commandbus.take_places(
    p_domain text, p_now timestamptz, p_msg_ids bigint[], p_command_ids uuid[], p_places int,
    p_has_waited boolean, out o_admitted bigint[], out o_stopped bigint[], out o_given int,
    out o_is_short boolean)
language plpgsql as $$
declare
    -- of each command
    v_first   text[];
    v_second  text[];
    v_third   text[];
    v_leased  boolean[];   -- a lease of it has lapsed: it may have places already
    v_had     jsonb[];     -- the gates where it has
    v_stop    text[];      -- where it waits from now on; null: admitted
    -- of each gate
    v_gates   text[];
    v_open    boolean[];   -- we have the lock, and it is not paused; null: another session has it
    v_room    int[];       -- null: no limit
    v_tokens  double precision[];
    v_queued  boolean[];   -- others wait there
    v_is_kept boolean[];   -- it has no rate and is not paused: who has a place needs nothing more, nor the lock
    -- what is written
    v_at      text[] := '{}';
    v_by      uuid[] := '{}';
    v_mine    text[];
    v_gate    text;
    v_k       int;
begin
    o_given := 0;
    o_is_short := false;
    select array_agg(g.of_domain order by g.n), array_agg(g.of_type order by g.n),
           array_agg(g.of_key order by g.n), array_agg(g.is_leased order by g.n),
           array_agg(g.had order by g.n)
      into v_first, v_second, v_third, v_leased, v_had
      from commandbus.gates_of(p_domain, p_now, p_msg_ids, p_command_ids) g;
    v_gates := array(select distinct g from unnest(v_first || v_second || v_third) g where g is not null);
    if v_gates = '{}' then
        o_admitted := p_msg_ids;
        o_stopped := '{}';
        -- The rule is gone for which they waited.
        if p_has_waited then
            perform commandbus.drop_waiting(p_domain, p_command_ids);
        end if;
        return;
    end if;

    perform commandbus.make_gates(p_domain, v_gates);
    v_mine := array(select g.gate from commandbus.command_bus_gate g
                     where g.domain = p_domain and g.gate = any(v_gates) for update skip locked);
    -- Not part of the statement above: what others have committed before we had the lock must be seen.
    select array_agg(g.gate), array_agg(case when g.gate = any(v_mine) then s.is_open end),
           array_agg(s.room), array_agg(s.tokens),
           array_agg(not p_has_waited and commandbus.is_waited_for(p_domain, g.gate)),
           array_agg(s.is_open and s.tokens is null)
      into v_gates, v_open, v_room, v_tokens, v_queued, v_is_kept
      from unnest(v_gates) g(gate)
      left join lateral commandbus.gate_state(p_domain, g.gate, p_now) s on true;

    for i in 1 .. cardinality(p_msg_ids) loop
        v_stop[i] := null;
        foreach v_gate in array array[v_first[i], v_second[i], v_third[i]] loop
            continue when v_gate is null;
            v_k := array_position(v_gates, v_gate);
            if v_had[i] ? v_gate and v_is_kept[v_k] then
                continue;
            elsif o_given >= p_places then
                o_is_short := true;
                v_stop[i] := v_gate;
            elsif v_open[v_k] is not true or v_tokens[v_k] < 0.999999 then
                v_stop[i] := v_gate;
            elsif v_had[i] ? v_gate then
                continue;
            elsif v_room[v_k] <= 0 or v_queued[v_k] then
                v_stop[i] := v_gate;
            end if;
            exit when v_stop[i] is not null;
        end loop;
        continue when v_stop[i] is not null or num_nonnulls(v_first[i], v_second[i], v_third[i]) = 0;
        o_given := o_given + 1;
        foreach v_gate in array array[v_first[i], v_second[i], v_third[i]] loop
            continue when v_gate is null;
            v_k := array_position(v_gates, v_gate);
            v_tokens[v_k] := v_tokens[v_k] - 1;
            if v_room[v_k] is not null and (v_had[i] ? v_gate) is not true then
                v_room[v_k] := v_room[v_k] - 1;
                v_at := v_at || v_gate;
                v_by := v_by || p_command_ids[i];
            end if;
        end loop;
    end loop;

    insert into commandbus.command_bus_slot (domain, gate, command_id)
    select p_domain, u.gate, u.command_id from unnest(v_at, v_by) u(gate, command_id)
    on conflict do nothing;
    select coalesce(array_agg(u.msg_id) filter (where u.stop is null), '{}'),
           coalesce(array_agg(u.msg_id) filter (where u.stop is not null), '{}')
      into o_admitted, o_stopped from unnest(p_msg_ids, v_stop) u(msg_id, stop);
    perform commandbus.wait_at_gates(
        p_domain, p_msg_ids, p_command_ids, v_stop, v_leased, p_has_waited,
        -- full, and not only in the hands of another session
        array(select u.gate from unnest(v_gates, v_open) u(gate, is_open) where u.is_open is not null));
    perform commandbus.keep_tokens(p_domain, p_now, v_mine, v_gates, v_tokens);
end $$;

-- What a gate has to give, for who has its lock.
--   room: places; null: any number. tokens: null: no rate
create or replace function commandbus.gate_state(p_domain text, p_gate text, p_now timestamptz)
returns table (is_open boolean, room int, tokens double precision)
language sql stable as $$
    select r.paused_at is null or r.paused_until <= p_now,
           r.max_running - (select count(*)::int from commandbus.command_bus_slot s
                             where s.domain = p_domain and s.gate = p_gate),
           -- A receive that began later was here first: by its time tokens are counted that have not come yet.
           case when g.refilled_at > p_now and g.refilled_at < p_now + interval '1 second' and r.rate is not null
                then 0
                else commandbus.tokens_at(p_now, g.tokens, g.refilled_at, r.rate / r.per_seconds, r.burst) end
      from commandbus.command_bus_gate g
      left join commandbus.command_bus_flow_rule r
        on r.domain = p_domain and r.command_type = commandbus.gate_type(p_gate)
       and r.by_key = commandbus.is_key_gate(p_gate)
     where g.domain = p_domain and g.gate = p_gate
$$;

-- Writes where commands that were stopped wait from now on, first come first served: by their messages. One whose
-- lease has lapsed has nothing any more: no places, and a late result of that lease is refused.
--   p_stop: the gate of each; null: it goes on
--   p_full: gates that are known to be full
create or replace function commandbus.wait_at_gates(
    p_domain text, p_msg_ids bigint[], p_command_ids uuid[], p_stop text[], p_leased boolean[],
    p_has_waited boolean, p_full text[]
) returns void
language plpgsql as $$
declare
    v_lapsed uuid[];
begin
    if p_has_waited then
        perform commandbus.drop_waiting(p_domain, array(
            select u.command_id from unnest(p_command_ids, p_stop) u(command_id, stop) where u.stop is null));
        -- One that another gate stops waits there, so that those behind it may try.
        with item as materialized (
            select p_domain as domain, u.command_id, u.stop
              from unnest(p_command_ids, p_stop) u(command_id, stop) where u.stop = any(p_full)
        )
        update commandbus.command_bus_waiting w set gate = i.stop
          from item i where w.domain = i.domain and w.command_id = i.command_id and w.gate <> i.stop;
        return;
    end if;
    insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)
    select p_domain, u.stop, u.msg_id, u.msg_id, u.command_id
      from unnest(p_msg_ids, p_command_ids, p_stop) u(msg_id, command_id, stop)
     where u.stop is not null
    on conflict (domain, command_id) do update
       set gate = excluded.gate, seq = excluded.seq, msg_id = excluded.msg_id, since = excluded.since;
    v_lapsed := array(select u.command_id from unnest(p_command_ids, p_stop, p_leased) u(command_id, stop, leased)
                       where u.stop is not null and u.leased);
    if v_lapsed <> '{}' then
        perform commandbus.drop_places(p_domain, v_lapsed);
        with item as materialized (
            select p_domain as domain, u.command_id from unnest(v_lapsed) u(command_id)
        )
        update commandbus.command_bus_command c set lease_epoch = c.lease_epoch + 1
          from item i where c.domain = i.domain and c.command_id = i.command_id;
    end if;
end $$;

-- Writes what is left of the tokens of gates with a rate, and when somebody who waits there gets the next.
create or replace function commandbus.keep_tokens(
    p_domain text, p_now timestamptz, p_mine text[], p_gates text[], p_tokens double precision[]
) returns void
language plpgsql as $$
begin
    if num_nonnulls(variadic p_tokens) = 0 then
        return;
    end if;
    update commandbus.command_bus_gate g
       set tokens = case when g.refilled_at > p_now and g.refilled_at < p_now + interval '1 second'
                         then g.tokens else u.tokens end,
           refilled_at = greatest(p_now, least(
               coalesce(g.refilled_at, p_now), p_now + make_interval(secs => r.burst * r.per_seconds / r.rate))),
           ready_at = case when u.tokens < 0.999999 and commandbus.is_waited_for(p_domain, g.gate)
                           then p_now + make_interval(secs => (1 - u.tokens) * r.per_seconds / r.rate) end
      from unnest(p_gates, p_tokens) u(gate, tokens)
      join commandbus.command_bus_flow_rule r
        on r.domain = p_domain and r.command_type = commandbus.gate_type(u.gate)
       and r.by_key = commandbus.is_key_gate(u.gate)
     where g.domain = p_domain and g.gate = u.gate and g.gate = any(p_mine) and r.rate is not null;
end $$;

-- These commands have no place any more. As a list that carries the domain, like all that is looked up by command
-- (planner.sql): the planner would else walk along all that run, or wait.
create or replace function commandbus.drop_places(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
begin
    with item as materialized (
        select p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    )
    delete from commandbus.command_bus_slot s using item i
     where s.domain = i.domain and s.command_id = i.command_id;
end $$;

-- These commands wait at no gate any more; for others of their key they may.
create or replace function commandbus.drop_waiting(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
begin
    with item as materialized (
        select p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    )
    delete from commandbus.command_bus_waiting w using item i
     where w.domain = i.domain and w.command_id = i.command_id and starts_with(w.gate, 'l:');
end $$;

-- Whether commands wait at a gate.
create or replace function commandbus.is_waited_for(p_domain text, p_gate text) returns boolean
language plpgsql stable as $$
begin
    return exists (select from commandbus.command_bus_waiting w where w.domain = p_domain and w.gate = p_gate);
end $$;

-- The leases of these commands have ended, or the commands have: they have no place any more, and wait for none. Nobody
-- is woken up: the worker whose lease it was receives again, and wakes others if there is more room than it can use.
-- Who ends a command that is not its own calls wake_for_places.
create or replace function commandbus.free_places(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
begin
    perform commandbus.drop_places(p_domain, p_command_ids);
    perform commandbus.drop_waiting(p_domain, p_command_ids);
end $$;

-- Wakes a worker that waits, if the domain has limits: a command has ended by somebody else than its worker, so that
-- nobody would look whether another may start in its place.
create or replace function commandbus.wake_for_places(p_domain text) returns void
language plpgsql as $$
begin
    if exists (select from commandbus.command_bus_flow f where f.domain = p_domain and f.has_rules) then
        perform commandbus.wake_workers(p_domain);
    end if;
end $$;
