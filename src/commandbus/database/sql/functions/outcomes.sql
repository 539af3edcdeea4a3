-- Outcomes: the ways a lease ends. Each locks the messages first, then moves only the commands
-- whose lease_epoch matches and that are still leased, and only for those touches the queue, the
-- reply, the batch and the audit. What did not match comes back as stale.
--
-- Items are JSON objects: command_id, msg_id, lease_epoch, and what the outcome needs.
-- A repeat of a call whose answer was lost is harmless: the lease is over, nothing moves, and it
-- is not reported as stale.

-- What came back from a lease that somebody else holds by now: recorded, and otherwise ignored.
create or replace function commandbus.reject_stale(p_domain text, p_items jsonb, p_moved uuid[])
returns setof uuid
language plpgsql as $$
begin
    if jsonb_array_length(p_items) = coalesce(cardinality(p_moved), 0) then
        return;
    end if;
    return query
    with item as materialized (
        select p_domain as domain, r.command_id, r.lease_epoch
          from jsonb_to_recordset(p_items) as r(command_id uuid, lease_epoch bigint)
    ), stale as (
        select i.command_id, i.lease_epoch, c.batch_id
          from item i
          join commandbus.command_bus_command c
            on c.domain = i.domain and c.command_id = i.command_id
         where (p_moved is null or i.command_id <> all(p_moved))
           -- the same epoch without a lease: this very outcome was recorded before
           and not (c.lease_epoch = i.lease_epoch and c.leased_by is null)
    ), recorded as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, s.command_id, 'STALE_RESULT_REJECTED', clock_timestamp(),
               jsonb_build_object('lease_epoch', s.lease_epoch), s.batch_id
          from stale s
    )
    select s.command_id from stale s;
end $$;

-- Publishes one reply for each command that has just ended, grouped by queue. A reply that cannot
-- be published rolls the outcome back with it.
--   p_replies: [{"queue", "reply"}]
create or replace function commandbus.publish_replies(p_domain text, p_queues text[], p_replies jsonb[])
returns void
language plpgsql as $$
declare
    v_queue  text;
    v_is_one boolean := p_queues[1] = all(p_queues); -- as good as always; then nothing is sorted out
begin
    for v_queue in select distinct q from unnest(p_queues) q where q <> '' order by q loop
        if v_queue = '@inbox' then
            insert into commandbus.command_bus_reply_inbox (domain, command_id, reply)
            select p_domain, (r.reply ->> 'command_id')::uuid, r.reply
              from unnest(p_queues, p_replies) r(queue, reply) where r.queue = v_queue
            on conflict (domain, command_id) do update
               set reply = excluded.reply, published_at = now();
            perform pg_notify('commandbus' || '.' || p_domain || '.inbox', '');
        else
            -- Somebody dropped it: better an empty queue than a handler that runs again and again.
            perform commandbus.ensure_queue(v_queue);
            perform commandbus.put_messages(
                v_queue,
                case when v_is_one then p_replies else array(
                    select r.reply from unnest(p_queues, p_replies) r(queue, reply)
                     where r.queue = v_queue) end);
        end if;
    end loop;
end $$;

create or replace function commandbus.reply_body(
    p_domain text, p_command_id uuid, p_correlation_id uuid, p_command_type text,
    p_outcome text, p_completed_at text, p_data jsonb, p_error jsonb
) returns jsonb
-- Not immutable: jsonb_build_object is not, and then it would not be inlined but called each time.
language sql stable as $$
    select jsonb_build_object(
        'command_id', p_command_id, 'correlation_id', p_correlation_id, 'domain', p_domain,
        'type', p_command_type || 'Response', 'outcome', p_outcome,
        'completed_at', p_completed_at, 'data', p_data, 'error', p_error)
$$;

-- IN_PROGRESS -> COMPLETED.  items: data (the handler's result)
-- As good as always every lease of a group is held. So the messages are deleted at once, which locks
-- them as well, and one that should have stayed takes the deletions back. Only then they are locked
-- first, and go when their commands have moved.
create or replace function commandbus.complete_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    v_queue text := p_domain || '.commands';
    v_msgs  bigint[] := array(
        select (i ->> 'msg_id')::bigint from jsonb_array_elements(p_items) i order by 1);
    v_ids   uuid[];
begin
    begin
        -- By the index, and without a bitmap: in the order of lock_messages.
        execute format('delete from pgmq.%I where msg_id = any($1)',
                       'q_' || commandbus.physical_queue(v_queue)) using v_msgs;
        v_ids := commandbus.complete_leased(p_domain, p_items, v_msgs);
    exception when assert_failure then
        perform commandbus.lock_messages(v_queue, v_msgs);
        v_ids := commandbus.complete_leased(p_domain, p_items);
    end;
    return query select * from commandbus.reject_stale(p_domain, p_items, v_ids);
end $$;

-- Completes those that are still leased, and returns them. The messages are locked by the caller,
-- or deleted: then it is an error if they are not exactly those of the completed commands.
create or replace function commandbus.complete_leased(
    p_domain text, p_items jsonb, p_deleted bigint[] default null
) returns uuid[]
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_indexscan = off set enable_bitmapscan = on
as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_done    text := commandbus.iso8601(v_now);
    v_ids     uuid[];
    v_msgs    bigint[];
    v_batches uuid[];
    v_queues  text[];
    v_replies jsonb[];
begin
    with item as materialized (
        select p_domain as domain, r.command_id, r.lease_epoch, r.data
          from jsonb_to_recordset(p_items) as r(command_id uuid, lease_epoch bigint, data jsonb)
    ), moved as (
        update commandbus.command_bus_command c
           set status = 'COMPLETED', leased_by = null, lease_expires_at = null, lapses = 0,
               updated_at = v_now
          from item i
         where c.domain = i.domain and c.command_id = i.command_id
           and c.lease_epoch = i.lease_epoch and c.leased_by is not null
           and c.status in ('PENDING', 'IN_PROGRESS')
        returning c.command_id, c.msg_id, c.batch_id, c.reply_queue,
                  commandbus.reply_body(p_domain, c.command_id, c.correlation_id, c.command_type,
                                        'SUCCESS', v_done, i.data, null) as reply
    ), audited as (
        insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id)
        select p_domain, m.command_id, 'COMPLETED', v_now, m.batch_id from moved m
    )
    select array_agg(m.command_id), array_agg(m.msg_id order by m.msg_id), array_agg(m.batch_id),
           array_agg(m.reply_queue), array_agg(m.reply)
      into v_ids, v_msgs, v_batches, v_queues, v_replies
      from moved m;
    if p_deleted <> coalesce(v_msgs, '{}') then
        raise assert_failure using message = 'a message that was deleted belongs to another lease';
    end if;
    if v_ids is not null then
        if p_deleted is null then
            perform pgmq.delete(commandbus.physical_queue(p_domain || '.commands'), v_msgs);
        end if;
        perform commandbus.publish_replies(p_domain, v_queues, v_replies);
        perform commandbus.move_batch_counters(v_batches, 'open', 'completed');
    end if;
    return v_ids;
end $$;

-- IN_PROGRESS -> PENDING after a failure that may pass: the same message shows up again after
-- the delay.  items: delay_seconds, error_type, error_code, error_msg, error_details
create or replace function commandbus.retry_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_indexscan = off set enable_bitmapscan = on
as $$
declare
    v_queue  text := p_domain || '.commands';
    v_now    timestamptz;
    v_ids    uuid[];
    v_msgs   bigint[];
    v_delays float8[];
    v_delay  float8;
begin
    perform commandbus.lock_messages(v_queue, array(
        select (i ->> 'msg_id')::bigint from jsonb_array_elements(p_items) i));
    v_now := clock_timestamp();
    with item as materialized (
        select p_domain as domain, r.*
          from jsonb_to_recordset(p_items) as r(
                   command_id uuid, lease_epoch bigint, delay_seconds float8, error_type text,
                   error_code text, error_msg text, error_details jsonb)
    ), moved as (
        update commandbus.command_bus_command c
           set status = 'PENDING', leased_by = null, lease_expires_at = null, lapses = 0,
               last_error_type = i.error_type, last_error_code = i.error_code,
               last_error_msg = i.error_msg, updated_at = v_now
          from item i
         where c.domain = i.domain and c.command_id = i.command_id
           and c.lease_epoch = i.lease_epoch and c.leased_by is not null
           and c.status in ('PENDING', 'IN_PROGRESS')
        returning c.command_id, c.msg_id, c.batch_id, i.delay_seconds,
                  commandbus.failure_details(c.attempts, i.error_type, i.error_code, i.error_msg,
                                             i.error_details, i.delay_seconds) as details
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, m.command_id, 'FAILED', v_now, m.details, m.batch_id from moved m
    )
    select array_agg(m.command_id), array_agg(m.msg_id), array_agg(m.delay_seconds)
      into v_ids, v_msgs, v_delays from moved m;
    for v_delay in select distinct d from unnest(v_delays) d loop
        perform pgmq.set_vt(
            commandbus.physical_queue(v_queue),
            array(select m.msg_id from unnest(v_msgs, v_delays) m(msg_id, delay)
                   where m.delay = v_delay order by m.msg_id),
            v_now + make_interval(secs => v_delay));
    end loop;
    return query select * from commandbus.reject_stale(p_domain, p_items, v_ids);
end $$;

-- What the audit keeps of a failed attempt.
create or replace function commandbus.failure_details(
    p_attempt int, p_class text, p_code text, p_message text, p_details jsonb, p_delay float8
) returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
               'attempt', p_attempt, 'class', p_class, 'code', p_code, 'message', p_message,
               'retry_in_seconds', p_delay))
        -- what the handler said stays as it said it, nulls and all
        || case when p_details is null then '{}' else jsonb_build_object('details', p_details) end
$$;

-- IN_PROGRESS -> IN_TROUBLESHOOTING_QUEUE: the payload waits in the archive, no reply yet.
--   items: reason (PERMANENT or EXHAUSTED), error_type, error_code, error_msg, error_details
create or replace function commandbus.park_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_indexscan = off set enable_bitmapscan = on
as $$
declare
    v_queue   text := p_domain || '.commands';
    v_now     timestamptz;
    v_ids     uuid[];
    v_msgs    bigint[];
    v_batches uuid[];
    v_reasons text[];
begin
    perform commandbus.lock_messages(v_queue, array(
        select (i ->> 'msg_id')::bigint from jsonb_array_elements(p_items) i));
    v_now := clock_timestamp();
    with item as materialized (
        select p_domain as domain, r.*
          from jsonb_to_recordset(p_items) as r(
                   command_id uuid, lease_epoch bigint, reason text, error_type text,
                   error_code text, error_msg text, error_details jsonb)
    ), moved as (
        update commandbus.command_bus_command c
           set status = 'IN_TROUBLESHOOTING_QUEUE', leased_by = null, lease_expires_at = null,
               lapses = 0, started_alone = false, last_error_type = i.error_type,
               last_error_code = i.error_code, last_error_msg = i.error_msg, updated_at = v_now
          from item i
         where c.domain = i.domain and c.command_id = i.command_id
           and c.lease_epoch = i.lease_epoch and c.leased_by is not null
           and c.status in ('PENDING', 'IN_PROGRESS')
        returning c.command_id, c.msg_id, c.batch_id, c.attempts, i.reason, i.error_code,
                  commandbus.failure_details(c.attempts, i.error_type, i.error_code, i.error_msg,
                                             i.error_details, null) as details
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, m.command_id, 'FAILED', v_now, m.details, m.batch_id from moved m
        union all
        select p_domain, m.command_id, 'MOVED_TO_TROUBLESHOOTING_QUEUE', v_now,
               jsonb_build_object('reason', m.reason, 'code', m.error_code, 'attempts', m.attempts),
               m.batch_id
          from moved m
    )
    select array_agg(m.command_id), array_agg(m.msg_id), array_agg(m.batch_id), array_agg(m.reason)
      into v_ids, v_msgs, v_batches, v_reasons from moved m;
    if v_ids is not null then
        if commandbus.setting('payload_archive') = 'on' then
            perform commandbus.keep_payloads(p_domain, v_msgs);
        end if;
        perform pgmq.archive(commandbus.physical_queue(v_queue), v_msgs);
        perform commandbus.move_batch_counters(v_batches, 'open', 'tsq');
        perform commandbus.enter_troubleshooting(p_domain, v_ids, v_reasons, v_now);
    end if;
    return query select * from commandbus.reject_stale(p_domain, p_items, v_ids);
end $$;

-- The payload table of 004 §5.3: retries then do not depend on how long PGMQ's archive is kept.
create or replace function commandbus.keep_payloads(p_domain text, p_msg_ids bigint[]) returns void
language plpgsql as $$
begin
    execute format(
        'insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)'
        ' select $1, (q.message ->> ''command_id'')::uuid, q.message from pgmq.%I q'
        ' where q.msg_id = any($2)'
        ' on conflict (domain, command_id) do update'
        ' set payload_json = excluded.payload_json, archived_at = now()',
        'q_' || commandbus.physical_queue(p_domain || '.commands')) using p_domain, p_msg_ids;
end $$;

-- IN_PROGRESS -> FAILED, for handlers that opted out of troubleshooting: ended, with a reply.
--   items: error_type, error_code, error_msg, error_details
create or replace function commandbus.fail_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_indexscan = off set enable_bitmapscan = on
as $$
declare
    v_queue   text := p_domain || '.commands';
    v_now     timestamptz;
    v_done    text;
    v_ids     uuid[];
    v_msgs    bigint[];
    v_batches uuid[];
    v_queues  text[];
    v_replies jsonb[];
begin
    perform commandbus.lock_messages(v_queue, array(
        select (i ->> 'msg_id')::bigint from jsonb_array_elements(p_items) i));
    v_now := clock_timestamp();
    v_done := commandbus.iso8601(v_now);
    with item as materialized (
        select p_domain as domain, r.*
          from jsonb_to_recordset(p_items) as r(
                   command_id uuid, lease_epoch bigint, error_type text, error_code text,
                   error_msg text, error_details jsonb)
    ), moved as (
        update commandbus.command_bus_command c
           set status = 'FAILED', leased_by = null, lease_expires_at = null, lapses = 0,
               last_error_type = i.error_type, last_error_code = i.error_code,
               last_error_msg = i.error_msg, updated_at = v_now
          from item i
         where c.domain = i.domain and c.command_id = i.command_id
           and c.lease_epoch = i.lease_epoch and c.leased_by is not null
           and c.status in ('PENDING', 'IN_PROGRESS')
        returning c.command_id, c.msg_id, c.batch_id, c.reply_queue,
                  commandbus.reply_body(p_domain, c.command_id, c.correlation_id, c.command_type,
                      'FAILED', v_done, null, jsonb_build_object(
                          'code', i.error_code, 'message', i.error_msg, 'class', i.error_type))
                      as reply,
                  commandbus.failure_details(c.attempts, i.error_type, i.error_code, i.error_msg,
                                             i.error_details, null) as details
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, m.command_id, 'FAILED', v_now, m.details, m.batch_id from moved m
        union all
        select p_domain, m.command_id, 'GIVEN_UP', v_now, null, m.batch_id from moved m
    )
    select array_agg(m.command_id), array_agg(m.msg_id), array_agg(m.batch_id),
           array_agg(m.reply_queue), array_agg(m.reply)
      into v_ids, v_msgs, v_batches, v_queues, v_replies
      from moved m;
    if v_ids is not null then
        perform pgmq.archive(commandbus.physical_queue(v_queue), v_msgs);
        perform commandbus.publish_replies(p_domain, v_queues, v_replies);
        perform commandbus.move_batch_counters(v_batches, 'open', 'failed');
    end if;
    return query select * from commandbus.reject_stale(p_domain, p_items, v_ids);
end $$;

-- IN_PROGRESS -> PENDING, visible at once: leased, but never started (a worker that stops).
create or replace function commandbus.release_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_indexscan = off set enable_bitmapscan = on
as $$
declare
    v_queue text := p_domain || '.commands';
    v_now   timestamptz;
    v_ids   uuid[];
    v_msgs  bigint[];
begin
    perform commandbus.lock_messages(v_queue, array(
        select (i ->> 'msg_id')::bigint from jsonb_array_elements(p_items) i));
    v_now := clock_timestamp();
    with item as materialized (
        select p_domain as domain, r.command_id, r.lease_epoch
          from jsonb_to_recordset(p_items) as r(command_id uuid, lease_epoch bigint)
    ), moved as (
        update commandbus.command_bus_command c
           set status = 'PENDING', leased_by = null, lease_expires_at = null,
               -- a suspect that was given back is still one
               lapses = -abs(c.lapses), attempts = greatest(c.attempts - 1, 0), updated_at = v_now
          from item i
         where c.domain = i.domain and c.command_id = i.command_id
           and c.lease_epoch = i.lease_epoch and c.leased_by is not null
           and c.status in ('PENDING', 'IN_PROGRESS')
        returning c.command_id, c.msg_id, c.batch_id
    ), audited as (
        insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id)
        select p_domain, m.command_id, 'RELEASED', v_now, m.batch_id from moved m
    )
    select array_agg(m.command_id), array_agg(m.msg_id order by m.msg_id)
      into v_ids, v_msgs from moved m;
    if v_ids is not null then
        perform pgmq.set_vt(commandbus.physical_queue(v_queue), v_msgs, v_now);
        perform commandbus.wake_workers(p_domain);
    end if;
    return query select * from commandbus.reject_stale(p_domain, p_items, v_ids);
end $$;
