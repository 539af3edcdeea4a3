-- Receiving: a worker leases the commands that are due. leases.sql has the fence that a lease is from then
-- on, outcomes.sql how it ends.

-- The ids in a group of messages; null where another program has put something else into the queue. Only
-- then each text is looked at first, which costs three times as much as the plain conversion.
create or replace function commandbus.command_ids_of(p_messages jsonb[]) returns uuid[]
language plpgsql stable as $$
begin
    return array(select (m ->> 'command_id')::uuid from unnest(p_messages) m);
exception when invalid_text_representation then
    return array(select commandbus.message_command_id(m) from unnest(p_messages) m);
end $$;

-- Leases up to p_quantity commands for p_vt seconds.
--   p_limits: {"<type>": max_attempts}, the policies registered at this worker; they win over
--   what was stored at send.
--   p_count_every: the types whose policy there counts every lapse as an attempt; null: all.
--   p_from_head: what is due at the head of the queue goes before what has been due for longest.
--   p_except: command types that are left to other workers.
--   p_places: handlers that are free now; what has a limit is not leased ahead of them (gate_reads.sql).
--   has_rules: the domain has limits, or the command a key, so that the end of its lease makes room for another.
--   due_at: since when it was due, if this is its first lease. For metrics; to look it up afterwards costs more.
-- A lease that ended without a word (crash, pause, cut) does not count against the command unless it
-- is known to have run alone, or its type is in p_count_every. After the second one in a row `is_suspect` asks the worker to run it by
-- itself, and confirm_start makes that known. So a command that kills its workers is found, and its
-- neighbours go free; and after a crash that nobody is to blame for, nothing runs alone.
create or replace function commandbus.receive_commands(
    p_domain text, p_vt int, p_quantity int, p_worker text,
    p_limits jsonb default '{}', p_mark_in_progress boolean default true,
    p_from_head boolean default false, p_except text[] default '{}', p_count_every text[] default '{}',
    p_places int default null
) returns table (
    command_id uuid, command_type text, msg_id bigint, lease_epoch bigint, attempt int,
    max_attempts int, is_suspect boolean, correlation_id uuid, reply_queue text, batch_id uuid,
    created_at timestamptz, data text, snoozes int, has_rules boolean, meta text, due_at timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
    v_now      timestamptz := clock_timestamp();
    v_msg_ids  bigint[];
    v_messages jsonb[];
    v_ids      uuid[];
    v_leased   int;
    v_flow     commandbus.command_bus_flow;
    v_take     text;
begin
    select * into v_flow from commandbus.command_bus_flow f where f.domain = p_domain;
    if v_flow.paused_at is not null and coalesce(v_flow.paused_until > v_now, true) then
        return;
    end if;
    if v_flow.has_keys then
        perform commandbus.resume_keys(p_domain);
    end if;
    -- Each call that stands between here and the queue copies all messages once more.
    if v_flow.has_rules then
        select t.o_msg_ids, t.o_messages into v_msg_ids, v_messages
          from commandbus.take_gated(v_flow, v_now, p_vt, p_quantity, p_from_head, p_except, p_places) t;
    elsif v_flow.has_levels then
        select t.o_msg_ids, t.o_messages into v_msg_ids, v_messages
          from commandbus.take_levels(v_flow, v_now, p_vt, p_quantity, p_from_head, p_except) t;
    else
        if not p_from_head and p_except = '{}' then
            v_take := commandbus.queue_verb('take', commandbus.physical_queue(p_domain || '.commands'));
        end if;
        if v_take is null then
            select t.msg_ids, t.messages into v_msg_ids, v_messages
              from commandbus.take_messages(
                   p_domain || '.commands', v_now, p_vt, p_quantity, p_from_head, p_except) t;
        else
            -- As take_messages would, one call less.
            execute 'select * from ' || v_take || '($1, $2, $3)'
               into v_msg_ids, v_messages using v_now, p_vt, p_quantity;
        end if;
    end if;
    if v_msg_ids is null then
        return;
    end if;
    v_ids := commandbus.command_ids_of(v_messages);

    return query
    with item as materialized (
        select p_domain as domain, u.msg_id, u.command_id, (u.message -> 'data')::text as data,
               (u.message -> 'meta')::text as meta
          from unnest(v_msg_ids, v_ids, v_messages) u(msg_id, command_id, message)
    ), leased as (
        update commandbus.command_bus_command c
           set status = case when p_mark_in_progress then 'IN_PROGRESS' else 'PENDING' end,
               attempts = c.attempts
                   + case when c.leased_by is null and c.lapses <= 0 or c.started_alone
                               or coalesce(c.command_type = any(p_count_every), true) then 1 else 0 end,
               max_attempts = coalesce((p_limits ->> c.command_type)::int, c.max_attempts),
               lapses = case when c.leased_by is null then c.lapses else abs(c.lapses) + 1 end,
               lease_epoch = c.lease_epoch + 1,
               leased_by = p_worker,
               started_alone = false,
               lease_expires_at = v_now + make_interval(secs => p_vt),
               last_attempt_at = v_now,
               updated_at = v_now,
               msg_id = m.msg_id
          from item m
         where c.domain = m.domain
           and c.command_id = m.command_id
           -- one that is only stored is not started by a message that another program has put there
           and c.status in ('PENDING', 'IN_PROGRESS')
           and (c.msg_id = m.msg_id or c.msg_id is null and c.dispatch_status = 'queued')
           and c.attempts + case when c.leased_by is null and c.lapses <= 0 or c.started_alone
                                   or coalesce(c.command_type = any(p_count_every), true) then 1 else 0 end
               <= coalesce((p_limits ->> c.command_type)::int, c.max_attempts)
           and (abs(c.lapses) < 10 or c.leased_by is null and c.lapses = 10 or coalesce(c.command_type = any(p_count_every), true))
           and (c.expires_at is null or c.expires_at > v_now)
           and c.cancel_requested_at is null
        returning c.command_id, c.command_type, m.msg_id, c.lease_epoch, c.attempts as attempt,
                  c.max_attempts, abs(c.lapses) > 1 as is_suspect, c.correlation_id, c.reply_queue,
                  c.batch_id, c.created_at, m.data,
                  -- not of one that has waited since: that is told already (end_lapsed)
                  case when c.lapses > 0 then commandbus.lapsed_lease(p_domain, c.command_id) end as lapsed, c.snoozes,
                  c.ordering_key is not null as has_key, m.meta,
                  case c.lease_epoch when 1 then greatest(c.created_at, c.deliver_at, c.queued_at) end as due_at
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select p_domain, e.command_id, e.event_type, v_now, e.details, e.batch_id, e.actor
          from (select h.command_id, 'LEASE_EXPIRED' as event_type, h.lapsed as details, h.batch_id, null as actor
                  from leased h where h.lapsed is not null
                union all
                select h.command_id, 'RECEIVED',
                       -- nearly always the first one; to build the object takes six times as long
                       case h.attempt when 1 then '{"attempt": 1}'::jsonb
                            else jsonb_build_object('attempt', h.attempt) end,
                       h.batch_id, p_worker
                  from leased h) e
    )
    select h.command_id, h.command_type, h.msg_id, h.lease_epoch, h.attempt, h.max_attempts,
           h.is_suspect, h.correlation_id, h.reply_queue, h.batch_id, h.created_at, h.data, h.snoozes,
           coalesce(v_flow.has_rules, false) or h.has_key, h.meta, h.due_at
      from leased h
     -- When all commands are locked, and before their events. Of commands without a batch it is not called, and the
     -- statement need not be prepared for batches.
     where coalesce((select commandbus.begin_batches(p_domain, array_agg(b.batch_id), v_now)
                       from leased b where b.batch_id is not null), true);
    get diagnostics v_leased = row_count;
    if v_leased < cardinality(v_msg_ids) then
        perform commandbus.turn_away(p_domain, v_msg_ids, v_ids, p_worker, p_limits, v_now);
    end if;
end $$;

-- PENDING -> IN_PROGRESS of batches whose first commands have just been leased, in the order of their ids; a batch may
-- be listed many times. Null: there is none.
create or replace function commandbus.begin_batches(p_domain text, p_batch_ids uuid[], p_now timestamptz)
returns boolean
language plpgsql strict as $$
begin
    with waiting as (
        select b.batch_id from commandbus.command_bus_batch b
         where b.batch_id = any(p_batch_ids) and b.status = 'PENDING'
         order by b.batch_id for update
    ), begun as (
        update commandbus.command_bus_batch b set status = 'IN_PROGRESS', started_at = p_now
          from waiting w where b.batch_id = w.batch_id and b.status = 'PENDING'
        returning b.batch_id
    )
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id)
    select p_domain, g.batch_id, 'BATCH_STARTED', p_now, g.batch_id from begun g;
    return true;
end $$;

-- Makes those messages due again whose commands this receive has neither leased nor ended.
create or replace function commandbus.leave_to_next(
    p_domain text, p_msg_ids bigint[], p_command_ids uuid[], p_now timestamptz
) returns void
language plpgsql as $$
begin
    execute format('update pgmq.%I m set vt = $1 where m.msg_id = any($2)',
                   'q_' || commandbus.physical_queue(p_domain || '.commands'))
      using p_now, array(
        select u.msg_id from unnest(p_msg_ids, p_command_ids) u(msg_id, command_id)
          join commandbus.command_bus_command c on c.domain = p_domain and c.command_id = u.command_id
         where c.batch_id is not null and c.status in ('PENDING', 'IN_PROGRESS')
           and (c.msg_id = u.msg_id or c.msg_id is null and c.dispatch_status = 'queued')
           and c.last_attempt_at is distinct from p_now);
end $$;

-- Messages that were read but whose command must not run: finished, parked, replaced by a newer
-- message, or without a command at all are archived; expired ones end, and those whose cancel was requested; used-up attempts are parked. The messages
-- are locked by the read. Commands leased by the same call carry p_now.
create or replace function commandbus.turn_away(
    p_domain text, p_msg_ids bigint[], p_command_ids uuid[], p_worker text, p_limits jsonb,
    p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_spent jsonb;
    v_late  jsonb;
    v_asked jsonb;
    v_gone  bigint[];
    v_begun boolean;
begin
    -- Batches are locked once in a transaction, in their order; two receives could wait for each other otherwise. If
    -- this one has begun batches by its leases, what would end in a batch is due again at once, and is left to the
    -- next receive. A batch begins once, so that one will come.
    v_begun := exists (
        select from commandbus.command_bus_command c
          join commandbus.command_bus_batch b on b.batch_id = c.batch_id
         where c.domain = p_domain and c.command_id = any(p_command_ids) and c.last_attempt_at = p_now
           and b.started_at = p_now);
    -- Taking the lease fences the worker that may still be running it, before it is parked.
    with item as materialized (
        select p_domain as domain, u.msg_id, u.command_id
          from unnest(p_msg_ids, p_command_ids) u(msg_id, command_id)
    ), spent as (
        select c.domain, c.command_id, m.msg_id, c.leased_by is not null or c.lapses > 0 as has_lapsed
          from item m
          join commandbus.command_bus_command c
            on c.domain = m.domain and c.command_id = m.command_id
           and (c.msg_id = m.msg_id or c.msg_id is null and c.dispatch_status = 'queued')
         where c.status in ('PENDING', 'IN_PROGRESS') and c.last_attempt_at is distinct from p_now
           and (c.batch_id is null or not v_begun)
         order by c.command_id for update of c
    ), taken as (
        update commandbus.command_bus_command c
           set leased_by = p_worker, lease_epoch = c.lease_epoch + 1, msg_id = s.msg_id,
               max_attempts = coalesce((p_limits ->> c.command_type)::int, c.max_attempts)
          from spent s
         where c.domain = s.domain and c.command_id = s.command_id
        returning c.command_id, c.msg_id, c.lease_epoch, c.attempts, c.max_attempts,
                  s.has_lapsed as is_lapsed, c.expires_at, c.batch_id,
                  c.cancel_requested_at is not null as is_asked
    ), told as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, t.command_id, 'LEASE_EXPIRED', p_now,
               commandbus.lapsed_lease(p_domain, t.command_id), t.batch_id
          from taken t where t.is_asked
    )
    select jsonb_agg(jsonb_build_object(
               'command_id', t.command_id, 'msg_id', t.msg_id, 'lease_epoch', t.lease_epoch))
               filter (where t.is_asked),
           jsonb_agg(jsonb_build_object(
               'command_id', t.command_id, 'msg_id', t.msg_id, 'lease_epoch', t.lease_epoch,
               'reason', commandbus.expired_since(t.expires_at)))
               filter (where t.expires_at <= p_now and not t.is_asked),
           jsonb_agg(jsonb_build_object(
               'command_id', t.command_id, 'msg_id', t.msg_id, 'lease_epoch', t.lease_epoch,
               'reason', 'EXHAUSTED', 'error_type', 'TRANSIENT',
               'error_code', case when t.is_lapsed then 'LEASE_EXPIRED' else 'ATTEMPTS_EXHAUSTED' end,
               'error_msg', case when t.is_lapsed
                   then format('the lease ran out before a result came, attempt %s of %s: the worker '
                               'crashed, was killed, or lost its connection', t.attempts, t.max_attempts)
                   else format('no attempt left: %s of %s are used', t.attempts, t.max_attempts) end,
               'error_details', case when t.is_lapsed
                   then commandbus.lapsed_lease(p_domain, t.command_id) end))
               filter (where (t.expires_at <= p_now) is not true and not t.is_asked)
      into v_asked, v_late, v_spent from taken t;
    if v_begun then
        perform commandbus.leave_to_next(p_domain, p_msg_ids, p_command_ids, p_now);
    else
        perform 1 from commandbus.command_bus_batch b
          where b.batch_id = any(array(
                select c.batch_id from commandbus.command_bus_command c
                 where c.domain = p_domain and c.command_id = any(p_command_ids)
                   and c.leased_by = p_worker and c.last_attempt_at is distinct from p_now))
          order by b.batch_id for update;
    end if;
    if v_asked is not null then
        perform commandbus.cancel_leased(p_domain, v_asked);
    end if;
    if v_late is not null then
        perform commandbus.expire_leased(p_domain, v_late);
    end if;
    if v_spent is not null then
        perform commandbus.park_commands(p_domain, v_spent);
    end if;
    if coalesce(v_asked, v_late, v_spent) is not null then
        perform commandbus.wake_for_places(p_domain);
    end if;

    select array_agg(m.msg_id order by m.msg_id) into v_gone
      from unnest(p_msg_ids, p_command_ids) m(msg_id, command_id)
     where not exists (
        select from commandbus.command_bus_command c
         where c.domain = p_domain and c.command_id = m.command_id
           -- one that is left to the next receive may not know the number of its message yet
           and (c.msg_id = m.msg_id or c.msg_id is null and c.dispatch_status = 'queued')
           and c.status in ('PENDING', 'IN_PROGRESS'));
    perform pgmq.archive(commandbus.physical_queue(p_domain || '.commands'), v_gone);
end $$;
