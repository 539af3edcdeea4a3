-- What holds a batch open, and what went wrong in it. These functions only read, and read no more because the
-- batch is larger.

-- Beside the counters of a batch. `unqueued`: stored, and not in a queue yet; counted up to 10,001.
create or replace function commandbus.batch_facts(p_domain text, p_batch_id uuid)
returns table (is_undecided boolean, is_sealed boolean, unqueued int, workers int, is_paused boolean)
language sql stable as $$
    select coalesce(b.requires_approval, false) and b.decision is null and b.completed_at is null,
           b.total_sealed,
           (select count(*)::int from (
               select from commandbus.command_bus_command c
                where c.batch_id = b.batch_id and c.dispatch_status <> 'queued' and c.status = 'PENDING'
                limit 10001) u),
           (select count(*)::int from commandbus.command_bus_worker w
             where w.domain = b.domain and w.heartbeat_at > clock_timestamp() - interval '60 seconds'),
           exists (select from commandbus.paused_domains(array[b.domain::text]))
      from commandbus.command_bus_batch b
     where b.batch_id = p_batch_id and b.domain = p_domain
$$;

-- What happens when a batch closes: its command, if it has one, and whether a process waits to be told. The
-- command has an id before it is sent; is_sent: that of the last closing is there.
create or replace function commandbus.batch_ending(p_domain text, p_batch_id uuid)
returns table (domain text, command_type text, command_id uuid, is_sent boolean, notifies boolean)
language sql stable as $$
    select b.on_complete ->> 'domain', b.on_complete ->> 'type', n.command_id,
           exists (select from commandbus.known_command(b.on_complete ->> 'domain', n.command_id)),
           b.notifies
      from commandbus.command_bus_batch b
     cross join lateral (
        select case when b.on_complete is not null
                    then commandbus.closing_command_id(b.batch_id, greatest(b.close_count, 1))
               end as command_id) n
     where b.batch_id = p_batch_id and b.domain = p_domain
$$;

-- What failed or is parked of a batch, by error code: of its first p_scan commands, and of them p_failed failed
-- ones at most.
create or replace function commandbus.batch_errors(
    p_domain text, p_batch_id uuid, p_scan int default 100000, p_failed int default 10000
) returns table (code text, parked bigint, failed bigint, sample_command_id uuid, sample_message text)
language sql stable as $$
    with looked as materialized (
        (select c.command_id, c.status, c.last_error_code, c.last_error_msg, c.sequence_no
           from commandbus.command_bus_command c
          where c.batch_id = p_batch_id and c.domain is not distinct from p_domain
          order by c.sequence_no limit p_scan)
        union all
        (select h.command_id, h.status, h.last_error_code, h.last_error_msg, h.sequence_no
           from commandbus.command_bus_history h
          where h.batch_id = (select b.batch_id from commandbus.command_bus_batch b
                               where b.batch_id = p_batch_id and b.pruning_since is not null)
            and h.domain is not distinct from p_domain
          order by h.sequence_no limit p_scan)
    ), found as (
        (select * from looked l where l.status = 'IN_TROUBLESHOOTING_QUEUE')
        union all
        (select * from looked l where l.status = 'FAILED' limit p_failed)
    )
    select f.last_error_code, count(*) filter (where f.status <> 'FAILED'),
           count(*) filter (where f.status = 'FAILED'),
           (array_agg(f.command_id order by f.sequence_no))[1],
           (array_agg(f.last_error_msg order by f.sequence_no))[1]
      from found f group by f.last_error_code
     order by count(*) desc, f.last_error_code limit 200
$$;

-- retry_batch, with the reason in the audit of the batch.
create or replace function commandbus.retry_batch_because(
    p_domain text, p_batch_id uuid, p_reason text, p_actor text default null
) returns int
language plpgsql as $$
declare
    v_retried int := commandbus.retry_batch(p_domain, p_batch_id, p_actor, 10000000);
begin
    if v_retried > 0 then
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        values (p_domain, p_batch_id, 'BATCH_RETRIED', clock_timestamp(),
                jsonb_build_object('children', v_retried, 'reason', p_reason), p_batch_id, p_actor);
    end if;
    return v_retried;
end $$;
