-- Outcomes: what becomes of a command when its lease ends. Each function locks the messages, ends the
-- leases that still hold (leases.sql), and only for those touches the queue, the reply, the batch and the
-- audit. It returns the commands whose lease was lost, which it did not move.

-- IN_PROGRESS -> COMPLETED.  items: data (the handler's result), meta (of the reply)
-- Nearly always every lease of a group holds. So the messages are deleted at once, which locks them as
-- well. If one of them should have stayed, the deletions are taken back, and the slower way follows: the
-- messages are locked, and deleted when their commands have moved.
create or replace function commandbus.complete_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql as $$
declare
    v_queue text := p_domain || '.commands';
    v_msgs  bigint[] := array(
        select (i ->> 'msg_id')::bigint from jsonb_array_elements(p_items) i order by 1);
    v_drop  text := commandbus.queue_verb('drop', commandbus.physical_queue(v_queue));
    v_ids   uuid[];
begin
    begin
        -- By the index, and without a bitmap: in the order of lock_messages.
        if v_drop is null then
            perform commandbus.drop_messages(v_queue, v_msgs);
        else
            execute 'select ' || v_drop || '($1)' using v_msgs; -- as it would, one call less
        end if;
        v_ids := commandbus.complete_leased(p_domain, p_items, v_msgs);
    exception when assert_failure then
        perform commandbus.lock_messages(v_queue, v_msgs);
        v_ids := commandbus.complete_leased(p_domain, p_items);
    end;
    if jsonb_array_length(p_items) <> coalesce(cardinality(v_ids), 0) then
        return query select * from commandbus.reject_stale(p_domain, p_items, v_ids);
    end if;
end $$;

-- complete_commands, and then receive_commands for the same worker in the same transaction: those who wait for the
-- places of these commands have them at once, and a worker of few places has one commit in place of two. No rows of
-- leases mean nothing: a receive of its own may find some.
--   is_lost: not a lease, but a command of p_items whose lease was lost
-- The receive is left out where this transaction holds a batch or keys: it would lock more of them, in no order. It skips
-- messages and gates that somebody else has, and waits for nothing else for long: who waits for the commands that have
-- ended here might have locked what it wants.
create or replace function commandbus.complete_and_receive(
    p_domain text, p_items jsonb, p_vt int, p_quantity int, p_worker text, p_limits jsonb,
    p_mark_in_progress boolean, p_except text[], p_count_every text[], p_places int
) returns table (
    command_id uuid, command_type text, msg_id bigint, lease_epoch bigint, attempt int,
    max_attempts int, is_suspect boolean, correlation_id uuid, reply_queue text, batch_id uuid,
    created_at timestamptz, data text, snoozes int, has_rules boolean, meta text, due_at timestamptz,
    is_lost boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    v_patience text := current_setting('lock_timeout');
begin
    is_lost := true;
    for command_id in select c from commandbus.complete_commands(p_domain, p_items) c loop
        return next;
    end loop;
    if exists (select from commandbus.command_bus_flow f where f.domain = p_domain and f.has_keys)
       or commandbus.has_batch(p_domain, p_items) then
        return;
    end if;
    begin
        perform set_config('lock_timeout', '50ms', true);
        return query select r.*, false from commandbus.receive_commands(
            p_domain, p_vt, p_quantity, p_worker, p_limits, p_mark_in_progress, false, p_except, p_count_every,
            p_places) r;
        perform set_config('lock_timeout', v_patience, true);
    exception when others then
        -- The ends stand, and the setting is back. The next receive meets the same error, and tells of it.
        null;
    end;
end $$;

-- Whether one of these commands is of a batch.
create or replace function commandbus.has_batch(p_domain text, p_items jsonb) returns boolean
language plpgsql stable as $$
begin
    return exists (
        select from jsonb_array_elements(p_items) i
          join commandbus.command_bus_command c
            on c.domain = p_domain and c.command_id = (i ->> 'command_id')::uuid
         where c.batch_id is not null);
end $$;

-- Completes those whose lease holds, and returns them. The messages are locked by the caller, or deleted:
-- then it is an error if they are not exactly those of the completed commands.
create or replace function commandbus.complete_leased(
    p_domain text, p_items jsonb, p_deleted bigint[] default null
) returns uuid[]
language plpgsql as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_done    text := commandbus.iso8601(v_now);
    v_ids     uuid[];
    v_msgs    bigint[];
    v_batches uuid[];
    v_queues  text[];
    v_replies jsonb[];
    v_has_key boolean;
begin
    if jsonb_array_length(p_items) = 1 then
        -- The same without a CTE and aggregates: to set them up costs more than what they do for one command.
        select array[m.command_id], array[m.msg_id], array[m.batch_id], array[m.reply_queue],
               array[commandbus.reply_body(
                   p_domain, m.command_id, m.correlation_id, m.command_type, 'SUCCESS', v_done, m.data, null, m.meta)],
               m.has_key
          into v_ids, v_msgs, v_batches, v_queues, v_replies, v_has_key
          from commandbus.end_leases(p_domain, p_items, 'COMPLETED', false, v_now) m;
        if v_ids is not null then
            insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id)
            values (p_domain, v_ids[1], 'COMPLETED', v_now, v_batches[1]);
        end if;
    else
        with moved as materialized (
            select * from commandbus.end_leases(p_domain, p_items, 'COMPLETED', false, v_now)
        ), audited as (
            insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id)
            select p_domain, m.command_id, 'COMPLETED', v_now, m.batch_id from moved m
        )
        select array_agg(m.command_id), array_agg(m.msg_id order by m.msg_id), array_agg(m.batch_id),
               array_agg(m.reply_queue), array_agg(commandbus.reply_body(
                   p_domain, m.command_id, m.correlation_id, m.command_type, 'SUCCESS', v_done, m.data, null, m.meta)),
               bool_or(m.has_key)
          into v_ids, v_msgs, v_batches, v_queues, v_replies, v_has_key from moved m;
    end if;
    if p_deleted <> coalesce(v_msgs, '{}') then
        raise assert_failure using message = 'a message that was deleted belongs to another lease';
    end if;
    if v_ids is not null then
        if p_deleted is null then
            perform pgmq.delete(commandbus.physical_queue(p_domain || '.commands'), v_msgs);
        end if;
        perform commandbus.publish_replies(p_domain, v_queues, v_replies);
        if array_remove(v_batches, null) <> '{}' then
            perform commandbus.move_batch_counters(v_batches, 'open', 'completed');
        end if;
        perform commandbus.leave_flow(p_domain, v_ids, v_has_key, true);
    end if;
    return v_ids;
end $$;

-- IN_PROGRESS -> PENDING after a failure that may pass: the same message shows up again after the delay.
--   items: delay_seconds, error_type, error_code, error_msg, error_details
create or replace function commandbus.retry_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql as $$
declare
    v_now   timestamptz := commandbus.lock_leases(p_domain, p_items);
    v_moved record;
begin
    with moved as materialized (
        select * from commandbus.end_leases(p_domain, p_items, 'PENDING', true, v_now)
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, m.command_id, 'FAILED', v_now, commandbus.failed_attempt(
                   m.attempts, m.error_type, m.error_code, m.error_msg, m.error_details, m.delay_seconds,
                   m.error_stack), m.batch_id
          from moved m
    )
    select array_agg(m.command_id) as ids, array_agg(m.msg_id) as msgs,
           array_agg(m.delay_seconds) as delays
      into v_moved from moved m;
    perform commandbus.delay_messages(p_domain, v_moved.msgs, v_moved.delays, v_now);
    perform commandbus.leave_flow(p_domain, v_moved.ids, false);
    return query select * from commandbus.end_others(p_domain, p_items, v_moved.ids);
end $$;

-- Each message shows up again when its delay is over, counted from p_now. The caller has locked them.
create or replace function commandbus.delay_messages(
    p_domain text, p_msg_ids bigint[], p_delays float8[], p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_delay float8;
begin
    for v_delay in select distinct d from unnest(p_delays) d loop
        perform pgmq.set_vt(
            commandbus.physical_queue(p_domain || '.commands'),
            array(select m.msg_id from unnest(p_msg_ids, p_delays) m(msg_id, delay)
                   where m.delay = v_delay order by m.msg_id),
            p_now + make_interval(secs => v_delay));
    end loop;
end $$;

-- IN_PROGRESS -> PENDING because the handler wants it later: the same message shows up again after the delay,
-- and the attempt does not count.
--   items: delay_seconds, reason
create or replace function commandbus.snooze_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql as $$
declare
    v_now   timestamptz := commandbus.lock_leases(p_domain, p_items);
    v_moved record;
begin
    with moved as materialized (
        select * from commandbus.end_leases(p_domain, p_items, 'PENDING', false, v_now, true)
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, m.command_id, 'SNOOZED', v_now, jsonb_strip_nulls(jsonb_build_object(
                   'seconds', m.delay_seconds, 'snoozes', m.snoozes, 'reason', m.reason)), m.batch_id
          from moved m
    )
    select array_agg(m.command_id) as ids, array_agg(m.msg_id) as msgs,
           array_agg(m.delay_seconds) as delays
      into v_moved from moved m;
    perform commandbus.delay_messages(p_domain, v_moved.msgs, v_moved.delays, v_now);
    perform commandbus.leave_flow(p_domain, v_moved.ids, false);
    return query select * from commandbus.end_others(p_domain, p_items, v_moved.ids);
end $$;

-- IN_PROGRESS -> CANCELED because the handler found that it is not needed: ended, with a reply.
--   items: reason
create or replace function commandbus.discard_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql as $$
declare
    v_now timestamptz := commandbus.lock_leases(p_domain, p_items);
begin
    return query select * from commandbus.reject_stale(
        p_domain, p_items, commandbus.cancel_leases(p_domain, p_items, 'DISCARDED', v_now));
end $$;

-- IN_PROGRESS -> CANCELED, under the lease, in the three ways in which that happens: discarded by the handler,
-- expired before it began, or a cancel was requested. The caller has locked the messages. Returns what has ended.
--   p_event: of the audit; also the code of the reply
--   items: reason; of a cancel the reason is the requester's, and an error of the last attempt is kept in the event
create or replace function commandbus.cancel_leases(
    p_domain text, p_items jsonb, p_event text, p_now timestamptz
) returns uuid[]
language plpgsql as $$
declare
    v_done  text := commandbus.iso8601(p_now);
    v_moved record;
begin
    with moved as materialized (
        select m.command_id, m.msg_id, m.batch_id, m.reply_queue, m.correlation_id, m.command_type, m.meta, r.actor,
               case when p_event = 'CANCELED' then r.reason else m.reason end as reason,
               case when m.error_code is not null then jsonb_build_object(
                   'error', jsonb_build_object('class', m.error_type, 'code', m.error_code,
                                               'message', m.error_msg)) else '{}' end as error
          from commandbus.end_leases(p_domain, p_items, 'CANCELED', false, p_now) m
          left join lateral commandbus.cancel_request(p_domain, m.command_id) r on p_event = 'CANCELED'
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select p_domain, m.command_id, p_event, p_now, jsonb_build_object('reason', m.reason) || m.error,
               m.batch_id, m.actor
          from moved m
    )
    select array_agg(m.command_id) as ids, array_agg(m.msg_id) as msgs, array_agg(m.batch_id) as batches,
           array_agg(m.reply_queue) as queues, array_agg(commandbus.reply_body(
               p_domain, m.command_id, m.correlation_id, m.command_type, 'CANCELED', v_done, null,
               commandbus.reply_error(p_event, m.reason, 'CANCELED'), m.meta)) as replies
      into v_moved from moved m;
    if v_moved.ids is not null then
        perform pgmq.archive(commandbus.physical_queue(p_domain || '.commands'), v_moved.msgs);
        perform commandbus.publish_replies(p_domain, v_moved.queues, v_moved.replies);
        perform commandbus.move_batch_counters(v_moved.batches, 'open', 'canceled');
        perform commandbus.leave_flow(p_domain, v_moved.ids, true);
    end if;
    return v_moved.ids;
end $$;

-- IN_PROGRESS -> IN_TROUBLESHOOTING_QUEUE: the payload waits in the archive, no reply yet.
--   items: reason (PERMANENT or EXHAUSTED), error_type, error_code, error_msg, error_details
create or replace function commandbus.park_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql as $$
declare
    v_now   timestamptz := commandbus.lock_leases(p_domain, p_items);
    v_moved record;
begin
    with moved as materialized (
        select * from commandbus.end_leases(p_domain, p_items, 'IN_TROUBLESHOOTING_QUEUE', true, v_now)
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, m.command_id, 'FAILED', v_now, commandbus.failed_attempt(
                   m.attempts, m.error_type, m.error_code, m.error_msg, m.error_details, m.delay_seconds,
                   m.error_stack), m.batch_id
          from moved m
        union all
        select p_domain, m.command_id, 'MOVED_TO_TROUBLESHOOTING_QUEUE', v_now,
               jsonb_build_object('reason', m.reason, 'code', m.error_code, 'attempts', m.attempts),
               m.batch_id
          from moved m
    )
    select array_agg(m.command_id) as ids, array_agg(m.msg_id) as msgs,
           array_agg(m.batch_id) as batches, array_agg(m.reason) as reasons
      into v_moved from moved m;
    if v_moved.ids is not null then
        if commandbus.setting('payload_archive') = 'on' then
            perform commandbus.keep_payloads(p_domain, v_moved.msgs);
        end if;
        perform pgmq.archive(commandbus.physical_queue(p_domain || '.commands'), v_moved.msgs);
        perform commandbus.move_batch_counters(v_moved.batches, 'open', 'tsq');
        perform commandbus.leave_flow(p_domain, v_moved.ids, true);
        perform commandbus.enter_troubleshooting(p_domain, v_moved.ids, v_moved.reasons, v_now);
    end if;
    return query select * from commandbus.reject_stale(p_domain, p_items, v_moved.ids);
end $$;

-- IN_PROGRESS -> FAILED, for handlers that opted out of troubleshooting: ended, with a reply.
--   items: error_type, error_code, error_msg, error_details
create or replace function commandbus.fail_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql as $$
declare
    v_now   timestamptz := commandbus.lock_leases(p_domain, p_items);
    v_done  text := commandbus.iso8601(v_now);
    v_moved record;
begin
    with moved as materialized (
        select * from commandbus.end_leases(p_domain, p_items, 'FAILED', true, v_now)
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, m.command_id, 'FAILED', v_now, commandbus.failed_attempt(
                   m.attempts, m.error_type, m.error_code, m.error_msg, m.error_details, m.delay_seconds,
                   m.error_stack), m.batch_id
          from moved m
        union all
        select p_domain, m.command_id, 'GIVEN_UP', v_now, null, m.batch_id from moved m
    )
    select array_agg(m.command_id) as ids, array_agg(m.msg_id) as msgs, array_agg(m.batch_id) as batches,
           array_agg(m.reply_queue) as queues, array_agg(commandbus.reply_body(
               p_domain, m.command_id, m.correlation_id, m.command_type, 'FAILED', v_done, null,
               commandbus.reply_error(m.error_code, m.error_msg, m.error_type), m.meta)) as replies
      into v_moved from moved m;
    if v_moved.ids is not null then
        perform pgmq.archive(commandbus.physical_queue(p_domain || '.commands'), v_moved.msgs);
        perform commandbus.publish_replies(p_domain, v_moved.queues, v_moved.replies);
        perform commandbus.move_batch_counters(v_moved.batches, 'open', 'failed');
        perform commandbus.leave_flow(p_domain, v_moved.ids, true);
    end if;
    return query select * from commandbus.reject_stale(p_domain, p_items, v_moved.ids);
end $$;

-- IN_PROGRESS -> PENDING, visible at once: leased, but never started (a worker that stops).
create or replace function commandbus.release_commands(p_domain text, p_items jsonb)
returns setof uuid
language plpgsql as $$
declare
    v_now   timestamptz := commandbus.lock_leases(p_domain, p_items);
    v_moved record;
begin
    with moved as materialized (
        select * from commandbus.end_leases(p_domain, p_items, 'PENDING', false, v_now)
    ), audited as (
        insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id)
        select p_domain, m.command_id, 'RELEASED', v_now, m.batch_id from moved m
    )
    select array_agg(m.command_id) as ids, array_agg(m.msg_id order by m.msg_id) as msgs
      into v_moved from moved m;
    if v_moved.ids is not null then
        perform pgmq.set_vt(commandbus.physical_queue(p_domain || '.commands'), v_moved.msgs, v_now);
        perform commandbus.leave_flow(p_domain, v_moved.ids, false);
        perform commandbus.wake_workers(p_domain);
    end if;
    return query select * from commandbus.end_others(p_domain, p_items, v_moved.ids);
end $$;
