-- One command's life: its events, and what stands beside its row. These functions only read, and by key.

-- The events of a command, oldest first: all of them, or, if there are more than p_most, the p_ends oldest and
-- the p_ends newest. `left_out`, the same in each row, says how many are between them; it is counted up to
-- 10,000, and -1 stands for more. p_viewer: through whose eyes, see visibility.sql.
create or replace function commandbus.command_events(
    p_domain text, p_command_id uuid, p_viewer text default null, p_most int default 200,
    p_ends int default 50
) returns table (event commandbus.command_bus_audit, left_out int)
language plpgsql stable as $$
declare
    c_counted constant int := 10000;
    v_found int;
begin
    select count(*) into v_found from (
        select from commandbus.command_bus_audit a
         where a.command_id = p_command_id and a.domain = p_domain
           and commandbus.sees_event(p_viewer, a)
         limit c_counted + p_most + 1) counted;
    if v_found <= p_most then
        return query
        select a, 0 from commandbus.command_bus_audit a
         where a.command_id = p_command_id and a.domain = p_domain
           and commandbus.sees_event(p_viewer, a)
         order by a.ts, a.audit_id;
        return;
    end if;
    left_out := case when v_found > c_counted + p_most then -1 else v_found - 2 * p_ends end;
    return query
    select ends.a, command_events.left_out from (
        (select a, a.ts, a.audit_id from commandbus.command_bus_audit a
          where a.command_id = p_command_id and a.domain = p_domain
            and commandbus.sees_event(p_viewer, a)
          order by a.ts, a.audit_id limit p_ends)
        union all
        (select a, a.ts, a.audit_id from commandbus.command_bus_audit a
          where a.command_id = p_command_id and a.domain = p_domain
            and commandbus.sees_event(p_viewer, a)
          order by a.ts desc, a.audit_id desc limit p_ends)) ends
     order by ends.ts, ends.audit_id;
end $$;

-- Where the reply of a command is in a queue of replies, which knows no ids: its messages stand in the order in
-- which they were published, so the moment of the end is found by halving, and what was published around it is
-- looked at, as many before as after. `unknown`: too many were, and it is not among them.
--   p_ended: when the command ended; o_body: null unless the reply is there
create or replace function commandbus.find_reply(
    p_queue text, p_domain text, p_command_id uuid, p_ended timestamptz, out o_stands text, out o_body text
)
language plpgsql stable as $$
declare
    c_beside constant int := 1000;
    c_near   constant interval := '10 s'; -- between two that were published in another order than they ended
    v_table  text := 'q_' || commandbus.physical_queue(p_queue);
    v_ended  text := commandbus.iso8601(p_ended);
    v_from   bigint;
    v_to     bigint;
    v_middle bigint;
    v_id     bigint;
    v_at     text;
    v_found  record;
begin
    execute format('select min(q.msg_id) - 1, max(q.msg_id) from pgmq.%I q', v_table) into v_from, v_to;
    while v_from < v_to loop
        v_middle := (v_from + v_to) / 2;
        execute format(
            'select q.msg_id, coalesce(q.message ->> ''completed_at'', commandbus.iso8601(q.enqueued_at))'
            '  from pgmq.%I q where q.msg_id > $1 order by q.msg_id limit 1', v_table)
           into v_id, v_at using v_middle;
        if v_at < v_ended then
            v_from := v_id;
        else
            v_to := v_middle;
        end if;
    end loop;
    execute format(
        'select count(*) filter (where n.is_before) as before, count(*) filter (where not n.is_before) as after,'
        '       min(n.at) as first_at, max(n.at) as last_at,'
        '       (array_agg(case when n.vt > clock_timestamp() and n.read_ct > 0 then ''leased'''
        '                       else ''waiting'' end order by n.msg_id desc) filter (where n.is_it))[1] as stands,'
        '       (array_agg(n.message::text order by n.msg_id desc) filter (where n.is_it))[1] as body'
        '  from (select q.*, q.msg_id <= $1 as is_before,'
        '               coalesce(q.message ->> ''completed_at'', commandbus.iso8601(q.enqueued_at)) as at,'
        '               q.message ->> ''command_id'' = $3 and q.message ->> ''domain'' = $4 as is_it'
        '          from ((select * from pgmq.%1$I where msg_id <= $1 order by msg_id desc limit $2)'
        '                union all'
        '                (select * from pgmq.%1$I where msg_id > $1 order by msg_id limit $2)) q) n', v_table)
       into v_found using v_from, c_beside, p_command_id::text, p_domain;
    o_body := v_found.body;
    o_stands := case
        when v_found.stands is not null then v_found.stands
        when v_found.before = c_beside and v_found.first_at > commandbus.iso8601(p_ended - c_near)
          or v_found.after = c_beside and v_found.last_at < commandbus.iso8601(p_ended + c_near) then 'unknown'
        else 'taken' end;
end $$;

-- The reply of a command: `open` (it has not ended), `unwanted`, `waiting`, `leased` (somebody reads it),
-- `taken`, `gone` (taken, or removed by retention), or `unknown`. No row: there is no such command.
create or replace function commandbus.command_reply(p_domain text, p_command_id uuid)
returns table (command_type text, stands text, body text, secret_keys text[])
language plpgsql stable as $$
declare
    v_status text;
    v_queue  text;
    v_ended  timestamptz;
    v_keep   interval;
begin
    select c.command_type, c.status, c.reply_queue, c.updated_at
      into command_reply.command_type, v_status, v_queue, v_ended
      from commandbus.known_command(p_domain, p_command_id) c;
    if not found then
        return;
    end if;
    secret_keys := array(select k.key from commandbus.command_bus_secret_key k
                          where k.domain = p_domain and k.command_type = command_reply.command_type);
    if v_status not in ('COMPLETED', 'CANCELED', 'FAILED') then
        stands := 'open';
    elsif v_queue = '' then
        stands := 'unwanted';
    elsif v_queue = '@inbox' then
        select i.reply::text into body from commandbus.command_bus_reply_inbox i
         where i.domain = p_domain and i.command_id = p_command_id;
        stands := case when body is null then 'taken' else 'waiting' end;
    elsif not commandbus.queue_exists(v_queue)
       or not commandbus.is_made_by_us(commandbus.physical_queue(v_queue)) then
        stands := 'unknown';
    else
        select f.o_stands, f.o_body into stands, body
          from commandbus.find_reply(v_queue, p_domain, p_command_id, v_ended) f;
    end if;
    if stands = 'taken' then
        select r.keep into v_keep from commandbus.command_bus_retention r
         where r.domain in (p_domain, '*') and r.kind = 'replies' order by r.domain = '*' limit 1;
        stands := case when v_ended < now() - v_keep then 'gone' else 'taken' end;
    end if;
    return next;
end $$;

-- The payloads that a command had before it was edited, the last one first. Without data: PGMQ's archive has
-- that message no more.
create or replace function commandbus.former_payloads(p_domain text, p_command_id uuid, p_limit int default 20)
returns table (
    replaced_at timestamptz, replaced_by text, data text, command_type text, secret_keys text[])
language plpgsql stable as $$
begin
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    return query execute format(
        'select e.ts, e.actor, (select (a.message -> ''data'')::text from pgmq.%I a'
        '                        where a.msg_id = e.msg_id and a.message ->> ''command_id'' = $2::text),'
        '       c.command_type,'
        '       array(select k.key from commandbus.command_bus_secret_key k'
        '              where k.domain = c.domain and k.command_type = c.command_type)'
        '  from (select a.ts, a.audit_id, a.actor,'
        '               (a.details_json -> ''edited'' ->> ''previous_msg_id'')::bigint as msg_id'
        '          from commandbus.command_bus_audit a'
        '         where a.command_id = $2 and a.domain = $1 and a.event_type = ''OPERATOR_RETRY'' and'
        '               a.details_json ? ''edited'''
        '         order by a.ts desc, a.audit_id desc limit $3) e'
        ' cross join commandbus.known_command($1, $2) c'
        ' order by e.ts desc, e.audit_id desc',
        'a_' || commandbus.physical_queue(p_domain || '.commands')) using p_domain, p_command_id, p_limit;
end $$;

-- What is not in the row of a command, or not shown with it: how it stands with its dispatch, its failure
-- group, whether its payload is still there, whether somebody has proposed an edit or asked to cancel it, where
-- its reply is, and the trace that it is part of, as long as its message or its reply is there.
create or replace function commandbus.command_facts(p_domain text, p_command_id uuid)
returns table (
    dispatch_status text, fingerprint text, parked_at timestamptz, has_payload boolean, has_edit boolean,
    cancel_requested_at timestamptz, cancel_requested_by text, worker_seen_at timestamptz, reply text,
    traceparent text)
language sql stable as $$
    select c.dispatch_status, t.fingerprint, t.parked_at,
           commandbus.command_payload(c.domain, c.command_id) is not null,
           exists (select from commandbus.command_bus_edit e
                    where e.command_id = c.command_id and e.domain = c.domain),
           c.cancel_requested_at, c.cancel_requested_by,
           (select w.heartbeat_at from commandbus.command_bus_worker w where w.worker_id = c.leased_by),
           r.stands,
           coalesce(commandbus.command_meta(c.domain, c.command_id)::jsonb ->> 'traceparent',
                    r.body::jsonb -> 'meta' ->> 'traceparent')
      from commandbus.known_command(p_domain, p_command_id) c
      left join commandbus.command_bus_troubleshooting t
        on t.domain = p_domain and t.command_id = p_command_id
      cross join lateral commandbus.command_reply(c.domain, c.command_id) r
$$;
