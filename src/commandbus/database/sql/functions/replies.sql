-- Replies: published in the commit that ends a command; read and acknowledged by its sender.

-- Publishes one reply for each command that has just ended, grouped by queue. A reply that cannot
-- be published rolls the outcome back with it.
--   p_queues, p_replies: one for each command; a queue '' wants no reply, '@inbox' is the table of replies
create or replace function commandbus.publish_replies(p_domain text, p_queues text[], p_replies jsonb[])
returns void
language plpgsql as $$
declare
    v_queue  text;
    v_queues text[] := p_queues[1:1];
    v_put    bigint[];
    v_is_one boolean := p_queues[1] = all(p_queues); -- nearly always; then nothing is sorted out
begin
    if not v_is_one then
        v_queues := array(select distinct q from unnest(p_queues) q order by q);
    end if;
    foreach v_queue in array v_queues loop
        if v_queue = '' then
            continue;
        elsif v_queue = '@inbox' then
            insert into commandbus.command_bus_reply_inbox (domain, command_id, reply)
            select p_domain, (r.reply ->> 'command_id')::uuid, r.reply
              from unnest(p_queues, p_replies) r(queue, reply) where r.queue = v_queue
            on conflict (domain, command_id) do update
               set reply = excluded.reply, published_at = now();
            perform pg_notify(commandbus.channel(p_domain || '.inbox'), '');
        else
            -- It may have been dropped: better an empty queue than a handler that runs again and again.
            if not commandbus.queue_exists(v_queue) then
                perform commandbus.ensure_queue(v_queue);
            end if;
            if v_is_one then
                v_put := commandbus.put_messages(v_queue, p_replies);
            else
                v_put := commandbus.put_messages(v_queue, array(
                    select r.reply from unnest(p_queues, p_replies) r(queue, reply) where r.queue = v_queue));
            end if;
        end if;
    end loop;
end $$;

-- The reply of a command that has ended.
--   p_meta: what its handler lets travel with it
create or replace function commandbus.reply_body(
    p_domain text, p_command_id uuid, p_correlation_id uuid, p_command_type text,
    p_outcome text, p_completed_at text, p_data jsonb, p_error jsonb, p_meta jsonb default null
) returns jsonb
-- Not immutable: jsonb_build_object is not, and then it would not be inlined but called each time.
language sql stable as $$
    select jsonb_build_object(
        'command_id', p_command_id, 'correlation_id', p_correlation_id, 'domain', p_domain,
        'type', p_command_type || 'Response', 'outcome', p_outcome,
        'completed_at', p_completed_at, 'data', p_data, 'error', p_error)
        || case when p_meta is null then '{}' else jsonb_build_object('meta', p_meta) end
$$;

-- What a reply says of a failure.
create or replace function commandbus.reply_error(p_code text, p_message text, p_class text) returns jsonb
language sql stable as $$
    select jsonb_build_object('code', p_code, 'message', p_message, 'class', p_class)
$$;

-- Refuses a name that no queue of replies can have: the same rule as commandbus.names.check_reply_to. The mark of
-- another schema begins with a digit, so its queues are out of reach.
create or replace function commandbus.check_reply_name(p_queue text) returns void
language plpgsql stable as $$
begin
    if p_queue is null or p_queue !~ '^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)?$' or p_queue ~ '__'
       or p_queue ~ '(^|[.])(commands|dispatch)$' or length(commandbus.physical_queue(p_queue)) > 47 then
        raise exception '% is no queue of replies', coalesce(quote_literal(p_queue), 'null')
            using errcode = 'CB005', hint = 'use <domain>.replies';
    end if;
end $$;

-- The same for those who read, and for queues that are there: they must be ours. The functions below are called
-- with the rights of the owner, who may read what another program keeps in PGMQ.
create or replace function commandbus.check_reply_queue(p_queue text) returns void
language plpgsql stable as $$
begin
    perform commandbus.check_reply_name(p_queue);
    if commandbus.queue_exists(p_queue) and not commandbus.is_made_by_us(commandbus.physical_queue(p_queue)) then
        raise exception '% is a queue of another program', quote_literal(p_queue)
            using errcode = 'CB005', hint = 'read it with the functions of PGMQ, or use <domain>.replies';
    end if;
end $$;

-- Leases replies. A queue that nobody has written to yet is empty, not an error.
create or replace function commandbus.read_replies(p_queue text, p_vt int, p_quantity int)
returns table (msg_id bigint, body text)
language plpgsql as $$
begin
    perform commandbus.check_reply_queue(p_queue);
    if commandbus.queue_exists(p_queue) then
        return query
        select r.msg_id, r.message::text
          from pgmq.read(commandbus.physical_queue(p_queue), p_vt, p_quantity) r
         order by r.msg_id;
    end if;
end $$;

-- Leases replies, each with a receipt: how often it has been read is a fence, because the next
-- reader gets another number.
create or replace function commandbus.lease_replies(p_queue text, p_vt int, p_quantity int)
returns table (msg_id bigint, receipt bigint, body text)
language plpgsql as $$
begin
    perform commandbus.check_reply_queue(p_queue);
    if commandbus.queue_exists(p_queue) then
        return query
        select r.msg_id, r.read_ct::bigint, r.message::text
          from pgmq.read(commandbus.physical_queue(p_queue), p_vt, p_quantity) r
         order by r.msg_id;
    end if;
end $$;

-- Deletes the replies whose receipt still holds, and returns their numbers. One whose lease lapsed
-- and that somebody else has read since is left to that reader: deleted here, it would be lost if
-- that one fails.
create or replace function commandbus.acknowledge_replies(
    p_queue text, p_msg_ids bigint[], p_receipts bigint[]
) returns setof bigint
language plpgsql as $$
begin
    perform commandbus.check_reply_queue(p_queue);
    if commandbus.queue_exists(p_queue) then
        return query execute format(
            'with owned as ('
            '    select q.msg_id from pgmq.%1$I q'
            '      join unnest($1, $2) r(msg_id, receipt) on r.msg_id = q.msg_id'
            '     where q.read_ct = r.receipt order by q.msg_id for update of q)'
            ' delete from pgmq.%1$I q using owned o where q.msg_id = o.msg_id returning q.msg_id',
            'q_' || commandbus.physical_queue(p_queue)) using p_msg_ids, p_receipts;
    end if;
end $$;

-- Deletes replies, and returns the numbers of those that were there.
create or replace function commandbus.delete_replies(p_queue text, p_msg_ids bigint[]) returns setof bigint
language plpgsql as $$
begin
    perform commandbus.check_reply_queue(p_queue);
    return query select d.d from pgmq.delete(commandbus.physical_queue(p_queue), p_msg_ids) d(d);
end $$;

-- Moves what is no reply to the archive of its queue, and returns the numbers of those that were there.
create or replace function commandbus.archive_replies(p_queue text, p_msg_ids bigint[]) returns setof bigint
language plpgsql as $$
begin
    perform commandbus.check_reply_queue(p_queue);
    return query select a.a from pgmq.archive(commandbus.physical_queue(p_queue), p_msg_ids) a(a);
end $$;

-- Takes the reply that a caller waits for, if it is there.
create or replace function commandbus.take_inbox_reply(p_domain text, p_command_id uuid) returns text
language sql as $$
    delete from commandbus.command_bus_reply_inbox i
     where i.domain = p_domain and i.command_id = p_command_id
    returning i.reply::text
$$;

-- The same, left where it is: for those who may ask again.
create or replace function commandbus.look_at_inbox_reply(p_domain text, p_command_id uuid) returns text
language sql stable as $$
    select i.reply::text from commandbus.command_bus_reply_inbox i
     where i.domain = p_domain and i.command_id = p_command_id
$$;
