-- Payloads: where the payload of a command is found when its message is not in the queue, and which parts
-- of it must not be shown.

-- Copies payloads from the queue into the table of payloads: then retries do not depend on how long PGMQ's
-- archive is kept.
create or replace function commandbus.keep_payloads(p_domain text, p_msg_ids bigint[]) returns void
language plpgsql as $$
begin
    execute format(
        'insert into commandbus.command_bus_payload_archive (domain, command_id, payload_json)'
        ' select $1, (q.message ->> ''command_id'')::uuid, q.message from pgmq.%I q'
        ' where q.msg_id = any($2)'
        ' on conflict (domain, command_id) do update'
        ' set payload_json = excluded.payload_json, archived_at = now()',
        'q_' || commandbus.physical_queue(p_domain || '.commands')) using p_domain, p_msg_ids;
end $$;

-- A member of a command's message, from the queue, the archive or the payload table; null if it is gone
-- (a completed command's message is deleted).
create or replace function commandbus.message_member(p_domain text, p_command_id uuid, p_member text) returns text
language plpgsql stable as $$
declare
    v_msg_id bigint;
    v_found  text;
begin
    select c.msg_id into v_msg_id from commandbus.known_command(p_domain, p_command_id) c;
    if not found or not commandbus.queue_exists(p_domain || '.commands') then
        return null;
    end if;
    execute format(
        'select coalesce((select (q.message -> $4)::text from pgmq.%I q where q.msg_id = $1),'
        '                (select (a.message -> $4)::text from pgmq.%I a where a.msg_id = $1),'
        '                (select (p.payload_json -> $4)::text'
        '                   from commandbus.command_bus_payload_archive p'
        '                  where p.domain = $2 and p.command_id = $3))',
        'q_' || commandbus.physical_queue(p_domain || '.commands'),
        'a_' || commandbus.physical_queue(p_domain || '.commands'))
       into v_found using v_msg_id, p_domain, p_command_id, p_member;
    return v_found;
end $$;

-- The payload of a command, and what travels with it beside that.
create or replace function commandbus.command_payload(p_domain text, p_command_id uuid) returns text
language sql stable as $$
    select commandbus.message_member(p_domain, p_command_id, 'data')
$$;

create or replace function commandbus.command_meta(p_domain text, p_command_id uuid) returns text
language sql stable as $$
    select commandbus.message_member(p_domain, p_command_id, 'meta')
$$;

-- One command's payload, and all that is needed to show it: its type, and the keys that are marked as
-- secret. No row: there is no such command. Without data: the payload is gone.
create or replace function commandbus.marked_payload(p_domain text, p_command_id uuid)
returns table (command_type text, data text, secret_keys text[])
language sql stable as $$
    select c.command_type, commandbus.command_payload(c.domain, c.command_id),
           array(select k.key from commandbus.command_bus_secret_key k
                  where k.domain = c.domain and k.command_type = c.command_type)
      from commandbus.known_command(p_domain, p_command_id) c
$$;

-- The payloads of commands that are parked now, with the message that each is from. Without data: the
-- payload is no longer archived.
create or replace function commandbus.parked_payloads(p_domain text, p_command_ids uuid[])
returns table (command_id uuid, command_type text, msg_id bigint, data text)
language plpgsql stable as $$
begin
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    return query execute format(
        'select c.command_id, c.command_type, c.msg_id,'
        '       (coalesce(a.message, p.payload_json) -> ''data'')::text'
        '  from unnest($2) i(command_id)'
        '  join commandbus.command_bus_command c on c.domain = $1 and c.command_id = i.command_id'
        '  left join pgmq.%I a on a.msg_id = c.msg_id'
        '  left join commandbus.command_bus_payload_archive p'
        '    on p.domain = c.domain and p.command_id = c.command_id'
        ' where c.status = ''IN_TROUBLESHOOTING_QUEUE''',
        'a_' || commandbus.physical_queue(p_domain || '.commands')) using p_domain, p_command_ids;
end $$;

-- Keys of payloads that must not be shown, as the handlers of a domain declare them: so that also a
-- process without those handlers knows.  p_keys: {"<command type>": ["<key>", ...]}
create or replace function commandbus.declare_secrets(p_domain text, p_keys jsonb) returns void
language sql as $$
    insert into commandbus.command_bus_secret_key (domain, command_type, key)
    select p_domain, t.key, k from jsonb_each(p_keys) t cross join jsonb_array_elements_text(t.value) k
     order by 1, 2, 3
    on conflict do nothing
$$;
