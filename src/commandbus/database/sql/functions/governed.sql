-- Governed command types: those that a batch type names. Over HTTP they go through their batch type or
-- not at all, unless the caller has the right to pass by governance, and then the audit says so.
--
-- What comes over HTTP comes on behalf of somebody: {"user", "may_bypass", "declared": [{"command_type",
-- "batch_type", "path"}]}. `declared` are the types of this domain that the process itself knows, so that
-- it refuses also what an operator has removed from the table since. The library in an application's own
-- process sends on its own behalf, and nothing here is asked.
--
-- Lock order: the advisory lock of the types is the first one. Who sends shares it, who registers has it
-- alone: no command can be looked at before a registration and be sent after it.

-- Remembers the batch types that a process has declared. What is known is left alone, so that a process
-- that starts waits for nobody.
--   p_types: [{"domain", "command_type", "batch_type", "path", "requires_approval"}]
create or replace function commandbus.register_batch_types(p_types jsonb) returns void
language plpgsql as $$
begin
    if not exists (
        select from jsonb_to_recordset(p_types) as n(
                   domain text, command_type text, batch_type text, path text, requires_approval boolean)
         where not exists (
               select from commandbus.command_bus_governed_type g
                where g.domain = n.domain and g.command_type = n.command_type
                  and g.batch_type = n.batch_type and g.path is not distinct from n.path
                  and g.requires_approval = n.requires_approval)) then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('commandbus.governed', 0));
    insert into commandbus.command_bus_governed_type as g (
        domain, command_type, batch_type, path, requires_approval)
    select n.domain, n.command_type, n.batch_type, n.path, n.requires_approval
      from jsonb_to_recordset(p_types) as n(
               domain text, command_type text, batch_type text, path text, requires_approval boolean)
    on conflict (domain, command_type, batch_type) do update
       set path = excluded.path, requires_approval = excluded.requires_approval;
end $$;

-- A batch type governs a command type no more: nobody declares it any longer. False if it did not. A
-- process that still declares it goes on refusing, and registers it again when it starts.
create or replace function commandbus.remove_governed_type(
    p_domain text, p_command_type text, p_batch_type text, p_actor text default null
) returns boolean
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('commandbus.governed', 0));
    delete from commandbus.command_bus_governed_type g
     where g.domain = p_domain and g.command_type = p_command_type and g.batch_type = p_batch_type;
    if not found then
        return false;
    end if;
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values (p_domain, commandbus.nobody(), 'GOVERNED_TYPE_REMOVED', clock_timestamp(),
            jsonb_build_object('command_type', p_command_type, 'batch_type', p_batch_type), p_actor);
    return true;
end $$;

-- The one place that decides whether these command types may be touched outside their batch types:
-- returns those that are governed, which the caller must put into the audit by audit_bypass, or raises.
create or replace function commandbus.require_ungoverned(
    p_domain text, p_types text[], p_on_behalf jsonb
) returns text[]
language plpgsql as $$
declare
    v_found record;
begin
    perform pg_advisory_xact_lock_shared(hashtextextended('commandbus.governed', 0));
    with governed as (
        select g.command_type, g.batch_type, g.path from commandbus.command_bus_governed_type g
         where g.domain = p_domain and g.command_type = any(p_types)
        union
        select d.command_type, d.batch_type, d.path
          from jsonb_to_recordset(p_on_behalf -> 'declared') as d(
                   command_type text, batch_type text, path text)
         where d.command_type = any(p_types)
    )
    select array_agg(distinct g.command_type) as types,
           string_agg(distinct g.command_type, ' and ') as first,
           string_agg(distinct g.batch_type || ' (POST ' || coalesce(g.path, '/api/v1/batches') || ')',
                      ' or ') as ways,
           jsonb_agg(distinct g.batch_type) as names
      into v_found from governed g;
    if v_found.types is not null and not coalesce((p_on_behalf ->> 'may_bypass')::boolean, false) then
        raise exception '% must be submitted as %', v_found.first, v_found.ways
            using errcode = 'CB011', detail = v_found.names::text;
    end if;
    return coalesce(v_found.types, '{}');
end $$;

-- Says which of these commands were touched by the right to pass by governance. In the transaction that
-- touches them.
create or replace function commandbus.audit_bypass(
    p_domain text, p_command_ids uuid[], p_types text[], p_governed text[], p_on_behalf jsonb,
    p_how text, p_batch_id uuid default null
) returns void
language plpgsql as $$
begin
    if p_governed = '{}' then
        return;
    end if;
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    select p_domain, c.command_id, 'GOVERNANCE_BYPASSED', clock_timestamp(),
           jsonb_build_object('command_type', c.type, 'how', p_how), p_batch_id, p_on_behalf ->> 'user'
      from unnest(p_command_ids, p_types) c(command_id, type) where c.type = any(p_governed);
end $$;

-- Sends one command for somebody, and remembers for whom. A known id is a repeat if the same user sent it
-- with the same digest, whatever has become of the command and its payload since; for everybody else, and
-- with another digest, it is refused, in the same words and after the same work.
--   verdict: sent; repeat (status: that of the command now); refused
create or replace function commandbus.send_for(
    p_domain text, p_command jsonb, p_digests bytea[], p_on_behalf jsonb
) returns table (verdict text, status text)
language plpgsql as $$
declare
    v_id       uuid := (p_command ->> 'command_id')::uuid;
    v_types    text[] := array[p_command ->> 'type'];
    v_governed text[] := commandbus.require_ungoverned(p_domain, v_types, p_on_behalf);
    v_is_own   boolean;
begin
    -- A repeat may come when the time of its command is over, which would be refused of a new one.
    if not (p_command ? 'expires_at' and exists (select from commandbus.sent_as(p_domain, v_id)))
       and commandbus.offer_commands(
           p_domain, jsonb_build_array(p_command), null, p_on_behalf ->> 'user') = '{}' then
        perform commandbus.remember_sender(p_domain, array[v_id], p_digests[1:1], p_on_behalf);
        perform commandbus.audit_bypass(p_domain, array[v_id], v_types, v_governed, p_on_behalf, 'send');
        return query select 'sent', 'PENDING';
        return;
    end if;
    select s.sent_by = p_on_behalf ->> 'user' and s.digest = any(p_digests), s.status into v_is_own, status
      from commandbus.sent_as(p_domain, v_id) s;
    return query select case when v_is_own then 'repeat' else 'refused' end,
                        case when v_is_own then status end;
end $$;

-- Creates a batch for somebody, and remembers for whom; returns the ids that were sent before, as
-- create_batch does, and then nothing was created.
--   p_digests: one for each command
create or replace function commandbus.create_batch_for(
    p_domain text, p_batch_id uuid, p_commands jsonb, p_digests bytea[], p_name text,
    p_custom_data jsonb, p_on_behalf jsonb
) returns uuid[]
language plpgsql as $$
declare
    v_ids      uuid[];
    v_types    text[];
    v_governed text[];
    v_known    uuid[];
begin
    select array_agg((i ->> 'command_id')::uuid order by n), array_agg(i ->> 'type' order by n)
      into v_ids, v_types from jsonb_array_elements(p_commands) with ordinality as e(i, n);
    v_governed := commandbus.require_ungoverned(p_domain, v_types, p_on_behalf);
    v_known := commandbus.create_batch(
        p_domain, p_batch_id, p_commands, p_name, p_custom_data, p_on_behalf ->> 'user');
    if v_known = '{}' then
        perform commandbus.remember_sender(p_domain, v_ids, p_digests, p_on_behalf);
        perform commandbus.audit_bypass(
            p_domain, v_ids, v_types, v_governed, p_on_behalf, 'batch', p_batch_id);
    end if;
    return v_known;
end $$;

-- These commands were just sent for somebody. A row that is there is of a command that was removed, and
-- whose id is new again.
create or replace function commandbus.remember_sender(
    p_domain text, p_command_ids uuid[], p_digests bytea[], p_on_behalf jsonb
) returns void
language plpgsql as $$
begin
    insert into commandbus.command_bus_sender (domain, command_id, sent_by, digest)
    select p_domain, i.command_id, p_on_behalf ->> 'user', i.digest
      from unnest(p_command_ids, p_digests) i(command_id, digest)
     order by i.command_id
    on conflict (command_id, domain) do update
       set sent_by = excluded.sent_by, digest = excluded.digest;
end $$;

-- Of these commands, the ones that no batch governs: an edit of one of them cannot wait for an approval,
-- because there is no ticket to approve. So it is refused if their type is governed. The edit of a child
-- of a governed batch is decided elsewhere.
create or replace function commandbus.require_ungoverned_edits(
    p_domain text, p_command_ids uuid[], p_on_behalf jsonb
) returns void
language plpgsql as $$
declare
    v_ids   uuid[];
    v_types text[];
begin
    select array_agg(c.command_id order by c.command_id), array_agg(c.command_type order by c.command_id)
      into v_ids, v_types
      from commandbus.command_bus_command c
      left join commandbus.command_bus_batch b on b.batch_id = c.batch_id
     where c.domain = p_domain and c.command_id = any(p_command_ids) and b.batch_type is null;
    if v_ids is not null then
        perform commandbus.audit_bypass(
            p_domain, v_ids, v_types, commandbus.require_ungoverned(p_domain, v_types, p_on_behalf),
            p_on_behalf, 'edit');
    end if;
end $$;

-- operator_retry with edits, for somebody.
create or replace function commandbus.edit_for(
    p_domain text, p_command_ids uuid[], p_reset_attempts boolean, p_edits jsonb, p_on_behalf jsonb
) returns setof uuid
language plpgsql as $$
begin
    perform commandbus.require_ungoverned_edits(
        p_domain, array(select e::uuid from jsonb_object_keys(p_edits) e), p_on_behalf);
    return query select commandbus.retry_parked(
        p_domain, p_command_ids, p_on_behalf ->> 'user', p_reset_attempts, true, p_edits,
        coalesce((p_on_behalf ->> 'may_bypass')::boolean, false));
end $$;

-- start_bulk with an edit, for somebody. What it freezes is looked at, whole: one command that may not be
-- edited refuses the operation.
create or replace function commandbus.start_bulk_for(
    p_operation_id uuid, p_domain text, p_verb text, p_filter jsonb, p_arguments jsonb, p_rate float8,
    p_everything boolean, p_expected_total bigint, p_on_behalf jsonb, p_limit int default null,
    p_start_after interval default null
) returns uuid
language plpgsql as $$
declare
    v_is_known boolean := exists (select from commandbus.command_bus_bulk_operation o
                                   where o.operation_id = p_operation_id);
    v_started  uuid;
begin
    perform commandbus.require_ungoverned(p_domain, '{}', p_on_behalf); -- for its lock, which is the first
    v_started := commandbus.start_bulk(
        p_operation_id, p_domain, p_verb, p_filter, p_arguments, p_rate, p_on_behalf ->> 'user',
        p_everything, p_expected_total, p_limit, p_start_after);
    if v_started = p_operation_id and not v_is_known then
        perform commandbus.require_ungoverned_edits(
            p_domain, array(select i.command_id from commandbus.command_bus_bulk_item i
                             where i.operation_id = p_operation_id), p_on_behalf);
        -- It may go on for days, or be stopped and resumed: what is governed by then is looked at again.
        update commandbus.command_bus_bulk_operation o
           set arguments = o.arguments || jsonb_build_object('on_behalf', p_on_behalf)
         where o.operation_id = p_operation_id;
    end if;
    return v_started;
end $$;

-- load_chunk, for somebody.
create or replace function commandbus.load_chunk_for(
    p_domain text, p_batch_id uuid, p_checkpoint_no int, p_first_row int, p_commands jsonb,
    p_digest bytea, p_on_behalf jsonb
) returns text
language plpgsql as $$
declare
    v_ids      uuid[];
    v_types    text[];
    v_governed text[];
    v_result   text;
begin
    select array_agg((i ->> 'command_id')::uuid order by n), array_agg(i ->> 'type' order by n)
      into v_ids, v_types from jsonb_array_elements(p_commands) with ordinality as e(i, n);
    v_governed := commandbus.require_ungoverned(p_domain, v_types, p_on_behalf);
    v_result := commandbus.load_chunk(
        p_domain, p_batch_id, p_checkpoint_no, p_first_row, p_commands, p_digest, p_on_behalf ->> 'user');
    if v_result = 'committed' then
        perform commandbus.audit_bypass(
            p_domain, v_ids, v_types, v_governed, p_on_behalf, 'load', p_batch_id);
    end if;
    return v_result;
end $$;
