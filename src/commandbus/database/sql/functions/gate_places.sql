-- Giving places at gates (gates.sql) to commands: who is admitted, and who waits.

-- Makes the rows of gates that have none; false if it made none. A session that cannot, because another one is at it,
-- does without.
create or replace function commandbus.make_gates(p_domain text, p_gates text[]) returns boolean
language plpgsql as $$
declare
    v_missing text[] := array(
        select n.gate from unnest(p_gates) n(gate)
         where not exists (select from commandbus.command_bus_gate g
                            where g.domain = p_domain and g.gate = n.gate));
begin
    if v_missing = '{}'
       or not pg_try_advisory_xact_lock(hashtextextended('commandbus.gates/' || p_domain, 0)) then
        return false;
    end if;
    insert into commandbus.command_bus_gate (domain, gate)
    select p_domain, m.gate from unnest(v_missing) m(gate)
    on conflict do nothing;
    return true;
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
    v_of     record;
    v_gates  text[];
    v_mine   text[];
    v_at     record;      -- of each gate: what it has to give
    v_shared record;
begin
    v_of := commandbus.gates_of(p_domain, p_now, p_msg_ids, p_command_ids);
    v_gates := case when v_of.o_only is not null then array[v_of.o_only] else array(
        select distinct g from unnest(v_of.o_firsts || v_of.o_seconds || v_of.o_thirds) g where g is not null) end;
    if v_gates = '{}' then
        o_admitted := p_msg_ids;
        o_stopped := '{}';
        o_given := 0;
        o_is_short := false;
        -- The rule is gone for which they waited.
        if p_has_waited then
            perform commandbus.drop_waiting(p_domain, p_command_ids);
        end if;
        return;
    end if;

    v_mine := commandbus.lock_gates(p_domain, v_gates);
    -- Not part of that statement: what others have committed before we had the lock must be seen.
    select array_agg(g.gate) as gates, array_agg(case when g.gate = any(v_mine) then s.is_open end) as open,
           array_agg(s.room) as room, array_agg(s.tokens) as tokens,
           array_agg(not p_has_waited and commandbus.is_waited_for(p_domain, g.gate)) as queued,
           array_agg(s.is_open and s.tokens is null) as kept
      into v_at
      from unnest(v_gates) g(gate)
      left join lateral commandbus.gate_state(p_domain, g.gate, p_now) s on true;

    if v_of.o_only is not null then
        v_shared := commandbus.share_gate(
            p_command_ids, v_of.o_only, v_at.open[1] and not v_at.queued[1], v_at.room[1], v_at.tokens[1], p_places);
        o_admitted := p_msg_ids[1:v_shared.o_given];
        o_stopped := p_msg_ids[v_shared.o_given + 1:];
    else
        v_shared := commandbus.share_gates(
            p_command_ids, array[v_of.o_firsts, v_of.o_seconds, v_of.o_thirds], v_of.o_had, v_at.gates, v_at.open,
            v_at.room, v_at.tokens, v_at.queued, v_at.kept, p_places);
        select coalesce(array_agg(u.msg_id) filter (where u.stop is null), '{}'),
               coalesce(array_agg(u.msg_id) filter (where u.stop is not null), '{}')
          into o_admitted, o_stopped from unnest(p_msg_ids, v_shared.o_stop) u(msg_id, stop);
    end if;
    o_given := v_shared.o_given;
    o_is_short := v_shared.o_is_short;

    if v_shared.o_by <> '{}' then
        insert into commandbus.command_bus_slot (domain, gate, command_id)
        select p_domain, u.gate, u.command_id from unnest(v_shared.o_at, v_shared.o_by) u(gate, command_id)
        on conflict do nothing;
    end if;
    if o_stopped <> '{}' then
        perform commandbus.wait_at_gates(
            p_domain, p_msg_ids, p_command_ids, v_shared.o_stop, v_of.o_leased, p_has_waited,
            -- full, and not only in the hands of another session
            array(select u.gate from unnest(v_at.gates, v_at.open) u(gate, is_open) where u.is_open is not null));
    elsif p_has_waited then
        perform commandbus.drop_waiting(p_domain, p_command_ids);
    end if;
    perform commandbus.keep_tokens(p_domain, p_now, v_mine, v_at.gates, v_shared.o_tokens);
end $$;

-- Locks the rows of gates, those that no other session has; makes those that are missing.
create or replace function commandbus.lock_gates(p_domain text, p_gates text[]) returns text[]
language plpgsql as $$
declare
    v_mine text[];
begin
    for v_try in 1 .. 2 loop
        v_mine := array(select g.gate from commandbus.command_bus_gate g
                         where g.domain = p_domain and g.gate = any(p_gates) for update skip locked);
        exit when cardinality(v_mine) = cardinality(p_gates) or v_try = 2
                  or not commandbus.make_gates(p_domain, p_gates);
    end loop;
    return v_mine;
end $$;

-- Who of these commands gets what one gate has to give, if it is the only one of all of them, and none has a place
-- there: the first ones. The same as share_gates, without its loop.
--   p_room null: any number; p_tokens null: no rate
create or replace function commandbus.share_gate(
    p_command_ids uuid[], p_gate text, p_is_open boolean, p_room int, p_tokens double precision, p_places int,
    out o_stop text[], out o_at text[], out o_by uuid[], out o_tokens double precision[], out o_given int,
    out o_is_short boolean)
language plpgsql immutable as $$
declare
    v_all  int := cardinality(p_command_ids);
    v_room int := case when p_is_open then least(v_all, p_room, floor(p_tokens + 0.000001)) else 0 end;
begin
    o_given := greatest(least(v_room, p_places), 0);
    o_is_short := v_room > greatest(p_places, 0);
    o_stop := array_fill(null::text, array[o_given]) || array_fill(p_gate, array[v_all - o_given]);
    o_by := case when p_room is not null then p_command_ids[1:o_given] else '{}' end;
    o_at := array_fill(p_gate, array[cardinality(o_by)]);
    o_tokens := array[p_tokens - o_given];
end $$;

-- Who of these commands gets what their gates have to give.
--   p_gates_of: three lists of gates, one of each for a command; p_had: where a command has places already
--   of each gate, p_open: we have the lock, and it is not paused; null: another session has it. p_room null: any
--   number. p_queued: others wait there. p_kept: it has no rate and is not paused, so that who has a place there needs
--   nothing more, nor the lock.
--   o_stop: where each waits from now on; null: admitted. o_at, o_by: the places that are given. o_tokens: what is left
create or replace function commandbus.share_gates(
    p_command_ids uuid[], p_gates_of text[], p_had jsonb[], p_gates text[], p_open boolean[], p_room int[],
    p_tokens double precision[], p_queued boolean[], p_kept boolean[], p_places int,
    out o_stop text[], out o_at text[], out o_by uuid[], out o_tokens double precision[], out o_given int,
    out o_is_short boolean)
language plpgsql immutable as $$
declare
    v_room  int[] := p_room;
    v_mine  text[];
    v_first text;     -- the first gate at which it needs something
    v_gate  text;
    v_k     int;
begin
    o_given := 0;
    o_is_short := false;
    o_tokens := p_tokens;
    o_at := '{}';
    o_by := '{}';
    for i in 1 .. cardinality(p_command_ids) loop
        o_stop[i] := null;
        v_first := null;
        v_mine := array_remove(array[p_gates_of[1][i], p_gates_of[2][i], p_gates_of[3][i]], null);
        continue when v_mine = '{}';
        foreach v_gate in array v_mine loop
            v_k := array_position(p_gates, v_gate);
            continue when p_had[i] ? v_gate and p_kept[v_k];
            v_first := coalesce(v_first, v_gate);
            if p_open[v_k] is not true or o_tokens[v_k] < 0.999999 then
                o_stop[i] := v_gate;
            elsif p_had[i] ? v_gate then
                continue;
            elsif v_room[v_k] <= 0 or p_queued[v_k] then
                o_stop[i] := v_gate;
            end if;
            exit when o_stop[i] is not null;
        end loop;
        if o_stop[i] is null and v_first is not null and o_given >= p_places then
            o_is_short := true;
            o_stop[i] := v_first;
        end if;
        continue when o_stop[i] is not null;
        o_given := o_given + 1;
        foreach v_gate in array v_mine loop
            v_k := array_position(p_gates, v_gate);
            o_tokens[v_k] := o_tokens[v_k] - 1;
            if v_room[v_k] is not null and (p_had[i] ? v_gate) is not true then
                v_room[v_k] := v_room[v_k] - 1;
                o_at := o_at || v_gate;
                o_by := o_by || p_command_ids[i];
            end if;
        end loop;
    end loop;
end $$;
