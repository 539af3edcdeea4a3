-- Reading where a domain has limits or paused types: those who wait at a gate that has room, and what is due.

-- Gates where commands wait and there seems to be room, fifty at most: first those whose next token has come, then, in
-- the order of their names, from where the last call of this session has stopped. Without a lock: who takes places
-- counts again. Gates whose domain or type is full are not named.
--
-- The full ones among those looked at are not more than commands run; so with very many keys most have room, and with
-- few all are looked at.
create or replace function commandbus.open_gates(p_domain text, p_now timestamptz)
returns table (gate text, room int)
language plpgsql as $$
#variable_conflict use_column
declare
    c_many  constant int := 50;
    c_first constant text := 'l:';
    v_found text[];
    v_start text;
begin
    -- Nothing waits: as good as always. Or the domain is full.
    if not exists (select from commandbus.command_bus_waiting w
                    where w.domain = p_domain and w.gate >= c_first and w.gate < 'l;')
       or commandbus.room_at(p_domain, 'l:d', p_now) <= 0 then
        return;
    end if;
    v_start := current_setting('commandbus.gate_after', true);
    v_start := case when v_start like p_domain || ' l:%' then substr(v_start, length(p_domain) + 2) else c_first end;
    v_found := commandbus.walk_gates(p_domain, v_start, 'l;', c_many);
    if cardinality(v_found) < c_many and v_start > c_first then
        v_found := v_found || commandbus.walk_gates(
            p_domain, c_first, v_start || chr(1), c_many - cardinality(v_found));
    end if;
    -- Where all were looked at there is no place to go on from.
    if cardinality(v_found) = c_many then
        perform set_config('commandbus.gate_after', p_domain || ' ' || v_found[c_many], false);
    elsif v_start > c_first then
        perform set_config('commandbus.gate_after', '', false);
    end if;
    return query
    with looked as materialized (
        select u.gate, commandbus.gate_type(u.gate) as type, commandbus.is_key_gate(u.gate) as by_key
          from (select f from unnest(v_found) f
                union
                (select g.gate from commandbus.command_bus_gate g
                  where g.domain = p_domain and g.ready_at <= p_now
                  order by g.ready_at limit c_many)) u(gate)
    ), above as materialized (
        select t.type, commandbus.room_at(p_domain, 'l:t:' || t.type, p_now) as room
          from (select distinct l.type from looked l where l.by_key) t
    ), room as materialized (
        select l.gate, least(commandbus.room_at(p_domain, l.gate, p_now),
                             (select a.room from above a where a.type = l.type and l.by_key)) as room
          from looked l
    )
    select r.gate, r.room from room r where r.room > 0;
end $$;

-- Names of gates where commands wait, after one and before another, p_limit at most: by a jump to the next one each,
-- however many wait there.
create or replace function commandbus.walk_gates(p_domain text, p_after text, p_before text, p_limit int)
returns text[]
language plpgsql as $$
declare
    v_found text[] := '{}';
    v_gate  text := p_after;
begin
    while cardinality(v_found) < p_limit loop
        select w.gate into v_gate from commandbus.command_bus_waiting w
         where w.domain = p_domain and w.gate > v_gate and w.gate < p_before
         order by w.domain, w.gate, w.seq limit 1;
        exit when not found;
        v_found := v_found || v_gate;
    end loop;
    return v_found;
end $$;

-- How many more a gate would admit, without a lock: only to know whether to try. A gate without a rule: very many.
create or replace function commandbus.room_at(p_domain text, p_gate text, p_now timestamptz) returns int
language plpgsql stable as $$
declare
    v_rule commandbus.command_bus_flow_rule;
    v_gate commandbus.command_bus_gate;
begin
    select * into v_rule from commandbus.command_bus_flow_rule r
     where r.domain = p_domain and r.command_type = commandbus.gate_type(p_gate)
       and r.by_key = commandbus.is_key_gate(p_gate);
    if not found then
        return 1000000;
    elsif v_rule.paused_at is not null and (v_rule.paused_until > p_now) is not false then
        return 0;
    end if;
    if v_rule.rate is not null then
        select * into v_gate from commandbus.command_bus_gate g where g.domain = p_domain and g.gate = p_gate;
        -- The clock went back: to be put right by who has the lock.
        if v_gate.refilled_at > p_now + make_interval(secs => 1 + v_rule.burst * v_rule.per_seconds / v_rule.rate) then
            return 1;
        end if;
    end if;
    return least(
        v_rule.max_running - (select count(*) from commandbus.command_bus_slot s
                               where s.domain = p_domain and s.gate = p_gate),
        floor(commandbus.tokens_at(
            p_now, v_gate.tokens, v_gate.refilled_at, v_rule.rate / v_rule.per_seconds, v_rule.burst) + 0.000001),
        1000000)::int;
end $$;

-- When somebody who waits may start: now, if a gate seems to have room, else when the next token comes; null: not by
-- itself. For due_in: a worker that is idle receives no earlier.
create or replace function commandbus.gates_due(p_domain text, p_now timestamptz) returns timestamptz
language plpgsql as $$
begin
    if exists (select from commandbus.open_gates(p_domain, p_now)) then
        return p_now;
    end if;
    return (select min(g.ready_at) from commandbus.command_bus_gate g
             where g.domain = p_domain and g.ready_at is not null);
end $$;

-- Gates whose token should be there, and is of no use: nobody waits, or the gate is full otherwise, so that the walk
-- finds it when it is not; or the token is not there after all. They are not to be looked at again and again.
create or replace function commandbus.look_later(p_domain text, p_now timestamptz) returns void
language plpgsql as $$
begin
    update commandbus.command_bus_gate g
       set ready_at = case when r.tokens < 0.999999 and r.is_waited_for
                           then p_now + make_interval(secs => (1 - r.tokens) / r.per_second) end
      from (select x.gate, f.rate / f.per_seconds as per_second,
                   commandbus.tokens_at(p_now, x.tokens, x.refilled_at, f.rate / f.per_seconds, f.burst) as tokens,
                   commandbus.is_waited_for(p_domain, x.gate) as is_waited_for
              from commandbus.command_bus_gate x
              left join commandbus.command_bus_flow_rule f
                on f.domain = p_domain and f.command_type = commandbus.gate_type(x.gate)
               and f.by_key = commandbus.is_key_gate(x.gate)
             where x.domain = p_domain and x.ready_at <= p_now
             order by x.ready_at limit 50 for update of x skip locked) r
     where g.domain = p_domain and g.gate = r.gate
       and (commandbus.room_at(p_domain, g.gate, p_now) <= 0 or not r.is_waited_for);
end $$;

-- Leases those whose turn it is at these gates: as many as have room there. If another gate stops all of these they
-- wait there from now on, and those behind them may try in the same call, many at once, four times at most.
create or replace function commandbus.read_waiting(
    p_domain text, p_now timestamptz, p_vt int, p_quantity int, p_except text[], p_gates text[], p_rooms int[]
) returns table (msg_id bigint, message jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    c_many     constant int := 100;
    v_table    text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
    v_picked   bigint[];
    v_ids      uuid[];
    v_msg_ids  bigint[];
    v_messages jsonb[];
    v_taken    record;
begin
    if p_quantity < 1 then
        return;
    end if;
    for v_round in 1 .. 5 loop
        select array_agg(p.msg_id order by p.seq, p.msg_id), array_agg(p.command_id) into v_picked, v_ids from (
            select w.seq, w.msg_id, w.command_id from unnest(p_gates, p_rooms) g(gate, room)
             cross join lateral (
                   select w.msg_id, w.command_id, w.seq from commandbus.command_bus_waiting w
                    where w.domain = p_domain and w.gate = g.gate
                      and (p_except = '{}' or not exists (
                           select from commandbus.command_bus_command c
                            where c.domain = w.domain and c.command_id = w.command_id
                              and c.command_type = any(p_except)))
                    order by w.domain, w.gate, w.seq, w.msg_id
                    limit case v_round when 1 then least(g.room, p_quantity) else c_many end) w
             order by w.seq, w.msg_id limit case v_round when 1 then p_quantity else c_many end) p;
        exit when v_picked is null;
        execute format(
            'select array_agg(m.msg_id order by array_position($1, m.msg_id)),'
            '       array_agg(m.message order by array_position($1, m.msg_id)) from ('
            '    select q.msg_id, q.message from pgmq.%I q'
            '     where q.msg_id = any($1) and q.vt = ''infinity'' for update skip locked) m', v_table)
           into v_msg_ids, v_messages using v_picked;
        if coalesce(cardinality(v_msg_ids), 0) < cardinality(v_picked) then
            perform commandbus.forget_waiting(p_domain, v_ids);
        end if;
        exit when v_msg_ids is null;
        v_taken := commandbus.take_places(
            p_domain, p_now, v_msg_ids, commandbus.command_ids_of(v_messages), p_quantity, true);
        -- They have left this gate for another one, unless another session has that, or all the room there was.
        continue when v_taken.o_admitted = '{}' and exists (
            select from unnest(v_ids) u(command_id)
              join commandbus.command_bus_waiting w on w.domain = p_domain and w.command_id = u.command_id
             where w.gate <> all(p_gates));
        execute format(
            'update pgmq.%I m set vt = $1 + make_interval(secs => $2), read_ct = m.read_ct + 1'
            ' where m.msg_id = any($3)', v_table) using p_now, p_vt, v_taken.o_admitted;
        return query select u.msg_id, u.message from unnest(v_msg_ids, v_messages) u(msg_id, message)
                      where u.msg_id = any(v_taken.o_admitted);
        exit;
    end loop;
end $$;

-- Removes rows of command_bus_waiting whose message does not wait, so that nobody stands in line behind them. Both are
-- written together, so such a row can only come from somebody else's hand.
create or replace function commandbus.forget_waiting(p_domain text, p_command_ids uuid[]) returns int
language plpgsql as $$
declare
    v_gone int;
begin
    execute format(
        'delete from commandbus.command_bus_waiting w where w.ctid = any(array('
        '    select x.ctid from unnest($2) u(command_id)'
        '      join commandbus.command_bus_waiting x on x.domain = $1 and x.command_id = u.command_id'
        '     where left(x.gate, 2) = ''l:'''
        '       and not exists (select from pgmq.%I q where q.msg_id = x.msg_id and q.vt = ''infinity'')'
        '       for update of x skip locked))', 'q_' || commandbus.physical_queue(p_domain || '.commands'))
      using p_domain, p_command_ids;
    get diagnostics v_gone = row_count;
    return v_gone;
end $$;

-- What a receive takes where the domain has limits or paused types, in two lists; null: nothing. Those who wait come first, with half of the group if others
-- are due; the rest of the group is for what is due, and then for those who wait again. What is due and stopped by a
-- gate makes room in the group for what is due behind it, five times at most, and not once somebody has got a place:
-- a place is to be used, so the group goes to its worker, who asks again for the rest.
-- What no limit is about goes by without a look at its row: messages name the type of their command.
--   p_places: handlers that are free now; null: any number. What has a gate is not leased ahead of them.
create or replace function commandbus.take_gated(
    p_flow commandbus.command_bus_flow, p_now timestamptz, p_vt int, p_quantity int, p_from_head boolean,
    p_except text[], p_places int, out o_msg_ids bigint[], out o_messages jsonb[]
)
language plpgsql as $$
declare
    v_table    text := 'q_' || commandbus.physical_queue(p_flow.domain || '.commands');
    v_all      int := least(coalesce(p_places, p_quantity), p_quantity);
    v_places   int := v_all;
    v_left     int := p_quantity;
    v_gates    text[];
    v_rooms    int[];
    v_msg_ids  bigint[];
    v_messages jsonb[];
    v_taken    record;
    v_is_due   boolean := true;
    v_share    int;
    v_number   int;
    v_is_short boolean := false;
    v_is_mixed boolean := false;  -- of several parts, which are not in the order of their messages
    -- Types that have limits; '' stands for all of the domain.
    v_types    text[] := array(
        select distinct r.command_type from commandbus.command_bus_flow_rule r where r.domain = p_flow.domain);
    v_free     bigint[];
    v_take     text := commandbus.queue_verb('take', commandbus.physical_queue(p_flow.domain || '.commands'));
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'to receive under a limit needs the isolation level read committed'
            using errcode = 'CB007', hint = 'leave default_transaction_isolation as it is';
    end if;
    if exists (select from commandbus.command_bus_gate g
                where g.domain = p_flow.domain and g.ready_at <= p_now) then
        perform commandbus.look_later(p_flow.domain, p_now);
    end if;
    if v_places > 0 then
        select array_agg(o.gate), array_agg(o.room) into v_gates, v_rooms
          from commandbus.open_gates(p_flow.domain, p_now) o;
    end if;
    if v_gates is not null then
        v_is_due := coalesce(commandbus.first_due(p_flow.domain, p_flow.has_levels) <= p_now, false);
        -- by chance where there is no half, so that a group of one is for both
        v_share := least(v_places, case when v_is_due then
            p_quantity / 2 + case when p_quantity % 2 = 1 and random() < 0.5 then 1 else 0 end end);
        select array_agg(r.msg_id order by r.msg_id), array_agg(r.message order by r.msg_id)
          into o_msg_ids, o_messages
          from commandbus.read_waiting(p_flow.domain, p_now, p_vt, v_share, p_except, v_gates, v_rooms) r;
        v_number := coalesce(cardinality(o_msg_ids), 0);
        v_left := v_left - v_number;
        v_places := v_places - v_number;
        -- More of them may start than this worker can take.
        v_is_short := v_places = 0 and v_number < (select sum(r) from unnest(v_rooms) r);
    end if;
    for v_round in 1 .. 5 loop
        exit when v_left <= 0 or not v_is_due;
        if p_flow.has_levels then
            select d.o_msg_ids, d.o_messages into v_msg_ids, v_messages
              from commandbus.take_levels(p_flow, p_now, p_vt, v_left, p_from_head and v_round = 1, p_except) d;
        elsif v_take is null or p_from_head and v_round = 1 or p_except <> '{}' then
            select d.msg_ids, d.messages into v_msg_ids, v_messages
              from commandbus.take_messages(
                   p_flow.domain || '.commands', p_now, p_vt, v_left, p_from_head and v_round = 1, p_except) d;
        else
            -- As take_messages would, one call and one copy of all messages less.
            execute 'select * from ' || v_take || '($1, $2, $3)'
               into v_msg_ids, v_messages using p_now, p_vt, v_left;
        end if;
        exit when v_msg_ids is null;
        if '' <> all(v_types) then
            v_free := array(select u.msg_id from unnest(v_msg_ids, v_messages) u(msg_id, message)
                             where u.message ->> 'type' <> all(v_types));
            v_left := v_left - cardinality(v_free);
            if cardinality(v_free) = cardinality(v_msg_ids) then
                -- nearly always all of the group: then it stays as it was read
                v_is_mixed := v_is_mixed or o_msg_ids is not null;
                o_msg_ids := o_msg_ids || v_msg_ids;
                o_messages := o_messages || v_messages;
                exit;
            end if;
            select o_msg_ids || array_agg(u.msg_id), o_messages || array_agg(u.message), true
              into o_msg_ids, o_messages, v_is_mixed
              from unnest(v_msg_ids, v_messages) u(msg_id, message) where u.msg_id = any(v_free);
            select array_agg(u.msg_id order by u.msg_id), array_agg(u.message order by u.msg_id)
              into v_msg_ids, v_messages from unnest(v_msg_ids, v_messages) u(msg_id, message)
             where u.msg_id <> all(v_free);
        end if;
        if p_flow.has_levels then
            select t.o_msg_ids, t.o_messages into v_msg_ids, v_messages
              from commandbus.in_turn(p_flow, v_msg_ids, v_messages) t;
        end if;
        v_taken := commandbus.take_places(
            p_flow.domain, p_now, v_msg_ids, commandbus.command_ids_of(v_messages), v_places, false);
        v_left := v_left - cardinality(v_taken.o_admitted);
        v_places := v_places - v_taken.o_given;
        v_is_short := v_is_short or v_taken.o_is_short;
        select o_msg_ids || array_agg(u.msg_id), o_messages || array_agg(u.message), true
          into o_msg_ids, o_messages, v_is_mixed
          from unnest(v_msg_ids, v_messages) u(msg_id, message) where u.msg_id = any(v_taken.o_admitted);
        exit when v_taken.o_stopped = '{}';
        execute format('update pgmq.%I m set vt = ''infinity'' where m.msg_id = any($1)', v_table)
          using v_taken.o_stopped;
        exit when v_places < v_all;
    end loop;
    if v_number = v_share and v_is_due and least(v_left, v_places) > 0 then
        select array_agg(r.msg_id), array_agg(r.message) into v_msg_ids, v_messages
          from commandbus.read_waiting(
               p_flow.domain, p_now, p_vt, least(v_left, v_places), p_except, v_gates, v_rooms) r;
        v_number := coalesce(cardinality(v_msg_ids), 0);
        o_msg_ids := o_msg_ids || v_msg_ids;
        o_messages := o_messages || v_messages;
        v_is_mixed := true;
        v_is_short := v_is_short or v_number = least(v_left, v_places);
    end if;
    if v_is_mixed then
        select array_agg(u.msg_id order by u.msg_id), array_agg(u.message order by u.msg_id)
          into o_msg_ids, o_messages from unnest(o_msg_ids, o_messages) u(msg_id, message);
    end if;
    if v_is_short then
        perform commandbus.wake_workers(p_flow.domain);
    end if;
end $$;
