-- The doctor: what must hold between commands, messages, batches, audit and replies, looked up on a
-- live database. Nothing here writes.
--
-- Each check returns a row for each thing that is wrong: the code of the finding (docs/runbook.md says
-- what it means and what to do), whose it is, and which. All are STABLE: called from one statement,
-- or in one REPEATABLE READ transaction, they see one snapshot, and since every change of state is
-- one transaction, what looks wrong in a snapshot is wrong. Ids come out, payloads never.
--   p_domain null: all. p_since: only what was touched since then; null: everything.

-- One message for each open command, seen from the queue: messages that no command waits for.
create or replace function commandbus.check_messages(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language plpgsql stable as $$
begin
    for domain in select * from commandbus.queued_domains(p_domain) loop
        return query execute format($q$
            select case when c.command_id is null then 'MESSAGE_UNKNOWN'
                        when c.status = 'IN_TROUBLESHOOTING_QUEUE' then 'MESSAGE_OF_PARKED'
                        when c.status not in ('PENDING', 'IN_PROGRESS') then 'MESSAGE_OF_ENDED'
                        else 'MESSAGE_SUPERSEDED' end,
                   $1, coalesce(m.command_id::text, 'message ' || m.msg_id), m.msg_id
              from (select q.msg_id, commandbus.message_command_id(q.message) as command_id
                      from pgmq.%I q where $2 is null or q.enqueued_at >= $2) m
              left join commandbus.command_bus_command c
                on c.domain = $1 and c.command_id = m.command_id
             where c.command_id is null or c.status not in ('PENDING', 'IN_PROGRESS')
                or c.msg_id <> m.msg_id $q$,
            'q_' || commandbus.physical_queue(domain || '.commands')) using domain, p_since;
    end loop;
end $$;

-- The same, seen from the commands: what is open has a message, or is stored with its payload. No more
-- attempts than allowed. And a lease exactly where a worker may have one.
create or replace function commandbus.check_commands(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language plpgsql stable as $$
begin
    return query
    select 'QUEUE_MISSING', d, d || '.commands', null::bigint
      from commandbus.doctor_domains(p_domain) d
     where not commandbus.queue_exists(d || '.commands')
       and exists (select from commandbus.command_bus_command c
                    where c.domain = d and c.status in ('PENDING', 'IN_PROGRESS'));
    for domain in select * from commandbus.queued_domains(p_domain) loop
        return query execute format($q$
            select case when a.msg_id is not null or p.command_id is not null then 'MESSAGE_LOST'
                        else 'PAYLOAD_LOST' end, c.domain, c.command_id::text, c.msg_id
              from commandbus.command_bus_command c
              left join pgmq.%I q on q.msg_id = c.msg_id
              left join pgmq.%I a on a.msg_id = c.msg_id
              left join commandbus.command_bus_payload_archive p
                on p.domain = c.domain and p.command_id = c.command_id
             where c.domain = $1 and c.status in ('PENDING', 'IN_PROGRESS')
               and ($2 is null or c.updated_at >= $2)
               -- stored, or said to be in a queue elsewhere: then the payload is what counts
               and q.msg_id is null and (c.msg_id is not null or p.command_id is null) $q$,
            'q_' || commandbus.physical_queue(domain || '.commands'),
            'a_' || commandbus.physical_queue(domain || '.commands')) using domain, p_since;
    end loop;
    return query
    select f.code, c.domain, c.command_id::text, c.msg_id
      from commandbus.command_bus_command c
     cross join lateral (values
           ('LEASE_STATE', c.status = 'IN_PROGRESS' and c.leased_by is null
                           or c.status not in ('PENDING', 'IN_PROGRESS') and c.leased_by is not null),
           -- A limit that was lowered parks a command with more attempts than it has now: nothing is wrong.
           ('ATTEMPTS_EXCEEDED', c.status in ('PENDING', 'IN_PROGRESS')
                                 and c.attempts > c.max_attempts)) f(code, is_wrong)
     where f.is_wrong and (p_domain is null or c.domain = p_domain)
       and (p_since is null or c.updated_at >= p_since);
    -- Only ids that may have been moved are looked for, all of a domain at once: by the index, and never in a walk
    -- over the history.
    return query
    select 'IN_HISTORY_TOO', h.domain, r.command_id::text, r.msg_id
      from commandbus.command_bus_history_domain h
     cross join lateral commandbus.history_rows(h.domain, array(
           select c.command_id from commandbus.command_bus_command c
            where c.domain = h.domain and (p_since is null or c.updated_at >= p_since)
              and case when commandbus.has_time(c.command_id) then c.command_id <= h.newest_id
                       else h.has_other_ids end)) r
     where p_domain is null or h.domain = p_domain;
end $$;

-- What is parked is listed, what is listed is parked, and its payload is still there.
create or replace function commandbus.check_troubleshooting(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language plpgsql stable as $$
begin
    return query
    select 'PARKED_UNLISTED', c.domain, c.command_id::text, c.msg_id
      from commandbus.command_bus_command c
     where c.status = 'IN_TROUBLESHOOTING_QUEUE' and (p_domain is null or c.domain = p_domain)
       and (p_since is null or c.updated_at >= p_since)
       and not exists (select from commandbus.command_bus_troubleshooting t
                        where t.domain = c.domain and t.command_id = c.command_id);
    return query
    select 'LISTED_NOT_PARKED', t.domain, t.command_id::text, c.msg_id
      from commandbus.command_bus_troubleshooting t
      left join commandbus.command_bus_command c
        on c.domain = t.domain and c.command_id = t.command_id
     where c.status is distinct from 'IN_TROUBLESHOOTING_QUEUE'
       and (p_domain is null or t.domain = p_domain);
    return query
    select 'GROUP_COUNTERS', coalesce(g.domain, t.domain), coalesce(g.fingerprint, t.fingerprint),
           null::bigint
      from commandbus.command_bus_failure_group g
      full join (select l.domain, l.fingerprint, count(*) as n
                   from commandbus.command_bus_troubleshooting l group by 1, 2) t
        on t.domain = g.domain and t.fingerprint = g.fingerprint
     where coalesce(g.parked_count, -1) <> coalesce(t.n, 0)
       and (p_domain is null or coalesce(g.domain, t.domain) = p_domain);
    for domain in select * from commandbus.queued_domains(p_domain) loop
        return query execute format($q$
            select 'PARKED_WITHOUT_PAYLOAD', c.domain, c.command_id::text, c.msg_id
              from commandbus.command_bus_troubleshooting t
              join commandbus.command_bus_command c
                on c.domain = t.domain and c.command_id = t.command_id
             where t.domain = $1 and c.status = 'IN_TROUBLESHOOTING_QUEUE'
               and ($2 is null or t.parked_at >= $2)
               and not exists (select from pgmq.%I a where a.msg_id = c.msg_id)
               and not exists (select from commandbus.command_bus_payload_archive p
                                where p.domain = c.domain and p.command_id = c.command_id) $q$,
            'a_' || commandbus.physical_queue(domain || '.commands')) using domain, p_since;
    end loop;
end $$;

-- The counters of a batch as its commands give them.
create or replace function commandbus.recount_batch(
    p_batch_id uuid, out total int, out completed int, out failed int, out canceled int, out parked int
)
language sql stable as $$
    select count(*)::int, (count(*) filter (where c.status = 'COMPLETED'))::int,
           (count(*) filter (where c.status = 'FAILED'))::int,
           (count(*) filter (where c.status = 'CANCELED'))::int,
           (count(*) filter (where c.status = 'IN_TROUBLESHOOTING_QUEUE'))::int
      from commandbus.command_bus_command c where c.batch_id = p_batch_id
$$;

-- The counters of a batch are what a recount gives, and it is closed exactly if all have ended.
-- A batch that retention is removing is on its way out, and not counted.
create or replace function commandbus.check_batches(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language sql stable as $$
    select f.code, b.domain::text, b.batch_id::text, null::bigint
      from commandbus.command_bus_batch b
     cross join lateral commandbus.recount_batch(b.batch_id) r
     cross join lateral (values
           ('BATCH_COUNTERS', (b.total_count, b.completed_count, b.failed_count, b.canceled_count,
                               b.in_troubleshooting_count)
                is distinct from (r.total, r.completed, r.failed, r.canceled, r.parked)),
           -- judged by its own counters: wrong ones are the other finding
           ('BATCH_STATE', b.total_count > 0 and (
                (b.completed_at is not null) <> (b.status in ('COMPLETED', 'COMPLETED_WITH_FAILURES'))
                or (b.completed_at is not null) <> (b.total_sealed and b.total_count
                       = b.completed_count + b.failed_count + b.canceled_count)))) f(code, is_wrong)
     where f.is_wrong and b.pruning_since is null and (p_domain is null or b.domain = p_domain)
       and (p_since is null or b.completed_at is null or b.completed_at >= p_since)
$$;

-- The last event that the audit has of a command fits its state. A command ends once; only a retry
-- opens the way to another end. In the order of audit_id: the events of one command are
-- written under its row lock, so their numbers grow, whatever the clock does.
create or replace function commandbus.check_audit(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language sql stable as $$
    with told(event, allows, is_end) as (values
        ('SENT', array['PENDING'], false),
        ('RECEIVED', array['PENDING', 'IN_PROGRESS'], false),
        ('FAILED', array['PENDING'], false),
        ('RELEASED', array['PENDING'], false),
        ('SNOOZED', array['PENDING'], false),
        ('OPERATOR_RETRY', array['PENDING'], false),
        ('MOVED_TO_TROUBLESHOOTING_QUEUE', array['IN_TROUBLESHOOTING_QUEUE'], false),
        ('COMPLETED', array['COMPLETED'], true),
        ('OPERATOR_COMPLETE', array['COMPLETED'], true),
        ('CANCELED', array['CANCELED'], true),
        ('DISCARDED', array['CANCELED'], true),
        ('EXPIRED', array['CANCELED'], true),
        ('OPERATOR_CANCEL', array['CANCELED'], true),
        ('GIVEN_UP', array['FAILED'], true)
    ), event as (
        select c.domain, c.command_id, c.msg_id, c.status, c.updated_at, a.event_type, t.allows,
               t.is_end, lead(a.event_type) over trail as next_event
          from commandbus.command_bus_command c
          left join (commandbus.command_bus_audit a join told t on t.event = a.event_type)
            on a.command_id = c.command_id and a.domain = c.domain
         where (p_domain is null or c.domain = p_domain)
           and (p_since is null or c.updated_at >= p_since)
        window trail as (partition by c.domain, c.command_id order by a.audit_id)
    )
    select case when e.next_event is null then 'AUDIT_MISMATCH' else 'ENDED_TWICE' end,
           e.domain, e.command_id::text, e.msg_id
      from event e
     -- SENT: retention took the command, and its id was used for another
     where e.is_end and e.next_event not in ('OPERATOR_RETRY', 'SENT')
        or e.next_event is null and e.status <> all (e.allows)
        -- no event at all, and not because retention took the trail of an old one
        or e.event_type is null and not (
               e.status in ('COMPLETED', 'CANCELED', 'FAILED')
               and e.updated_at < coalesce(commandbus.setting('audit_pruned_before.' || e.domain)::timestamptz,
                                           '-infinity'))
$$;

-- One reply for each end, as far as it can be known: a reply that was read is gone. More replies of one command than it
-- has ends; and a reply that is not there although older ones lie there unread, so that no reader can
-- have taken it.
create or replace function commandbus.check_replies(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language plpgsql stable as $$
declare
    v_name   text;
    v_queue  text;
    v_unread timestamptz;
begin
    for v_name, v_queue in
        select q.queue, q.physical from commandbus.own_queues() q
          join commandbus.doctor_domains(p_domain) d on d = split_part(q.queue, '.', 1)
         where q.queue not like '%.commands' and q.queue like '%._%'
         order by 1
    loop
        return query execute format($q$
            select 'REPLY_TWICE', r.domain, r.command_id::text, r.msg_id
              from (select q.message ->> 'domain' as domain,
                           commandbus.message_command_id(q.message) as command_id,
                           count(*) as replies, max(q.msg_id) as msg_id
                      from pgmq.%I q
                     where q.message ? 'outcome' and ($1 is null or q.enqueued_at >= $1)
                     group by 1, 2 having count(*) > 1) r
             cross join lateral (
                   select count(*) filter (where a.event_type in (
                              'COMPLETED', 'OPERATOR_COMPLETE', 'CANCELED', 'OPERATOR_CANCEL',
                              'DISCARDED', 'EXPIRED', 'GIVEN_UP')) as ends,
                          count(*) filter (where a.event_type = 'SENT') as births
                     from commandbus.command_bus_audit a
                    where a.command_id = r.command_id and a.domain = r.domain) e
             -- a trail without its beginning was pruned, and counts nothing
             where e.births > 0 and r.replies > e.ends $q$, 'q_' || v_queue) using p_since;
        execute format($q$
            select min(q.enqueued_at) from pgmq.%I q
             where q.read_ct = 0 and q.vt <= now() and q.message ? 'outcome' $q$, 'q_' || v_queue)
           into v_unread;
        continue when v_unread is null;
        return query execute format($q$
            select 'REPLY_MISSING', c.domain, c.command_id::text, null::bigint
              from commandbus.command_bus_command c
             where c.reply_queue = $1
               and c.status in ('COMPLETED', 'CANCELED', 'FAILED')
               and c.updated_at > $2 + interval '1 minute' and ($3 is null or c.updated_at >= $3)
               and ($4 is null or c.domain = $4)
               and not exists (select from (select q.message ->> 'domain' as domain,
                                                   commandbus.message_command_id(q.message) as id
                                              from pgmq.%I q) r
                                where r.domain = c.domain and r.id = c.command_id) $q$,
            'q_' || v_queue) using v_name, v_unread, p_since, p_domain;
    end loop;
end $$;
