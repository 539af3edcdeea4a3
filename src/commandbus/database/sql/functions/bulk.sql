-- Bulk operations: one decision for many parked commands. What they are is frozen at the start;
-- bulk_run.sql acts on them. Stopping and resuming lock the row of the operation and nothing else.
--
--   p_filter: {"command_type"?, "error_code"?, "group"?, "batch_id"?, "parked_after"?,
--              "parked_before"?, "command_ids"?, "failed_of"?}; all of them must hold, {} is everything
--   parked. failed_of: the items of that operation that failed, if nobody has acted on them since
--   p_arguments: retry {"reset_attempts"?, "edit"?, "reason"?}, cancel {"reason"}, complete {"result"?,
--   "reason"?}; kept with "on_behalf" if somebody edits over HTTP (governed.sql)
--   edit: {"merge": <JSON Merge Patch>} or {"patch": <JSON Patch>}, with "paths": what it writes to, as
--   it may be shown. Executors apply it to each payload; when all is done only the paths are kept.

--   p_viewer: through whose eyes, see visibility.sql; null: who sees everything
create or replace function commandbus.bulk_matches(
    p_domain text, p_filter jsonb, p_viewer text default null
) returns table (command_id uuid, parked_at timestamptz, command_type text, fingerprint text)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_unknown text;
    v_type    text := p_filter ->> 'command_type';
    v_code    text := p_filter ->> 'error_code';
    v_group   text := p_filter ->> 'group';
    v_batch   uuid := (p_filter ->> 'batch_id')::uuid;
    v_after   timestamptz := (p_filter ->> 'parked_after')::timestamptz;
    v_before  timestamptz := (p_filter ->> 'parked_before')::timestamptz;
    v_failed  uuid := (p_filter ->> 'failed_of')::uuid;
    v_ids     uuid[];
begin
    -- A condition that is not known must not be ignored: more commands would match.
    select k into v_unknown from jsonb_object_keys(p_filter) k
     where k not in ('command_type', 'error_code', 'group', 'batch_id', 'parked_after',
                     'parked_before', 'command_ids', 'failed_of') limit 1;
    if found then
        raise exception 'no such condition: %', quote_literal(v_unknown) using errcode = 'CB007';
    end if;
    if p_filter ? 'command_ids' then
        v_ids := array(select i::uuid from jsonb_array_elements_text(p_filter -> 'command_ids') i);
    end if;
    return query
    select t.command_id, t.parked_at, t.command_type, t.fingerprint
      from commandbus.command_bus_troubleshooting t
     where t.domain = p_domain
       and (p_viewer is null or t.owner is null or t.owner = p_viewer)
       and (v_type is null or t.command_type = v_type)
       and (v_group is null or t.fingerprint = v_group)
       -- the code is part of a group, so the commands need not be read for it
       and (v_code is null or t.fingerprint in (
               select g.fingerprint from commandbus.command_bus_failure_group g
                where g.domain = p_domain and g.error_code = v_code))
       and (v_after is null or t.parked_at >= v_after)
       and (v_before is null or t.parked_at < v_before)
       and (v_ids is null or t.command_id = any(v_ids))
       and (v_batch is null or exists (
               select from commandbus.command_bus_command c
                where c.domain = t.domain and c.command_id = t.command_id
                  and c.batch_id = v_batch))
       -- Parked since: a later failure of the same command is another one.
       and (v_failed is null or (t.command_id, t.parked_at) in (
               select i.command_id, i.parked_at
                 from commandbus.command_bus_bulk_item i
                 join commandbus.command_bus_bulk_operation o on o.operation_id = i.operation_id
                where i.operation_id = v_failed and i.outcome = 'failed' and o.domain = p_domain));
end $$;

-- What a bulk operation with this filter would act on now, by group.
create or replace function commandbus.preview_bulk(
    p_domain text, p_filter jsonb default '{}', p_viewer text default null
) returns table (
    fingerprint text, command_type text, error_class text, error_code text, message text,
    matched bigint)
language sql stable as $$
    select m.fingerprint, g.command_type, g.error_class, g.error_code, g.message, m.matched
      from (select b.fingerprint, count(*) as matched
              from commandbus.bulk_matches(p_domain, p_filter, p_viewer) b group by b.fingerprint) m
      join commandbus.command_bus_failure_group g
        on g.domain = p_domain and g.fingerprint = m.fingerprint
     order by m.matched desc, m.fingerprint
$$;

-- Freezes what matches now, to be acted on. Returns the id of the operation: p_operation_id, or
-- that of the operation that runs already with the same verb, filter and arguments. A repeat with
-- the same id is the same operation, if its content is the same. p_expected_total: how many commands
-- the caller expects to be frozen; another number is refused. An operation that exists freezes
-- nothing, so there the number is not compared.
--   p_limit: freezes only this many of what matches, those that are parked longest
--   p_start_after: no item is acted on before that time is over; a stop in it undoes the whole decision
create or replace function commandbus.start_bulk(
    p_operation_id uuid, p_domain text, p_verb text, p_filter jsonb default '{}',
    p_arguments jsonb default '{}', p_rate float8 default null, p_actor text default null,
    p_everything boolean default false, p_expected_total bigint default null,
    p_limit int default null, p_start_after interval default null
) returns uuid
language plpgsql as $$
declare
    v_digest bytea;
    v_known  commandbus.command_bus_bulk_operation;
    v_same   uuid;
    v_total  int;
    v_starts timestamptz;
begin
    perform commandbus.check_domain(p_domain);
    perform commandbus.check_bulk(p_verb, p_arguments, p_rate);
    perform commandbus.check_bulk_start(p_limit, p_start_after);
    -- Two people who retry the same commands make one decision, whatever each says about it. A cancel's
    -- reason goes out with the replies, so there it is a part of the decision.
    v_digest := sha256(convert_to((
        jsonb_build_array(p_domain, p_verb, p_filter,
                          case p_verb when 'cancel' then p_arguments else p_arguments - 'reason' end)
        || case when p_limit is null then '[]' else jsonb_build_array(p_limit) end)::text, 'UTF8'));
    -- Of two starts at once the second waits here, and finds what the first has created.
    perform pg_advisory_xact_lock(hashtextextended('commandbus.bulk.' || p_domain, 0));
    select * into v_known from commandbus.command_bus_bulk_operation o
     where o.operation_id = p_operation_id;
    if found then
        if v_known.digest <> v_digest or v_known.rate is distinct from p_rate then
            raise exception 'bulk operation % was started before, with other content', p_operation_id
                using errcode = 'CB003',
                      hint = 'use a new id; a rate is changed by stopping and resuming';
        end if;
        return p_operation_id;
    end if;
    select o.operation_id into v_same from commandbus.command_bus_bulk_operation o
     where o.domain = p_domain and o.status = 'running' and o.digest = v_digest;
    if found then
        return v_same;
    end if;

    v_starts := clock_timestamp() + nullif(p_start_after, interval '0');
    insert into commandbus.command_bus_bulk_operation (
        operation_id, domain, verb, filter, arguments, digest, rate, actor, status, total, reason,
        item_limit, starts_at, next_due_at)
    values (p_operation_id, p_domain, p_verb, p_filter, p_arguments, v_digest, p_rate, p_actor,
            'running', 0, p_arguments ->> 'reason', p_limit, v_starts, coalesce(v_starts, now()));
    insert into commandbus.command_bus_bulk_item (operation_id, item_no, command_id, parked_at)
    select p_operation_id, row_number() over (order by m.parked_at, m.command_id), m.command_id,
           m.parked_at
      from commandbus.bulk_matches(p_domain, p_filter) m
     order by m.parked_at, m.command_id limit p_limit;
    get diagnostics v_total = row_count;
    -- Compared with what this statement froze: commands that are parked meanwhile do not count.
    if v_total <> p_expected_total then
        raise exception 'the filter matches % commands now, not %; look at the preview again',
                        v_total, p_expected_total using errcode = 'CB009';
    end if;
    if p_filter ? 'command_ids' and p_filter - 'command_ids' = '{}' then
        -- They were named one by one, so each must be there.
        perform commandbus.refuse_unmoved(
            p_domain,
            array(select i::uuid from jsonb_array_elements_text(p_filter -> 'command_ids') i),
            array(select b.command_id from commandbus.command_bus_bulk_item b
                   where b.operation_id = p_operation_id),
            p_verb, 'a command in troubleshooting');
    end if;
    if v_total = 0 then
        raise exception 'nothing in troubleshooting of % matches', quote_literal(p_domain)
            using errcode = 'CB003', hint = 'look at the failure groups, and change the filter';
    end if;
    -- A group or ids are a choice; another filter that matches everything may be a mistake.
    if not p_everything and not p_filter ?| array['command_ids', 'group', 'failed_of']
       and (p_filter = '{}' and p_limit is null or v_total >= (
                select sum(g.parked_count) from commandbus.command_bus_failure_group g
                 where g.domain = p_domain)) then
        raise exception 'this matches everything in troubleshooting of %: % commands',
                        quote_literal(p_domain), v_total
            using errcode = 'CB003',
                  hint = 'say that everything is meant: --yes, everything=True, p_everything';
    end if;
    update commandbus.command_bus_bulk_operation o
       set total = v_total,
           is_governed = exists (
               select from commandbus.command_bus_troubleshooting t
                 join commandbus.command_bus_bulk_item i
                   on i.operation_id = p_operation_id and i.command_id = t.command_id
                where t.domain = p_domain and t.owner is not null)
     where o.operation_id = p_operation_id;
    perform commandbus.audit_bulk(p_operation_id, 'BULK_STARTED', p_actor);
    return p_operation_id;
end $$;

create or replace function commandbus.check_bulk(p_verb text, p_arguments jsonb, p_rate float8)
returns void
language plpgsql immutable as $$
begin
    if p_verb is null or p_verb not in ('retry', 'cancel', 'complete') then
        raise exception 'no such verb: %', coalesce(quote_literal(p_verb), 'null')
            using errcode = 'CB007', hint = 'use retry, cancel or complete';
    end if;
    if p_verb = 'cancel' and coalesce(btrim(p_arguments ->> 'reason'), '') = '' then
        raise exception 'a cancel needs a reason' using errcode = 'CB007';
    end if;
    if p_arguments ? 'edit' and not (
           p_verb = 'retry' and p_arguments -> 'edit' ?| array['merge', 'patch']
           and jsonb_typeof(p_arguments -> 'edit' -> 'paths') is not distinct from 'array') then
        raise exception 'only a retry has an edit, with merge or patch, and with paths'
            using errcode = 'CB007';
    end if;
    if p_rate is not null and not (p_rate > 0 and p_rate <= 1000000) then
        raise exception 'the rate is %; use commands per second, up to 1000000', p_rate
            using errcode = 'CB007';
    end if;
end $$;

-- An error if the limit or the time before the first item cannot be meant.
create or replace function commandbus.check_bulk_start(p_limit int, p_start_after interval) returns void
language plpgsql immutable as $$
begin
    if p_limit < 1 then
        raise exception 'the limit is %; use 1 or more commands', p_limit using errcode = 'CB007';
    end if;
    if p_start_after < interval '0' or p_start_after > interval '1 hour' then
        raise exception 'start_after is %; use from 0 seconds to 1 hour', p_start_after
            using errcode = 'CB007';
    end if;
end $$;

-- What happened to the operation itself; command_id is the operation's id, as with batches.
--   p_reason: of this act; null: that of the operation
create or replace function commandbus.audit_bulk(
    p_operation_id uuid, p_event text, p_actor text, p_reason text default null)
returns void
language sql as $$
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, actor)
    select o.domain, o.operation_id, p_event, clock_timestamp(), jsonb_strip_nulls(jsonb_build_object(
               'verb', o.verb, 'filter', o.filter - 'command_ids', 'rate', o.rate, 'total', o.total,
               'done', o.done, 'skipped', o.skipped, 'failed', o.failed,
               'reason', coalesce(p_reason, o.reason), 'limit', o.item_limit,
               'starts_at', case p_event when 'BULK_STARTED' then commandbus.iso8601(o.starts_at) end,
               'edited_paths', o.arguments -> 'edit' -> 'paths')), p_actor
      from commandbus.command_bus_bulk_operation o where o.operation_id = p_operation_id;
$$;

-- The status of an operation; raises if there is none.
create or replace function commandbus.require_bulk(p_operation_id uuid) returns text
language plpgsql stable as $$
declare
    v_status text;
begin
    select o.status into v_status from commandbus.command_bus_bulk_operation o
     where o.operation_id = p_operation_id;
    if not found then
        raise exception 'no bulk operation %', p_operation_id
            using errcode = 'CB010', detail = p_operation_id::text;
    end if;
    return v_status;
end $$;

-- running -> stopped. When it returns, no chunk is running and none will begin.
create or replace function commandbus.stop_bulk(p_operation_id uuid, p_actor text default null)
returns void
language plpgsql as $$
begin
    update commandbus.command_bus_bulk_operation o
       set status = 'stopped', stopped_by = p_actor, stopped_at = clock_timestamp()
     where o.operation_id = p_operation_id and o.status = 'running';
    if found then
        perform commandbus.audit_bulk(p_operation_id, 'BULK_STOPPED', p_actor);
    elsif commandbus.require_bulk(p_operation_id) = 'finished' then
        raise exception 'bulk operation % is finished', p_operation_id using errcode = 'CB003';
    end if;
end $$;

-- stopped -> running, where it was left; with another rate, if one is given. One that runs already
-- only takes the rate.
create or replace function commandbus.resume_bulk(
    p_operation_id uuid, p_actor text default null, p_rate float8 default null,
    p_reason text default null
) returns void
language plpgsql as $$
begin
    perform commandbus.check_bulk('retry', '{}', p_rate);
    update commandbus.command_bus_bulk_operation o
       set status = 'running', rate = coalesce(p_rate, o.rate), heartbeat_at = null,
           next_due_at = greatest(o.next_due_at, clock_timestamp()), resumed_at = clock_timestamp(),
           resumed_from = o.done + o.skipped + o.failed
     where o.operation_id = p_operation_id
       and (o.status = 'stopped'
            or o.status = 'running' and coalesce(p_rate, o.rate) is distinct from o.rate);
    if found then
        perform commandbus.audit_bulk(p_operation_id, 'BULK_RESUMED', p_actor, p_reason);
    elsif commandbus.require_bulk(p_operation_id) = 'finished' then
        raise exception 'bulk operation % is finished', p_operation_id
            using errcode = 'CB003', hint = 'start a new one';
    end if;
end $$;

-- An operation of the domain that this executor may go on with: its own, or one that has made no
-- progress for a while. A hint only: if two take the same, run_bulk_chunk lets one act at a time.
-- p_can_edit: the executor applies edits; those of version 0.1.0 do not ask, and get none to apply.
create or replace function commandbus.next_bulk(
    p_domain text, p_executor text, p_silent_for interval default interval '5 seconds',
    p_can_edit boolean default false
) returns uuid
language sql stable as $$
    select o.operation_id from commandbus.command_bus_bulk_operation o
     where o.domain = p_domain and o.status = 'running'
       and (o.executor = p_executor or o.heartbeat_at is null
            or o.heartbeat_at < clock_timestamp() - p_silent_for)
       and (p_can_edit or not o.arguments ? 'edit')
       -- One that has still to begin keeps no other from its turn.
       and (o.starts_at is null or o.starts_at <= clock_timestamp())
       and o.domain <> all(commandbus.domains_on_the_way())
     order by o.created_at, o.operation_id limit 1
$$;
