-- Sending: the message, the row and the audit line of each command, for many commands at once.

-- What travels with a command beside its data, as a member of its message: texts by key, as commandbus.meta checks
-- them. Operators see it.
create or replace function commandbus.meta_member(p_meta jsonb) returns jsonb
language plpgsql stable as $$
begin
    if jsonb_typeof(p_meta) <> 'object' then
        raise exception 'meta is no object' using errcode = 'CB005', hint = 'use texts by key: {"tenant": "north"}';
    end if;
    if (select count(*) > 20 or bool_or(jsonb_typeof(m.value) <> 'string' or length(m.key) not between 1 and 100)
          from jsonb_each(p_meta) m) then
        raise exception 'meta has more than 20 keys, a value that is no text, or a key that is not 1 to 100 characters long'
            using errcode = 'CB005', hint = 'what does not fit belongs into the data of the command';
    end if;
    -- jsonb is written with a space after each colon and each comma, which the limit does not count.
    if octet_length(p_meta::text) - 2 * (select count(*) from jsonb_object_keys(p_meta)) + 1 > 2048 then
        raise exception 'meta has more than 2048 bytes'
            using errcode = 'CB005', hint = 'what does not fit belongs into the data of the command';
    end if;
    return jsonb_build_object('meta', p_meta);
end $$;

-- The commands of a document, with what is left out filled in, and the message of each. has_flow: it says when,
-- in which order or under which limit it may start (flow.sql).
create or replace function commandbus.unpack_commands(p_domain text, p_commands jsonb, p_now timestamptz)
returns table (n bigint, command_id uuid, type text, reply_to text, correlation_id uuid,
               max_attempts int, message jsonb, has_flow boolean, deliver_at timestamptz,
               expires_at timestamptz, priority smallint, ordering_key text, limit_key text)
language sql stable as $$
    select i.n, i.command_id, i.type, i.reply_to, i.correlation_id, i.max_attempts,
           jsonb_build_object(
               'command_id', i.command_id, 'type', i.type, 'domain', p_domain,
               'correlation_id', i.correlation_id, 'reply_to', nullif(i.reply_to, ''),
               'created_at', (select commandbus.iso8601(p_now)), 'data', i.data)
               || case when i.meta is null then '{}' else commandbus.meta_member(i.meta) end,
           num_nonnulls(i.deliver_at, i.delay_seconds, i.expires_at, i.expires_in_seconds, i.priority,
                        i.ordering_key, i.limit_key) > 0,
           -- numbers that cannot be are refused by check_flow, and must not fail here before that
           coalesce(i.deliver_at, p_now + case when i.delay_seconds between 0 and 31622400
                                               then make_interval(secs => i.delay_seconds::float8) end),
           coalesce(i.expires_at, p_now + case when i.expires_in_seconds between 0 and 63244800
                                               then make_interval(secs => i.expires_in_seconds::float8) end),
           case when i.priority between -2 and 2 then nullif(i.priority, 0)::smallint end, i.ordering_key, i.limit_key
      from (select r.n, r.command_id, r.type, coalesce(r.data, '{}'::jsonb) as data,
                   coalesce(r.reply_to, p_domain || '.replies') as reply_to,
                   coalesce(r.correlation_id, gen_random_uuid()) as correlation_id,
                   coalesce(r.max_attempts, 3) as max_attempts, r.deliver_at, r.delay_seconds, r.expires_at,
                   r.expires_in_seconds, r.priority, r.ordering_key, r.limit_key,
                   nullif(nullif(r.meta, '{}'), 'null') as meta
              from rows from (jsonb_to_recordset(p_commands) as (
                       command_id uuid, type text, data jsonb, reply_to text,
                       correlation_id uuid, max_attempts int, deliver_at timestamptz, delay_seconds numeric,
                       expires_at timestamptz, expires_in_seconds numeric, priority numeric,
                       ordering_key text, limit_key text, meta jsonb)) with ordinality
                   as r(command_id, type, data, reply_to, correlation_id, max_attempts, deliver_at,
                        delay_seconds, expires_at, expires_in_seconds, priority, ordering_key, limit_key, meta, n)
            -- a fence: the ids made here must be the same in the row and in the message
            offset 0) i
$$;

-- How messages begin that a sender has packed: it does not know the time here, nor repeat the domain.
create or replace function commandbus.message_head(p_domain text, p_now timestamptz) returns text
language sql stable as $$
    select '{"domain":"' || p_domain || '","created_at":"' || commandbus.iso8601(p_now) || '",'
$$;

-- Where commands are sent to: the queues are made on first use, and the batch, if there is one, must be there.
create or replace function commandbus.ensure_target(p_domain text, p_batch_id uuid) returns void
language plpgsql as $$
begin
    if not commandbus.queue_exists(p_domain || '.commands') then
        perform commandbus.ensure_domain(p_domain);
    end if;
    if p_batch_id is not null then
        perform commandbus.require_batch(p_domain, p_batch_id);
    end if;
end $$;

-- Sends commands and returns the ids that were there before; if there are any, nothing of the
-- call is created, and the caller's transaction is still good to go on. Callers who would rather
-- have an error use send_commands.
--   p_commands: [{"command_id", "type", "data", "reply_to"?, "correlation_id"?, "max_attempts"?,
--                 "deliver_at" | "delay_seconds"?, "expires_at" | "expires_in_seconds"?, "priority"?,
--                 "ordering_key"?, "limit_key"?, "meta"?}]
--   reply_to null: the replies queue of the domain; '': no reply.
--   p_sequence_start: the commands are part of what the batch was created for, and are numbered
--   from here; null: they join a batch that exists, which then counts more.
create or replace function commandbus.offer_commands(
    p_domain text, p_commands jsonb, p_batch_id uuid default null, p_actor text default null,
    p_sequence_start int default null
) returns uuid[]
language plpgsql as $$
declare
    v_now       timestamptz := clock_timestamp();
    v_queue     text := p_domain || '.commands';
    v_global    boolean := commandbus.setting('command_id_scope') = 'global';
    v_ids       uuid[];
    v_types     text[];
    v_replies   text[];
    v_relations uuid[];
    v_limits    int[];
    v_messages  jsonb[];
    v_has_flow  boolean;
    v_flow      commandbus.flow_fields;   -- all null where no command has any of it
    v_places    timestamptz[];
    v_msg_ids   bigint[];
    v_inserted  uuid[];
    v_new       uuid[];    -- of those, the ones that are not in the history
begin
    perform commandbus.ensure_target(p_domain, p_batch_id);

    select array_agg(i.command_id order by i.n), array_agg(i.type order by i.n),
           array_agg(i.reply_to order by i.n), array_agg(i.correlation_id order by i.n),
           array_agg(i.max_attempts order by i.n), array_agg(i.message order by i.n), bool_or(i.has_flow)
      into v_ids, v_types, v_replies, v_relations, v_limits, v_messages, v_has_flow
      from commandbus.unpack_commands(p_domain, p_commands, v_now) i;
    if v_ids is null then
        return '{}';
    end if;
    perform commandbus.ensure_replies(p_domain, v_replies);

    -- Messages first, so that the rows are written once, with their msg_id. In array order:
    -- msg_id order then follows the order of sending. Before them the keys, which others may have.
    if v_has_flow then
        v_flow := commandbus.flow_of(p_domain, p_commands, v_now);
        v_flow.key_seq := commandbus.take_numbers(p_domain, v_flow.ordering_key);
        v_places := commandbus.key_places(
            p_domain, v_ids, v_flow.ordering_key, v_flow.key_seq, v_flow.deliver_at);
        v_msg_ids := commandbus.put_placed(v_queue, v_messages, v_places, v_flow.priority);
    else
        v_msg_ids := commandbus.put_messages(v_queue, v_messages);
    end if;

    -- In the order of ids: two senders of overlapping ids wait for each other, never in a circle.
    with fresh as (
        insert into commandbus.command_bus_command (
            domain, queue_name, msg_id, command_id, command_type, status, max_attempts,
            created_at, updated_at, reply_queue, correlation_id, batch_id, is_globally_unique,
            sequence_no, queued_at, deliver_at, expires_at, priority, ordering_key, key_seq, limit_key)
        select p_domain, v_queue, i.msg_id, i.command_id, i.type, 'PENDING', i.max_attempts,
               v_now, v_now, i.reply_to, i.correlation_id, p_batch_id, v_global,
               p_sequence_start + i.n, v_now, i.deliver_at, i.expires_at, i.priority, i.ordering_key,
               i.key_seq, i.limit_key
          from unnest(v_ids, v_types, v_replies, v_relations, v_limits, v_msg_ids, v_flow.deliver_at,
                      v_flow.expires_at, v_flow.priority, v_flow.ordering_key, v_flow.key_seq,
                      v_flow.limit_key)
               with ordinality as i(command_id, type, reply_to, correlation_id, max_attempts, msg_id,
                                    deliver_at, expires_at, priority, ordering_key, key_seq, limit_key, n)
         where not (v_global and commandbus.is_sent_anywhere(i.command_id))
         order by i.command_id
        on conflict do nothing
        returning command_id
    )
    select array_agg(f.command_id) into v_inserted from fresh f;

    v_new := v_inserted;
    if v_inserted is not null and pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is not null then
        -- after the insert: history.sql has the race
        v_new := array(select i from unnest(v_inserted) i
                       except select k from unnest(commandbus.known_in_history(p_domain, v_inserted)) k);
    end if;

    if cardinality(v_new) is distinct from cardinality(v_ids) then
        -- No savepoint is needed, and none is paid for by the calls that meet no duplicate.
        perform commandbus.take_back(p_domain, v_msg_ids, v_inserted);
        perform commandbus.forget_keys(p_domain, v_flow.ordering_key);
        return coalesce(
            (select array_agg(distinct d.id) from unnest(v_ids) d(id)
              where v_new is null or d.id <> all(v_new)),
            -- every id is new, but one stands twice in the call
            (select array_agg(d.id) from (
                select x.id from unnest(v_ids) x(id) group by x.id having count(*) > 1) d));
    end if;

    if p_batch_id is not null and p_sequence_start is null then
        perform commandbus.join_batch(p_domain, p_batch_id, cardinality(v_ids));
    end if;
    if v_flow.key_seq is not null then
        perform commandbus.enter_keys(
            p_domain, v_ids, v_msg_ids, v_flow.ordering_key, v_flow.key_seq, v_places);
    end if;
    if v_has_flow then
        perform commandbus.begin_flow(p_domain, v_ids, v_flow, v_now, p_batch_id, p_actor);
    else
        insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id, actor)
        select p_domain, i.id, 'SENT', v_now, p_batch_id, p_actor from unnest(v_ids) i(id);
    end if;
    perform commandbus.wake_workers(p_domain);
    return '{}';
end $$;

-- offer_commands for the one command of a single sender: nothing to unpack, no arrays, nothing to sort.
--   p_message: the message from the command's id on, without the opening brace.
create or replace function commandbus.offer_one(
    p_domain text, p_command_id uuid, p_type text, p_reply_to text, p_correlation_id uuid,
    p_max_attempts int, p_message text, p_batch_id uuid default null
) returns uuid[]
language plpgsql as $$
declare
    v_now    timestamptz := clock_timestamp();
    v_queue  text := p_domain || '.commands';
    v_msg_id bigint;
begin
    if commandbus.setting('command_id_scope') = 'global' then
        return commandbus.offer_commands(
            p_domain, jsonb_build_array(('{' || p_message)::jsonb
                || jsonb_build_object('reply_to', p_reply_to, 'max_attempts', p_max_attempts)),
            p_batch_id);
    end if;
    perform commandbus.ensure_target(p_domain, p_batch_id);
    if p_reply_to <> p_domain || '.replies' then
        perform commandbus.ensure_replies(p_domain, array[p_reply_to]);
    end if;
    v_msg_id := (commandbus.put_messages(
        v_queue, array[(commandbus.message_head(p_domain, v_now) || p_message)::jsonb]))[1];
    insert into commandbus.command_bus_command (
        domain, queue_name, msg_id, command_id, command_type, status, max_attempts,
        created_at, updated_at, reply_queue, correlation_id, batch_id, queued_at)
    values (p_domain, v_queue, v_msg_id, p_command_id, p_type, 'PENDING', p_max_attempts,
            v_now, v_now, p_reply_to, p_correlation_id, p_batch_id, v_now)
    on conflict do nothing;
    if not found then
        perform commandbus.take_back(p_domain, array[v_msg_id], '{}');
        return array[p_command_id];
    elsif pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is not null then
        -- after the insert: history.sql has the race
        if commandbus.known_in_history(p_domain, array[p_command_id]) <> '{}' then
            perform commandbus.take_back(p_domain, array[v_msg_id], array[p_command_id]);
            return array[p_command_id];
        end if;
    end if;
    if p_batch_id is not null then
        perform commandbus.join_batch(p_domain, p_batch_id, 1);
    end if;
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id)
    values (p_domain, p_command_id, 'SENT', v_now, p_batch_id);
    perform commandbus.wake_workers(p_domain);
    return '{}';
end $$;

-- As offer_commands, for very many commands of a sender who has nothing else in its transaction: a
-- known id is a unique violation that ends it. That saves a quarter of the time, because nothing is
-- taken apart and put together again, and no row is inserted on probation. Savepoints would be no way
-- out: more than 64 in a transaction slow down everybody else.
--   p_ids, p_types, p_replies, p_relations, p_limits: one for each command, separated by commas.
--   p_messages: one line for each: its message from the command's id on, without the opening brace.
create or replace function commandbus.send_packed(
    p_domain text, p_ids text, p_types text, p_replies text, p_relations text, p_limits text,
    p_messages text, p_batch_id uuid default null, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_queue   text := p_domain || '.commands';
    v_ids     uuid[] := string_to_array(p_ids, ',')::uuid[];
    v_replies text[] := string_to_array(p_replies, ',');
    v_msg_ids bigint[];
    v_known   uuid[];
begin
    if commandbus.setting('command_id_scope') = 'global' then
        -- The sender did not know: ids of other domains are not looked for here.
        raise exception 'command_id_scope is ''domain'' here but ''global'' in the database by now;'
                        ' start this process again with the same'
            using errcode = 'CB007';
    end if;
    perform commandbus.ensure_target(p_domain, p_batch_id);
    perform commandbus.ensure_replies(p_domain, v_replies);
    v_msg_ids := commandbus.put_packed(v_queue, commandbus.message_head(p_domain, v_now), p_messages);
    -- In the order of ids: two senders of overlapping ids wait for each other, never in a circle.
    insert into commandbus.command_bus_command (
        domain, queue_name, msg_id, command_id, command_type, status, max_attempts,
        created_at, updated_at, reply_queue, correlation_id, batch_id, queued_at)
    select p_domain, v_queue, i.msg_id, i.command_id, i.type, 'PENDING', i.max_attempts,
           v_now, v_now, i.reply_to, i.correlation_id, p_batch_id, v_now
      from unnest(v_ids, string_to_array(p_types, ','), v_replies,
                  string_to_array(p_relations, ',')::uuid[], string_to_array(p_limits, ',')::int[],
                  v_msg_ids) as i(command_id, type, reply_to, correlation_id, max_attempts, msg_id)
     order by i.command_id;
    if pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is not null then
        -- after the insert: history.sql has the race
        v_known := commandbus.known_in_history(p_domain, v_ids);
        if v_known <> '{}' then
            raise exception 'already sent in domain %: %', quote_literal(p_domain), array_to_string(v_known[1:5], ', ')
                using errcode = 'CB001', detail = array_to_json(v_known)::text,
                      hint = 'nothing of this call was created';
        end if;
    end if;
    if p_batch_id is not null then
        perform commandbus.join_batch(p_domain, p_batch_id, cardinality(v_ids));
    end if;
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id, actor)
    select p_domain, i.id, 'SENT', v_now, p_batch_id, p_actor from unnest(v_ids) i(id);
    perform commandbus.wake_workers(p_domain);
end $$;

-- The queues that replies are asked on; ensure_domain has made the usual one. Refuses what is none: a worker would
-- put the reply there with the rights of the owner, among the commands of a domain or another schema.
create or replace function commandbus.ensure_replies(p_domain text, p_replies text[]) returns void
language plpgsql as $$
declare
    v_reply text;
begin
    if not (p_domain || '.replies' = all(p_replies)) then
        for v_reply in select distinct q from unnest(p_replies) q where q not in ('', '@inbox') loop
            perform commandbus.check_reply_name(v_reply);
            perform commandbus.ensure_queue(v_reply);
        end loop;
    end if;
end $$;

-- Takes back what a send has written, in the same transaction, because it met a duplicate.
create or replace function commandbus.take_back(p_domain text, p_msg_ids bigint[], p_command_ids uuid[])
returns void
language plpgsql as $$
begin
    perform pgmq.delete(commandbus.physical_queue(p_domain || '.commands'), p_msg_ids);
    delete from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = any(p_command_ids);
end $$;

-- Global uniqueness also counts ids that were sent while the database was in 'domain' scope. Two
-- senders at once need no lock here: both rows are marked, and the partial unique index lets one
-- wait for the other, in the order of ids.
create or replace function commandbus.is_sent_anywhere(p_command_id uuid) returns boolean
language sql stable as $$
    select exists (
        select from pgmq.meta m
          join commandbus.command_bus_command c
            on c.domain = commandbus.queue_domain(m.queue_name) and c.command_id = p_command_id
         where m.queue_name like E'%\\_\\_commands')
$$;

-- As offer_commands, but a duplicate is an error that names the ids; and commands may have a unique_key, as offer_unique
-- takes it. Returns how many were sent.
create or replace function commandbus.send_commands(
    p_domain text, p_commands jsonb, p_batch_id uuid default null, p_actor text default null
) returns int
language plpgsql as $$
declare
    v_known uuid[];
begin
    if jsonb_path_exists(p_commands, '$[*].unique_key') then
        return commandbus.send_by_keys(p_domain, p_commands, p_batch_id, p_actor);
    end if;
    v_known := commandbus.offer_commands(p_domain, p_commands, p_batch_id, p_actor);
    if v_known <> '{}' then
        perform commandbus.refuse_known_ids(p_domain, p_commands, v_known);
    end if;
    return jsonb_array_length(p_commands);
end $$;

-- An error for a call in which these ids were known, and of which nothing was created.
create or replace function commandbus.refuse_known_ids(p_domain text, p_commands jsonb, p_known uuid[]) returns uuid
language plpgsql as $$
begin
    perform commandbus.refuse_repeated_ids(p_commands);
    raise exception 'already sent in domain %: %', quote_literal(p_domain), array_to_string(p_known[1:5], ', ')
        using errcode = 'CB001', detail = array_to_json(p_known)::text,
              hint = 'nothing of this call was created';
end $$;

-- For a call that was refused: an id that is twice in it was not sent before.
create or replace function commandbus.refuse_repeated_ids(p_commands jsonb) returns void
language plpgsql as $$
declare
    v_ids uuid[] := array(
        select (i ->> 'command_id')::uuid from jsonb_array_elements(p_commands) i
         group by 1 having count(*) > 1);
begin
    if v_ids <> '{}' then
        raise exception 'more than once in this call: %', array_to_string(v_ids[1:5], ', ')
            using errcode = 'CB001', detail = array_to_json(v_ids)::text,
                  hint = 'give each command an id of its own; nothing of this call was created';
    end if;
end $$;

-- One command, for psql and triggers: select commandbus.send_command('payments', 'DebitAccount',
-- gen_random_uuid(), '{"amount": 5}', p_delay => interval '1 hour').
create or replace function commandbus.send_command(
    p_domain text, p_command_type text, p_command_id uuid, p_data jsonb default '{}',
    p_reply_to text default null, p_correlation_id uuid default null,
    p_delay interval default null, p_deliver_at timestamptz default null,
    p_expires_at timestamptz default null, p_priority int default null, p_ordering_key text default null,
    p_limit_key text default null, p_meta jsonb default null
) returns uuid
language plpgsql as $$
begin
    perform commandbus.send_commands(p_domain, jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'reply_to', p_reply_to, 'correlation_id', p_correlation_id,
        'delay_seconds', extract(epoch from p_delay), 'deliver_at', p_deliver_at,
        'expires_at', p_expires_at, 'priority', p_priority, 'ordering_key', p_ordering_key,
        'limit_key', p_limit_key, 'meta', p_meta))
        || jsonb_build_object('command_id', p_command_id, 'type', p_command_type, 'data', p_data)));
    return p_command_id;
end $$;
