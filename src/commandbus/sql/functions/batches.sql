-- Batches: counters move in the transaction that moves the commands, many commands at a time.
--
-- Counters depend only on the class of the old and the new state: open, tsq, completed, failed,
-- canceled; never on whether a command was marked IN_PROGRESS. The batch rows are locked in the
-- order of their ids, after messages and commands, so two groups cannot deadlock on them.

-- Moves one command of each listed batch from one class to another (a batch may be listed many
-- times, nulls are commands without a batch) and closes the batches that are thereby done.
create or replace function commandbus.move_batch_counters(
    p_batch_ids uuid[], p_from text, p_to text
) returns void
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    if array_remove(p_batch_ids, null) = '{}' then
        return;
    end if;
    with moved as (
        select id, count(*)::int as n from unnest(p_batch_ids) id where id is not null group by id
    ), locked as (
        select b.batch_id, m.n from commandbus.command_bus_batch b join moved m on m.id = b.batch_id
         order by b.batch_id for update of b
    ), changed as (
        update commandbus.command_bus_batch b
           set completed_count = b.completed_count + case p_to when 'completed' then l.n else 0 end,
               canceled_count = b.canceled_count + case p_to when 'canceled' then l.n else 0 end,
               failed_count = b.failed_count + case p_to when 'failed' then l.n else 0 end,
               in_troubleshooting_count = b.in_troubleshooting_count
                   + case when p_to = 'tsq' then l.n when p_from = 'tsq' then -l.n else 0 end
          from locked l
         where b.batch_id = l.batch_id
        returning b.batch_id, b.completed_count + b.failed_count + b.canceled_count = b.total_count
                  and b.total_sealed and b.completed_at is null as is_done
    )
    select array_agg(batch_id order by batch_id) from changed where is_done into p_batch_ids;
    if p_batch_ids is not null then
        perform commandbus.close_batches(p_batch_ids, v_now);
    end if;
end $$;

-- Closes batches whose commands have all ended. The rows are locked by the caller.
create or replace function commandbus.close_batches(p_batch_ids uuid[], p_now timestamptz) returns void
language plpgsql as $$
begin
    with closed as (
        update commandbus.command_bus_batch b
           set status = case when b.failed_count + b.canceled_count > 0
                             then 'COMPLETED_WITH_FAILURES' else 'COMPLETED' end,
               started_at = coalesce(b.started_at, p_now),
               completed_at = p_now
         where b.batch_id = any(p_batch_ids) and b.completed_at is null
        returning b.*
    )
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, batch_id)
    select c.domain, c.batch_id, 'BATCH_COMPLETED', p_now,
           jsonb_build_object('status', c.status, 'total', c.total_count,
                              'completed', c.completed_count, 'failed', c.failed_count,
                              'canceled', c.canceled_count), c.batch_id
      from closed c;
end $$;

-- New commands join a batch: it must exist in this domain and must not be finished.
create or replace function commandbus.join_batch(p_domain text, p_batch_id uuid, p_count int) returns void
language plpgsql as $$
begin
    update commandbus.command_bus_batch b set total_count = b.total_count + p_count
     where b.batch_id = p_batch_id and b.domain = p_domain and b.completed_at is null;
    if found then
        return;
    end if;
    if exists (select from commandbus.command_bus_batch b
                where b.batch_id = p_batch_id and b.domain = p_domain) then
        raise exception 'batch % is finished', p_batch_id
            using errcode = 'CB003', hint = 'create a new batch for further commands';
    end if;
    raise exception 'no batch % in domain %', p_batch_id, quote_literal(p_domain)
        using errcode = 'CB004', detail = p_batch_id::text;
end $$;
