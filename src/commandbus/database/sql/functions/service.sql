-- What the HTTP service asks beyond the library: pages by key, replies with a receipt, figures.

-- One page of what waits for an operator, longest first, with the payload that a retry would send: by
-- key for pages, by offset for list_troubleshooting. p_command_id: only this one.
create or replace function commandbus.page_troubleshooting(
    p_domain text, p_command_type text, p_group text, p_command_id uuid,
    p_after timestamptz, p_after_id uuid, p_limit int, p_offset int default 0
) returns table (
    domain text, command_id uuid, command_type text, reason text, parked_at timestamptz,
    attempts int, max_attempts int, last_error_type text, last_error_code text,
    last_error_msg text, correlation_id uuid, reply_queue text, batch_id uuid,
    created_at timestamptz, data text)
language plpgsql stable as $$
begin
    perform commandbus.check_domain(p_domain);
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    return query execute format(
        'select c.domain, c.command_id, c.command_type, t.reason, t.parked_at, c.attempts,'
        '       c.max_attempts, c.last_error_type, c.last_error_code, c.last_error_msg,'
        '       c.correlation_id, c.reply_queue, c.batch_id, c.created_at,'
        '       (coalesce(a.message, p.payload_json) -> ''data'')::text'
        '  from (select * from commandbus.command_bus_troubleshooting t'
        '         where t.domain = $1 and ($2 is null or t.command_type = $2)'
        '           and ($3 is null or t.fingerprint = $3) and ($4 is null or t.command_id = $4)'
        '           and ($5 is null or (t.parked_at, t.command_id) > ($5, $6))'
        '         order by t.parked_at, t.command_id limit $7 offset $8) t'
        '  join commandbus.command_bus_command c'
        '    on c.domain = t.domain and c.command_id = t.command_id'
        '  left join pgmq.%I a on a.msg_id = c.msg_id'
        '  left join commandbus.command_bus_payload_archive p'
        '    on p.domain = c.domain and p.command_id = c.command_id'
        ' order by t.parked_at, t.command_id',
        'a_' || commandbus.physical_queue(p_domain || '.commands'))
        using p_domain, p_command_type, p_group, p_command_id, p_after, p_after_id, p_limit, p_offset;
end $$;

-- Leases replies, each with a receipt: how often it has been read is a fence, because the next
-- reader gets another number.
create or replace function commandbus.lease_replies(p_queue text, p_vt int, p_quantity int)
returns table (msg_id bigint, receipt bigint, body text)
language plpgsql as $$
begin
    if commandbus.queue_exists(p_queue) then
        return query
        select r.msg_id, r.read_ct::bigint, r.message::text
          from pgmq.read(commandbus.physical_queue(p_queue), p_vt, p_quantity) r
         order by r.msg_id;
    end if;
end $$;

-- Deletes the replies whose receipt still holds, and returns their numbers. One whose lease lapsed
-- and that somebody else has read since is left to that reader: deleted here, it would be lost if
-- that one fails.
create or replace function commandbus.acknowledge_replies(
    p_queue text, p_msg_ids bigint[], p_receipts bigint[]
) returns setof bigint
language plpgsql as $$
begin
    if commandbus.queue_exists(p_queue) then
        return query execute format(
            'with held as ('
            '    select q.msg_id from pgmq.%1$I q'
            '      join unnest($1, $2) r(msg_id, receipt) on r.msg_id = q.msg_id'
            '     where q.read_ct = r.receipt order by q.msg_id for update of q)'
            ' delete from pgmq.%1$I q using held h where q.msg_id = h.msg_id returning q.msg_id',
            'q_' || commandbus.physical_queue(p_queue)) using p_msg_ids, p_receipts;
    end if;
end $$;

-- The figures of all domains, for metrics: never a look at the table of commands. `delayed` is what
-- is leased or backs off. Whoever asks keeps the answer for some seconds.
create or replace function commandbus.domain_figures()
returns table (
    domain text, ready bigint, delayed bigint, oldest_seconds double precision, parked bigint,
    workers bigint, concurrency bigint, in_flight bigint, heartbeat_seconds double precision,
    batch_remaining bigint)
language plpgsql stable as $$
declare
    v_domain text;
begin
    for v_domain in select * from commandbus.doctor_domains(null) loop
        continue when not commandbus.queue_exists(v_domain || '.commands');
        domain := v_domain;
        execute format(
            'select count(*) filter (where q.vt <= $1), count(*) filter (where q.vt > $1),'
            '       coalesce(extract(epoch from $1 - min(q.enqueued_at) filter (where q.vt <= $1)), 0)'
            '  from pgmq.%I q', 'q_' || commandbus.physical_queue(v_domain || '.commands'))
           into ready, delayed, oldest_seconds using clock_timestamp();
        select coalesce(sum(g.parked_count), 0) into parked
          from commandbus.command_bus_failure_group g where g.domain = v_domain;
        select count(*), coalesce(sum(w.concurrency), 0), coalesce(sum(w.in_flight), 0),
               coalesce(extract(epoch from clock_timestamp() - min(w.heartbeat_at)), 0)
          into workers, concurrency, in_flight, heartbeat_seconds
          from commandbus.command_bus_worker w where w.domain = v_domain;
        select coalesce(sum(b.total_count - b.completed_count - b.failed_count - b.canceled_count), 0)
          into batch_remaining
          from commandbus.command_bus_batch b
         where b.domain = v_domain and b.status in ('PENDING', 'IN_PROGRESS');
        return next;
    end loop;
end $$;
