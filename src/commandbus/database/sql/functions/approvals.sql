-- Approvals of content: what was submitted has a digest, a decision is about that digest, and what is
-- queued is compared with it once more. What nobody decides about expires.
--
-- Lock order: commands, in the order of their ids -> batch -> audit, for every decision, expiry and retry.
-- One batch for each transaction: commands of a second one after the first batch would be a circle.

-- Of one child. Everything that its worker gets is in it; the salt keeps guesses of masked values apart
-- from proofs.
create or replace function commandbus.child_digest(
    p_salt uuid, p_domain text, p_command_type text, p_sequence_no int, p_data jsonb
) returns bytea
language sql immutable parallel safe as $$
    select sha256(convert_to(
        p_salt || chr(31) || p_domain || chr(31) || p_command_type || chr(31) || p_sequence_no
        || chr(31) || coalesce(p_data::text, ''), 'UTF8'))
$$;

-- Of a whole batch: its type, its domain, and its children in their order.
create or replace function commandbus.content_digest(
    p_salt uuid, p_batch_type text, p_domain text, p_children bytea[]
) returns bytea
language sql immutable parallel safe as $$
    select sha256(convert_to(p_salt || chr(31) || p_batch_type || chr(31) || p_domain, 'UTF8')
                  || (select string_agg(c.digest, ''::bytea order by c.n)
                        from unnest(p_children) with ordinality c(digest, n)))
$$;

-- Remembers what a batch consists of, in the transaction that creates it.
create or replace function commandbus.keep_content(
    p_batch_id uuid, p_batch_type text, p_domain text, p_commands jsonb,
    p_expires_seconds double precision, p_expires_at timestamptz
) returns bytea
language plpgsql as $$
declare
    v_salt     uuid := gen_random_uuid();
    v_children bytea[] := array(
        select commandbus.child_digest(
                   v_salt, p_domain, i ->> 'type', n::int, coalesce(i -> 'data', '{}'))
          from jsonb_array_elements(p_commands) with ordinality x(i, n) order by n);
    v_digest   bytea := commandbus.content_digest(v_salt, p_batch_type, p_domain, v_children);
begin
    insert into commandbus.command_bus_content (
        batch_id, salt, digest, child_digests, expires_seconds, expires_at)
    values (p_batch_id, v_salt, v_digest, v_children, p_expires_seconds, p_expires_at);
    return v_digest;
end $$;

-- When something that is submitted now expires. Null and 0: never.
create or replace function commandbus.expiry_after(p_now timestamptz, p_seconds double precision)
returns timestamptz
language sql immutable as $$
    select p_now + make_interval(secs => nullif(p_seconds, 0))
$$;

-- Approves a batch that waits for it, and queues its children; or rejects it, and cancels them with
-- the reason. The same decision a second time changes nothing; the other one is refused.
--   p_digest: what the user has seen; if it is not what is there, nothing changes
create or replace function commandbus.decide_ticket(
    p_domain text, p_ticket_id uuid, p_decision text, p_user text, p_reason text default null,
    p_self_approval boolean default false, p_digest text default null
) returns void
language plpgsql as $$
declare
    v_now     timestamptz;
    v_batch   commandbus.command_bus_batch;
    v_content commandbus.command_bus_content;
    v_ids     uuid[];
begin
    v_batch := commandbus.lock_ticket(p_domain, p_ticket_id);
    v_now := clock_timestamp();
    select * into v_content from commandbus.command_bus_content k where k.batch_id = p_ticket_id;
    perform commandbus.refuse_decision(v_batch, p_decision, p_user, p_self_approval);
    perform commandbus.refuse_digest(v_content.digest, p_digest, format('batch %s', p_ticket_id));
    if v_batch.decision is not null then
        return;
    end if;
    if v_content.expires_at <= v_now then
        raise exception 'batch % has expired: nobody decided before %', p_ticket_id,
                commandbus.iso8601(v_content.expires_at)
            using errcode = 'CB003', hint = 'submit it again';
    end if;
    perform commandbus.write_decision(
        v_batch, p_decision, p_user, p_reason, v_now,
        case p_decision when 'approve' then 'BATCH_APPROVED' else 'BATCH_REJECTED' end);
    v_ids := commandbus.undecided_children(p_domain, p_ticket_id);
    if p_decision = 'approve' then
        perform commandbus.refuse_changed_content(v_batch, v_content, v_ids);
        perform commandbus.queue_stored(p_domain, v_ids, array['awaiting_approval']);
    else
        perform commandbus.cancel_commands(p_domain, v_ids, p_reason, p_user, false);
    end if;
end $$;

-- Locks an undecided batch with all of its commands, and waits for them: one that another session is just
-- canceling would be left out by queue_stored, and never be queued if the canceling is rolled back. The
-- domain is compared so that only the index of the batch can serve it, also if the domain seems to be as small.
create or replace function commandbus.lock_ticket(p_domain text, p_ticket_id uuid)
returns commandbus.command_bus_batch
language plpgsql as $$
declare
    v_batch commandbus.command_bus_batch;
begin
    perform commandbus.require_batch(p_domain, p_ticket_id);
    perform commandbus.claim_ticket(p_ticket_id);
    select * into v_batch from commandbus.command_bus_batch b
     where b.batch_id = p_ticket_id and b.domain = p_domain;
    if not v_batch.requires_approval or v_batch.decision is not null then
        -- A decision stands, and receivers may have its commands: they lock messages first.
        return v_batch;
    end if;
    perform 1 from commandbus.command_bus_command c
      where c.batch_id = p_ticket_id and c.domain is not distinct from p_domain
      order by c.command_id for update;
    select * into v_batch from commandbus.command_bus_batch b
     where b.batch_id = p_ticket_id and b.domain = p_domain for update;
    return v_batch;
end $$;

-- The children that wait with their batch, in their order. The caller has locked them.
create or replace function commandbus.undecided_children(p_domain text, p_ticket_id uuid) returns uuid[]
language sql stable as $$
    select array(select c.command_id from commandbus.command_bus_command c
                  where c.batch_id = p_ticket_id and c.domain is not distinct from p_domain
                    and c.dispatch_status = 'awaiting_approval' and c.status = 'PENDING'
                  order by c.sequence_no)
$$;

-- Writes a decision into the row of a batch, which the caller has locked, and into the audit.
--   p_user null: nobody decided, and time ran out
create or replace function commandbus.write_decision(
    p_batch commandbus.command_bus_batch, p_decision text, p_user text, p_reason text, p_now timestamptz,
    p_event text
) returns void
language plpgsql as $$
begin
    update commandbus.command_bus_batch b
       set decision = p_decision, decided_by = p_user, decided_at = p_now,
           decision_reason = p_reason,
           updated_at = greatest(b.updated_at + interval '1 microsecond', p_now)
     where b.batch_id = p_batch.batch_id;
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    select p_batch.domain, p_batch.batch_id, p_event, p_now, jsonb_build_object(
               'reason', p_reason,
               'digest', (select encode(k.digest, 'hex') from commandbus.command_bus_content k
                           where k.batch_id = p_batch.batch_id)),
           p_batch.batch_id, p_user;
end $$;

-- An error if this batch cannot be decided like this, or not by this user. The caller has locked it.
create or replace function commandbus.refuse_decision(
    p_batch commandbus.command_bus_batch, p_decision text, p_user text, p_self_approval boolean
) returns void
language plpgsql as $$
begin
    if p_batch.batch_type is null or not p_batch.requires_approval then
        raise exception 'batch % needs no approval', p_batch.batch_id
            using errcode = 'CB003', hint = 'cancel it if it should not go on';
    end if;
    if p_batch.decision is not null and p_batch.decision <> p_decision then
        raise exception 'batch % is decided: %', p_batch.batch_id,
            case p_batch.decision when 'approve' then 'it was approved'
                                  when 'reject' then 'it was rejected' else 'it has expired' end
            using errcode = 'CB003', hint = 'a decision stands; cancel it, or submit it again';
    end if;
    if p_batch.decision is null and p_batch.created_by = p_user and not p_self_approval then
        raise exception 'batch % was submitted by the same user', p_batch.batch_id
            using errcode = 'CB003', hint = 'somebody else must decide it';
    end if;
    if p_batch.decision is null and commandbus.ticket_status(p_batch) <> 'PENDING_APPROVAL' then
        raise exception 'batch % has ended, there is nothing to decide', p_batch.batch_id
            using errcode = 'CB003', hint = 'submit it again';
    end if;
end $$;

-- An error if a user has seen something else than what would be decided. Null: the user did not say.
create or replace function commandbus.refuse_digest(p_digest bytea, p_seen text, p_what text) returns void
language plpgsql as $$
begin
    if lower(p_seen) is distinct from encode(p_digest, 'hex') and p_seen is not null then
        raise exception 'the digest given is not that of %', p_what
            using errcode = 'CB003', hint = 'look at it again, and decide about what is there now';
    end if;
end $$;

-- An error if what is about to be queued is not what was submitted, and so what was approved: somebody
-- has changed rows of the database in between.
create or replace function commandbus.refuse_changed_content(
    p_batch commandbus.command_bus_batch, p_content commandbus.command_bus_content, p_command_ids uuid[]
) returns void
language plpgsql as $$
declare
    v_changed int;
begin
    if p_content.digest is null
       or commandbus.content_digest(p_content.salt, p_batch.batch_type, p_batch.domain,
                                    p_content.child_digests) is distinct from p_content.digest then
        raise exception 'the digests of batch % are missing, or do not belong together', p_batch.batch_id
            using errcode = 'CB003', hint = 'reject it, and find out who changes rows of the database';
    end if;
    select c.sequence_no into v_changed
      from commandbus.command_bus_command c
      left join commandbus.command_bus_payload_archive p
        on p.domain = c.domain and p.command_id = c.command_id
     where c.batch_id = p_batch.batch_id and c.domain is not distinct from p_batch.domain
       and c.command_id = any(p_command_ids)
       and commandbus.child_digest(p_content.salt, p.payload_json ->> 'domain', p.payload_json ->> 'type',
                                   c.sequence_no, p.payload_json -> 'data')
           is distinct from p_content.child_digests[c.sequence_no]
     order by c.sequence_no limit 1;
    if v_changed is not null then
        raise exception 'child % of batch % is not what was submitted', v_changed, p_batch.batch_id
            using errcode = 'CB003', hint = 'reject it, and find out who changes rows of the database';
    end if;
end $$;

-- Who asked for the decision that a command carries: the one who submitted the batch that it is a
-- child of, as the row says. Null if it is no child of such a batch, or an operator has edited what
-- it says: then nobody asked for this decision.
create or replace function commandbus.decision_maker(
    p_domain text, p_command_id uuid, p_batch_type text
) returns text
language sql stable as $$
    select b.created_by
      from commandbus.command_bus_command c
      join commandbus.command_bus_batch b on b.batch_id = c.batch_id and b.domain = c.domain
     where c.domain = p_domain and c.command_id = p_command_id and b.batch_type = p_batch_type
       and c.sequence_no is not null
       and not exists (select from commandbus.command_bus_audit a
                        where a.command_id = c.command_id and a.domain = c.domain
                          and a.event_type = 'OPERATOR_RETRY' and a.details_json ? 'edited')
$$;

-- What nobody decided about in time, at most p_limit. Read by the index of what is pending.
create or replace function commandbus.expired_decisions(p_limit int)
returns table (domain text, batch_id uuid, command_id uuid)
language sql stable as $$
    (select b.domain::text, b.batch_id, null::uuid
       from commandbus.command_bus_batch b
       join commandbus.command_bus_content k on k.batch_id = b.batch_id
      where b.is_pending and b.requires_approval and b.decision is null
        and k.expires_at <= clock_timestamp() and b.domain <> all(commandbus.domains_on_the_way())
      order by k.expires_at limit p_limit)
    union all
    (select e.domain, e.batch_id, e.command_id from commandbus.command_bus_edit e
      where e.expires_at <= clock_timestamp() and e.domain <> all(commandbus.domains_on_the_way())
      order by e.expires_at limit p_limit)
$$;

-- Ends a batch that nobody decided about in time: its children are canceled. Returns whether it did.
create or replace function commandbus.expire_ticket(p_domain text, p_ticket_id uuid) returns boolean
language plpgsql as $$
declare
    c_reason constant text := 'nobody decided about it in time';
    v_batch  commandbus.command_bus_batch := commandbus.lock_ticket(p_domain, p_ticket_id);
    v_now    timestamptz := clock_timestamp();
begin
    if not v_batch.requires_approval or v_batch.decision is not null or not v_batch.is_pending
       or not exists (select from commandbus.command_bus_content k
                       where k.batch_id = p_ticket_id and k.expires_at <= v_now) then
        return false;
    end if;
    perform commandbus.write_decision(v_batch, 'expire', null, c_reason, v_now, 'BATCH_EXPIRED');
    perform commandbus.cancel_commands(
        p_domain, commandbus.undecided_children(p_domain, p_ticket_id), c_reason, null, false);
    return true;
end $$;
