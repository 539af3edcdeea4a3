-- Gates: how many commands run at once and how often they start, over all workers (docs/adr/0049). gate_places.sql gives
-- places, gate_rules.sql has the limits that somebody sets.
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

-- The gates of commands, each with a rule, and where it has places already because a lease of it has lapsed. What must
-- not run any more has none: it passes, to be turned away.
--   one of each for a command: o_firsts: the gate of the domain; o_seconds: of its type; o_thirds: of its key;
--   o_leased: a lease of it has lapsed; o_had: where it has places
--   o_only: the one gate that all of them have, none having another one or a place: nearly always. Otherwise null
create or replace function commandbus.gates_of(
    p_domain text, p_now timestamptz, p_msg_ids bigint[], p_command_ids uuid[], out o_firsts text[],
    out o_seconds text[], out o_thirds text[], out o_leased boolean[], out o_had jsonb[], out o_only text)
language plpgsql as $$
begin
    with item as materialized (
        select p_domain as domain, u.msg_id, u.command_id, u.n
          from unnest(p_msg_ids, p_command_ids) with ordinality u(msg_id, command_id, n)
    ), found as (
        select i.n, case when d.domain is not null then 'l:d' end as of_domain,
               case when t.domain is not null then 'l:t:' || c.command_type end as of_type,
               case when k.domain is not null
                    then 'l:k:' || c.command_type || '/' || coalesce(c.limit_key, c.ordering_key) end as of_key,
               c.leased_by is not null as is_leased,
               case when c.leased_by is not null then (
                   select jsonb_agg(s.gate) from commandbus.command_bus_slot s
                    where s.domain = i.domain and s.command_id = i.command_id) end as had
          from item i
          left join commandbus.command_bus_command c
            on c.domain = i.domain and c.command_id = i.command_id
           and (c.msg_id = i.msg_id or c.msg_id is null and c.dispatch_status = 'queued')
           and c.status in ('PENDING', 'IN_PROGRESS') and (c.expires_at is null or c.expires_at > p_now)
           and c.cancel_requested_at is null
          left join commandbus.command_bus_flow_rule d
            on d.domain = c.domain and d.command_type = '' and not d.by_key
          left join commandbus.command_bus_flow_rule t
            on t.domain = c.domain and t.command_type = c.command_type and not t.by_key
          left join commandbus.command_bus_flow_rule k
            on k.domain = c.domain and k.command_type = c.command_type and k.by_key
    )
    select array_agg(f.of_domain order by f.n), array_agg(f.of_type order by f.n),
           array_agg(f.of_key order by f.n), array_agg(f.is_leased order by f.n), array_agg(f.had order by f.n),
           case when bool_and(num_nonnulls(f.of_domain, f.of_type, f.of_key) = 1 and f.had is null)
                 and min(coalesce(f.of_domain, f.of_type, f.of_key)) = max(coalesce(f.of_domain, f.of_type, f.of_key))
                then min(coalesce(f.of_domain, f.of_type, f.of_key)) end
      into o_firsts, o_seconds, o_thirds, o_leased, o_had, o_only from found f;
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

-- The turn of a command among those who wait at a gate: when it was due, in microseconds, and so much earlier for its
-- level as that is worth. So a low level ages while it waits, and those of one level go in the order in which they were
-- sent; at the same moment, by their messages.
create or replace function commandbus.turn_of(p_command commandbus.command_bus_command, p_level_seconds float8)
returns bigint
language sql stable as $$
    select ((extract(epoch from greatest(coalesce(p_command.queued_at, p_command.created_at), p_command.deliver_at))
             - coalesce(p_command.priority, 0) * p_level_seconds::numeric) * 1000000)::bigint
$$;

-- Messages that were read, in the order of their turns.
create or replace function commandbus.in_turn(
    p_flow commandbus.command_bus_flow, p_msg_ids bigint[], p_messages jsonb[], out o_msg_ids bigint[],
    out o_messages jsonb[])
language plpgsql stable as $$
begin
    with item as materialized (
        select p_flow.domain as domain, u.msg_id, u.message, u.command_id
          from unnest(p_msg_ids, p_messages, commandbus.command_ids_of(p_messages)) u(msg_id, message, command_id)
    ), placed as (
        select i.msg_id, i.message, commandbus.turn_of(c, p_flow.level_seconds) as turn
          from item i
          left join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id
    )
    select array_agg(p.msg_id order by p.turn, p.msg_id), array_agg(p.message order by p.turn, p.msg_id)
      into o_msg_ids, o_messages from placed p;
end $$;

-- Writes where commands that were stopped wait from now on, and when it is their turn there. One whose lease has lapsed
-- has nothing any more: no places, and no lease.
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
    with item as materialized (
        select p_domain as domain, u.msg_id, u.command_id, u.stop, f.level_seconds
          from unnest(p_msg_ids, p_command_ids, p_stop) u(msg_id, command_id, stop)
          join commandbus.command_bus_flow f on f.domain = p_domain
         where u.stop is not null
    )
    insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)
    select i.domain, i.stop, commandbus.turn_of(c, i.level_seconds), i.msg_id, i.command_id
      from item i
      join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id
    on conflict (domain, command_id) do update
       set gate = excluded.gate, seq = excluded.seq, msg_id = excluded.msg_id, since = excluded.since;
    v_lapsed := array(select u.command_id from unnest(p_command_ids, p_stop, p_leased) u(command_id, stop, leased)
                       where u.stop is not null and u.leased);
    if v_lapsed <> '{}' then
        perform commandbus.drop_places(p_domain, v_lapsed);
        perform commandbus.end_lapsed(p_domain, v_lapsed, clock_timestamp());
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

-- The rows of command_bus_slot and of command_bus_waiting that are about these commands; the caller has locked their
-- messages, so that they stay where they are. Asked for as the next ones from each id on: only the index of commands has
-- that order. By equality alone the index of gates would seem as good to a planner that knows the table as empty, and it
-- would read all who wait (planner.sql).
create or replace function commandbus.slot_rows(p_domain text, p_command_ids uuid[]) returns tid[]
language plpgsql stable as $$
begin
    return array(
        select s.ctid from unnest(p_command_ids) u(command_id)
         cross join lateral (
               -- it has three gates at most
               select x.ctid, x.command_id from commandbus.command_bus_slot x
                where x.domain = p_domain and x.command_id >= u.command_id order by x.command_id limit 3) s
         where s.command_id = u.command_id);
end $$;

create or replace function commandbus.waiting_rows(p_domain text, p_command_ids uuid[]) returns tid[]
language plpgsql stable as $$
begin
    return array(
        select w.ctid from unnest(p_command_ids) u(command_id)
         cross join lateral (
               select x.ctid, x.command_id, x.gate from commandbus.command_bus_waiting x
                where x.domain = p_domain and x.command_id >= u.command_id order by x.command_id limit 1) w
         where w.command_id = u.command_id and starts_with(w.gate, 'l:'));
end $$;

-- These commands have no place any more. Where the domain has few places these are read instead of one look for each
-- command.
create or replace function commandbus.drop_places(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
declare
    c_few  constant int := 10;
    v_rows tid[];
    v_held uuid[];
begin
    select array_agg(f.ctid), array_agg(f.command_id) into v_rows, v_held
      from (select s.ctid, s.command_id from commandbus.command_bus_slot s where s.domain = p_domain
             order by s.domain, s.gate, s.command_id limit c_few + 1) f;
    if v_rows is null or cardinality(v_rows) <= c_few and not v_held && p_command_ids then
        return;
    end if;
    v_rows := commandbus.slot_rows(p_domain, p_command_ids);
    delete from commandbus.command_bus_slot s where s.ctid = any(v_rows);
end $$;

-- These commands wait at no gate any more; for others of their key they may.
create or replace function commandbus.drop_waiting(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
declare
    v_rows tid[] := commandbus.waiting_rows(p_domain, p_command_ids);
begin
    delete from commandbus.command_bus_waiting w where w.ctid = any(v_rows);
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
