-- Leases: the fence. A lease is known by (command_id, lease_epoch): the epoch grows at every receive and
-- is never reset, so a worker that lost its lease has a number that matches nothing any more. Whatever a
-- worker says about a command is checked against it here, and only here. receiving.sql gives leases,
-- outcomes.sql says what becomes of a command when one ends.
--
-- Items are JSON objects: command_id, msg_id, lease_epoch, and what an outcome needs.
-- They are joined to the commands as a materialized list that carries the domain: the planner cannot turn
-- the join into a walk over all commands of the domain (planner.sql).

-- Locks the messages of leases, in their order, before any command is touched: PGMQ's own delete, archive
-- and set_vt match on msg_id alone and know nothing of a lost lease. Returns the time after the wait.
create or replace function commandbus.lock_leases(p_domain text, p_items jsonb) returns timestamptz
language plpgsql as $$
begin
    perform commandbus.lock_messages(p_domain || '.commands', array(
        select (i ->> 'msg_id')::bigint from jsonb_array_elements(p_items) i));
    return clock_timestamp();
end $$;

-- The one way out of a lease: ends those that still hold, and returns their commands, each with what its
-- item says. The caller has locked the messages. What the audit keeps of a failure is made by those who have one
-- (failed_attempt): a success would pay for it too, because the server prepares all of a statement before it runs.
--   p_has_failed: the attempt failed, and its error is kept. If it has not, and p_status is PENDING, the
--   attempt does not count: the command was never started, and a suspect is still one; or, with p_is_snooze,
--   its handler ran to its end and wants it later.
create or replace function commandbus.end_leases(
    p_domain text, p_items jsonb, p_status text, p_has_failed boolean, p_now timestamptz,
    p_is_snooze boolean default false
) returns table (
    command_id uuid, msg_id bigint, batch_id uuid, command_type text, correlation_id uuid,
    reply_queue text, attempts int, data jsonb, delay_seconds float8, reason text, error_type text,
    error_code text, error_msg text, error_details jsonb, error_stack jsonb, snoozes int, meta jsonb,
    has_key boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    v_is_uncounted boolean := p_status = 'PENDING' and not p_has_failed;
    v_is_unstarted boolean := v_is_uncounted and not p_is_snooze;
begin
    return query
    with item as materialized (
        select p_domain as domain, r.*
          from jsonb_to_recordset(p_items) as r(
                   command_id uuid, lease_epoch bigint, data jsonb, delay_seconds float8, reason text,
                   error_type text, error_code text, error_msg text, error_details jsonb,
                   error_stack jsonb, meta jsonb)
    )
    update commandbus.command_bus_command c
       set status = p_status, leased_by = null, lease_expires_at = null, started_alone = false,
           lapses = case when v_is_unstarted then -abs(c.lapses) else 0 end,
           attempts = case when v_is_uncounted then greatest(c.attempts - 1, 0) else c.attempts end,
           snoozes = case when p_is_snooze then coalesce(c.snoozes, 0) + 1 else c.snoozes end,
           last_error_type = case when p_has_failed then i.error_type else c.last_error_type end,
           last_error_code = case when p_has_failed then i.error_code else c.last_error_code end,
           last_error_msg = case when p_has_failed then i.error_msg else c.last_error_msg end,
           updated_at = p_now
      from item i
     where c.domain = i.domain and c.command_id = i.command_id
       and c.lease_epoch = i.lease_epoch and c.leased_by is not null
       and c.status in ('PENDING', 'IN_PROGRESS')
       -- one whose cancel was requested does not start again: cancel_leased ends it
       and (p_status <> 'PENDING' or c.cancel_requested_at is null)
    returning c.command_id, c.msg_id, c.batch_id, c.command_type, c.correlation_id, c.reply_queue,
              c.attempts, i.data, i.delay_seconds, i.reason, i.error_type, i.error_code, i.error_msg,
              i.error_details, i.error_stack, c.snoozes, i.meta, c.ordering_key is not null;
end $$;

-- What the audit keeps of a failed attempt.
create or replace function commandbus.failure_details(
    p_attempt int, p_class text, p_code text, p_message text, p_details jsonb, p_delay float8
) returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
               'attempt', p_attempt, 'class', p_class, 'code', p_code, 'message', p_message,
               'retry_in_seconds', p_delay))
        -- the details of the handler stay as they are, with their nulls
        || case when p_details is null then '{}' else jsonb_build_object('details', p_details) end
$$;

-- The same with the place in the code where it was raised, if it was raised by code.
create or replace function commandbus.failed_attempt(
    p_attempt int, p_class text, p_code text, p_message text, p_details jsonb, p_delay float8, p_stack jsonb
) returns jsonb
language sql stable as $$
    select commandbus.failure_details(p_attempt, p_class, p_code, p_message, p_details, p_delay)
        || case when p_stack is null then '{}' else jsonb_build_object('stack', p_stack) end
$$;

-- Where in the code the last failure of a command was raised; null if it was not raised by code.
create or replace function commandbus.failure_stack(p_domain text, p_command_id uuid) returns jsonb
language sql stable as $$
    select a.details_json -> 'stack' from commandbus.command_bus_audit a
     where a.command_id = p_command_id and a.domain = p_domain and a.event_type = 'FAILED'
     order by a.ts desc, a.audit_id desc limit 1
$$;

-- Whose lease ran out, from when to when, and when that worker was last heard of: one that was heard of
-- later than that is alive and lost its lease, another one has crashed or is cut off.
-- `stable`: it sees the row as it was before the statement that calls it, which gives the lease to another.
create or replace function commandbus.lapsed_lease(p_domain text, p_command_id uuid) returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
               'worker', c.leased_by, 'leased_at', commandbus.iso8601(c.last_attempt_at),
               'lease_ended_at', commandbus.iso8601(c.lease_expires_at),
               'worker_seen_at', commandbus.iso8601(w.heartbeat_at)))
      from commandbus.command_bus_command c
      left join commandbus.command_bus_worker w on w.worker_id = c.leased_by
     where c.domain = p_domain and c.command_id = p_command_id and c.leased_by is not null
$$;

-- Results of leases that were lost: recorded, returned, and otherwise ignored. A repeat of a call whose
-- reply was lost is harmless: the lease is over, nothing moves, and it is not called stale.
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
         -- The same epoch without a lease: this very outcome is recorded, now or before. Not by p_moved: a
         -- worker that lost a lease to itself may bring the results of both at once.
         where not (c.lease_epoch = i.lease_epoch and c.leased_by is null)
    ), recorded as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, s.command_id, 'STALE_RESULT_REJECTED', clock_timestamp(),
               jsonb_build_object('lease_epoch', s.lease_epoch), s.batch_id
          from stale s
    )
    select s.command_id from stale s
    union all
    -- Commands that have gone to another shard with their domain: what this worker did is worth nothing here.
    select i.command_id from item i
     where not exists (select from commandbus.command_bus_command c
                        where c.domain = i.domain and c.command_id = i.command_id)
       and exists (select from commandbus.command_bus_move m
                    where m.domain = p_domain and m.is_leaving and m.phase in ('switched', 'finished'));
end $$;

-- A suspect is about to run with nothing beside it: if this lease lapses too, the command is to blame.
create or replace function commandbus.confirm_start(p_domain text, p_command_id uuid, p_lease_epoch bigint)
returns boolean
language plpgsql as $$
begin
    update commandbus.command_bus_command c set started_alone = true
     where c.domain = p_domain and c.command_id = p_command_id
       and c.lease_epoch = p_lease_epoch and c.leased_by is not null;
    return found;
end $$;

-- Extends the leases that still hold. Returns the commands whose lease is lost, and those whose cancel was requested,
-- which the worker should end.
--   p_items: [{"command_id", "msg_id", "lease_epoch"}]
create or replace function commandbus.keep_leases(p_domain text, p_items jsonb, p_vt int)
returns table (command_id uuid, is_lost boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    v_now    timestamptz := commandbus.lock_leases(p_domain, p_items);
    v_kept   uuid[];
    v_msgs   bigint[];
    v_marked uuid[];
begin
    with item as materialized (
        select p_domain as domain, r.command_id, r.lease_epoch
          from jsonb_to_recordset(p_items) as r(command_id uuid, lease_epoch bigint)
    ), kept as (
        update commandbus.command_bus_command c
           set lease_expires_at = v_now + make_interval(secs => p_vt)
          from item i
         where c.domain = i.domain and c.command_id = i.command_id
           and c.lease_epoch = i.lease_epoch and c.leased_by is not null
        returning c.command_id, c.msg_id, c.cancel_requested_at is not null as is_marked
    )
    select array_agg(k.command_id), array_agg(k.msg_id order by k.msg_id),
           array_agg(k.command_id) filter (where k.is_marked)
      into v_kept, v_msgs, v_marked from kept k;
    perform pgmq.set_vt(commandbus.physical_queue(p_domain || '.commands'), v_msgs, p_vt);
    return query
    select i.command_id, true from jsonb_to_recordset(p_items) as i(command_id uuid)
     where v_kept is null or i.command_id <> all(v_kept)
    union all
    select m, false from unnest(v_marked) m;
end $$;

-- The same for one who cannot be asked to end what it has: returns the commands whose lease is lost.
create or replace function commandbus.extend_leases(p_domain text, p_items jsonb, p_vt int)
returns setof uuid
language sql as $$
    select k.command_id from commandbus.keep_leases(p_domain, p_items, p_vt) k where k.is_lost
$$;

-- IN_PROGRESS -> PENDING: leases that have lapsed, of commands that nobody leases again now, because they wait. They are
-- like all that waits from here on: a late result is refused, and operators may end and move them. The caller has locked
-- their messages. A command without a worker and with `lapses` above 0 is one of these: the lapse is counted already,
-- and whether it is an attempt is up to the next receive, which knows the policy.
create or replace function commandbus.end_lapsed(p_domain text, p_command_ids uuid[], p_now timestamptz) returns void
language plpgsql as $$
begin
    with item as materialized (
        select p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    ), ended as (
        update commandbus.command_bus_command c
           set status = 'PENDING', lease_epoch = c.lease_epoch + 1, leased_by = null, lease_expires_at = null,
               lapses = abs(c.lapses) + 1, updated_at = p_now
          from item i
         where c.domain = i.domain and c.command_id = i.command_id
           and c.status in ('PENDING', 'IN_PROGRESS') and c.leased_by is not null
        returning c.command_id, c.batch_id
    )
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, batch_id)
    select p_domain, e.command_id, 'LEASE_EXPIRED', p_now, commandbus.lapsed_lease(p_domain, e.command_id), e.batch_id
      from ended e;
end $$;

-- The same for those of these commands that are paused, by their domain or their type: until somebody resumes it no
-- receive comes to take them over, and nothing could end them. The caller has locked their messages, so that no worker
-- is extending such a lease.
create or replace function commandbus.end_lapsed_paused(p_domain text, p_command_ids uuid[], p_now timestamptz)
returns void
language plpgsql as $$
declare
    v_flow commandbus.command_bus_flow;
    v_ids  uuid[];
begin
    select * into v_flow from commandbus.command_bus_flow f where f.domain = p_domain;
    if v_flow.paused_at is null and v_flow.has_rules is not true
       or not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    execute format(
        'with item as materialized ('
        '    select $1 as domain, u.command_id from unnest($2) u(command_id)'
        ') select array_agg(c.command_id) from item i'
        '   join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id'
        '   join pgmq.%I q on q.msg_id = c.msg_id'
        '  where c.status in (''PENDING'', ''IN_PROGRESS'') and c.leased_by is not null and q.vt <= $3'
        '    and ($4 or exists (select from commandbus.command_bus_flow_rule r'
        '                        where r.domain = c.domain and r.command_type = c.command_type and not r.by_key'
        '                          and r.paused_at is not null and coalesce(r.paused_until > $3, true)))',
        'q_' || commandbus.physical_queue(p_domain || '.commands'))
       into v_ids using p_domain, p_command_ids, p_now,
            v_flow.paused_at is not null and coalesce(v_flow.paused_until > p_now, true);
    if v_ids is not null then
        perform commandbus.drop_places(p_domain, v_ids);
        perform commandbus.end_lapsed(p_domain, v_ids, p_now);
    end if;
end $$;
