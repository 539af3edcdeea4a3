-- Operators: retry, cancel and complete what waits in troubleshooting, and cancel what has not
-- started. No worker has these commands: that, and the state they are in, is the guard.
--
-- Each takes many ids. By default it is strict: if one of them cannot be moved, none is, and the
-- error says which and why. Otherwise the ids that were moved come back.

-- An error for the first of these commands that was not moved: it is unknown, or in another state.
create or replace function commandbus.refuse_unmoved(
    p_domain text, p_command_ids uuid[], p_moved uuid[], p_verb text, p_wanted text
) returns void
language plpgsql as $$
declare
    v_id     uuid;
    v_status text;
begin
    select i into v_id from unnest(p_command_ids) i
     where p_moved is null or i <> all(p_moved) order by i limit 1;
    if v_id is null then
        return;
    end if;
    select case when c.leased_by is not null then 'leased by a worker' else c.status end
      into v_status
      from commandbus.command_bus_command c where c.domain = p_domain and c.command_id = v_id;
    if v_status is null then
        perform commandbus.refuse_moved(p_domain, v_id);
        raise exception 'no command % in domain %', v_id, quote_literal(p_domain)
            using errcode = 'CB002', detail = v_id::text;
    end if;
    raise exception 'cannot % command %: it is %, and only % can be', p_verb, v_id, v_status, p_wanted
        using errcode = 'CB003', detail = v_id::text;
end $$;

-- By which bulk operation this transaction acts, for the audit of the commands that it moves. run_bulk_chunk
-- says so while it moves them.
create or replace function commandbus.operation_details() returns jsonb
language sql stable as $$
    select case when coalesce(current_setting('commandbus.operation', true), '') = '' then '{}'
                else jsonb_build_object('operation_id', current_setting('commandbus.operation')) end
$$;

-- operator_retry below, and its like for those who may pass governance by: not to be called from outside.
--   p_bypass: children of governed batches are changed without an approval; the audit says so.
create or replace function commandbus.retry_parked(
    p_domain text, p_command_ids uuid[], p_actor text, p_reset_attempts boolean, p_is_strict boolean,
    p_edits jsonb, p_bypass boolean
) returns setof uuid
language plpgsql as $$
declare
    v_governed uuid[] := '{}';
    v_proposed uuid[] := '{}';
    v_moved    uuid[];
    v_keys     text[];
begin
    if p_edits <> '{}' then
        v_keys := commandbus.claim_keys_of(p_domain, p_command_ids);
        -- All batches in one pass: those of the edits, and those of what is sent as it is.
        perform commandbus.lock_batches(p_domain, p_command_ids, '{}');
        v_governed := commandbus.governed_edits(p_domain, p_edits);
    end if;
    if v_governed <> '{}' and p_bypass then
        perform commandbus.audit_edit_bypass(p_domain, v_governed, p_edits, p_actor);
    elsif v_governed <> '{}' then
        v_proposed := commandbus.propose_edits(p_domain, v_governed, p_edits, p_actor, p_reset_attempts);
    end if;
    v_moved := v_proposed || array(select * from commandbus.requeue_commands(
        p_domain,
        case when v_governed = '{}' or p_bypass then p_command_ids
             else array(select i from unnest(p_command_ids) i where i <> all(v_governed)) end,
        array['IN_TROUBLESHOOTING_QUEUE'], p_actor, p_reset_attempts, p_edits));
    perform commandbus.forget_keys(p_domain, v_keys);
    if p_is_strict then
        perform commandbus.refuse_unmoved(p_domain, p_command_ids, v_moved, 'retry',
                                          'a command in troubleshooting');
    end if;
    return query select unnest(v_moved);
end $$;

-- IN_TROUBLESHOOTING_QUEUE -> PENDING: the same payload in a new message, or an edited one.
--   p_edits: {"<command_id>": {"data", "previous_msg_id", "changes"}}. The edit was made from the
--   payload of that message: if the command has another one by now, the edit is refused. Changes
--   are for the audit, and redacted by the caller.
--   An edited child of a governed batch is not sent: its edit waits for a decision, and the child comes back
--   as one that was dealt with.
create or replace function commandbus.operator_retry(
    p_domain text, p_command_ids uuid[], p_actor text default null,
    p_reset_attempts boolean default true, p_is_strict boolean default true,
    p_edits jsonb default '{}'
) returns setof uuid
language sql as $$
    select commandbus.retry_parked(
        p_domain, p_command_ids, p_actor, p_reset_attempts, p_is_strict, p_edits, false)
$$;

-- Sends archived payloads again, for the commands that are in one of the states p_from.
create or replace function commandbus.requeue_commands(
    p_domain text, p_command_ids uuid[], p_from text[], p_actor text, p_reset_attempts boolean,
    p_edits jsonb default '{}'
) returns setof uuid
language plpgsql as $$
declare
    v_queue    text := commandbus.physical_queue(p_domain || '.commands');
    v_now      timestamptz;
    v_ids      uuid[];
    v_states   text[];
    v_batches  uuid[];
    v_messages jsonb[];
    v_lost     uuid[];
    v_has_flow boolean;
    v_expires  timestamptz[];  -- lifted by the retry
    v_msg_ids  bigint[];
    v_keys     text[];
begin
    perform commandbus.check_domain(p_domain);
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    v_keys := commandbus.claim_keys_of(p_domain, p_command_ids);
    v_now := commandbus.lock_commands(p_domain, p_command_ids);
    if p_edits <> '{}' then
        perform commandbus.refuse_outdated_edits(p_domain, p_edits, p_from);
    end if;
    -- Those of one key in the order in which they were sent, in which they get their new numbers.
    execute format(
        'select array_agg(c.command_id order by c.key_seq, c.sequence_no, c.command_id),'
        '       array_agg(c.status order by c.key_seq, c.sequence_no, c.command_id),'
        '       array_agg(c.batch_id order by c.key_seq, c.sequence_no, c.command_id),'
        '       array_agg(case when $4 ? c.command_id::text'
        '                      then coalesce(a.message, p.payload_json) || jsonb_build_object('
        '                               ''data'', $4 -> c.command_id::text -> ''data'')'
        '                      else coalesce(a.message, p.payload_json)'
        '                 end order by c.key_seq, c.sequence_no, c.command_id),'
        '       array_agg(c.command_id order by c.key_seq, c.sequence_no, c.command_id)'
        '           filter (where a.message is null and p.payload_json is null),'
        '       bool_or(num_nonnulls(c.deliver_at, c.priority, c.ordering_key) > 0),'
        '       array_agg(c.expires_at order by c.key_seq, c.sequence_no, c.command_id)'
        '  from commandbus.command_bus_command c'
        '  left join pgmq.%I a on a.msg_id = c.msg_id'
        '  left join commandbus.command_bus_payload_archive p'
        '    on p.domain = c.domain and p.command_id = c.command_id'
        ' where c.domain = $1 and c.command_id = any($2) and c.status = any($3)', 'a_' || v_queue)
       into v_ids, v_states, v_batches, v_messages, v_lost, v_has_flow, v_expires
      using p_domain, p_command_ids, p_from, p_edits;
    if v_ids is null then
        perform commandbus.forget_keys(p_domain, v_keys);
        return;
    end if;
    if v_lost is not null then
        raise exception 'the payload of command % is no longer archived', v_lost[1]
            using errcode = 'CB006', detail = v_lost[1]::text,
                  hint = 'cancel or complete it, and send the work again under a new id';
    end if;
    v_msg_ids := case when v_has_flow then commandbus.put_again(p_domain, v_ids, v_messages)
                      else commandbus.put_messages(p_domain || '.commands', v_messages) end;
    -- The domain is a column of the items, so that each is looked up by the whole key: the planner
    -- would else walk through all commands of the domain.
    with item as materialized (
        select p_domain as domain, u.command_id, u.msg_id
          from unnest(v_ids, v_msg_ids) u(command_id, msg_id)
    )
    update commandbus.command_bus_command c
       set status = 'PENDING', msg_id = n.msg_id, updated_at = v_now, lapses = 0,
           dispatch_status = 'queued', queued_at = v_now,
           -- without a reset there is still one attempt to use
           attempts = case when p_reset_attempts then 0
                           else least(c.attempts, c.max_attempts - 1) end,
           snoozes = case when p_reset_attempts then null else c.snoozes end,
           attempt_count = c.attempt_count + 1,
           -- an operator wants it to run, also after its time, or after a cancel that came too late
           expires_at = null, cancel_requested_at = null, cancel_requested_by = null, cancel_reason = null
      from item n
     where c.domain = n.domain and c.command_id = n.command_id and c.status = any(p_from);
    perform commandbus.move_batch_counters(
        array(select b from unnest(v_batches, v_states) u(b, s) where s = 'IN_TROUBLESHOOTING_QUEUE'),
        'tsq', 'open', p_actor);
    perform commandbus.move_batch_counters(
        array(select b from unnest(v_batches, v_states) u(b, s) where s = 'FAILED'),
        'failed', 'open', p_actor);
    perform commandbus.leave_troubleshooting(p_domain, v_ids, p_actor);
    delete from commandbus.command_bus_expiry e where e.domain = p_domain and e.command_id = any(v_ids);
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    select p_domain, n.id, 'OPERATOR_RETRY', v_now,
           jsonb_build_object('msg_id', n.msg_id, 'reset_attempts', p_reset_attempts)
               || case when p_edits ? n.id::text
                       then jsonb_build_object('edited', (p_edits -> n.id::text) - 'data')
                       else '{}' end
               || case when n.expires_at is null then '{}'
                       else jsonb_build_object('lifted_expiry', commandbus.iso8601(n.expires_at)) end
               || commandbus.operation_details(),
           n.batch_id, p_actor
      from unnest(v_ids, v_batches, v_msg_ids, v_expires) n(id, batch_id, msg_id, expires_at);
    perform commandbus.forget_keys(p_domain, v_keys);
    perform commandbus.wake_workers(p_domain);
    return query select unnest(v_ids);
end $$;

-- An edit that was made from a payload which is not the command's any more would undo what another
-- operator has done since. The caller has locked the commands.
create or replace function commandbus.refuse_outdated_edits(
    p_domain text, p_edits jsonb, p_from text[]
) returns void
language plpgsql as $$
declare
    v_id uuid;
begin
    select c.command_id into v_id
      from jsonb_each(p_edits) e
      join commandbus.command_bus_command c
        on c.domain = p_domain and c.command_id = e.key::uuid
     where c.status = any(p_from) and c.msg_id is distinct from (e.value ->> 'previous_msg_id')::bigint
     order by c.command_id limit 1;
    if v_id is not null then
        raise exception 'cannot retry command %: it was sent again since its payload was read', v_id
            using errcode = 'CB003', detail = v_id::text,
                  hint = 'read the payload again, and edit that';
    end if;
end $$;

-- The one way to end what no worker has: from one state, with the reply, the counter and the audit line.
--   p_outcome, p_data: of the reply; p_event: of the audit; p_reason: of a cancel, in both
create or replace function commandbus.end_unleased(
    p_domain text, p_command_ids uuid[], p_from text, p_to text, p_outcome text, p_event text,
    p_data jsonb, p_reason text, p_actor text, p_is_strict boolean
) returns setof uuid
language plpgsql as $$
declare
    v_is_parked boolean := p_from = 'IN_TROUBLESHOOTING_QUEUE'; -- then it has no message, but a group
    v_is_cancel boolean := p_to = 'CANCELED';
    v_queue     text := p_domain || '.commands';
    v_now       timestamptz;
    v_done      text;
    v_moved     record;
begin
    v_now := case when v_is_parked then commandbus.lock_commands(p_domain, p_command_ids)
                  else commandbus.lock_queued(p_domain, p_command_ids) end;
    if not v_is_parked then
        perform commandbus.end_lapsed_paused(p_domain, p_command_ids, v_now);
    end if;
    v_done := commandbus.iso8601(v_now);
    with moved as (
        update commandbus.command_bus_command c
           set status = p_to, updated_at = v_now,
               -- one that is only stored is not queued any more, and recovery need not look at it
               dispatch_status = case when c.msg_id is null and c.dispatch_status <> 'queued'
                                      then 'failed' else c.dispatch_status end
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.status = p_from and c.leased_by is null
        returning c.command_id, c.msg_id, c.batch_id, c.reply_queue, commandbus.reply_body(
                      p_domain, c.command_id, c.correlation_id, c.command_type, p_outcome, v_done, p_data,
                      case when v_is_cancel
                           then commandbus.reply_error(case p_event when 'EXPIRED' then p_event else p_to end,
                                                       p_reason, 'CANCELED') end) as reply
    )
    select array_agg(m.command_id) as ids, array_agg(m.msg_id) as msgs, array_agg(m.batch_id) as batches,
           array_agg(m.reply_queue) as queues, array_agg(m.reply) as replies
      into v_moved from moved m;
    if p_is_strict then
        perform commandbus.refuse_unmoved(
            p_domain, p_command_ids, v_moved.ids, case when v_is_cancel then 'cancel' else 'complete' end,
            case when v_is_parked then 'a command in troubleshooting' else 'a command that is PENDING' end);
    end if;
    if v_moved.ids is null then
        return;
    end if;
    if not v_is_parked then
        perform pgmq.archive(commandbus.physical_queue(v_queue), v_moved.msgs);
        if commandbus.setting('payload_archive') <> 'on' then
            delete from commandbus.command_bus_payload_archive p
             using unnest(v_moved.ids, v_moved.msgs) m(id, msg_id)
             where p.domain = p_domain and p.command_id = m.id and m.msg_id is null;
        end if;
    end if;
    perform commandbus.publish_replies(p_domain, v_moved.queues, v_moved.replies);
    perform commandbus.move_batch_counters(
        v_moved.batches, case when v_is_parked then 'tsq' else 'open' end, lower(p_to), p_actor);
    perform commandbus.leave_flow(p_domain, v_moved.ids, true);
    perform commandbus.wake_for_places(p_domain);
    if v_is_parked then
        perform commandbus.leave_troubleshooting(p_domain, v_moved.ids, p_actor);
    end if;
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    select p_domain, m.id, p_event, v_now,
           nullif(case when v_is_cancel then jsonb_build_object('reason', p_reason) else '{}' end
                  || commandbus.operation_details(), '{}'), m.batch_id, p_actor
      from unnest(v_moved.ids, v_moved.batches) m(id, batch_id);
    return query select unnest(v_moved.ids);
end $$;

-- IN_TROUBLESHOOTING_QUEUE -> COMPLETED, with the reply that was not sent until now.
create or replace function commandbus.operator_complete(
    p_domain text, p_command_ids uuid[], p_result jsonb default null, p_actor text default null,
    p_is_strict boolean default true
) returns setof uuid
language sql as $$
    select commandbus.end_unleased(p_domain, p_command_ids, 'IN_TROUBLESHOOTING_QUEUE', 'COMPLETED',
                                   'SUCCESS', 'OPERATOR_COMPLETE', p_result, null, p_actor, p_is_strict)
$$;

-- IN_TROUBLESHOOTING_QUEUE -> CANCELED, with the reply that was not sent until now.
create or replace function commandbus.operator_cancel(
    p_domain text, p_command_ids uuid[], p_reason text, p_actor text default null,
    p_is_strict boolean default true
) returns setof uuid
language sql as $$
    select commandbus.end_unleased(p_domain, p_command_ids, 'IN_TROUBLESHOOTING_QUEUE', 'CANCELED',
                                   'CANCELED', 'OPERATOR_CANCEL', null, p_reason, p_actor, p_is_strict)
$$;

-- PENDING -> CANCELED: what nobody works on. A leased command is refused.
create or replace function commandbus.cancel_commands(
    p_domain text, p_command_ids uuid[], p_reason text, p_actor text default null,
    p_is_strict boolean default true
) returns setof uuid
language plpgsql as $$
begin
    perform commandbus.check_domain(p_domain);
    return query
    select commandbus.end_unleased(p_domain, p_command_ids, 'PENDING', 'CANCELED',
                                   'CANCELED', 'CANCELED', null, p_reason, p_actor, p_is_strict);
end $$;
