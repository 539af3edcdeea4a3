-- Gates, third part: what is shown of them, the chore, and the doctor.

-- Where commands wait at gates without a rule: ranges of names, of the domain, of a type, or of all keys of a type. By
-- a jump over each, however many keys a type has.
create or replace function commandbus.gates_without_rule(p_domain text) returns table (first_gate text, end_gate text)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_gate text;
    v_from text := 'l:';
begin
    loop
        select w.gate into v_gate from commandbus.command_bus_waiting w
         where w.domain = p_domain and w.gate >= v_from and w.gate < 'l;'
         order by w.domain, w.gate, w.seq limit 1;
        exit when not found;
        first_gate := case when commandbus.is_key_gate(v_gate) then 'l:k:' || commandbus.gate_type(v_gate) || '/'
                           else v_gate end;
        -- 0 follows / in the order of bytes
        v_from := case when commandbus.is_key_gate(v_gate) then 'l:k:' || commandbus.gate_type(v_gate) || '0'
                       else v_gate || chr(1) end;
        end_gate := v_from;
        if not exists (select from commandbus.command_bus_flow_rule r
                        where r.domain = p_domain and r.command_type = commandbus.gate_type(v_gate)
                          and r.by_key = commandbus.is_key_gate(v_gate)) then
            return next;
        end if;
    end loop;
end $$;

-- Makes due, at most p_limit, those who wait at gates without a rule; returns how many. Call it again until it is 0.
-- Whose message another session has is left to that one.
create or replace function commandbus.release_waiting(p_domain text, p_limit int default 1000) returns int
language plpgsql as $$
declare
    v_queue text := p_domain || '.commands';
    v_table text := 'q_' || commandbus.physical_queue(v_queue);
    v_picked bigint[];
    v_msgs  bigint[];
    v_ids   uuid[];
begin
    if not commandbus.queue_exists(v_queue) then
        return 0;
    end if;
    select array_agg(p.msg_id), array_agg(p.command_id) into v_picked, v_ids from (
        select w.msg_id, w.command_id from commandbus.gates_without_rule(p_domain) g
         cross join lateral (select w.msg_id, w.command_id from commandbus.command_bus_waiting w
                              where w.domain = p_domain and w.gate >= g.first_gate and w.gate < g.end_gate
                              order by w.domain, w.gate, w.seq limit p_limit) w
         limit p_limit) p;
    if v_picked is null then
        return 0;
    end if;
    execute format(
        'with mine as materialized ('
        '    select q.msg_id from pgmq.%1$I q where q.msg_id = any($1) and q.vt = ''infinity'''
        '       for update skip locked), due as ('
        '    update pgmq.%1$I q set vt = $2 where q.msg_id = any(array(select m.msg_id from mine m))'
        '    returning q.msg_id)'
        ' select array_agg(d.msg_id) from due d', v_table) into v_msgs using v_picked, clock_timestamp();
    if v_msgs is null then
        perform commandbus.forget_waiting(p_domain, v_ids);
        return 0;
    end if;
    perform commandbus.drop_waiting(p_domain, array(
        select u.command_id from unnest(v_picked, v_ids) u(msg_id, command_id) where u.msg_id = any(v_msgs)));
    perform commandbus.wake_workers(p_domain);
    return cardinality(v_msgs);
end $$;

-- The chore of a domain that has or had rules: pauses of types whose time is over, those who wait where no rule is any
-- more, places that nobody has, rows of gates that nobody needs; at last the mark that the domain has rules. Returns
-- how many were made due: call it again until it is 0.
--
-- Waits for no lock, and has the row of the domain, for which others wait, only where something is to be written under
-- it. What another session has is left to the next turn.
create or replace function commandbus.tend_gates(p_domain text, p_limit int default 1000) returns int
language plpgsql as $$
declare
    v_moved int;
begin
    if not exists (select from commandbus.command_bus_flow f where f.domain = p_domain and f.has_rules) then
        return 0;
    end if;
    if exists (select from commandbus.command_bus_flow_rule r
                where r.domain = p_domain and r.paused_until <= clock_timestamp()) then
        perform 1 from commandbus.command_bus_flow f where f.domain = p_domain for update skip locked;
        if found then
            perform commandbus.end_type_pauses(p_domain);
        end if;
    end if;
    v_moved := commandbus.release_waiting(p_domain, p_limit);
    if v_moved > 0 then
        return v_moved;
    end if;
    perform commandbus.free_unused_places(p_domain, p_limit);
    perform commandbus.drop_unused_gates(p_domain, 5 * p_limit);
    -- A rule that is being set has the row, or has changed it.
    update commandbus.command_bus_flow f set has_rules = false, updated_at = clock_timestamp()
     where f.domain = any(array(
           select x.domain from commandbus.command_bus_flow x
            where x.domain = p_domain and x.updated_at < clock_timestamp() - interval '5 minutes'
              and not exists (select from commandbus.command_bus_flow_rule r where r.domain = p_domain)
              and not exists (select from commandbus.command_bus_slot s where s.domain = p_domain)
              and not exists (select from commandbus.command_bus_waiting w
                               where w.domain = p_domain and w.gate >= 'l:' and w.gate < 'l;')
              for update skip locked));
    return 0;
end $$;

-- Removes rows of gates that nobody needs, of the next p_limit from where the last call of this session has stopped: of
-- a limit by key there may be very many. Those that somebody has are left alone.
create or replace function commandbus.drop_unused_gates(p_domain text, p_limit int) returns void
language plpgsql as $$
declare
    v_after text := current_setting('commandbus.gate_swept', true);
    v_page  text[];
begin
    v_after := case when v_after like p_domain || ' l:%' then substr(v_after, length(p_domain) + 2) else '' end;
    v_page := array(
        select g.gate from commandbus.command_bus_gate g
         where g.domain = p_domain and g.gate > v_after order by g.domain, g.gate limit p_limit);
    delete from commandbus.command_bus_gate g
     where g.domain = p_domain and g.gate = any(array(
           select x.gate from commandbus.command_bus_gate x
            where x.domain = p_domain and x.gate = any(v_page) and commandbus.is_unused(x) for update skip locked));
    perform set_config('commandbus.gate_swept',
                       case when cardinality(v_page) = p_limit then p_domain || ' ' || v_page[p_limit] else '' end,
                       false);
end $$;

-- The domains of that chore.
create or replace function commandbus.ruled_domains() returns setof text
language sql stable as $$
    select f.domain from commandbus.command_bus_flow f
     where f.has_rules and f.domain <> all(commandbus.domains_on_the_way()) order by 1
$$;

-- Whether the row of a gate is of no use: nobody is there or waits, and its bucket is full.
create or replace function commandbus.is_unused(p_gate commandbus.command_bus_gate) returns boolean
language sql stable as $$
    select not exists (select from commandbus.command_bus_slot s
                        where s.domain = p_gate.domain and s.gate = p_gate.gate)
       and not exists (select from commandbus.command_bus_waiting w
                        where w.domain = p_gate.domain and w.gate = p_gate.gate)
       and not exists (select from commandbus.command_bus_flow_rule r
                        where r.domain = p_gate.domain and r.command_type = commandbus.gate_type(p_gate.gate)
                          and r.by_key = commandbus.is_key_gate(p_gate.gate)
                          and (not r.by_key or r.rate is not null and commandbus.tokens_at(
                               clock_timestamp(), p_gate.tokens, p_gate.refilled_at,
                               r.rate / r.per_seconds, r.burst) < r.burst))
$$;

-- Places of commands that are not leased, or where no limit is any more; returns them. Under the row of the domain, so
-- that no limit is set meanwhile, which would count on such a place. The messages are locked first, and then the
-- commands, without waiting for any: what is just being leased, or sent again, is left alone.
create or replace function commandbus.free_unused_places(p_domain text, p_limit int) returns setof uuid
language plpgsql as $$
declare
    v_ids    uuid[] := array(
        select s.command_id from commandbus.command_bus_slot s
         where s.domain = p_domain and commandbus.is_vacant(s) order by s.domain, s.command_id limit p_limit);
    v_msgs   bigint[];
    v_busy   bigint[];
    v_locked uuid[];
begin
    if v_ids = '{}' or not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    perform 1 from commandbus.command_bus_flow f where f.domain = p_domain for update skip locked;
    if not found and exists (select from commandbus.command_bus_flow f where f.domain = p_domain) then
        return;
    end if;
    v_msgs := array_remove(commandbus.message_ids(p_domain, v_ids), null);
    execute format(
        'with mine as materialized ('
        '    select q.msg_id from pgmq.%1$I q where q.msg_id = any($1) for update skip locked'
        ') select array(select q.msg_id from pgmq.%1$I q where q.msg_id = any($1)'
        '                  and q.msg_id not in (select m.msg_id from mine m))',
        'q_' || commandbus.physical_queue(p_domain || '.commands')) into v_busy using v_msgs;
    v_locked := array(
        select c.command_id from commandbus.command_bus_command c
         where c.domain = p_domain and c.command_id = any(v_ids)
           and (c.status not in ('PENDING', 'IN_PROGRESS') or c.msg_id = any(v_msgs) and c.msg_id <> all(v_busy))
           for update skip locked);
    return query
    delete from commandbus.command_bus_slot s
     where s.domain = p_domain and s.command_id = any(v_ids) and commandbus.is_vacant(s)
       and (s.command_id = any(v_locked) or not exists (
            select from commandbus.command_bus_command c where c.domain = p_domain and c.command_id = s.command_id))
    returning s.command_id;
    perform commandbus.wake_for_places(p_domain);
end $$;

-- Whether nobody has this place: its command is not leased, or nothing counts it.
create or replace function commandbus.is_vacant(p_slot commandbus.command_bus_slot) returns boolean
language sql stable as $$
    select not exists (select from commandbus.command_bus_command c
                        where c.domain = p_slot.domain and c.command_id = p_slot.command_id
                          and c.leased_by is not null)
        or not exists (select from commandbus.command_bus_flow_rule r
                        where r.domain = p_slot.domain and r.command_type = commandbus.gate_type(p_slot.gate)
                          and r.by_key = commandbus.is_key_gate(p_slot.gate) and r.max_running is not null)
$$;

-- The limits, and what they are up to. A limit by key shows all its keys together.
--   p_domain null: all
create or replace function commandbus.list_limits(p_domain text default null)
returns table (
    domain text, command_type text, by_key boolean, max_running int, rate double precision,
    per_seconds double precision, burst double precision, paused_at timestamptz, paused_until timestamptz,
    paused_by text, pause_reason text, updated_at timestamptz, updated_by text, running bigint,
    tokens double precision, waiting bigint, oldest timestamptz)
language sql stable as $$
    select r.domain, nullif(r.command_type, ''), r.by_key, r.max_running, r.rate, r.per_seconds, r.burst,
           r.paused_at, r.paused_until, r.paused_by, r.pause_reason, r.updated_at, r.updated_by,
           (select count(*) from commandbus.command_bus_slot s
             where s.domain = r.domain and s.gate >= b.first and s.gate < b.last),
           (select commandbus.tokens_at(clock_timestamp(), g.tokens, g.refilled_at, r.rate / r.per_seconds, r.burst)
              from (select) x left join commandbus.command_bus_gate g on g.domain = r.domain and g.gate = b.first
             where r.rate is not null and not r.by_key),
           w.n, w.oldest
      from commandbus.command_bus_flow_rule r
     cross join lateral (
           select case when r.command_type = '' then 'l:d' when r.by_key then 'l:k:' || r.command_type || '/'
                       else 'l:t:' || r.command_type end as first) a
     cross join lateral (
           -- 0 follows / in the order of bytes
           select a.first, case when r.by_key then 'l:k:' || r.command_type || '0' else a.first || chr(1) end
           as last) b
     cross join lateral (
           select count(*) as n, min(w.since) as oldest from commandbus.command_bus_waiting w
            where w.domain = r.domain and w.gate >= b.first and w.gate < b.last) w
     where p_domain is null or r.domain = p_domain
     order by r.domain, r.command_type, r.by_key
$$;

-- The keys of a limit by key that run or wait, those with most waiting first.
create or replace function commandbus.list_limit_keys(p_domain text, p_type text, p_limit int default 100)
returns table (limit_key text, running bigint, waiting bigint, oldest timestamptz)
language sql stable as $$
    with place as (
        select s.gate, 1 as runs, 0 as waits, null::timestamptz as since from commandbus.command_bus_slot s
         where s.domain = p_domain and s.gate >= 'l:k:' || p_type || '/' and s.gate < 'l:k:' || p_type || '0'
        union all
        select w.gate, 0, 1, w.since from commandbus.command_bus_waiting w
         where w.domain = p_domain and w.gate >= 'l:k:' || p_type || '/' and w.gate < 'l:k:' || p_type || '0'
    )
    select substr(p.gate, length(p_type) + 6), sum(p.runs), sum(p.waits), min(p.since) from place p
     group by p.gate order by sum(p.waits) desc, p.gate limit p_limit
$$;

-- What a gate is, for people: 'limit DebitAccount, 10 of 10'.
create or replace function commandbus.gate_text(p_domain text, p_gate text) returns text
language sql stable as $$
    select case
        when p_gate like 'k:%' then 'behind others of key ' || substr(p_gate, 3)
        when r.paused_at is not null and (r.paused_until > clock_timestamp()) is not false
            then 'command type ' || r.command_type || ' is paused' || coalesce(': ' || r.pause_reason, '')
        else concat_ws(', ',
            'limit ' || case when n.type = '' then 'of domain ' || p_domain else n.type end
                || case when commandbus.is_key_gate(p_gate)
                        then ' of key ' || substr(p_gate, length(n.type) + 6) else '' end,
            (select count(*) from commandbus.command_bus_slot s where s.domain = p_domain and s.gate = p_gate)
                || ' of ' || r.max_running,
            r.rate || ' in ' || r.per_seconds || ' s') end
      from (select commandbus.gate_type(p_gate) as type) n
      left join commandbus.command_bus_flow_rule r
        on r.domain = p_domain and r.command_type = n.type and r.by_key = commandbus.is_key_gate(p_gate)
$$;

-- The doctor: a message that stands aside has a row that says why, and the other way round; a place has a lease; a gate
-- that nobody needs is gone after the next chore.
create or replace function commandbus.check_gates(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language plpgsql stable as $$
begin
    for domain in select * from commandbus.queued_domains(p_domain) loop
        return query execute format($q$
            select 'WAITING_FOR_NOTHING', $1, coalesce(m.command_id::text, 'message ' || m.msg_id), m.msg_id
              from (select q.msg_id, commandbus.message_command_id(q.message) as command_id
                      from pgmq.%1$I q where q.vt = 'infinity') m
             where not exists (select from commandbus.command_bus_waiting w
                                where w.domain = $1 and w.command_id = m.command_id and w.msg_id = m.msg_id)
            union all
            select 'WAITING_WITHOUT_MESSAGE', $1, w.command_id::text, w.msg_id
              from commandbus.command_bus_waiting w
             where w.domain = $1 and not exists (
                   select from pgmq.%1$I q where q.msg_id = w.msg_id and q.vt = 'infinity') $q$,
            'q_' || commandbus.physical_queue(domain || '.commands')) using domain;
    end loop;
    return query
    select 'PLACE_WITHOUT_LEASE', s.domain, s.command_id::text, null::bigint
      from commandbus.command_bus_slot s
     where (p_domain is null or s.domain = p_domain)
       and not exists (select from commandbus.command_bus_command c
                        where c.domain = s.domain and c.command_id = s.command_id and c.leased_by is not null);
    return query
    -- its name has a command type, and may have a key
    select 'GATE_UNUSED', g.domain, 'gate ' || left(encode(sha256(g.gate::bytea), 'hex'), 12), null::bigint
      from commandbus.command_bus_gate g
     where (p_domain is null or g.domain = p_domain)
       and (g.refilled_at is null or g.refilled_at < now() - interval '1 day')
       and not exists (select from commandbus.command_bus_flow_rule r
                        where r.domain = g.domain and r.command_type = commandbus.gate_type(g.gate)
                          and r.by_key = commandbus.is_key_gate(g.gate))
       and commandbus.is_unused(g);
end $$;

-- Messages that stand aside for no known reason become due, and ask again; rows that say why a message waits which
-- does not are removed. Commands that have a place among those of their key are left alone: one that is due too early
-- would break the order.
create or replace function commandbus.repair_waiting(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_codes text[];
    v_msgs  bigint[];
    v_ids   uuid[];
begin
    select array_agg(f.code), array_agg(f.msg_id), array_agg(case when f.subject like 'message %' then null
                                                                  else f.subject::uuid end)
      into v_codes, v_msgs, v_ids
      from (select * from commandbus.check_gates(p_domain) c
             where c.code like 'WAITING\_%' and not exists (
                   select from commandbus.command_bus_command k
                    where k.domain = p_domain and k.command_id::text = c.subject and k.key_seq is not null)
             limit p_limit) f;
    if v_codes is null then
        return;
    end if;
    perform commandbus.lock_messages(p_domain || '.commands', v_msgs);
    return query execute format($q$
        with found as materialized (
            select * from unnest($2, $3, $4) f(code, msg_id, command_id)
        ), gone as (
            delete from commandbus.command_bus_waiting w using found f
             where w.domain = $1 and w.command_id = f.command_id and f.code = 'WAITING_WITHOUT_MESSAGE'
               and not exists (select from pgmq.%1$I q where q.msg_id = w.msg_id and q.vt = 'infinity')
            returning w.command_id, w.msg_id, f.code
        ), due as (
            update pgmq.%1$I q set vt = clock_timestamp() from found f
             where q.msg_id = f.msg_id and q.vt = 'infinity' and f.code = 'WAITING_FOR_NOTHING'
               and not exists (select from commandbus.command_bus_waiting w
                                where w.domain = $1 and w.command_id = f.command_id and w.msg_id = q.msg_id)
            returning f.command_id, q.msg_id, f.code
        ), told as materialized (
            select d.*, commandbus.record_repair($1, d.command_id, null, jsonb_build_object(
                       'code', d.code, 'msg_id', d.msg_id), $5)
              from (select * from gone union all select * from due) d)
        select coalesce(t.command_id::text, 'message ' || t.msg_id) from told t $q$,
        'q_' || commandbus.physical_queue(p_domain || '.commands'))
      using p_domain, v_codes, v_msgs, v_ids, p_actor;
    perform commandbus.wake_workers(p_domain);
end $$;

-- Places that nobody has are free again, and rows of gates that nobody needs are removed.
create or replace function commandbus.repair_places(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_id   uuid;
    v_gate text;
begin
    for v_id in select * from commandbus.free_unused_places(p_domain, p_limit) loop
        perform commandbus.record_repair(p_domain, v_id, null, '{"code": "PLACE_WITHOUT_LEASE"}', p_actor);
        return next v_id::text;
    end loop;
    for v_gate in
        delete from commandbus.command_bus_gate g
         where g.domain = p_domain and g.gate = any(array(
               select x.gate from commandbus.command_bus_gate x
                where x.domain = p_domain and commandbus.is_unused(x) limit p_limit for update skip locked))
        returning 'gate ' || left(encode(sha256(g.gate::bytea), 'hex'), 12)
    loop
        perform commandbus.record_repair(p_domain, null, null, jsonb_build_object(
                    'code', 'GATE_UNUSED', 'gate', v_gate), p_actor);
        return next v_gate;
    end loop;
end $$;
