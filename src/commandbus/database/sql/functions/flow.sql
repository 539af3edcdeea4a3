-- Flow: when a command may start, in which order, and how many at once. Who uses none of it pays one look at
-- command_bus_flow for each group of commands.
--
-- What may not start for another reason than its time has vt = 'infinity' and a row in command_bus_waiting that
-- says why. Key and gate rows come after batches in the order of locks (locks.sql), and a worker never waits for
-- one of them.

-- An error for what cannot be: says which command, and what to do.
create or replace function commandbus.refuse_flow(p_command_id uuid, p_problem text, p_hint text) returns void
language plpgsql as $$
begin
    raise exception 'command %: %', p_command_id, p_problem using errcode = 'CB012', hint = p_hint;
end $$;

-- The members of a command in a document that are about its start.
create or replace function commandbus.flow_members() returns text[]
language sql immutable as $$
    select array['deliver_at', 'delay_seconds', 'expires_at', 'expires_in_seconds', 'priority', 'ordering_key',
                 'limit_key']
$$;

-- Refuses a document in which some command cannot start as it asks to. By the clock of the database: that of the
-- sender does not matter.
create or replace function commandbus.check_flow(p_commands jsonb, p_now timestamptz) returns void
language plpgsql as $$
declare
    v_bad record;
begin
    select i.command_id, p.problem, p.hint into v_bad
      from jsonb_to_recordset(p_commands) as i(
               command_id uuid, deliver_at timestamptz, delay_seconds numeric, expires_at timestamptz,
               expires_in_seconds numeric, priority numeric, ordering_key text, limit_key text)
     -- of numbers that cannot be, which are refused below, no interval can be made
     cross join lateral (select case when i.delay_seconds between 0 and 31622400
                                     then p_now + make_interval(secs => i.delay_seconds::float8) end as delivered_at,
                                case when i.expires_in_seconds between 0 and 63244800
                                     then p_now + make_interval(secs => i.expires_in_seconds::float8) end as over_at) t
     cross join lateral (values
        (num_nonnulls(i.deliver_at, i.delay_seconds) = 2, 'it has both deliver_at and delay_seconds',
         'give one of them'),
        (num_nonnulls(i.expires_at, i.expires_in_seconds) = 2,
         'it has both expires_at and expires_in_seconds', 'give one of them'),
        (not i.delay_seconds between 0 and 31622400, 'delay_seconds is not from 0 to 31622400',
         'delay a command by at most one year'),
        -- Nobody could read the row: clients do not know such years.
        (i.deliver_at < '0001-01-01 00:00Z', 'deliver_at is before the year 1', 'leave it out: it is now'),
        (i.deliver_at > p_now + interval '366 days', 'deliver_at is more than a year ahead',
         'delay a command by at most one year; a schedule can send it later'),
        (not i.expires_in_seconds between 0.001 and 63244800,
         'expires_in_seconds is not from 0.001 to 63244800', 'let a command expire within two years'),
        (i.expires_at > p_now + interval '732 days', 'expires_at is more than two years ahead',
         'let a command expire within two years'),
        (i.expires_at <= p_now, 'expires_at is in the past, so it would never start',
         'give a later time, by the clock of the database'),
        (coalesce(i.expires_at, t.over_at) <= coalesce(i.deliver_at, t.delivered_at),
         'it would expire before it is delivered', 'let it expire after deliver_at'),
        (i.priority not in (-2, -1, 0, 1, 2), 'priority is not from -2 to 2',
         'use -2, -1, 0, 1 or 2; 2 goes first'),
        (not length(i.ordering_key) between 1 and 200, 'ordering_key has not 1 to 200 characters',
         'use a short name, for example account:42'),
        (not length(i.limit_key) between 1 and 200, 'limit_key has not 1 to 200 characters',
         'use a short name, for example customer:42'),
        (i.ordering_key is not null and num_nonnulls(i.deliver_at, i.delay_seconds) > 0,
         'it has an ordering_key and a delay: either all of its key would wait, or the order would break',
         'delay it without an ordering_key, or send it with its key when it is due')
     ) p(is_bad, problem, hint)
     where p.is_bad limit 1;
    if found then
        perform commandbus.refuse_flow(v_bad.command_id, v_bad.problem, v_bad.hint);
    end if;
end $$;

-- What the commands of a document say about their start, in their order; refuses what cannot be.
create or replace function commandbus.flow_of(p_domain text, p_commands jsonb, p_now timestamptz)
returns commandbus.flow_fields
language plpgsql as $$
declare
    v_flow commandbus.flow_fields;
begin
    perform commandbus.check_flow(p_commands, p_now);
    select array_agg(i.deliver_at order by i.n), array_agg(i.expires_at order by i.n),
           array_agg(i.priority order by i.n), array_agg(i.ordering_key order by i.n), null,
           array_agg(i.limit_key order by i.n)
      into v_flow
      from commandbus.unpack_commands(p_domain, p_commands, p_now) i;
    return v_flow;
end $$;

-- put_messages for commands that have a time or a level. A time in the past is now: an earlier one would go
-- before all that waits.
create or replace function commandbus.put_placed(
    p_queue text, p_messages jsonb[], p_due timestamptz[], p_levels smallint[]
) returns bigint[]
language plpgsql as $$
declare
    v_msg_ids bigint[];
begin
    if num_nonnulls(variadic p_levels) > 0 then
        perform commandbus.use_levels(split_part(p_queue, '.', 1), interval '1 hour');
    end if;
    execute format(
        'with put as ('
        '    insert into pgmq.%I (vt, message, headers)'
        '    select greatest($1, u.due), u.message,'
        '           case when u.level <> 0 then jsonb_build_object(''priority'', u.level) end'
        '      from unnest($2, $3, $4) u(message, due, level) returning msg_id)'
        ' select array_agg(p.msg_id order by p.msg_id) from put p', 'q_' || commandbus.physical_queue(p_queue))
       into v_msg_ids using clock_timestamp(), p_messages, p_due, p_levels;
    return v_msg_ids;
end $$;

-- Puts the messages of commands that are stored already; their rows, which the caller has locked, say when they
-- are due, at which level, and behind which key.
create or replace function commandbus.put_again(p_domain text, p_command_ids uuid[], p_messages jsonb[])
returns bigint[]
language plpgsql as $$
declare
    v_due      timestamptz[];
    v_levels   smallint[];
    v_has_keys boolean;
begin
    select array_agg(c.deliver_at order by i.n), array_agg(c.priority order by i.n),
           bool_or(c.ordering_key is not null)
      into v_due, v_levels, v_has_keys
      from unnest(p_command_ids) with ordinality as i(command_id, n)
      join commandbus.command_bus_command c on c.domain = p_domain and c.command_id = i.command_id;
    if v_has_keys then
        return commandbus.put_keyed(p_domain, p_command_ids, p_messages, v_due, v_levels);
    end if;
    return commandbus.put_placed(p_domain || '.commands', p_messages, v_due, v_levels);
end $$;

-- Looks at these commands when they expire.
create or replace function commandbus.watch_expiry(
    p_domain text, p_command_ids uuid[], p_expires timestamptz[]
) returns void
language sql as $$
    insert into commandbus.command_bus_expiry (domain, command_id, look_at)
    select p_domain, i.command_id, i.expires_at from unnest(p_command_ids, p_expires) i(command_id, expires_at)
     where i.expires_at is not null
    on conflict (domain, command_id) do update set look_at = excluded.look_at
$$;

-- The end of a send: what commands with a time, a level, a key or a limit need beside their rows and messages,
-- and the audit.
create or replace function commandbus.begin_flow(
    p_domain text, p_command_ids uuid[], p_flow commandbus.flow_fields, p_now timestamptz, p_batch_id uuid,
    p_actor text
) returns void
language plpgsql as $$
begin
    perform commandbus.watch_expiry(p_domain, p_command_ids, p_flow.expires_at);
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    select p_domain, i.id, 'SENT', p_now,
           nullif(jsonb_strip_nulls(jsonb_build_object(
               'deliver_at', commandbus.iso8601(i.deliver_at), 'expires_at', commandbus.iso8601(i.expires_at),
               'priority', i.priority, 'ordering_key', i.ordering_key, 'limit_key', i.limit_key)), '{}'),
           p_batch_id, p_actor
      from unnest(p_command_ids, p_flow.deliver_at, p_flow.expires_at, p_flow.priority, p_flow.ordering_key,
                  p_flow.limit_key) i(id, deliver_at, expires_at, priority, ordering_key, limit_key);
end $$;

-- Leases of these commands have ended, or the commands have. Called last by each function that ends them, after
-- the batches.
--   p_is_over: they will not start again by themselves, and some may have a key, whose next one may start
--   p_was_leased: all of them were leased, so that none waits at a gate
create or replace function commandbus.leave_flow(
    p_domain text, p_command_ids uuid[], p_is_over boolean, p_was_leased boolean default false
) returns void
language plpgsql as $$
declare
    v_has_rules boolean;
    v_has_keys  boolean;
begin
    select f.has_rules, f.has_keys into v_has_rules, v_has_keys
      from commandbus.command_bus_flow f where f.domain = p_domain;
    if v_has_rules and p_was_leased then
        perform commandbus.drop_places(p_domain, p_command_ids);
    elsif v_has_rules then
        perform commandbus.free_places(p_domain, p_command_ids);
    end if;
    if v_has_keys and p_is_over then
        perform commandbus.leave_keys(p_domain, p_command_ids);
    end if;
end $$;

-- Seconds until the next message of each of these domains is due, 0 if one is: one statement for a process that
-- serves very many domains, of which nearly all are idle. Without a row: none will be by itself, and while the domain
-- is paused without an end. A queue that is missing counts as due: who receives from it gets the error.
create or replace function commandbus.due_in(p_domains text[])
returns table (domain text, seconds double precision)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_timestamp();
    v_until timestamptz;
    v_has_levels boolean;
    v_has_keys   boolean;
    v_has_rules  boolean;
    v_due   timestamptz;
begin
    for domain, v_until, v_has_levels, v_has_keys, v_has_rules in
        select d.name, f.paused_until, coalesce(f.has_levels, false), coalesce(f.has_keys, false),
               coalesce(f.has_rules, false)
          from unnest(p_domains) d(name)
          left join commandbus.command_bus_flow f on f.domain = d.name
         where f.paused_at is null or f.paused_until is not null
    loop
        v_due := case when commandbus.queue_exists(due_in.domain || '.commands')
                      then commandbus.first_due(due_in.domain, v_has_levels) else v_now end;
        -- A receive works these off first.
        if v_has_keys and exists (select from commandbus.command_bus_key_due k where k.domain = due_in.domain) then
            v_due := v_now;
        end if;
        if v_has_rules then
            v_due := least(v_due, commandbus.gates_due(due_in.domain, v_now));
        end if;
        if v_due is not null then
            seconds := extract(epoch from greatest(v_due, v_until, v_now) - v_now);
            return next;
        end if;
    end loop;
end $$;

-- The same of one domain; null if none will be by itself.
create or replace function commandbus.next_due(p_domain text) returns double precision
language sql stable as $$ select d.seconds from commandbus.due_in(array[p_domain]) d $$;

-- Of these domains, those whose queue has a message that is due, for workers of earlier versions.
create or replace function commandbus.due_domains(p_domains text[]) returns setof text
language sql stable as $$ select d.domain from commandbus.due_in(p_domains) d where d.seconds = 0 $$;

-- What a command that may not start waits for, beside its time; null: nothing.
create or replace function commandbus.waiting_text(p_domain text, p_command_id uuid) returns text
language plpgsql stable as $$
begin
    return (select case when w.gate like 'k:%' then commandbus.key_text(w.domain, substr(w.gate, 3), w.seq)
                        else commandbus.gate_text(w.domain, w.gate) || ', since ' || commandbus.iso8601(w.since) end
              from commandbus.command_bus_waiting w
             where w.domain = p_domain and w.command_id = p_command_id);
end $$;

-- When the message of a command is due, if it is PENDING and that is later than now; null: now, or not by itself.
create or replace function commandbus.due_at(
    p_domain text, p_status text, p_leased_by text, p_msg_id bigint, p_deliver_at timestamptz
) returns timestamptz
language plpgsql stable as $$
declare
    v_due timestamptz := p_deliver_at;
begin
    if p_status <> 'PENDING' or p_leased_by is not null then
        return null;
    end if;
    if p_msg_id is not null and commandbus.queue_exists(p_domain || '.commands') then
        execute format('select q.vt from pgmq.%I q where q.msg_id = $1',
                       'q_' || commandbus.physical_queue(p_domain || '.commands'))
           into v_due using p_msg_id;
    end if;
    return case when v_due > clock_timestamp() and v_due < 'infinity' then v_due end;
end $$;
