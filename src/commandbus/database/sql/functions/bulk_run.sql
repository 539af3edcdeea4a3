-- Running bulk operations: in chunks, at the chosen rate, by any process that asks for a chunk.
--
-- One chunk is one transaction: the changed commands, the outcome of each item, the counters and the
-- next due time. So each item is acted on once, even if processes are killed at any point, and two
-- executors together keep to the rate.
--
-- Lock order: operation -> command -> batch -> failure group -> audit. The row of an operation is
-- the first row lock of a chunk, taken with SKIP LOCKED. No transaction that has locked a command asks
-- for it, so there is no deadlock.

-- Of these parked commands, those whose payload is in no archive any more.
create or replace function commandbus.lost_payloads(p_domain text, p_command_ids uuid[])
returns uuid[]
language plpgsql stable as $$
declare
    v_lost uuid[];
begin
    execute format(
        'select array_agg(c.command_id) from commandbus.command_bus_command c'
        '  left join pgmq.%I a on a.msg_id = c.msg_id'
        '  left join commandbus.command_bus_payload_archive p'
        '    on p.domain = c.domain and p.command_id = c.command_id'
        ' where c.domain = $1 and c.command_id = any($2)'
        '   and a.message is null and p.payload_json is null',
        'a_' || commandbus.physical_queue(p_domain || '.commands'))
       into v_lost using p_domain, p_command_ids;
    return coalesce(v_lost, '{}');
end $$;

-- Acts on parked commands that the caller has locked. If one command causes an error, the list is
-- halved until that command is alone: its error becomes its outcome, the others go on. An error of
-- the database (connection, deadlock, resources, shutdown) rolls the whole chunk back, to be repeated.
create or replace function commandbus.try_bulk(
    p_domain text, p_verb text, p_arguments jsonb, p_actor text, p_command_ids uuid[], p_edits jsonb,
    out o_done uuid[], out o_errors jsonb)
language plpgsql as $$
declare
    v_size int := cardinality(p_command_ids);
    v_half record;
begin
    o_done := '{}';
    o_errors := '{}';
    if v_size = 0 then
        return;
    end if;
    begin
        if p_verb = 'retry' then
            if p_arguments ? 'on_behalf' and not (p_arguments -> 'on_behalf' ->> 'may_bypass')::boolean then
                perform commandbus.require_ungoverned_edits(
                    p_domain, array(select e::uuid from jsonb_object_keys(p_edits) e
                                     where e::uuid = any(p_command_ids)), p_arguments -> 'on_behalf');
            end if;
            o_done := array(select commandbus.operator_retry(
                p_domain, p_command_ids, p_actor,
                coalesce((p_arguments ->> 'reset_attempts')::boolean, true), false, p_edits));
        elsif p_verb = 'cancel' then
            o_done := array(select commandbus.operator_cancel(
                p_domain, p_command_ids, p_arguments ->> 'reason', p_actor, false));
        else
            o_done := array(select commandbus.operator_complete(
                p_domain, p_command_ids, p_arguments -> 'result', p_actor, false));
        end if;
        return;
    exception when others then
        if sqlstate ~ '^(08|40|53|55|57|58|XX)' or sqlstate in ('CB018', 'CB019') then
            raise;                                      -- the last two: the domain moves
        end if;
        if v_size = 1 then
            o_errors := jsonb_build_object(p_command_ids[1], left(sqlstate || ': ' || sqlerrm, 200));
            return;
        end if;
    end;
    for v_half in
        select t.* from (values (p_command_ids[:v_size / 2]), (p_command_ids[v_size / 2 + 1:])) h(ids)
         cross join lateral commandbus.try_bulk(
             p_domain, p_verb, p_arguments, p_actor, h.ids,
             (select coalesce(jsonb_object_agg(e.key, e.value), '{}') from jsonb_each(p_edits) e
               where e.key::uuid = any(h.ids))) t
    loop
        o_done := o_done || v_half.o_done;
        o_errors := o_errors || v_half.o_errors;
    end loop;
end $$;

-- Of these commands, those that are parked since the moment that goes with each: the failure that was
-- chosen. The operator has not seen a later failure of the same command. The planner's settings make
-- it read the items only, not all parked commands of the domain. For the same reason only the command
-- is compared in a way that an index can serve: other indexes begin with the domain or with
-- parked_at, which is the same for all commands that a worker parked at once.
create or replace function commandbus.still_parked(
    p_domain text, p_command_ids uuid[], p_parked timestamptz[]
) returns uuid[]
language sql stable as $$
    with item as materialized (
        select p_domain as domain, u.command_id, u.parked_at
          from unnest(p_command_ids, p_parked) u(command_id, parked_at)
    )
    select coalesce(array_agg(t.command_id order by t.command_id), '{}')
      from item i
      join commandbus.command_bus_troubleshooting t
        on t.command_id = i.command_id and t.domain is not distinct from i.domain
       and t.parked_at is not distinct from i.parked_at
$$;

-- Writes the outcome of each item of a chunk; returns how many items have each outcome.
create or replace function commandbus.record_bulk(
    p_operation commandbus.command_bus_bulk_operation, p_first int, p_command_ids uuid[],
    p_ready uuid[], p_lost uuid[], p_done uuid[], p_errors jsonb, p_now timestamptz,
    out o_done int, out o_skipped int, out o_failed int)
language plpgsql as $$
begin
    with item as materialized (
        select p_operation.domain as domain, p_operation.operation_id as operation_id,
               u.command_id, p_first + u.n::int - 1 as item_no
          from unnest(p_command_ids) with ordinality u(command_id, n)
    ), result as materialized (
        select i.operation_id, i.item_no,
               case when i.command_id = any(p_done) then 'done'
                    when i.command_id = any(p_ready) then 'failed' else 'skipped' end as outcome,
               case when i.command_id = any(p_done) then null
                    when i.command_id = any(p_lost) then 'the payload is no longer archived'
                    when p_errors ? i.command_id::text then p_errors ->> i.command_id::text
                    when i.command_id = any(p_ready) then 'the queue of the domain is gone'
                    when c.command_id is null then 'there is no such command any more'
                    when c.status = 'IN_TROUBLESHOOTING_QUEUE'
                        then 'it was decided on, and parked again, meanwhile'
                    else 'it is ' || c.status end as detail
          from item i
          left join commandbus.command_bus_command c
            on c.domain = i.domain and c.command_id = i.command_id
    ), recorded as (
        update commandbus.command_bus_bulk_item b
           set outcome = s.outcome, detail = s.detail, acted_at = p_now
          from result s
         where b.operation_id = s.operation_id and b.item_no = s.item_no
           and b.outcome is null
        returning b.outcome
    )
    select count(*) filter (where r.outcome = 'done'),
           count(*) filter (where r.outcome = 'skipped'),
           count(*) filter (where r.outcome = 'failed')
      into o_done, o_skipped, o_failed from recorded r;
end $$;

-- Acts on the next items of an operation, at most p_limit, and as many as its rate allows. Returns
-- its status now, how many items got their outcome from this call, and how many seconds to wait
-- before the next call, also if another executor has locked it.
--   p_edits: for an operation with an edit, what the executor made of the payloads of the next items:
--   {"first": number of the first item, "edits": as operator_retry takes them, "same": [ids that the
--   edit does not change], "refused": {"<command_id>": why it cannot be applied}}. Commands that are
--   in none of them are not touched. If another executor has acted on these items meanwhile, nothing
--   is done, and the executor reads the next ones.
create or replace function commandbus.run_bulk_chunk(
    p_operation_id uuid, p_limit int default 500, p_executor text default null,
    p_edits jsonb default null
) returns table (status text, acted int, wait_seconds float8)
language plpgsql as $$
#variable_conflict use_column
declare
    c_step   constant float8 := 0.25;  -- seconds; a chunk has what the rate allows in that time
    v_op     commandbus.command_bus_bulk_operation;
    v_now    timestamptz;
    v_first  int;
    v_size   int;
    v_ids    uuid[];
    v_parked timestamptz[];
    v_ready  uuid[];
    v_lost   uuid[] := '{}';
    v_chosen uuid[];
    v_tried  record;
    v_counts record;
begin
    if p_edits is not null then
        -- The lock of the governed types (governed.sql), which try_bulk may ask for, is before all others.
        perform pg_advisory_xact_lock_shared(hashtextextended('commandbus.governed', 0));
    end if;
    select * into v_op from commandbus.command_bus_bulk_operation o
     where o.operation_id = p_operation_id for update skip locked;
    if not found then
        status := commandbus.require_bulk(p_operation_id);
        acted := 0;
        wait_seconds := c_step;
        return next;
        return;
    end if;
    status := v_op.status;
    acted := 0;
    wait_seconds := 0;
    v_now := clock_timestamp();
    if v_op.status <> 'running' then
        return next;
        return;
    end if;
    if v_op.next_due_at > v_now and (v_op.rate is not null or v_op.starts_at > v_now) then
        wait_seconds := extract(epoch from v_op.next_due_at - v_now);
        return next;
        return;
    end if;

    v_first := v_op.done + v_op.skipped + v_op.failed + 1;
    if v_op.arguments ? 'edit' and p_edits is null then
        raise exception 'bulk operation % edits payloads, and this process cannot', p_operation_id
            using errcode = 'CB003', hint = 'leave it to the workers, or use a newer version';
    end if;
    if (p_edits ->> 'first')::int <> v_first then
        return next;
        return;
    end if;
    v_size := least(p_limit, v_op.total - v_first + 1,
                    greatest(1, floor(coalesce(v_op.rate, 1000000) * c_step)));
    select array_agg(i.command_id order by i.item_no), array_agg(i.parked_at order by i.item_no)
      into v_ids, v_parked
      from commandbus.command_bus_bulk_item i
     where i.operation_id = p_operation_id and i.item_no between v_first and v_first + v_size - 1;
    perform commandbus.lock_commands(v_op.domain, v_ids);
    v_ready := commandbus.still_parked(v_op.domain, v_ids, v_parked);
    if v_op.verb = 'retry' and commandbus.queue_exists(v_op.domain || '.commands') then
        v_lost := commandbus.lost_payloads(v_op.domain, v_ready);
    end if;
    v_chosen := array(
        select r from unnest(v_ready) r
         where r <> all(v_lost)
           and (p_edits is null or p_edits -> 'edits' ? r::text or p_edits -> 'same' ? r::text)
         order by r);
    -- The audit of each command says by which operation it was moved.
    perform set_config('commandbus.operation', p_operation_id::text, true);
    v_tried := commandbus.try_bulk(
        v_op.domain, v_op.verb, v_op.arguments, v_op.actor, v_chosen,
        coalesce(p_edits -> 'edits', '{}'));
    perform set_config('commandbus.operation', '', true);

    v_counts := commandbus.record_bulk(
        v_op, v_first, v_ids, v_ready, v_lost, v_tried.o_done,
        v_tried.o_errors || coalesce(p_edits -> 'refused', '{}'), v_now);
    update commandbus.command_bus_bulk_operation o
       set done = o.done + v_counts.o_done, skipped = o.skipped + v_counts.o_skipped,
           failed = o.failed + v_counts.o_failed, executor = p_executor,
           started_at = coalesce(o.started_at, v_now), heartbeat_at = v_now,
           -- From now, not from when it was due: delays are not made up for, so no second has more
           -- than the rate.
           next_due_at = v_now + make_interval(secs => coalesce(v_counts.o_done / o.rate, 0)),
           status = case when v_first + v_size > o.total then 'finished' else 'running' end,
           finished_at = case when v_first + v_size > o.total then v_now end,
           -- The values of an edit may be secret, and nobody needs them any more.
           arguments = case when v_first + v_size > o.total
                            then o.arguments #- '{edit,merge}' #- '{edit,patch}' #- '{on_behalf}'
                            else o.arguments end
     where o.operation_id = p_operation_id
    returning o.status, v_size,
              case when o.rate is null then 0
                   else greatest(0, extract(epoch from o.next_due_at - v_now)) end
      into status, acted, wait_seconds;
    if status = 'finished' then
        wait_seconds := 0;
        perform commandbus.audit_bulk(p_operation_id, 'BULK_FINISHED', v_op.actor);
    end if;
    return next;
end $$;
