-- Recovery: what was stored but did not reach its queue is queued after all, or given up.
--
-- Run by the worker that claims the chore; running it twice at once is harmless, because a command
-- is locked (SKIP LOCKED) and gets at most one message. Every try counts: a success when the command
-- is queued, a failure here. Old commands are resolved like young ones; their age is reported.
--
-- Lock order: dispatch -> command -> batch (in the order of ids) -> audit.

-- These could not be queued: to be tried again, or, after p_max_attempts, FAILED with the reply and
-- the counters that go with it. What meanwhile was queued, or ended, is left alone. Returns how many
-- were given up.
create or replace function commandbus.mark_dispatch_failed(
    p_domain text, p_command_ids uuid[], p_error text, p_max_attempts int default 3
) returns int
language plpgsql as $$
declare
    c_code    constant text := 'QUEUE_RETRIES_EXCEEDED';
    c_message constant text := 'Max queue retries exceeded';
    v_now     timestamptz := commandbus.lock_commands(p_domain, p_command_ids);
    v_done    text := commandbus.iso8601(v_now);
    v_batches uuid[];
    v_queues  text[];
    v_replies jsonb[];
begin
    with failed as (
        update commandbus.command_bus_command c
           set dispatch_status = 'pending_retry', last_queue_error = p_error,
               queue_attempt_count = c.queue_attempt_count + 1, updated_at = v_now
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.status = 'PENDING' and c.msg_id is null
           and c.dispatch_status in ('pending_queue', 'pending_retry', 'queued')
           and c.queue_attempt_count + 1 < p_max_attempts
    ), given_up as (
        update commandbus.command_bus_command c
           set status = 'FAILED', dispatch_status = 'failed', last_queue_error = p_error,
               queue_attempt_count = c.queue_attempt_count + 1, updated_at = v_now,
               last_error_type = 'TRANSIENT', last_error_code = c_code, last_error_msg = c_message
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.status = 'PENDING' and c.msg_id is null
           and c.dispatch_status in ('pending_queue', 'pending_retry', 'queued')
           and c.queue_attempt_count + 1 >= p_max_attempts
        returning c.command_id, c.batch_id, c.reply_queue, c.queue_attempt_count,
                  commandbus.reply_body(p_domain, c.command_id, c.correlation_id, c.command_type,
                      'FAILED', v_done, null,
                      commandbus.reply_error(c_code, c_message, 'TRANSIENT')) as reply
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, g.command_id, 'FAILED', v_now,
               commandbus.failure_details(0, 'TRANSIENT', c_code, c_message, jsonb_build_object(
                   'queue_attempts', g.queue_attempt_count, 'queue_error', p_error), null),
               g.batch_id
          from given_up g
        union all
        select p_domain, g.command_id, 'GIVEN_UP', v_now, null, g.batch_id from given_up g
    )
    select array_agg(g.batch_id), array_agg(g.reply_queue), array_agg(g.reply)
      into v_batches, v_queues, v_replies from given_up g;
    if v_replies is null then
        return 0;
    end if;
    perform commandbus.publish_replies(p_domain, v_queues, v_replies);
    perform commandbus.move_batch_counters(v_batches, 'open', 'failed');
    return cardinality(v_replies);
end $$;

-- Queues commands that the caller has locked. A group that fails is halved until what is to blame
-- stands alone: only that is counted as failed.
create or replace function commandbus.try_queue(
    p_domain text, p_command_ids uuid[], p_max_attempts int,
    out o_queued int, out o_failed int, out o_given_up int)
language plpgsql as $$
declare
    v_size   int := cardinality(p_command_ids);
    v_queued uuid[];
    v_lost   uuid[];
    v_half   record;
    v_error  text;
begin
    begin
        v_queued := commandbus.queue_stored(p_domain, p_command_ids,
                                          array['pending_queue', 'pending_retry']);
        v_lost := array(select i from unnest(p_command_ids) i where i <> all(v_queued));
        v_error := 'the stored payload is gone';
    exception when others then
        v_queued := '{}';
        v_lost := p_command_ids;
        v_error := left(sqlstate || ': ' || sqlerrm, 500);
    end;
    o_queued := cardinality(v_queued);
    o_failed := 0;
    o_given_up := 0;
    if o_queued > 0 or v_size = 1 then
        o_failed := cardinality(v_lost);
        if o_failed > 0 then
            o_given_up := commandbus.mark_dispatch_failed(p_domain, v_lost, v_error, p_max_attempts);
        end if;
        return;
    end if;
    for v_half in
        select t.* from (values (p_command_ids[:v_size / 2]), (p_command_ids[v_size / 2 + 1:])) h(ids)
         cross join lateral commandbus.try_queue(p_domain, h.ids, p_max_attempts) t
    loop
        o_queued := o_queued + v_half.o_queued;
        o_failed := o_failed + v_half.o_failed;
        o_given_up := o_given_up + v_half.o_given_up;
    end loop;
end $$;

-- One round for one domain: queues, in groups by batch, what waits for a retry and what a process
-- left behind when it ended (no sign of life for p_grace). At most p_limit; call it again while it
-- queues that many. A batch with a rate goes on at that rate: as many as the time since its
-- heartbeat allows.
create or replace function commandbus.recover_dispatch(
    p_domain text, p_grace interval default interval '2 minutes', p_limit int default 1000,
    p_max_attempts int default 3, p_group int default 100,
    p_alert_after interval default interval '30 minutes'
) returns table (queued int, failed int, given_up int, overdue int)
language plpgsql as $$
declare
    v_now       timestamptz := clock_timestamp();
    v_throttled uuid[];
    v_ids       uuid[];
    v_batches   uuid[];
    v_group     record;
    v_tried     record;
begin
    queued := 0; failed := 0; given_up := 0; overdue := 0;
    -- A rate is spent by one recoverer at a time.
    v_throttled := array(
        select d.batch_id from commandbus.command_bus_dispatch d
         where d.domain = p_domain and d.dispatch_rate is not null
           and (d.ended_at is not null or d.heartbeat_at <= v_now - p_grace)
         order by d.batch_id for update skip locked);
    perform commandbus.expose_unsent(p_domain, v_now - p_grace, v_now);

    with due as materialized (
        select c.domain, c.command_id,
               row_number() over (partition by c.batch_id order by c.sequence_no, c.command_id) as n,
               floor(d.dispatch_rate * extract(epoch from v_now - d.heartbeat_at)) as allowance
          from commandbus.command_bus_command c
          left join commandbus.command_bus_dispatch d on d.batch_id = c.batch_id
         where c.domain = p_domain and c.status = 'PENDING'
           and c.dispatch_status in ('pending_retry', 'pending_queue')
           and (c.dispatch_status = 'pending_retry' or c.updated_at <= v_now - p_grace)
           and (c.dispatch_status = 'pending_retry' or d.batch_id is null
                or d.ended_at is not null or d.heartbeat_at <= v_now - p_grace)
           and (d.dispatch_rate is null or d.batch_id = any(v_throttled))
    ), claimed as (
        select c.command_id, c.batch_id, c.created_at, c.sequence_no
          from due u
          join commandbus.command_bus_command c
            on c.domain = u.domain and c.command_id = u.command_id
         where (u.allowance is null or u.n <= u.allowance)
           and c.status = 'PENDING' and c.dispatch_status in ('pending_retry', 'pending_queue')
         order by c.created_at, c.sequence_no, c.command_id limit p_limit
           for update of c skip locked
    )
    select array_agg(k.command_id order by k.batch_id, k.sequence_no, k.command_id),
           array_agg(k.batch_id order by k.batch_id, k.sequence_no, k.command_id),
           count(*) filter (where k.created_at < v_now - p_alert_after)
      into v_ids, v_batches, overdue from claimed k;

    for v_group in
        select g.batch_id, array_agg(g.command_id order by g.k) as ids
          from (select u.*, row_number() over (partition by u.batch_id order by u.k) as n
                  from unnest(v_ids, v_batches) with ordinality as u(command_id, batch_id, k)) g
         group by g.batch_id, (g.n - 1) / p_group
         order by g.batch_id, min(g.k)
    loop
        v_tried := commandbus.try_queue(p_domain, v_group.ids, p_max_attempts);
        queued := queued + v_tried.o_queued;
        failed := failed + v_tried.o_failed;
        given_up := given_up + v_tried.o_given_up;
    end loop;

    update commandbus.command_bus_dispatch d set heartbeat_at = v_now
     where d.batch_id = any(v_throttled) and d.batch_id = any(v_batches);
    perform commandbus.forget_dispatched(array(
        select d.batch_id from commandbus.command_bus_dispatch d
         where d.domain = p_domain
           and (d.ended_at is not null or d.heartbeat_at <= v_now - p_grace)));
    return next;
end $$;

-- Optimistic creation says 'queued' before it sends. If its process ended in between, the commands
-- without a message are to be sent: some may already be in another database's queue, and are adopted
-- once all the same.
create or replace function commandbus.expose_unsent(p_domain text, p_alive_since timestamptz, p_now timestamptz)
returns void
language plpgsql as $$
begin
    with unsent as materialized (
        select c.domain, c.command_id
          from commandbus.command_bus_dispatch d
          join commandbus.command_bus_command c on c.batch_id = d.batch_id and c.domain = d.domain
         where d.domain = p_domain and d.pattern = 'optimistic'
           and d.heartbeat_at <= p_alive_since and (d.ended_at is null or d.queue is null)
           and c.status = 'PENDING' and c.dispatch_status = 'queued' and c.msg_id is null
           for update of c skip locked
    )
    update commandbus.command_bus_command c
       set dispatch_status = 'pending_retry', updated_at = p_now,
           last_queue_error = 'its process ended before it was sent'
      from unsent u
     where c.domain = u.domain and c.command_id = u.command_id;
end $$;
