-- Edits: payloads that operators propose for parked children of governed batches. What such a batch does
-- was checked, limited and perhaps approved as a whole; so another payload waits until somebody else than
-- its editor has approved exactly that. The child stays in troubleshooting meanwhile: an operator can still
-- retry it as it was, cancel or complete it, and then the edit is dropped.
--
-- Lock order: key -> command -> batch -> audit. An edit is touched under the lock of its command only.

-- Which of these edited commands belong to governed batches.
create or replace function commandbus.governed_edits(p_domain text, p_edits jsonb) returns uuid[]
language sql stable as $$
    select array(
        select c.command_id
          from jsonb_object_keys(p_edits) e(id)
          join commandbus.command_bus_command c on c.domain = p_domain and c.command_id = e.id::uuid
          join commandbus.command_bus_batch b on b.batch_id = c.batch_id and b.domain = c.domain
         where b.batch_type is not null
         order by c.command_id)
$$;

-- Makes the edits of these parked commands wait for a decision, and returns the commands. An edit that
-- waits already is replaced. The caller has locked the commands and their batches.
--   p_edits: as in operator_retry
create or replace function commandbus.propose_edits(
    p_domain text, p_command_ids uuid[], p_edits jsonb, p_actor text, p_reset_attempts boolean
) returns uuid[]
language plpgsql as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_ids     uuid[];
    v_batches uuid[];
begin
    perform commandbus.require_editor(p_actor, p_command_ids);
    perform commandbus.refuse_outdated_edits(
        p_domain, (select jsonb_object_agg(i, p_edits -> i::text) from unnest(p_command_ids) i),
        array['IN_TROUBLESHOOTING_QUEUE']);
    with proposed as materialized (
        select c.command_id, c.batch_id, c.msg_id, c.command_type, c.sequence_no, e.value as edit,
               gen_random_uuid() as salt, encode(o.digest, 'hex') as replaced,
               -- a batch that was decided before there were digests
               case when k.batch_id is null then 604800 else k.expires_seconds end as expires_seconds
          from unnest(p_command_ids) i(id)
          join commandbus.command_bus_command c on c.domain = p_domain and c.command_id = i.id
          join lateral (select p_edits -> i.id::text as value) e on true
          left join commandbus.command_bus_edit o on o.domain = p_domain and o.command_id = i.id
          left join commandbus.command_bus_content k on k.batch_id = c.batch_id
         where c.status = 'IN_TROUBLESHOOTING_QUEUE'
    ), kept as (
        insert into commandbus.command_bus_edit as k (
            domain, command_id, batch_id, previous_msg_id, data, changes, reset_attempts, salt, digest,
            editor, created_at, expires_at)
        select p_domain, p.command_id, p.batch_id, p.msg_id, p.edit -> 'data',
               coalesce(p.edit -> 'changes', '{}'), p_reset_attempts, p.salt,
               commandbus.child_digest(p.salt, p_domain, p.command_type, p.sequence_no, p.edit -> 'data'),
               p_actor, v_now,
               commandbus.expiry_after(v_now, p.expires_seconds)
          from proposed p order by p.command_id
        on conflict (command_id, domain) do update
           set previous_msg_id = excluded.previous_msg_id, data = excluded.data,
               changes = excluded.changes, reset_attempts = excluded.reset_attempts,
               salt = excluded.salt, digest = excluded.digest, editor = excluded.editor,
               created_at = excluded.created_at, expires_at = excluded.expires_at
        returning k.command_id, k.batch_id, k.digest, k.changes, k.expires_at
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select p_domain, k.command_id, 'EDIT_PROPOSED', v_now, jsonb_build_object(
                   'digest', encode(k.digest, 'hex'), 'replaced', p.replaced, 'changes', k.changes,
                   'expires_at', commandbus.iso8601(k.expires_at)),
               k.batch_id, p_actor
          from kept k join proposed p on p.command_id = k.command_id
    )
    select array_agg(k.command_id), array_agg(distinct k.batch_id) into v_ids, v_batches from kept k;
    perform commandbus.count_edits(v_batches);
    return coalesce(v_ids, '{}');
end $$;

-- An error if nobody is known as the editor: then nobody would be known as somebody else.
create or replace function commandbus.require_editor(p_actor text, p_command_ids uuid[]) returns void
language plpgsql as $$
begin
    if coalesce(p_actor, '') = '' then
        raise exception 'cannot edit command %: it belongs to a governed batch, and nobody is named as '
                        'the operator', p_command_ids[1]
            using errcode = 'CB003', detail = p_command_ids[1]::text,
                  hint = 'say who edits it: somebody else must approve the edit';
    end if;
end $$;

-- Brings the number of waiting edits in the rows of these batches up to date. The caller has locked them.
create or replace function commandbus.count_edits(p_batch_ids uuid[]) returns void
language plpgsql as $$
begin
    update commandbus.command_bus_batch b
       set edit_count = (select count(*) from commandbus.command_bus_edit e
                          where e.batch_id = b.batch_id),
           updated_at = greatest(b.updated_at + interval '1 microsecond', clock_timestamp())
     where b.batch_id = any(p_batch_ids);
end $$;

-- The edits of these commands wait no longer, for the reason that the event says. The caller has locked the
-- commands and their batches.
create or replace function commandbus.drop_edits(
    p_domain text, p_command_ids uuid[], p_event text, p_reason text, p_actor text
) returns void
language plpgsql as $$
declare
    v_batches uuid[];
begin
    with gone as (
        delete from commandbus.command_bus_edit e
         where e.command_id = any(p_command_ids) and e.domain = p_domain
        returning e.command_id, e.batch_id, e.digest
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        select p_domain, g.command_id, p_event, clock_timestamp(),
               jsonb_build_object('digest', encode(g.digest, 'hex'), 'reason', p_reason), g.batch_id,
               p_actor
          from gone g
    )
    select array_agg(distinct g.batch_id) into v_batches from gone g;
    if v_batches is not null then
        perform commandbus.count_edits(v_batches);
    end if;
end $$;

-- Approves the edit of a child, and sends it again with exactly that payload; or rejects it: then the child
-- waits for an operator as before. Nobody decides about their own edit; the owner of the batch decides
-- only where users may approve their own batches.
--   p_digest: of the edit that the user has seen; an approval needs it, so that one that replaced it
--   meanwhile is not approved unseen
create or replace function commandbus.decide_edit(
    p_domain text, p_command_id uuid, p_decision text, p_user text, p_reason text, p_digest text,
    p_self_approval boolean
) returns void
language plpgsql as $$
declare
    v_edit    commandbus.command_bus_edit;
    v_command commandbus.command_bus_command;
    v_keys    text[] := commandbus.claim_keys_of(p_domain, array[p_command_id]);
begin
    perform commandbus.lock_batches(p_domain, array[p_command_id], '{}');
    select * into v_command from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = p_command_id;
    select * into v_edit from commandbus.command_bus_edit e
     where e.domain = p_domain and e.command_id = p_command_id;
    perform commandbus.refuse_edit_decision(v_edit, p_command_id, p_user, p_self_approval);
    if p_decision = 'approve' and p_digest is null then
        raise exception 'an approval of an edit needs its digest'
            using errcode = 'CB003', hint = 'look at the edit, and say which one you approve';
    end if;
    perform commandbus.refuse_digest(
        v_edit.digest, p_digest, format('the edit of command %s', p_command_id));
    if p_decision <> 'approve' then
        perform commandbus.drop_edits(p_domain, array[p_command_id], 'EDIT_REJECTED', p_reason, p_user);
        perform commandbus.forget_keys(p_domain, v_keys);
        return;
    end if;
    if commandbus.child_digest(v_edit.salt, p_domain, v_command.command_type, v_command.sequence_no,
                               v_edit.data) <> v_edit.digest then
        raise exception 'the edit of command % is not what was proposed', p_command_id
            using errcode = 'CB003', hint = 'reject it, and find out who changes rows of the database';
    end if;
    perform commandbus.drop_edits(p_domain, array[p_command_id], 'EDIT_APPROVED', p_reason, p_user);
    perform commandbus.refuse_unmoved(
        p_domain, array[p_command_id],
        array(select * from commandbus.requeue_commands(
            p_domain, array[p_command_id], array['IN_TROUBLESHOOTING_QUEUE'], p_user,
            v_edit.reset_attempts,
            jsonb_build_object(p_command_id, jsonb_build_object(
                'data', v_edit.data, 'previous_msg_id', v_edit.previous_msg_id,
                'changes', v_edit.changes, 'editor', v_edit.editor,
                'digest', encode(v_edit.digest, 'hex'))))),
        'retry', 'a command in troubleshooting');
end $$;

-- An error if there is no such edit any more, or this user may not decide about it.
create or replace function commandbus.refuse_edit_decision(
    p_edit commandbus.command_bus_edit, p_command_id uuid, p_user text, p_self_approval boolean
) returns void
language plpgsql as $$
declare
    v_owner text := (select b.created_by from commandbus.command_bus_batch b
                      where b.batch_id = p_edit.batch_id);
begin
    if p_edit.command_id is null then
        raise exception 'no edit of command % waits for a decision', p_command_id
            using errcode = 'CB003', detail = p_command_id::text,
                  hint = 'it was decided, dropped by an operator, or has expired';
    end if;
    if p_edit.expires_at <= clock_timestamp() then
        raise exception 'the edit of command % has expired: nobody decided before %', p_command_id,
                commandbus.iso8601(p_edit.expires_at)
            using errcode = 'CB003', hint = 'propose it again';
    end if;
    if p_edit.editor = p_user then
        raise exception 'the edit of command % was made by the same user', p_command_id
            using errcode = 'CB003', hint = 'somebody else must decide it';
    end if;
    if v_owner = p_user and not p_self_approval then
        raise exception 'the batch of command % was submitted by the same user', p_command_id
            using errcode = 'CB003', hint = 'somebody else must decide about its edits';
    end if;
end $$;

-- Drops an edit that nobody decided about in time; the child waits for an operator as before. Returns
-- whether it did.
create or replace function commandbus.expire_edit(p_domain text, p_command_id uuid) returns boolean
language plpgsql as $$
begin
    perform commandbus.lock_batches(p_domain, array[p_command_id], '{}');
    if not exists (select from commandbus.command_bus_edit e
                    where e.domain = p_domain and e.command_id = p_command_id
                      and e.expires_at <= clock_timestamp()) then
        return false;
    end if;
    perform commandbus.drop_edits(
        p_domain, array[p_command_id], 'EDIT_EXPIRED', 'nobody decided about it in time', null);
    return true;
end $$;

-- Parked children of governed batches are about to be edited by somebody who may do it without an approval.
create or replace function commandbus.audit_edit_bypass(
    p_domain text, p_command_ids uuid[], p_edits jsonb, p_actor text
) returns void
language plpgsql as $$
declare
    v_ids uuid[] := array(select c.command_id from commandbus.command_bus_command c
                           where c.domain = p_domain and c.command_id = any(p_command_ids)
                             and c.status = 'IN_TROUBLESHOOTING_QUEUE');
begin
    perform commandbus.require_editor(p_actor, p_command_ids);
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    select p_domain, c.command_id, 'GOVERNANCE_BYPASSED', clock_timestamp(), jsonb_build_object(
               'command_type', c.command_type, 'how', 'edit',
               'changes', p_edits -> c.command_id::text -> 'changes'), c.batch_id, p_actor
      from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = any(v_ids);
end $$;
