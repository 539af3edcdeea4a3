-- Governed batches: submission, decision and retry of batch tickets.
--
-- A submission is one transaction of two calls: begin_submission decides whether it may be, then the
-- application checks its items against what the database holds, and create_ticket writes all of it.
--
-- Lock order: the advisory locks global -> user -> request, then rows as everywhere (command -> batch
-- -> audit). The global lock keeps submissions apart until they commit: then what is counted is exact.

-- The status of the ticket of a governed batch (docs/adr/0024). A command in troubleshooting counts as
-- failed here, though the batch itself stays open; if an edit of it waits for a decision, so does the
-- ticket.
create or replace function commandbus.ticket_status(p_batch commandbus.command_bus_batch) returns text
language sql immutable
return case
        when p_batch.edit_count > 0 then 'PENDING_APPROVAL'
        when p_batch.total_count > p_batch.completed_count + p_batch.failed_count
                                   + p_batch.canceled_count + p_batch.in_troubleshooting_count
        then case when p_batch.requires_approval and p_batch.decision is null
                  then 'PENDING_APPROVAL' else 'IN_PROGRESS' end
        when p_batch.completed_count = p_batch.total_count then 'COMPLETED'
        when p_batch.canceled_count = p_batch.total_count then 'CANCELED'
        when p_batch.completed_count > 0 then 'PARTIAL_SUCCESS'
        else 'FAILED' end;

-- Keeps submissions apart until they commit.
create or replace function commandbus.lock_submission(
    p_user text, p_batch_type text, p_request_id uuid
) returns void
language plpgsql as $$
begin
    -- With one snapshot for the whole transaction, what others committed while this one waited for
    -- its locks would not be counted.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'a submission needs the isolation level read committed'
            using errcode = 'CB007', hint = 'leave default_transaction_isolation as it is';
    end if;
    -- A check that hangs must not hang every submission: the others give up, and say so.
    perform set_config('lock_timeout', '10s', true);
    perform pg_advisory_xact_lock(hashtextextended('commandbus.limits.global', 0));
    perform pg_advisory_xact_lock(hashtextextended('commandbus.limits.user/' || p_user, 0));
    if p_request_id is not null then
        perform pg_advisory_xact_lock(hashtextextended(
            'commandbus.request/' || p_user || '/' || p_batch_type || '/' || p_request_id, 0));
    end if;
end $$;

-- Whether a batch may be submitted now. A refusal is never an error: there are many when a limit
-- is reached, and the caller ends the transaction either way.
--   verdict: go; replay (ticket_id was created by the same request); mismatch (its request_id came
--   with another body); size (waiting cannot help: refusal says the user's maximum); limit (refusal
--   says which, and when to come again)
create or replace function commandbus.begin_submission(
    p_user text, p_batch_type text, p_size int, p_request_id uuid, p_digest bytea, p_defaults jsonb
) returns table (verdict text, ticket_id uuid, refusal jsonb, limits jsonb)
language plpgsql as $$
declare
    v_is_same boolean;
begin
    -- What is there stays there: a replay waits for nobody.
    select b.batch_id, b.request_digest = p_digest into ticket_id, v_is_same
      from commandbus.find_request(p_user, p_batch_type, p_request_id) b;
    if ticket_id is null then
        perform commandbus.lock_submission(p_user, p_batch_type, p_request_id);
        select b.batch_id, b.request_digest = p_digest into ticket_id, v_is_same
          from commandbus.find_request(p_user, p_batch_type, p_request_id) b;
    end if;
    limits := commandbus.limits_document(p_user, p_defaults);
    if ticket_id is not null then
        verdict := case when v_is_same then 'replay' else 'mismatch' end;
        return next;
        return;
    end if;
    if not commandbus.is_counted(p_batch_type) then
        -- Those who decide must not wait for those who wait for decisions.
        verdict := 'go';
        return next;
        return;
    end if;
    select s || jsonb_build_object('verdict', 'size') into refusal
      from jsonb_array_elements(limits) s
     where s ->> 'limit_type' = 'user_pending_children' and (s ->> 'max_value')::int < p_size;
    if refusal is null then
        -- It is not known when pending work ends: half a minute is a guess.
        select s || jsonb_build_object(
                   'verdict', 'limit', 'retry_after', coalesce((s ->> 'reset_seconds')::int, 30))
          into refusal
          from jsonb_array_elements(limits) with ordinality as l(s, place)
         where s ->> 'max_value' is not null
           and case s ->> 'limit_type'
                    when 'global_api_requests' then false -- counted and refused at the door
                    when 'user_cooldown' then (s ->> 'current_value')::int > 0
                    when 'user_pending_children'
                    then (s ->> 'current_value')::int + p_size > (s ->> 'max_value')::int
                    else (s ->> 'current_value')::int >= (s ->> 'max_value')::int end
         order by place limit 1;
    end if;
    verdict := coalesce(refusal ->> 'verdict', 'go');
    return next;
end $$;

-- The batch that this request has created before, if it has.
create or replace function commandbus.find_request(
    p_user text, p_batch_type text, p_request_id uuid
) returns setof commandbus.command_bus_batch
language sql stable as $$
    select b.* from commandbus.command_bus_batch b
     where b.created_by = p_user and b.batch_type = p_batch_type and b.request_id = p_request_id
$$;

-- The limits as a document, in the order in which they are checked.
create or replace function commandbus.limits_document(p_user text, p_defaults jsonb) returns jsonb
language sql stable as $$
    select jsonb_agg(to_jsonb(s) - 'place' order by s.place)
      from commandbus.limit_states(p_user, p_defaults) with ordinality
           as s(limit_type, scope, current_value, max_value, reset_seconds, place)
$$;

-- Creates a governed batch with its children, numbered from 1, after begin_submission and in the same
-- transaction. One that requires approval is only stored: it is queued when it is approved. Returns
-- when it was created, and the limits as they stand now.
--   p_details: what the audit should know beside what stands in the row
--   p_expires_seconds: how long it may wait for an approval; null or 0: for ever
create or replace function commandbus.create_ticket(
    p_domain text, p_batch_id uuid, p_commands jsonb, p_batch_type text, p_user text, p_reason text,
    p_request_id uuid, p_digest bytea, p_requires_approval boolean, p_details jsonb, p_defaults jsonb,
    p_expires_seconds double precision default null
) returns table (
    created_at timestamptz, limits jsonb, content_digest text, expires_at timestamptz)
language plpgsql as $$
declare
    v_began timestamptz := clock_timestamp();
    v_size  int := jsonb_array_length(p_commands);
    v_known uuid[];
    v_spent double precision;
begin
    if p_requires_approval then
        expires_at := commandbus.expiry_after(v_began, p_expires_seconds);
    end if;
    insert into commandbus.command_bus_batch (
        batch_id, domain, total_count, created_by, created_at, updated_at, batch_type, reason,
        request_id, request_digest, requires_approval, notifies)
    values (p_batch_id, p_domain, v_size, p_user, v_began, v_began, p_batch_type, p_reason,
            p_request_id, p_digest, p_requires_approval, true);
    content_digest := encode(commandbus.keep_content(
        p_batch_id, p_batch_type, p_domain, p_commands, p_expires_seconds, expires_at), 'hex');
    if p_requires_approval then
        perform commandbus.store_commands(
            p_domain, p_commands, p_batch_id, 'awaiting_approval', 0, p_user);
    else
        v_known := commandbus.offer_commands(p_domain, p_commands, p_batch_id, p_user, 0);
        if v_known <> '{}' then
            raise exception 'already sent in domain %', quote_literal(p_domain)
                using errcode = 'CB001', detail = array_to_json(v_known)::text;
        end if;
    end if;
    if commandbus.is_counted(p_batch_type) then
        perform commandbus.begin_cooldown(p_user, v_began);
    end if;
    v_spent := commandbus.milliseconds_since(v_began);
    insert into commandbus.command_bus_creation_metric (
        batch_id, pattern, batch_size, db_insert_ms, queue_send_ms, status_update_ms, total_ms,
        retry_needed)
    values (p_batch_id, 'inline', v_size, v_spent, 0, 0, v_spent, false);
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    values (p_domain, p_batch_id, 'BATCH_SUBMITTED', v_began, p_details || jsonb_build_object(
                'batch_type', p_batch_type, 'children', v_size, 'request_id', p_request_id,
                'requires_approval', p_requires_approval, 'reason', p_reason,
                'digest', content_digest),
            p_batch_id, p_user);
    created_at := v_began;
    limits := commandbus.limits_document(p_user, p_defaults);
    return next;
end $$;

-- Sends failed children again, the parked and the FAILED ones, unless they were dispatched p_cap times.
-- Returns their numbers, and those of children that have reached the cap. A second click finds nothing
-- to do: who comes second waits for the commands, and looks at them then.
create or replace function commandbus.retry_ticket(
    p_domain text, p_ticket_id uuid, p_cap int, p_actor text, p_reason text default null
) returns table (retried int[], exhausted int[])
language plpgsql as $$
declare
    v_moved uuid[];
begin
    perform commandbus.require_batch(p_domain, p_ticket_id);
    perform commandbus.claim_ticket(p_ticket_id);
    perform 1 from commandbus.command_bus_command c
      where c.batch_id = p_ticket_id and c.domain = p_domain
        and c.status in ('IN_TROUBLESHOOTING_QUEUE', 'FAILED')
      order by c.command_id for update;
    select array_agg(c.sequence_no order by c.sequence_no) into exhausted
      from commandbus.command_bus_command c
     where c.batch_id = p_ticket_id and c.domain = p_domain
       and c.status in ('IN_TROUBLESHOOTING_QUEUE', 'FAILED') and c.attempt_count >= p_cap;
    v_moved := array(select * from commandbus.requeue_commands(
        p_domain,
        array(select c.command_id from commandbus.command_bus_command c
               where c.batch_id = p_ticket_id and c.domain = p_domain
                 and c.status in ('IN_TROUBLESHOOTING_QUEUE', 'FAILED') and c.attempt_count < p_cap),
        array['IN_TROUBLESHOOTING_QUEUE', 'FAILED'], p_actor, true));
    select array_agg(c.sequence_no order by c.sequence_no) into retried
      from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = any(v_moved);
    if retried is not null then
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        values (p_domain, p_ticket_id, 'BATCH_RETRIED', clock_timestamp(), jsonb_build_object(
                    'children', cardinality(retried), 'exhausted', coalesce(cardinality(exhausted), 0),
                    'reason', p_reason),
                p_ticket_id, p_actor);
    end if;
    return next;
end $$;
