-- Troubleshooting: the list of parked commands, and their failure groups.
--
-- A group is a domain, a command type, the error's class and code, and its message without what
-- differs from one failure to the next. Its counter moves in the transaction that parks a command
-- or takes it out of troubleshooting, once for each group and call. So a listing reads the table of
-- groups and nothing else, however many commands are parked.
--
-- Lock order: the rows of groups come after those of commands and batches, in the order of their
-- fingerprints. A command that is completed, retried or failed by its worker touches no group.

-- A message without its changing parts. The in-memory store has the same in Python, so only what
-- both understand alike is used: ASCII classes, no alternatives, no lazy quantifiers. The order
-- counts: whatever is quoted goes first, plain numbers last.
create or replace function commandbus.normalise_message(p_message text) returns text
language plpgsql immutable parallel safe as $$
declare
    v_text text := left(coalesce(p_message, ''), 2000);
begin
    v_text := regexp_replace(v_text, '"[^"]*"', '<text>', 'g');
    -- not the apostrophe of "can't"
    v_text := regexp_replace(v_text, '(?<![A-Za-z0-9])''[^'']*''', '<text>', 'g');
    v_text := regexp_replace(v_text, '[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+', '<email>', 'g');
    v_text := regexp_replace(
        v_text, '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}', '<uuid>', 'g');
    v_text := regexp_replace(
        v_text, '[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?([.,][0-9]+)?)?'
                'Z?([+-][0-9]{2}:?[0-9]{2})?', '<time>', 'g');
    v_text := regexp_replace(v_text, '0[xX][0-9a-fA-F]+', '<hex>', 'g');
    v_text := regexp_replace(
        v_text, '(?<![A-Za-z0-9])[0-9a-fA-F]{8,}(?![A-Za-z0-9])', '<hex>', 'g');
    v_text := regexp_replace(v_text, '[0-9]+([.,:][0-9]+)*', '<n>', 'g');
    v_text := regexp_replace(v_text, E'[ \\t\\n\\r\\f\\v]+', ' ', 'g');
    return left(btrim(v_text), 200);
end $$;

-- The name of a group: 16 hexadecimal digits. p_message is normalised already.
create or replace function commandbus.failure_fingerprint(
    p_domain text, p_command_type text, p_error_class text, p_error_code text, p_message text
) returns text
language sql immutable parallel safe as $$
    select left(encode(sha256(convert_to(
        p_domain || chr(31) || p_command_type || chr(31) || coalesce(p_error_class, '') || chr(31)
        || coalesce(p_error_code, '') || chr(31) || p_message, 'UTF8')), 'hex'), 16)
$$;

-- Lists commands that were just parked, and counts them into their groups. The only way in; the
-- caller holds the locks of the commands and of their batches.
create or replace function commandbus.enter_troubleshooting(
    p_domain text, p_command_ids uuid[], p_reasons text[], p_now timestamptz
) returns void
language plpgsql as $$
begin
    with item as materialized (
        select p_domain as domain, u.command_id, u.reason
          from unnest(p_command_ids, p_reasons) u(command_id, reason)
    ), failure as materialized (
        select c.domain, c.command_id, c.command_type, i.reason, c.last_error_type,
               c.last_error_code, c.last_error_msg, b.created_by as owner,
               commandbus.normalise_message(c.last_error_msg) as message
          from item i
          join commandbus.command_bus_command c
            on c.domain = i.domain and c.command_id = i.command_id
          left join commandbus.command_bus_batch b
            on b.batch_id = c.batch_id and b.batch_type is not null
    ), known as materialized (
        select f.*, commandbus.failure_fingerprint(f.domain, f.command_type, f.last_error_type,
                                                   f.last_error_code, f.message) as fingerprint
          from failure f
    ), listed as (
        insert into commandbus.command_bus_troubleshooting (
            domain, command_id, command_type, reason, parked_at, fingerprint, owner)
        select k.domain, k.command_id, k.command_type, k.reason, p_now, k.fingerprint, k.owner
          from known k
    )
    insert into commandbus.command_bus_failure_group as g (
        domain, fingerprint, command_type, error_class, error_code, message, sample_message,
        sample_command_id, parked_count, total_seen, first_seen, last_seen, is_governed)
    select p_domain, k.fingerprint, min(k.command_type), min(k.last_error_type),
           min(k.last_error_code), min(k.message), min(k.last_error_msg),
           (array_agg(k.command_id order by k.command_id))[1], count(*), count(*), p_now, p_now,
           count(k.owner) > 0
      from known k group by k.fingerprint order by k.fingerprint
    on conflict (domain, fingerprint) do update
       set parked_count = g.parked_count + excluded.parked_count,
           total_seen = g.total_seen + excluded.total_seen,
           last_seen = greatest(g.last_seen, excluded.last_seen),
           sample_message = excluded.sample_message,
           sample_command_id = excluded.sample_command_id,
           is_governed = g.is_governed or excluded.is_governed,
           -- Nothing of it was parked, and now there is again: it is back.
           back_at = case when g.parked_count = 0 then p_now else g.back_at end,
           back_after = case when g.parked_count = 0
                             then greatest(p_now - g.emptied_at, interval '0') else g.back_after end,
           back_count = g.back_count + (g.parked_count = 0)::int;
end $$;

-- Takes commands off the list and out of their groups. The only way out. A group that is empty
-- stays, so that a failure that comes back is known again. An edit that waits for a decision is dropped:
-- the callers have locked the batches.
create or replace function commandbus.leave_troubleshooting(
    p_domain text, p_command_ids uuid[], p_actor text default null
) returns void
language plpgsql as $$
begin
    perform commandbus.drop_edits(p_domain, p_command_ids, 'EDIT_DROPPED', null, p_actor);
    with item as materialized (
        select p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    ), gone as (
        delete from commandbus.command_bus_troubleshooting t
         using item i
         -- the domain compared so that no index can serve it, as in still_parked
         where t.command_id = i.command_id and t.domain is not distinct from i.domain
        returning t.fingerprint
    ), moved as materialized (
        select p_domain as domain, o.fingerprint, count(*)::int as n from gone o group by o.fingerprint
    ), locked as (
        select g.domain, g.fingerprint, m.n
          from moved m
          join commandbus.command_bus_failure_group g
            on g.domain = m.domain and g.fingerprint = m.fingerprint
         order by g.fingerprint for update of g
    )
    update commandbus.command_bus_failure_group g
       set parked_count = g.parked_count - l.n,
           emptied_at = case when g.parked_count = l.n then clock_timestamp() else g.emptied_at end
      from locked l
     where g.domain = l.domain and g.fingerprint = l.fingerprint;
end $$;

-- A group as somebody sees it: a group that no governed command was ever counted into as it is, another one
-- made from those parked commands of it that may be shown; nothing, if there are none.
create or replace function commandbus.group_seen_by(
    p_viewer text, p_group commandbus.command_bus_failure_group
) returns setof commandbus.command_bus_failure_group
language plpgsql stable as $$
begin
    if p_viewer is null or not p_group.is_governed then
        return next p_group;
        return;
    end if;
    select count(*), count(*), min(t.parked_at), max(t.parked_at),
           (array_agg(t.command_id order by t.parked_at desc, t.command_id))[1]
      into p_group.parked_count, p_group.total_seen, p_group.first_seen, p_group.last_seen,
           p_group.sample_command_id
      from commandbus.command_bus_troubleshooting t
     where t.domain = p_group.domain and t.fingerprint = p_group.fingerprint
       and (t.owner is null or t.owner = p_viewer);
    -- Written by people who see more, and about more.
    p_group.note := null;
    p_group.note_by := null;
    p_group.note_at := null;
    p_group.assignee := null;
    p_group.emptied_at := null;
    p_group.back_at := null;
    p_group.back_after := null;
    p_group.back_count := 0;
    if p_group.parked_count > 0 then
        select c.last_error_msg into p_group.sample_message from commandbus.command_bus_command c
         where c.domain = p_group.domain and c.command_id = p_group.sample_command_id;
        return next p_group;
    end if;
end $$;

-- The groups that have parked commands, largest first; null means any. p_prefix: how the
-- fingerprint begins. p_viewer: through whose eyes, see visibility.sql. p_search: a text that must be in
-- the message, the code, the class, the type or the note, whatever its case.
create or replace function commandbus.list_failure_groups(
    p_domain text default null, p_command_type text default null,
    p_include_empty boolean default false, p_limit int default 100, p_prefix text default '',
    p_viewer text default null, p_search text default null
) returns setof commandbus.command_bus_failure_group
language sql stable as $$
    select s.* from commandbus.command_bus_failure_group g
     cross join lateral commandbus.group_seen_by(p_viewer, g) s
     where (p_domain is null or g.domain = p_domain)
       and (p_command_type is null or g.command_type = p_command_type)
       and (p_include_empty or g.parked_count > 0)
       and starts_with(g.fingerprint, p_prefix)
       and (p_search is null or position(lower(p_search) in lower(concat_ws(
                chr(31), s.message, s.error_code, s.error_class, s.command_type, s.note, s.assignee,
                s.fingerprint))) > 0)
     order by s.parked_count desc, s.last_seen desc, s.domain, s.fingerprint limit p_limit
$$;

-- The id under which the audit has what people did to a group itself.
create or replace function commandbus.group_id(p_domain text, p_fingerprint text) returns uuid
language sql immutable parallel safe as $$
    select left(encode(sha256(convert_to(
        'failure group' || chr(31) || p_domain || chr(31) || p_fingerprint, 'UTF8')), 'hex'), 32)::uuid
$$;

-- A remark about a group: the newest is kept with it, all of them in the audit. Null takes it away.
create or replace function commandbus.note_group(
    p_domain text, p_fingerprint text, p_note text, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    update commandbus.command_bus_failure_group g
       set note = p_note, note_by = case when p_note is null then null else p_actor end,
           note_at = case when p_note is null then null else v_now end
     where g.domain = p_domain and g.fingerprint = p_fingerprint;
    perform commandbus.audit_group(
        p_domain, p_fingerprint, 'GROUP_NOTE', jsonb_build_object('note', p_note), p_actor, found);
end $$;

-- Who looks after a group; null: nobody. To say the same again changes nothing.
create or replace function commandbus.assign_group(
    p_domain text, p_fingerprint text, p_assignee text, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_before text;
begin
    select g.assignee into v_before from commandbus.command_bus_failure_group g
     where g.domain = p_domain and g.fingerprint = p_fingerprint for update;
    if found and v_before is not distinct from p_assignee then
        return;
    end if;
    update commandbus.command_bus_failure_group g set assignee = p_assignee
     where g.domain = p_domain and g.fingerprint = p_fingerprint;
    perform commandbus.audit_group(
        p_domain, p_fingerprint, 'GROUP_ASSIGNED',
        jsonb_build_object('assignee', p_assignee, 'before', v_before), p_actor, found);
end $$;

-- The line in the audit for a change of a group; an error if there was no such group to change.
create or replace function commandbus.audit_group(
    p_domain text, p_fingerprint text, p_event text, p_details jsonb, p_actor text, p_is_there boolean
) returns void
language plpgsql as $$
begin
    if not p_is_there then
        raise exception 'no failure group % in domain %', quote_literal(p_fingerprint),
                        quote_literal(p_domain)
            using errcode = 'CB003', hint = 'look at the failure groups; empty ones are kept too';
    end if;
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, actor)
    values (p_domain, commandbus.group_id(p_domain, p_fingerprint), p_event, clock_timestamp(),
            p_details || jsonb_build_object('group', p_fingerprint), p_actor);
end $$;

-- One page of what waits for an operator, longest first, with the payload that a retry would send: by
-- key for pages, by offset for list_troubleshooting. p_command_id: only this one. Without a domain: of all
-- domains together, by one look into the index for each that has parked commands.
--   p_viewer: through whose eyes, see visibility.sql; null: who sees everything
create or replace function commandbus.page_troubleshooting(
    p_domain text, p_command_type text, p_group text, p_command_id uuid,
    p_after timestamptz, p_after_id uuid, p_limit int, p_offset int default 0,
    p_viewer text default null
) returns table (
    domain text, command_id uuid, command_type text, reason text, parked_at timestamptz,
    attempts int, max_attempts int, last_error_type text, last_error_code text,
    last_error_msg text, correlation_id uuid, reply_queue text, batch_id uuid,
    created_at timestamptz, data text)
language plpgsql stable as $$
begin
    if p_domain is null then
        return query
        with first as (
            select t.domain, t.command_id, t.parked_at
              from (select distinct g.domain from commandbus.command_bus_failure_group g
                     where g.parked_count > 0) d
             cross join lateral (
                select t.* from commandbus.command_bus_troubleshooting t
                 where t.domain = d.domain and (p_command_type is null or t.command_type = p_command_type)
                   and (p_group is null or t.fingerprint = p_group)
                   and (p_command_id is null or t.command_id = p_command_id)
                   and (p_after is null or (t.parked_at, t.command_id) > (p_after, p_after_id))
                   and (p_viewer is null or t.owner is null or t.owner = p_viewer)
                 order by t.parked_at, t.command_id limit p_limit + p_offset) t
             order by t.parked_at, t.command_id limit p_limit offset p_offset
        )
        select p.* from first f
         cross join lateral commandbus.page_troubleshooting(
                   f.domain, null, null, f.command_id, null, null, 1) p
         order by p.parked_at, p.command_id;
        return;
    end if;
    perform commandbus.check_domain(p_domain);
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    return query execute format(
        'select c.domain, c.command_id, c.command_type, t.reason, t.parked_at, c.attempts,'
        '       c.max_attempts, c.last_error_type, c.last_error_code, c.last_error_msg,'
        '       c.correlation_id, c.reply_queue, c.batch_id, c.created_at,'
        '       (coalesce(a.message, p.payload_json) -> ''data'')::text'
        '  from (select * from commandbus.command_bus_troubleshooting t'
        '         where t.domain = $1 and ($2 is null or t.command_type = $2)'
        '           and ($3 is null or t.fingerprint = $3) and ($4 is null or t.command_id = $4)'
        '           and ($5 is null or (t.parked_at, t.command_id) > ($5, $6))'
        '           and ($9 is null or t.owner is null or t.owner = $9)'
        '         order by t.parked_at, t.command_id limit $7 offset $8) t'
        '  join commandbus.command_bus_command c'
        '    on c.domain = t.domain and c.command_id = t.command_id'
        '  left join pgmq.%I a on a.msg_id = c.msg_id'
        '  left join commandbus.command_bus_payload_archive p'
        '    on p.domain = c.domain and p.command_id = c.command_id'
        ' order by t.parked_at, t.command_id',
        'a_' || commandbus.physical_queue(p_domain || '.commands'))
        using p_domain, p_command_type, p_group, p_command_id, p_after, p_after_id, p_limit, p_offset,
              p_viewer;
end $$;

-- What waits for an operator, longest first, with the payload that a retry would send.
create or replace function commandbus.list_troubleshooting(
    p_domain text, p_command_type text, p_limit int, p_offset int, p_group text default null
) returns table (
    domain text, command_id uuid, command_type text, reason text, parked_at timestamptz,
    attempts int, max_attempts int, last_error_type text, last_error_code text,
    last_error_msg text, correlation_id uuid, reply_queue text, batch_id uuid,
    created_at timestamptz, data text)
language plpgsql stable as $$
begin
    return query
    select * from commandbus.page_troubleshooting(
        p_domain, p_command_type, p_group, null, null, null, p_limit, p_offset);
end $$;
