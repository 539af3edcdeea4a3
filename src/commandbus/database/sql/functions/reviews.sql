-- Reviews: what waits for a decision, what it consists of, and who has looked at it.

-- The children of a governed batch with their payloads, in their order, and the edits that wait. The
-- payload of a child that has ended may be gone. is_edited: it is not what was submitted.
--   p_only_edits: only children with an edit that waits
create or replace function commandbus.review_children(
    p_domain text, p_batch_id uuid, p_only_edits boolean, p_after int, p_limit int
) returns table (
    sequence_no int, command_id uuid, command_type text, status text, digest text, data text,
    is_edited boolean, edit_data text, edit_digest text, editor text, edited_at timestamptz,
    edit_expires_at timestamptz, edit_changes jsonb)
language plpgsql stable as $$
begin
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    return query execute format(
        'select c.sequence_no, c.command_id, c.command_type, t.status,'
        '       encode(k.child_digests[c.sequence_no], ''hex''), (m.message -> ''data'')::text,'
        '       coalesce(commandbus.child_digest(k.salt, c.domain, c.command_type, c.sequence_no,'
        '                                        m.message -> ''data'')'
        '                    <> k.child_digests[c.sequence_no] and m.message is not null, false),'
        '       e.data::text, encode(e.digest, ''hex''), e.editor, e.created_at, e.expires_at, e.changes'
        '  from commandbus.command_bus_command c'
        '  join commandbus.approval_tickets t'
        '    on t.parent_ticket_id = c.batch_id and t.sequence_no = c.sequence_no'
        '  left join commandbus.command_bus_content k on k.batch_id = c.batch_id'
        '  left join commandbus.command_bus_edit e'
        '    on e.command_id = c.command_id and e.domain = c.domain'
        '  left join lateral (select coalesce('
        '                (select q.message from pgmq.%I q where q.msg_id = c.msg_id),'
        '                (select a.message from pgmq.%I a where a.msg_id = c.msg_id),'
        '                (select p.payload_json from commandbus.command_bus_payload_archive p'
        '                  where p.domain = c.domain and p.command_id = c.command_id)) as message) m on true'
        ' where c.batch_id = $2 and c.domain is not distinct from $1 and c.sequence_no > $4'
        '   and (not $3 or e.command_id is not null)'
        ' order by c.sequence_no limit $5',
        'q_' || commandbus.physical_queue(p_domain || '.commands'),
        'a_' || commandbus.physical_queue(p_domain || '.commands'))
        using p_domain, p_batch_id, p_only_edits, p_after, p_limit;
end $$;

-- What waits for a decision now: batches and edits together, oldest or newest first. Of a batch
-- command_id and sequence_no are null. What has expired waits no longer, even if no worker has ended it yet.
--   p_domains null: of all domains
create or replace function commandbus.page_undecided(
    p_domains text[], p_newest_first boolean, p_after timestamptz, p_after_id uuid, p_limit int
) returns table (
    ticket_id uuid, command_id uuid, sequence_no int, domain text, batch_type text, child_count int,
    reason text, created_by text, editor text, created_at timestamptz, expires_at timestamptz, digest text)
language sql stable as $$
    select u.* from (
        select b.batch_id as ticket_id, null::uuid as command_id, null::int as sequence_no,
               b.domain::text as domain, b.batch_type, b.total_count, b.reason, b.created_by::text,
               null::text as editor, b.created_at, k.expires_at, encode(k.digest, 'hex')
          from commandbus.command_bus_batch b
          left join commandbus.command_bus_content k on k.batch_id = b.batch_id
         where b.is_pending and b.requires_approval and b.decision is null
           and (k.expires_at is null or k.expires_at > clock_timestamp())
        union all
        select e.batch_id, e.command_id, c.sequence_no, e.domain, b.batch_type, b.total_count, b.reason,
               b.created_by::text, e.editor, e.created_at, e.expires_at, encode(e.digest, 'hex')
          from commandbus.command_bus_edit e
          join commandbus.command_bus_command c on c.domain = e.domain and c.command_id = e.command_id
          join commandbus.command_bus_batch b on b.batch_id = e.batch_id
         where e.expires_at is null or e.expires_at > clock_timestamp()
        ) u
     where (p_domains is null or u.domain = any(p_domains))
       and (p_after is null
            or p_newest_first and (u.created_at, coalesce(u.command_id, u.ticket_id)) < (p_after, p_after_id)
            or not p_newest_first
               and (u.created_at, coalesce(u.command_id, u.ticket_id)) > (p_after, p_after_id))
     order by case when p_newest_first then u.created_at end desc,
              case when not p_newest_first then u.created_at end,
              case when p_newest_first then coalesce(u.command_id, u.ticket_id) end desc,
              coalesce(u.command_id, u.ticket_id)
     limit p_limit
$$;

-- Somebody who may decide has seen what a batch consists of: kept once for each user.
create or replace function commandbus.look_at_ticket(p_ticket_id uuid, p_user text, p_digest text) returns void
language sql as $$
    insert into commandbus.command_bus_look as l (batch_id, user_id, digest, first_at, last_at)
    values (p_ticket_id, p_user, p_digest, clock_timestamp(), clock_timestamp())
    on conflict (batch_id, user_id) do update
       set digest = excluded.digest, last_at = excluded.last_at
     -- A page that is read again and again is not written again and again.
     where l.digest is distinct from excluded.digest or l.last_at < excluded.last_at - interval '1 minute'
$$;

-- All that a decision about a ticket needs beside its items, in one look. No row: there is no such
-- ticket.
--   p_defaults: see limit_states; p_earlier: tickets that are looked through; p_items: of each of two
-- earlier: those of the same type before it that were decided, newest first; rejected: of them, the last
-- one of the same owner that was rejected. Its items and those of this ticket are [number, payload].
create or replace function commandbus.consider_ticket(
    p_ticket_id uuid, p_defaults jsonb, p_earlier int, p_items int
) returns table (
    command_type text, secret_keys text[], looks jsonb, limits jsonb, earlier uuid[], rejected uuid,
    rejected_items jsonb, items jsonb)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_ticket commandbus.command_bus_batch;
begin
    select * into v_ticket from commandbus.command_bus_batch b
     where b.batch_id = p_ticket_id and b.batch_type is not null;
    if not found then
        return;
    end if;
    command_type := (select c.command_type from commandbus.command_bus_command c
                      where c.batch_id = p_ticket_id and c.domain = v_ticket.domain limit 1);
    secret_keys := array(
        select k.key from commandbus.command_bus_secret_key k
         where k.domain = v_ticket.domain and k.command_type = consider_ticket.command_type);
    looks := (
        select coalesce(jsonb_agg(to_jsonb(l)), '[]')
          from (select l.user_id, l.digest, l.first_at, l.last_at from commandbus.command_bus_look l
                 where l.batch_id = p_ticket_id order by l.first_at, l.user_id limit 100) l);
    limits := commandbus.limits_document(v_ticket.created_by, p_defaults);
    earlier := array(
        select b.batch_id
          from commandbus.list_tickets(
                   null, array[v_ticket.domain::text], array[v_ticket.batch_type], null,
                   v_ticket.created_at, p_ticket_id, p_earlier) l
          join commandbus.command_bus_batch b on b.batch_id = l.ticket_id
         where b.decided_at is not null and b.created_at < v_ticket.created_at
         order by b.created_at desc, b.batch_id desc);
    rejected := (
        select b.batch_id
          from commandbus.list_tickets(
                   v_ticket.created_by, array[v_ticket.domain::text], array[v_ticket.batch_type], null,
                   v_ticket.created_at, p_ticket_id, p_earlier) l
          join commandbus.command_bus_batch b on b.batch_id = l.ticket_id
         where b.decision = 'reject' and b.created_at < v_ticket.created_at
         order by b.created_at desc, b.batch_id desc limit 1);
    if rejected is not null then
        rejected_items := commandbus.items_to_compare(v_ticket.domain, rejected, p_items);
        items := commandbus.items_to_compare(v_ticket.domain, p_ticket_id, p_items);
    end if;
    return next;
end $$;

-- The first items of a ticket as [number, payload as text], to be compared with those of another.
create or replace function commandbus.items_to_compare(p_domain text, p_ticket_id uuid, p_limit int)
returns jsonb
language sql stable as $$
    select coalesce(jsonb_agg(jsonb_build_array(r.sequence_no, r.data) order by r.sequence_no), '[]')
      from commandbus.review_children(p_domain, p_ticket_id, false, 0, p_limit) r
$$;

-- The edits of these tickets that wait for a decision.
create or replace function commandbus.waiting_edits(p_ticket_ids uuid[])
returns table (ticket_id uuid, sequence_no int, domain text, command_id uuid, command_type text,
               batch_type text, editor text, digest text, data text)
language sql stable as $$
    select e.batch_id, c.sequence_no, e.domain, e.command_id, c.command_type, b.batch_type, e.editor,
           encode(e.digest, 'hex'), e.data::text
      from commandbus.command_bus_edit e
      join commandbus.command_bus_command c on c.domain = e.domain and c.command_id = e.command_id
      join commandbus.command_bus_batch b on b.batch_id = e.batch_id
     where e.batch_id = any(p_ticket_ids)
$$;
