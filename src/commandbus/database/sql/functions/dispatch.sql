-- Dispatch: commands that are stored before they are queued.
--
-- A stored command is a row with its payload in the payload table and no message; dispatching gives
-- it one. dispatch_status says why it waits: awaiting_approval, scheduled (its batch is not
-- sealed), pending_queue (about to be sent), pending_retry (sending failed). Its status is PENDING
-- all the while, and it can be canceled. A late 'queued' never overwrites a later state: every
-- update names the old one.

-- Stores commands without queueing them; returns the ids that were there before, and then nothing
-- was stored. The items are those of offer_commands.
create or replace function commandbus.store_commands(
    p_domain text, p_commands jsonb, p_batch_id uuid, p_dispatch_status text,
    p_sequence_start int default null, p_actor text default null
) returns uuid[]
language plpgsql as $$
declare
    v_now      timestamptz := clock_timestamp();
    v_queue    text := p_domain || '.commands';
    v_global   boolean := commandbus.setting('command_id_scope') = 'global';
    v_ids      uuid[];
    v_inserted uuid[];
    v_has_flow boolean;
    v_reply    text;
begin
    perform commandbus.ensure_domain(p_domain);
    for v_reply in
        select distinct i ->> 'reply_to' from jsonb_array_elements(p_commands) i
         where i ->> 'reply_to' not in ('', '@inbox')
    loop
        perform commandbus.check_reply_name(v_reply);
        perform commandbus.ensure_queue(v_reply);
    end loop;
    select array_agg((e.i ->> 'command_id')::uuid order by e.n), bool_or(e.i ?| commandbus.flow_members())
      into v_ids, v_has_flow from jsonb_array_elements(p_commands) with ordinality as e(i, n);
    if v_has_flow then
        perform commandbus.check_flow(p_commands, v_now);
    end if;
    with item as materialized (
        select * from commandbus.unpack_commands(p_domain, p_commands, v_now)
    ), fresh as (
        insert into commandbus.command_bus_command (
            domain, queue_name, command_id, command_type, status, max_attempts, created_at,
            updated_at, reply_queue, correlation_id, batch_id, is_globally_unique, sequence_no,
            dispatch_status, deliver_at, expires_at, priority, ordering_key, limit_key)
        select p_domain, v_queue, i.command_id, i.type, 'PENDING', i.max_attempts, v_now, v_now,
               i.reply_to, i.correlation_id, p_batch_id, v_global, p_sequence_start + i.n,
               p_dispatch_status, i.deliver_at, i.expires_at, i.priority, i.ordering_key, i.limit_key
          from item i
         where not (v_global and commandbus.is_sent_anywhere(i.command_id))
         order by i.command_id
        on conflict do nothing
        returning command_id
    ), kept as (
        insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)
        select p_domain, i.command_id, i.message
          from item i   -- all of them: if one is not fresh, the whole call is undone
        on conflict (domain, command_id) do nothing
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select p_domain, f.command_id, 'SENT', v_now,
               jsonb_build_object('dispatch_status', p_dispatch_status), p_batch_id, p_actor
          from fresh f
    )
    select array_agg(f.command_id) into v_inserted from fresh f;
    if v_inserted is not null and pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is not null then
        -- after the insert: history.sql has the race
        v_inserted := array(select i from unnest(v_inserted) i
                            except select k from unnest(commandbus.known_in_history(p_domain, v_inserted)) k);
    end if;
    if cardinality(v_inserted) is not distinct from cardinality(v_ids) then
        if v_has_flow then
            perform commandbus.watch_expiry(
                p_domain, v_ids, (commandbus.flow_of(p_domain, p_commands, v_now)).expires_at);
        end if;
        return '{}';
    end if;
    -- The audit cannot be taken back by hand, so here the whole call is undone.
    raise exception 'already sent in domain %', quote_literal(p_domain)
        using errcode = 'CB001', detail = array_to_json(coalesce(
            (select array_agg(distinct d.id) from unnest(v_ids) d(id)
              where v_inserted is null or d.id <> all(v_inserted)),
            (select array_agg(d.id) from (
                select x.id from unnest(v_ids) x(id) group by x.id having count(*) > 1) d)))::text;
end $$;

-- Queues stored commands, oldest first, at most p_limit; returns how many. Two dispatchers share the
-- work and never queue one twice: the row is locked, and gets another state with its message.
create or replace function commandbus.dispatch_commands(
    p_domain text, p_batch_id uuid, p_from text[], p_limit int
) returns int
language plpgsql as $$
begin
    return cardinality(commandbus.queue_stored(p_domain, array(
        select c.command_id from commandbus.command_bus_command c
         where c.batch_id = p_batch_id and c.domain is not distinct from p_domain
           and c.dispatch_status = any(p_from) and c.dispatch_status <> 'queued'
           and c.status = 'PENDING'
         order by c.sequence_no, c.command_id limit p_limit
         for update skip locked), p_from));
end $$;

-- Gives these stored commands their messages; returns those that it was. What has a message, has
-- ended, is in another state or is being queued by somebody else at this moment is left alone.
-- 'queued' without a message is what optimistic creation stores, or what another database's queue
-- holds; only a first success counts as an attempt.
create or replace function commandbus.queue_stored(p_domain text, p_command_ids uuid[], p_from text[])
returns uuid[]
language plpgsql as $$
declare
    v_now      timestamptz := clock_timestamp();
    v_ids      uuid[];
    v_messages jsonb[];
    v_has_flow boolean;
    v_msg_ids  bigint[];
begin
    with item as materialized (
        -- each once: one that is named twice would get two messages
        select distinct p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    ), stored as (
        select c.domain, c.command_id, c.sequence_no,
               num_nonnulls(c.deliver_at, c.priority, c.ordering_key) > 0 as has_flow
          from item i
          join commandbus.command_bus_command c
            on c.domain = i.domain and c.command_id = i.command_id
         where c.status = 'PENDING' and c.msg_id is null and c.dispatch_status = any(p_from)
           for update of c skip locked
    )
    select array_agg(s.command_id order by s.sequence_no, s.command_id),
           array_agg(p.payload_json order by s.sequence_no, s.command_id), bool_or(s.has_flow)
      into v_ids, v_messages, v_has_flow
      from stored s
      join commandbus.command_bus_payload_archive p
        on p.domain = s.domain and p.command_id = s.command_id;
    if v_ids is null then
        return '{}';
    end if;
    v_msg_ids := case when v_has_flow then commandbus.put_again(p_domain, v_ids, v_messages)
                      else commandbus.put_messages(p_domain || '.commands', v_messages) end;
    with item as materialized (
        select p_domain as domain, u.* from unnest(v_ids, v_msg_ids) u(command_id, msg_id)
    )
    update commandbus.command_bus_command c
       set msg_id = i.msg_id, dispatch_status = 'queued', updated_at = v_now,
           queue_attempt_count = c.queue_attempt_count + (c.queued_at is null)::int,
           queued_at = coalesce(c.queued_at, v_now)
      from item i
     where c.domain = i.domain and c.command_id = i.command_id and c.dispatch_status = any(p_from);
    if commandbus.setting('payload_archive') <> 'on' then
        delete from commandbus.command_bus_payload_archive p
         where p.domain = p_domain and p.command_id = any(v_ids);
    end if;
    if 'pending_retry' = any(p_from) then  -- else it was never handed to another database's queue
        perform commandbus.forget_unconfirmed(p_domain, v_ids);
    end if;
    perform commandbus.wake_workers(p_domain);
    return v_ids;
end $$;

-- The same for the process that stored them. It cannot name the states: what waits for an approval, or for the
-- end of a load, is queued by the function that decides so, and a sender must not be able to.
create or replace function commandbus.queue_pending(p_domain text, p_command_ids uuid[]) returns uuid[]
language plpgsql as $$
begin
    return commandbus.queue_stored(p_domain, p_command_ids, array['pending_queue', 'pending_retry', 'queued']);
end $$;

-- These have come back from a queue in another database, or never got there. The caller has locked
-- the commands. Compared so that only the key can serve it, also if the table seems to be empty.
create or replace function commandbus.forget_unconfirmed(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
begin
    delete from commandbus.command_bus_unconfirmed u
     where u.domain is not distinct from p_domain and u.command_id = any(p_command_ids);
end $$;

-- Creates a batch whose commands are stored but not queued, and the record of the
-- process that is about to queue them.
create or replace function commandbus.create_stored_batch(
    p_domain text, p_batch_id uuid, p_commands jsonb, p_name text, p_custom_data jsonb,
    p_created_by text, p_on_complete jsonb, p_notifies boolean,
    p_pattern text, p_dispatch_rate double precision default null, p_queue text default null,
    p_actor text default null
) returns void
language plpgsql as $$
begin
    perform commandbus.check_domain(p_domain);
    if p_on_complete is not null then
        perform commandbus.check_shard(p_domain);       -- first: the batch is sent again where its domain is
    end if;
    perform commandbus.check_on_complete(p_on_complete);
    insert into commandbus.command_bus_batch (
        batch_id, domain, name, custom_data, total_count, created_by, on_complete, notifies)
    values (p_batch_id, p_domain, p_name, p_custom_data, jsonb_array_length(p_commands),
            p_created_by, p_on_complete, p_notifies);
    perform commandbus.store_commands(
        p_domain, p_commands, p_batch_id,
        case p_pattern when 'optimistic' then 'queued' else 'pending_queue' end, 0,
        coalesce(p_actor, p_created_by));
    insert into commandbus.command_bus_dispatch (
        batch_id, domain, pattern, dispatch_rate, queue, heartbeat_at)
    values (p_batch_id, p_domain, p_pattern, p_dispatch_rate, p_queue, clock_timestamp());
    if p_pattern = 'optimistic' and p_queue is not null then
        insert into commandbus.command_bus_unconfirmed (domain, command_id, queue)
        select p_domain, (i ->> 'command_id')::uuid, p_queue from jsonb_array_elements(p_commands) i;
    end if;
end $$;

-- The messages of commands that wait to be sent to a queue in another database, in their order.
create or replace function commandbus.stored_messages(p_domain text, p_command_ids uuid[])
returns table (command_id uuid, message text)
language sql stable as $$
    with item as materialized (
        select p_domain as domain, u.* from unnest(p_command_ids) with ordinality as u(command_id, n)
    )
    select c.command_id, p.payload_json::text
      from item i
      join commandbus.command_bus_command c
        on c.domain = i.domain and c.command_id = i.command_id
      join commandbus.command_bus_payload_archive p
        on p.domain = i.domain and p.command_id = i.command_id
     where c.status = 'PENDING' and c.msg_id is null
       and c.dispatch_status in ('pending_queue', 'pending_retry', 'queued')
     order by i.n
$$;

-- They are in a queue in another database now; returns how many were marked. A mark
-- that comes late finds another state and changes nothing.
create or replace function commandbus.mark_dispatched(p_domain text, p_command_ids uuid[])
returns int
language plpgsql as $$
declare
    -- In a variable: the index of what waits must not be walked through for a few of it.
    c_from   constant text[] := array['pending_queue', 'pending_retry'];
    v_now    timestamptz := commandbus.lock_commands(p_domain, p_command_ids);
    v_marked int;
begin
    with marked as (
        update commandbus.command_bus_command c
           set dispatch_status = 'queued', queued_at = v_now, updated_at = v_now,
               queue_attempt_count = c.queue_attempt_count + 1
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.status = 'PENDING' and c.msg_id is null
           and c.dispatch_status = any(c_from)
        returning c.command_id, c.batch_id
    )
    insert into commandbus.command_bus_unconfirmed (domain, command_id, queue, handed_at)
    select p_domain, m.command_id, d.queue, v_now
      from marked m
      left join commandbus.command_bus_dispatch d on d.batch_id = m.batch_id
    on conflict (command_id, domain) do update set handed_at = excluded.handed_at;
    get diagnostics v_marked = row_count;
    return v_marked;
end $$;

-- Messages that came back from a queue in another database: each command is queued here, exactly
-- once however often its message comes, because one that has a message is left alone. What is
-- queued is what was stored with the command: the message says when, not what.
--   verdict: adopted; known (queued, worked on or ended before); refused (no such command, or one
--   that must not be queued yet)
create or replace function commandbus.adopt_messages(p_domain text, p_envelopes jsonb)
returns table (n int, verdict text)
language plpgsql as $$
declare
    v_ids     uuid[];
    v_adopted uuid[];
    v_moved   uuid[] := '{}';
begin
    v_ids := array(
        select commandbus.message_command_id(e)
          from jsonb_array_elements(p_envelopes) with ordinality x(e, k) order by k);
    -- Wait for a session that queues one of them just now: then it is known.
    perform commandbus.lock_commands(p_domain, v_ids);
    v_adopted := commandbus.queue_stored(
        p_domain, array(select distinct i from unnest(v_ids) i where i is not null),
        array['pending_queue', 'pending_retry', 'queued']);
    if pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is not null then
        v_moved := commandbus.known_in_history(p_domain, array(
            select distinct i from unnest(v_ids) i where i is not null));
    end if;
    return query
    with item as materialized (
        select p_domain as domain, u.* from unnest(v_ids) with ordinality as u(id, k)
    )
    select i.k::int, case when i.id = any(v_adopted)
                               and row_number() over (partition by i.id order by i.k) = 1 then 'adopted'
                          when c.msg_id is not null or c.status <> 'PENDING' then 'known'
                          when c.command_id is null and i.id = any(v_moved) then 'known'
                          else 'refused' end
      from item i
      left join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.id
     order by i.k;
end $$;

-- The process that queues a batch is alive.
create or replace function commandbus.dispatch_heartbeat(p_batch_id uuid) returns void
language sql as $$
    update commandbus.command_bus_dispatch d set heartbeat_at = clock_timestamp()
     where d.batch_id = p_batch_id
$$;

-- The process is done with a batch: with all of it, or it left some to recovery. Records how long
-- the creation took.
create or replace function commandbus.finish_dispatch(p_batch_id uuid, p_metric jsonb) returns void
language plpgsql as $$
begin
    perform commandbus.forget_dispatched(array[p_batch_id]);
    update commandbus.command_bus_dispatch d
       set ended_at = clock_timestamp(), heartbeat_at = clock_timestamp()
     where d.batch_id = p_batch_id;
    insert into commandbus.command_bus_creation_metric (
        batch_id, pattern, batch_size, db_insert_ms, queue_send_ms, status_update_ms, total_ms,
        retry_needed)
    select p_batch_id, m.pattern, m.batch_size, m.db_insert_ms, m.queue_send_ms,
           m.status_update_ms, m.total_ms, m.retry_needed
      from jsonb_to_record(p_metric) as m(
               pattern text, batch_size int, db_insert_ms float8, queue_send_ms float8,
               status_update_ms float8, total_ms float8, retry_needed boolean)
    on conflict (batch_id) do nothing;
end $$;

-- Nothing of these batches is left to queue. Optimistic creation marks first and sends afterwards:
-- there a command without a message is still to be sent, unless another database's queue has it.
create or replace function commandbus.forget_dispatched(p_batch_ids uuid[]) returns void
language plpgsql as $$
declare
    -- In a variable: the index of what waits is not ordered by batch, and must not be read for each.
    c_waiting constant text[] := array['pending_queue', 'pending_retry'];
begin
    delete from commandbus.command_bus_dispatch d
     where d.batch_id = any(p_batch_ids)
       and not exists (
           select from commandbus.command_bus_command c
            where c.batch_id = d.batch_id and c.status = 'PENDING'
              and c.dispatch_status <> 'queued' and c.dispatch_status = any(c_waiting))
       and not (d.pattern = 'optimistic' and d.queue is null and exists (
           select from commandbus.command_bus_command c
            where c.batch_id = d.batch_id and c.status = 'PENDING'
              and c.dispatch_status = 'queued' and c.msg_id is null));
end $$;
