-- Reads that need a queue or an archive, whose table names depend on the domain.

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

-- The payload of a command, from the queue, the archive or the payload table; null if it is gone
-- (a completed command's message is deleted).
create or replace function commandbus.command_payload(p_domain text, p_command_id uuid) returns text
language plpgsql stable as $$
declare
    v_msg_id  bigint;
    v_payload text;
begin
    select c.msg_id into v_msg_id from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = p_command_id;
    if not found or not commandbus.queue_exists(p_domain || '.commands') then
        return null;
    end if;
    execute format(
        'select coalesce((select (q.message -> ''data'')::text from pgmq.%I q where q.msg_id = $1),'
        '                (select (a.message -> ''data'')::text from pgmq.%I a where a.msg_id = $1),'
        '                (select (p.payload_json -> ''data'')::text'
        '                   from commandbus.command_bus_payload_archive p'
        '                  where p.domain = $2 and p.command_id = $3))',
        'q_' || commandbus.physical_queue(p_domain || '.commands'),
        'a_' || commandbus.physical_queue(p_domain || '.commands'))
       into v_payload using v_msg_id, p_domain, p_command_id;
    return v_payload;
end $$;

-- Leases replies. A queue that nobody has written to yet is empty, not an error.
create or replace function commandbus.read_replies(p_queue text, p_vt int, p_quantity int)
returns table (msg_id bigint, body text)
language plpgsql as $$
begin
    if commandbus.queue_exists(p_queue) then
        return query
        select r.msg_id, r.message::text
          from pgmq.read(commandbus.physical_queue(p_queue), p_vt, p_quantity) r
         order by r.msg_id;
    end if;
end $$;

create or replace function commandbus.take_inbox_reply(p_domain text, p_command_id uuid) returns text
language sql as $$
    delete from commandbus.command_bus_reply_inbox i
     where i.domain = p_domain and i.command_id = p_command_id
    returning i.reply::text
$$;

-- The domains that know an id, of a command or of a batch: one index probe for each domain.
create or replace function commandbus.find_domains(p_command_id uuid) returns setof text
language sql stable as $$
    select c.domain
      from pgmq.meta m
      join commandbus.command_bus_command c
        on c.domain = left(m.queue_name, -length('__commands')) and c.command_id = p_command_id
     where m.queue_name like '%\_\_commands'
    union
    select b.domain from commandbus.command_bus_batch b where b.batch_id = p_command_id
     order by 1
$$;

-- Commands by what is known of them, newest first; null means any. What is parked is read from
-- its own table, everything else backwards along created_at.
create or replace function commandbus.query_commands(
    p_domain text, p_command_type text, p_status text, p_batch_id uuid, p_correlation_id uuid,
    p_created_after timestamptz, p_created_before timestamptz, p_limit int, p_offset int
) returns setof commandbus.command_bus_command
language plpgsql stable
set plan_cache_mode = force_custom_plan
as $$
begin
    if p_status = 'IN_TROUBLESHOOTING_QUEUE' then
        return query
        select c.* from commandbus.command_bus_troubleshooting t
          join commandbus.command_bus_command c
            on c.domain = t.domain and c.command_id = t.command_id
         where (p_domain is null or t.domain = p_domain)
           and (p_command_type is null or t.command_type = p_command_type)
           and (p_batch_id is null or c.batch_id = p_batch_id)
           and (p_correlation_id is null or c.correlation_id = p_correlation_id)
           and (p_created_after is null or c.created_at >= p_created_after)
           and (p_created_before is null or c.created_at < p_created_before)
         order by c.created_at desc, c.command_id limit p_limit offset p_offset;
        return;
    end if;
    return query
    select c.* from commandbus.command_bus_command c
     where (p_domain is null or c.domain = p_domain)
       and (p_command_type is null or c.command_type = p_command_type)
       and (p_status is null or c.status = p_status)
       and (p_batch_id is null or c.batch_id = p_batch_id)
       and (p_correlation_id is null or c.correlation_id = p_correlation_id)
       and (p_created_after is null or c.created_at >= p_created_after)
       and (p_created_before is null or c.created_at < p_created_before)
     order by c.created_at desc, c.command_id limit p_limit offset p_offset;
end $$;
