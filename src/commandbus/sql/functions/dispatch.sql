-- Dispatch: commands that are stored before they are queued (document 002).
--
-- A held command is a row with its envelope in the payload table and no message; dispatching gives
-- it one. dispatch_status says why it is held: awaiting_approval, scheduled (its batch is not
-- sealed), pending_queue (about to be sent), pending_retry (sending failed). Its status is PENDING
-- all the while, and it can be canceled. A late 'queued' never overwrites a later state: every
-- update names the old one.

-- Stores commands without queueing them; returns the ids that were there before, and then nothing
-- was stored. The items are those of offer_commands.
create or replace function commandbus.hold_commands(
    p_domain text, p_commands jsonb, p_batch_id uuid, p_dispatch_status text,
    p_sequence_start int default null, p_actor text default null
) returns uuid[]
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_now      timestamptz := clock_timestamp();
    v_created  text := commandbus.iso8601(v_now);
    v_queue    text := p_domain || '.commands';
    v_global   boolean := commandbus.setting('command_id_scope') = 'global';
    v_ids      uuid[];
    v_inserted uuid[];
    v_reply    text;
begin
    perform commandbus.ensure_domain(p_domain);
    for v_reply in
        select distinct i ->> 'reply_to' from jsonb_array_elements(p_commands) i
         where i ->> 'reply_to' not in ('', '@inbox')
    loop
        perform commandbus.ensure_queue(v_reply);
    end loop;
    v_ids := array(select (i ->> 'command_id')::uuid from jsonb_array_elements(p_commands) i);
    with item as (
        select r.n, r.command_id, r.type, coalesce(r.data, '{}'::jsonb) as data,
               coalesce(r.reply_to, p_domain || '.replies') as reply_to,
               coalesce(r.correlation_id, gen_random_uuid()) as correlation_id,
               coalesce(r.max_attempts, 3) as max_attempts
          from rows from (jsonb_to_recordset(p_commands) as (
                   command_id uuid, type text, data jsonb, reply_to text,
                   correlation_id uuid, max_attempts int)) with ordinality
               as r(command_id, type, data, reply_to, correlation_id, max_attempts, n)
    ), fresh as (
        insert into commandbus.command_bus_command (
            domain, queue_name, command_id, command_type, status, max_attempts, created_at,
            updated_at, reply_queue, correlation_id, batch_id, is_globally_unique, sequence_no,
            dispatch_status)
        select p_domain, v_queue, i.command_id, i.type, 'PENDING', i.max_attempts, v_now, v_now,
               i.reply_to, i.correlation_id, p_batch_id, v_global, p_sequence_start + i.n,
               p_dispatch_status
          from item i
         where not (v_global and commandbus.is_sent_anywhere(i.command_id))
         order by i.command_id
        on conflict do nothing
        returning command_id
    ), kept as (
        insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)
        select p_domain, i.command_id, jsonb_build_object(
                   'command_id', i.command_id, 'type', i.type, 'domain', p_domain,
                   'correlation_id', i.correlation_id, 'reply_to', nullif(i.reply_to, ''),
                   'created_at', v_created, 'data', i.data)
          from item i join fresh f on f.command_id = i.command_id
        on conflict (domain, command_id) do nothing
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select p_domain, f.command_id, 'SENT', v_now,
               jsonb_build_object('dispatch_status', p_dispatch_status), p_batch_id, p_actor
          from fresh f
    )
    select array_agg(f.command_id) into v_inserted from fresh f;
    if cardinality(v_inserted) is not distinct from cardinality(v_ids) then
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

-- Queues held commands, oldest first, at most p_limit; returns how many. Two dispatchers share the
-- work and never queue one twice: the row is locked, and leaves the held states with its message.
create or replace function commandbus.dispatch_commands(
    p_domain text, p_batch_id uuid, p_from text[], p_limit int
) returns int
language plpgsql as $$
declare
    v_now      timestamptz := clock_timestamp();
    v_queue    text := commandbus.physical_queue(p_domain || '.commands');
    v_ids      uuid[];
    v_messages jsonb[];
    v_msg_ids  bigint[];
begin
    with held as (
        select c.command_id, c.sequence_no from commandbus.command_bus_command c
         where c.batch_id = p_batch_id and c.domain = p_domain
           and c.dispatch_status = any(p_from) and c.dispatch_status <> 'queued'
           and c.status = 'PENDING'
         order by c.sequence_no, c.command_id limit p_limit
         for update skip locked
    )
    select array_agg(h.command_id order by h.sequence_no, h.command_id),
           array_agg(p.payload_json order by h.sequence_no, h.command_id)
      into v_ids, v_messages
      from held h
      join commandbus.command_bus_payload_archive p
        on p.domain = p_domain and p.command_id = h.command_id;
    if v_ids is null then
        return 0;
    end if;
    select array_agg(m order by m) into v_msg_ids from pgmq.send_batch(v_queue, v_messages) m;
    update commandbus.command_bus_command c
       set msg_id = n.msg_id, dispatch_status = 'queued', queued_at = v_now, updated_at = v_now,
           queue_attempt_count = c.queue_attempt_count + 1
      from unnest(v_ids, v_msg_ids) n(command_id, msg_id)
     where c.domain = p_domain and c.command_id = n.command_id and c.dispatch_status = any(p_from);
    if commandbus.setting('payload_archive') <> 'on' then
        delete from commandbus.command_bus_payload_archive p
         where p.domain = p_domain and p.command_id = any(v_ids);
    end if;
    perform commandbus.wake_workers(p_domain);
    return cardinality(v_ids);
end $$;
