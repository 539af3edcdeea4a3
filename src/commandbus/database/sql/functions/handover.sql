-- Handover: what a worker in another system has, by way of a broker (docs/adr/0075). Such a lease is like any other,
-- but nothing keeps it alive, and its result comes in a message. Workers' leases are never found here: who may sign
-- results can end what was handed over, and nothing else.

-- Of these leases, by command and number, those that a handover holds still, as receive_commands gave them. Without a
-- lock: who ends one of them is checked again (end_leases), and a lease does not change hands under its number.
create or replace function commandbus.handed_over(p_domain text, p_command_ids uuid[], p_leases bigint[])
returns table (
    command_id uuid, command_type text, msg_id bigint, lease_epoch bigint, attempt int, max_attempts int,
    is_suspect boolean, correlation_id uuid, reply_queue text, batch_id uuid, created_at timestamptz, data text,
    snoozes int, has_rules boolean, meta text)
language plpgsql as $$
begin
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    return query execute format(
        'with item as materialized ('
        '    select $1 as domain, u.command_id, u.lease_epoch from unnest($2, $3) u(command_id, lease_epoch))'
        ' select c.command_id, c.command_type, c.msg_id, c.lease_epoch, c.attempts, c.max_attempts, false,'
        '        c.correlation_id, c.reply_queue, c.batch_id, c.created_at, (q.message -> ''data'')::text,'
        '        c.snoozes, true, (q.message -> ''meta'')::text'
        '   from item i'
        '   join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id'
        '   join pgmq.%I q on q.msg_id = c.msg_id'
        '  where c.lease_epoch = i.lease_epoch and starts_with(c.leased_by, ''handover:'')'
        '    and c.status in (''PENDING'', ''IN_PROGRESS'')',
        'q_' || commandbus.physical_queue(p_domain || '.commands'))
      using p_domain, p_command_ids, p_leases;
end $$;

-- Of these leases, by command and number, those whose time is not over: what another system may still be doing. One that
-- has lapsed takes no place, or nothing would ever be given away again once all that is out was lost.
create or replace function commandbus.still_out(p_domain text, p_command_ids uuid[], p_leases bigint[])
returns table (command_id uuid, lease_epoch bigint)
language plpgsql as $$
begin
    if not commandbus.queue_exists(p_domain || '.commands') then
        return;
    end if;
    return query execute format(
        'with item as materialized ('
        '    select $1 as domain, u.command_id, u.lease_epoch from unnest($2, $3) u(command_id, lease_epoch))'
        ' select c.command_id, c.lease_epoch'
        '   from item i'
        '   join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id'
        '   join pgmq.%I q on q.msg_id = c.msg_id'
        '  where c.lease_epoch = i.lease_epoch and starts_with(c.leased_by, ''handover:'')'
        '    and c.status in (''PENDING'', ''IN_PROGRESS'') and q.vt > clock_timestamp()',
        'q_' || commandbus.physical_queue(p_domain || '.commands'))
      using p_domain, p_command_ids, p_leases;
end $$;
