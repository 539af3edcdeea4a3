-- Batches: counters move in the transaction that moves the commands, many commands at a time.
--
-- Counters depend only on the class of the old and the new state: open, tsq, completed, failed,
-- canceled; never on whether a command was marked IN_PROGRESS. The batch rows are locked in the
-- order of their ids, after messages and commands, so two groups cannot deadlock on them.

-- Moves one command of each listed batch from one class to another (a batch may be listed many
-- times, nulls are commands without a batch), closes the batches that are thereby done, and reopens
-- those that were.
create or replace function commandbus.move_batch_counters(
    p_batch_ids uuid[], p_from text, p_to text, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_now      timestamptz := clock_timestamp();
    v_done     uuid[];
    v_reopened uuid[];
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
               failed_count = b.failed_count
                   + case when p_to = 'failed' then l.n when p_from = 'failed' then -l.n else 0 end,
               in_troubleshooting_count = b.in_troubleshooting_count
                   + case when p_to = 'tsq' then l.n when p_from = 'tsq' then -l.n else 0 end,
               -- Strictly growing: two states of a batch never look the same.
               updated_at = greatest(b.updated_at + interval '1 microsecond', v_now)
          from locked l
         where b.batch_id = l.batch_id
        returning b.batch_id, b.completed_at,
                  b.completed_count + b.failed_count + b.canceled_count = b.total_count as is_done,
                  b.total_sealed
    )
    select array_agg(c.batch_id) filter (where c.is_done and c.total_sealed and c.completed_at is null),
           array_agg(c.batch_id) filter (where not c.is_done and c.completed_at is not null)
      into v_done, v_reopened from changed c;
    if v_done is not null then
        perform commandbus.close_batches(v_done, v_now, p_actor);
    end if;
    if v_reopened is not null then
        -- Under the lock of the batch: once it is marked, retention may take its commands.
        perform commandbus.refuse_moved_batch(r) from unnest(v_reopened) r;
        with opened as (
            update commandbus.command_bus_batch b set status = 'IN_PROGRESS', completed_at = null
             where b.batch_id = any(v_reopened)
            returning b.domain, b.batch_id
        )
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, batch_id, actor)
        select o.domain, o.batch_id, 'BATCH_REOPENED', v_now, o.batch_id, p_actor from opened o;
    end if;
end $$;

-- The status of a batch at its end. p_not_completed: how many commands failed or were canceled. What a
-- canceled load did not bring is missing, even if everything before it completed.
create or replace function commandbus.ended_status(p_batch_id uuid, p_not_completed int) returns text
language sql stable as $$
    select case when p_not_completed > 0
                     or exists (select from commandbus.command_bus_load l
                                 where l.batch_id = p_batch_id and l.status = 'canceled')
                then 'COMPLETED_WITH_FAILURES' else 'COMPLETED' end
$$;

-- Closes batches whose commands have all ended; the rows are locked by the caller. The command that
-- a batch asked for at its end is sent in this very commit, under an id that only this closing has. Who knows
-- the batch can compute that id and send another command under it before: that must not keep the batch open, and
-- the worker in a circle with everything that it completes at once. The audit says so.
--   p_actor: whose decision ended the last command, if it was somebody's
create or replace function commandbus.close_batches(
    p_batch_ids uuid[], p_now timestamptz, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_batch commandbus.command_bus_batch;
    v_known uuid[];
    v_is_elsewhere boolean;
begin
    for v_batch in
        update commandbus.command_bus_batch b
           set status = commandbus.ended_status(b.batch_id, b.failed_count + b.canceled_count),
               started_at = coalesce(b.started_at, p_now),
               completed_at = p_now,
               close_count = b.close_count + 1
         where b.batch_id = any(p_batch_ids) and b.completed_at is null
        returning b.*
    loop
        v_known := '{}';
        v_is_elsewhere := v_batch.on_complete is not null and exists (
            select from commandbus.command_bus_shard s
             where commandbus.shard_of(s, v_batch.on_complete ->> 'domain') is distinct from s.shard);
        if v_batch.on_complete is not null and not v_is_elsewhere then
            -- also into a domain that a move has closed: what has begun before it ends
            perform set_config('commandbus_move.ends', v_batch.on_complete ->> 'domain', true);
            v_known := commandbus.offer_commands(
                v_batch.on_complete ->> 'domain',
                jsonb_build_array(v_batch.on_complete || jsonb_build_object(
                    'command_id', commandbus.closing_command_id(v_batch.batch_id, v_batch.close_count),
                    'correlation_id', v_batch.batch_id)), null, p_actor);
            perform set_config('commandbus_move.ends', '', true);
        end if;
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        values (v_batch.domain, v_batch.batch_id, 'BATCH_COMPLETED', p_now,
                jsonb_build_object(
                    'status', v_batch.status, 'total', v_batch.total_count,
                    'completed', v_batch.completed_count, 'failed', v_batch.failed_count,
                    'canceled', v_batch.canceled_count)
                    || case when v_is_elsewhere then jsonb_build_object('closing_command', 'its domain is on another shard')
                            when v_known = '{}' then '{}'::jsonb
                            else jsonb_build_object('closing_command', 'its id was taken') end,
                v_batch.batch_id, p_actor);
        if v_batch.notifies then
            perform pg_notify(commandbus.channel(v_batch.domain || '.batches'),
                              v_batch.batch_id::text);
        end if;
    end loop;
end $$;

-- Refuses a command for the end of a batch that could not be sent then: it would keep the batch open.
create or replace function commandbus.check_on_complete(p_on_complete jsonb) returns void
language plpgsql as $$
begin
    if p_on_complete is null then
        return;
    end if;
    perform commandbus.check_domain(p_on_complete ->> 'domain');
    -- Shared, as check_shard does: who changes the map counts the batches after us.
    perform 1 from commandbus.command_bus_shard s
      where commandbus.shard_of(s, p_on_complete ->> 'domain') is distinct from s.shard for share;
    if found then
        raise exception 'the command for the end of a batch is of domain %, which is on another shard',
            quote_literal(p_on_complete ->> 'domain')
            using errcode = 'CB003',
                  hint = 'it is sent in the transaction that ends the batch; send it from a handler, or from the application';
    end if;
    if p_on_complete ->> 'type' is null then
        raise exception 'the command for the end of a batch has no type' using errcode = 'CB005';
    end if;
    if p_on_complete ->> 'ordering_key' is not null then
        raise exception 'the command for the end of a batch has an ordering_key'
            using errcode = 'CB005',
                  hint = 'it is sent by the worker that ends the batch, which must not wait for a key';
    end if;
    if coalesce(p_on_complete ->> 'reply_to', '') not in ('', '@inbox') then
        perform commandbus.check_reply_name(p_on_complete ->> 'reply_to');
    end if;
    perform (p_on_complete ->> 'max_attempts')::int;
end $$;

-- Where the command of the n-th closing of a batch is found.
create or replace function commandbus.closing_command_id(p_batch_id uuid, p_closing int) returns uuid
language sql immutable as $$ select md5(p_batch_id::text || '/' || p_closing)::uuid $$;

-- Creates a batch with its commands, all or nothing; returns the ids that were sent before, as
-- offer_commands does, and then nothing was created.
--   p_on_complete: {"domain", "type", "data", "reply_to"?, "max_attempts"?}
--   p_actor: who sends, for the audit; null: who creates it
create or replace function commandbus.create_batch(
    p_domain text, p_batch_id uuid, p_commands jsonb, p_name text default null,
    p_custom_data jsonb default null, p_created_by text default null,
    p_on_complete jsonb default null, p_notifies boolean default false, p_actor text default null
) returns uuid[]
language plpgsql as $$
declare
    v_began timestamptz := clock_timestamp();
    v_spent double precision;
    v_known uuid[];
begin
    perform commandbus.check_domain(p_domain);
    if p_on_complete is not null then
        perform commandbus.check_shard(p_domain);       -- first: the batch is sent again where its domain is
    end if;
    perform commandbus.check_on_complete(p_on_complete);
    insert into commandbus.command_bus_batch (
        batch_id, domain, name, custom_data, total_count, created_by, on_complete, notifies)
    values (p_batch_id, p_domain, p_name, p_custom_data, jsonb_array_length(p_commands),
            p_created_by, p_on_complete, p_notifies);
    v_known := commandbus.offer_commands(
        p_domain, p_commands, p_batch_id, coalesce(p_actor, p_created_by), 0);
    if v_known <> '{}' then
        delete from commandbus.command_bus_batch b where b.batch_id = p_batch_id;
        return v_known;
    end if;
    -- Rows and messages are one step here: there is no time of sending to tell from it.
    v_spent := commandbus.milliseconds_since(v_began);
    insert into commandbus.command_bus_creation_metric (
        batch_id, pattern, batch_size, db_insert_ms, queue_send_ms, status_update_ms, total_ms,
        retry_needed)
    values (p_batch_id, 'inline', jsonb_array_length(p_commands), v_spent, 0, 0, v_spent, false);
    return v_known;
end $$;

-- Cancels what nobody works on; what a worker holds goes on. A load that is open is canceled with the
-- first call: nothing more can be loaded. Returns how many commands were canceled: call it again until it
-- is 0.
create or replace function commandbus.cancel_batch(
    p_domain text, p_batch_id uuid, p_reason text, p_actor text default null, p_limit int default 5000
) returns int
language plpgsql as $$
declare
    v_was_open boolean;
    v_count    int;
begin
    perform commandbus.require_batch(p_domain, p_batch_id);
    perform commandbus.claim_ticket(p_batch_id);
    v_was_open := commandbus.cancel_load(p_domain, p_batch_id, p_reason, p_actor);
    v_count := (select count(*) from commandbus.cancel_commands(
        p_domain,
        array(select c.command_id from commandbus.command_bus_command c
               where c.batch_id = p_batch_id and c.domain = p_domain
                 and c.status = 'PENDING' and c.leased_by is null
               order by c.sequence_no limit p_limit),
        p_reason, p_actor, false));
    if v_was_open then
        perform commandbus.seal_total(p_batch_id, clock_timestamp(), p_actor);
    end if;
    return v_count;
end $$;

-- Sends again what failed: the parked and the FAILED ones. A batch that was finished is open again,
-- and closes, and calls back, once more. A second click finds nothing to do and returns 0.
create or replace function commandbus.retry_batch(
    p_domain text, p_batch_id uuid, p_actor text default null, p_limit int default 5000
) returns int
language plpgsql as $$
begin
    -- no part of the audit is dropped while its trails come alive again
    perform pg_advisory_xact_lock_shared(hashtextextended('commandbus.audit.trails', 0));
    perform commandbus.require_batch(p_domain, p_batch_id);
    perform commandbus.refuse_moved_batch(p_batch_id);
    perform commandbus.claim_ticket(p_batch_id);
    return (select count(*) from commandbus.requeue_commands(
        p_domain,
        array(select c.command_id from commandbus.command_bus_command c
               where c.batch_id = p_batch_id and c.domain = p_domain
                 and c.status in ('IN_TROUBLESHOOTING_QUEUE', 'FAILED')
               order by c.sequence_no limit p_limit),
        array['IN_TROUBLESHOOTING_QUEUE', 'FAILED'], p_actor, true));
end $$;

-- An error if the domain has no such batch.
create or replace function commandbus.require_batch(p_domain text, p_batch_id uuid) returns void
language plpgsql as $$
begin
    if not exists (select from commandbus.command_bus_batch b
                    where b.batch_id = p_batch_id and b.domain = p_domain) then
        raise exception 'no batch % in domain %', p_batch_id, quote_literal(p_domain)
            using errcode = 'CB004', detail = p_batch_id::text;
    end if;
end $$;

-- New commands join a batch: it must exist in this domain and must not be finished.
create or replace function commandbus.join_batch(p_domain text, p_batch_id uuid, p_count int) returns void
language plpgsql as $$
begin
    update commandbus.command_bus_batch b
       set total_count = b.total_count + p_count, updated_at = clock_timestamp()
     where b.batch_id = p_batch_id and b.domain = p_domain and b.completed_at is null
       and b.batch_type is null;
    if found then
        return;
    end if;
    -- What a governed batch consists of was checked, limited and perhaps approved as a whole.
    if exists (select from commandbus.command_bus_batch b
                where b.batch_id = p_batch_id and b.domain = p_domain and b.batch_type is not null) then
        raise exception 'batch % is governed: nothing can be added to it', p_batch_id
            using errcode = 'CB003', hint = 'submit another batch';
    end if;
    if exists (select from commandbus.command_bus_batch b
                where b.batch_id = p_batch_id and b.domain = p_domain) then
        raise exception 'batch % is finished', p_batch_id
            using errcode = 'CB003', hint = 'create a new batch for further commands';
    end if;
    raise exception 'no batch % in domain %', p_batch_id, quote_literal(p_domain)
        using errcode = 'CB004', detail = p_batch_id::text;
end $$;

-- The commands of a batch in their order, and `place`, which is their number, or 2147483647 for those that
-- were sent into it later. To go on, give the place, created_at and the id of the last row; or only a
-- number, to begin there.
-- The status has no index. A look for one goes over p_scan numbers at most; a last row without a command
-- says at which number the next look begins.
create or replace function commandbus.page_batch_commands(
    p_domain text, p_batch_id uuid, p_status text, p_from int, p_from_at timestamptz, p_from_id uuid,
    p_limit int, p_scan int default 20000
) returns table (place int, command commandbus.command_bus_command, moved_at timestamptz)
language plpgsql stable as $$
declare
    c_last constant int := 2147483647;
    v_next int;
    v_rows int;
    v_all  bigint;
    v_went boolean;        -- its commands are in the history, or on their way there
begin
    select b.pruning_since is not null, case p_status when 'COMPLETED' then b.completed_count when 'FAILED' then b.failed_count
                         when 'CANCELED' then b.canceled_count
                         when 'IN_TROUBLESHOOTING_QUEUE' then b.in_troubleshooting_count
                         else b.total_count - b.completed_count - b.failed_count - b.canceled_count
                              - b.in_troubleshooting_count end
      into v_went, v_all from commandbus.command_bus_batch b
     where b.batch_id = p_batch_id and b.domain = p_domain;
    if not found or p_status is not null and v_all = 0 then
        return; -- the counters are those of the same snapshot
    end if;
    if p_status is not null then
        select c.sequence_no into v_next from commandbus.command_bus_command c
         where c.batch_id = p_batch_id and c.sequence_no >= coalesce(p_from, -c_last)
         order by c.sequence_no offset p_scan limit 1;
        if v_went and v_next is null then
            v_next := (select h.sequence_no from commandbus.command_bus_history h
                        where h.batch_id = p_batch_id and h.domain = p_domain
                          and h.sequence_no >= coalesce(p_from, -c_last)
                        order by h.sequence_no offset p_scan limit 1);
        end if;
    end if;
    return query
    select (k.c).sequence_no, k.c, k.moved_at from (
        (select c, null::timestamptz as moved_at from commandbus.command_bus_command c
          where c.batch_id = p_batch_id and c.domain is not distinct from p_domain
            and c.sequence_no >= coalesce(p_from, -c_last)
            and (v_next is null or c.sequence_no < v_next)
            and (p_from_at is null
                 or (c.sequence_no, c.created_at, c.command_id) > (p_from, p_from_at, p_from_id))
            and (p_status is null or c.status = p_status)
          order by c.sequence_no, c.created_at, c.command_id limit p_limit)
        union all
        select m.command, m.moved_at from commandbus.moved_children(
               p_domain, p_batch_id, p_status, coalesce(p_from, -c_last), p_from_at, p_from_id, v_next, p_limit) m
         where v_went) k
     order by (k.c).sequence_no, (k.c).created_at, (k.c).command_id limit p_limit;
    get diagnostics v_rows = row_count;
    if v_rows >= p_limit or p_from is null and p_status not in ('PENDING', 'IN_PROGRESS')
                            and v_rows = v_all then
        return; -- the page is full, or this is all that there is
    end if;
    if v_next is not null then
        place := v_next;
        command := null;
        return next;
        return;
    end if;
    if p_from is distinct from c_last then
        p_from_at := null;
    end if;
    return query
    select c_last, k.c, k.moved_at from (
        (select c, null::timestamptz as moved_at from commandbus.command_bus_command c
          where c.batch_id = p_batch_id and c.domain is not distinct from p_domain
            and c.sequence_no is null
            and (p_from_at is null or (c.created_at, c.command_id) > (p_from_at, p_from_id))
            and (p_status is null or c.status = p_status)
          order by c.created_at, c.command_id limit p_limit - v_rows)
        union all
        select m.command, m.moved_at from commandbus.moved_children(
               p_domain, p_batch_id, p_status, null, p_from_at, p_from_id, null, p_limit - v_rows) m
         where v_went) k
     order by (k.c).created_at, (k.c).command_id limit p_limit - v_rows;
end $$;
