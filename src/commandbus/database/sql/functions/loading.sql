-- Loading: batches that are too large for one transaction, committed in checkpoints.
--
-- A load is a batch whose total is not sealed, so it cannot end while it grows. Each checkpoint is
-- one transaction: its commands, the total, and its own record with a digest of its rows. So a
-- loader that was cut off sends the checkpoint again, and it is there once. start_mode says what
-- becomes of the commands: 'as_it_loads' queues them with their checkpoint; 'sealed' only
-- stores them (dispatch.sql) until the whole source is in, so a bad row half-way has started nothing.
--
-- The row of the load is the first lock, taken by loaders and by who ends a load; then the order of
-- locks.sql. A failed load may go on: its next checkpoint, or its seal, makes it whole again. Two ends are
-- for good: 'sealed' (what is there is the whole) and 'canceled'. A loader that is still at work meets
-- them at its next checkpoint, which is then refused.

-- The load of a batch, locked; an error if there is none.
create or replace function commandbus.lock_load(p_domain text, p_batch_id uuid)
returns commandbus.command_bus_load
language plpgsql as $$
declare
    v_load commandbus.command_bus_load;
begin
    select * into v_load from commandbus.command_bus_load l
     where l.batch_id = p_batch_id and l.domain = p_domain for update;
    if not found then
        perform commandbus.check_shard(p_domain);       -- it may have moved, with its load
        perform commandbus.require_batch(p_domain, p_batch_id);
        raise exception 'batch % was not made by `bus.loads.load`', p_batch_id
            using errcode = 'CB003', hint = 'load into a new batch';
    end if;
    return v_load;
end $$;

-- An error if nothing can be added to the load any more.
create or replace function commandbus.require_open_load(p_load commandbus.command_bus_load) returns void
language plpgsql as $$
begin
    if p_load.status = 'sealed' then
        raise exception 'the load of batch % is complete: it was sealed with % rows', p_load.batch_id,
            p_load.rows_committed
            using errcode = 'CB003', hint = 'load further rows into a new batch';
    end if;
    perform commandbus.refuse_canceled_load(p_load);
end $$;

-- An error if the load was canceled.
create or replace function commandbus.refuse_canceled_load(p_load commandbus.command_bus_load) returns void
language plpgsql as $$
begin
    if p_load.status = 'canceled' then
        raise exception 'the load of batch % was canceled after % rows', p_load.batch_id,
            p_load.rows_committed
            using errcode = 'CB003', hint = 'load the source into a new batch';
    end if;
end $$;

-- Creates the batch of a load, or finds that it is there already, begun in the same way.
create or replace function commandbus.begin_load(
    p_domain text, p_batch_id uuid, p_source text, p_row_format jsonb, p_start_mode text,
    p_checkpoint_size int default null, p_name text default null, p_custom_data jsonb default null,
    p_created_by text default null, p_on_complete jsonb default null,
    p_notifies boolean default false, p_delimiter text default null, p_options jsonb default null
) returns void
language plpgsql as $$
declare
    v_load commandbus.command_bus_load;
begin
    perform commandbus.check_domain(p_domain);
    perform commandbus.check_shard(p_domain);
    perform commandbus.check_on_complete(p_on_complete);
    insert into commandbus.command_bus_batch (
        batch_id, domain, name, custom_data, created_by, on_complete, notifies, total_sealed)
    values (p_batch_id, p_domain, p_name, p_custom_data, p_created_by, p_on_complete, p_notifies, false)
    -- By whichever unique index notices first that another loader has just made it.
    on conflict do nothing;
    if found then
        insert into commandbus.command_bus_load (
            batch_id, domain, source, row_format, start_mode, checkpoint_size, delimiter, options)
        values (p_batch_id, p_domain, p_source, p_row_format, p_start_mode, p_checkpoint_size,
                p_delimiter, p_options);
        return;
    end if;
    v_load := commandbus.lock_load(p_domain, p_batch_id);
    perform commandbus.refuse_canceled_load(v_load);
    if v_load.start_mode <> p_start_mode or v_load.row_format <> p_row_format
            or v_load.delimiter is distinct from p_delimiter
            or v_load.options is distinct from p_options then
        raise exception 'batch % was begun with other options (start %, rows %)', p_batch_id,
            v_load.start_mode, v_load.row_format
            using errcode = 'CB003', hint = 'repeat them, or use `bus.loads.resume`, which knows them';
    end if;
end $$;

-- How many rows the source of a load has, for those who look; a source without length does not say.
create or replace function commandbus.note_load_total(p_domain text, p_batch_id uuid, p_total int) returns void
language sql as $$
    update commandbus.command_bus_load l set rows_total = greatest(p_total, 0)
     where l.batch_id = p_batch_id and l.domain = p_domain and l.status in ('loading', 'failed')
$$;

-- Commits one checkpoint, or says that it was there: 'committed', 'repeated'.
--   p_commands: as offer_commands takes them; p_first_row counts from 1 through the whole source.
--   p_actor: who sends, for the audit; null: who created the batch
create or replace function commandbus.load_chunk(
    p_domain text, p_batch_id uuid, p_checkpoint_no int, p_first_row int, p_commands jsonb,
    p_digest bytea, p_actor text default null
) returns text
language plpgsql as $$
declare
    v_load  commandbus.command_bus_load := commandbus.lock_load(p_domain, p_batch_id);
    v_count int := jsonb_array_length(p_commands);
    v_began timestamptz := clock_timestamp();
    v_there commandbus.command_bus_load_checkpoint;
    v_actor text;
    v_known uuid[];
begin
    select * into v_there from commandbus.command_bus_load_checkpoint c
     where c.batch_id = p_batch_id and c.checkpoint_no = p_checkpoint_no;
    if found then
        if v_there.first_row = p_first_row and v_there.digest = p_digest then
            return 'repeated';
        end if;
        raise exception 'checkpoint % of batch % is there with other rows', p_checkpoint_no, p_batch_id
            using errcode = 'CB003', hint = 'another process loads it; look at it with `bus.loads.get`';
    end if;
    perform commandbus.require_open_load(v_load);
    if p_checkpoint_no <> v_load.checkpoints_done + 1 or p_first_row <> v_load.rows_committed + 1 then
        raise exception 'checkpoint % with row % does not follow checkpoint % with row % of batch %',
            p_checkpoint_no, p_first_row, v_load.checkpoints_done, v_load.rows_committed, p_batch_id
            using errcode = 'CB003', hint = 'resume from the last checkpoint';
    end if;
    select coalesce(p_actor, b.created_by) into v_actor from commandbus.command_bus_batch b
     where b.batch_id = p_batch_id;
    if v_load.start_mode = 'sealed' then
        v_known := commandbus.store_commands(
            p_domain, p_commands, p_batch_id, 'scheduled', v_load.rows_committed, v_actor);
    else
        v_known := commandbus.offer_commands(
            p_domain, p_commands, p_batch_id, v_actor, v_load.rows_committed);
    end if;
    if v_known <> '{}' then
        raise exception 'already sent in domain %: %', quote_literal(p_domain),
            array_to_string(v_known[1:5], ', ')
            using errcode = 'CB001', detail = array_to_json(v_known)::text,
                  hint = 'nothing of this checkpoint was created';
    end if;
    perform commandbus.join_batch(p_domain, p_batch_id, v_count);
    insert into commandbus.command_bus_load_checkpoint (
        batch_id, checkpoint_no, first_row, row_count, digest)
    values (p_batch_id, p_checkpoint_no, p_first_row, v_count, p_digest);
    update commandbus.command_bus_load l
       set rows_committed = l.rows_committed + v_count, checkpoints_done = p_checkpoint_no,
           status = 'loading', last_error = null, updated_at = clock_timestamp(),
           insert_ms = l.insert_ms + commandbus.milliseconds_since(v_began)
     where l.batch_id = p_batch_id;
    return 'committed';
end $$;

-- The source ended after p_rows rows, or (null) somebody takes what is there for the whole: the batch may
-- end from now on, and does so here if all its commands have ended already, or if it has none. A second
-- seal changes nothing.
create or replace function commandbus.seal_load(
    p_domain text, p_batch_id uuid, p_rows int default null, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_load  commandbus.command_bus_load := commandbus.lock_load(p_domain, p_batch_id);
begin
    perform commandbus.refuse_canceled_load(v_load);
    if v_load.rows_committed <> p_rows then
        raise exception 'batch % has % rows and the source %', p_batch_id, v_load.rows_committed, p_rows
            using errcode = 'CB003', hint = 'another loader is at work, or the source has changed';
    end if;
    if v_load.status = 'sealed' then
        return;
    end if;
    update commandbus.command_bus_load l
       set status = 'sealed', last_error = null, updated_at = v_now,
           rows_dispatched = case l.start_mode when 'sealed' then 0 else l.rows_committed end
     where l.batch_id = p_batch_id;
    if p_rows is null then
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id, actor)
        values (p_domain, p_batch_id, 'BATCH_SEALED', v_now, jsonb_strip_nulls(jsonb_build_object(
                    'rows', v_load.rows_committed, 'last_error', v_load.last_error)),
                p_batch_id, p_actor);
    end if;
    perform commandbus.seal_total(p_batch_id, v_now, p_actor);
    insert into commandbus.command_bus_creation_metric (
        batch_id, pattern, batch_size, db_insert_ms, queue_send_ms, status_update_ms, total_ms,
        retry_needed)
    values (p_batch_id, 'checkpoint', v_load.rows_committed, v_load.insert_ms, 0,
            commandbus.milliseconds_since(v_now), commandbus.milliseconds_since(v_load.created_at),
            false);
end $$;

-- The batch of a load grows no more: it may end, and ends here if nothing of it is open.
create or replace function commandbus.seal_total(
    p_batch_id uuid, p_now timestamptz, p_actor text default null
) returns void
language plpgsql as $$
declare
    v_batch commandbus.command_bus_batch;
begin
    update commandbus.command_bus_batch b
       set total_sealed = true, updated_at = greatest(b.updated_at + interval '1 microsecond', p_now)
     where b.batch_id = p_batch_id
    returning b.* into v_batch;
    if v_batch.completed_at is null and v_batch.total_count
           = v_batch.completed_count + v_batch.failed_count + v_batch.canceled_count then
        perform commandbus.close_batches(array[p_batch_id], p_now, p_actor);
    end if;
end $$;

-- For cancel_batch, first: an open load is canceled for good. True if it was open; then seal_total must
-- follow, after the commands (the batch is locked after them). The lock of the load makes a checkpoint
-- that is on its way come before all of this, or be refused.
create or replace function commandbus.cancel_load(
    p_domain text, p_batch_id uuid, p_reason text, p_actor text
) returns boolean
language plpgsql as $$
declare
    v_now    timestamptz;
    v_status text;
    v_rows   int;
begin
    select l.status, l.rows_committed into v_status, v_rows from commandbus.command_bus_load l
     where l.batch_id = p_batch_id and l.domain = p_domain for update;
    if not found or v_status not in ('loading', 'failed') then
        return false;
    end if;
    v_now := clock_timestamp();
    update commandbus.command_bus_load l
       set status = 'canceled', last_error = p_reason, updated_at = v_now
     where l.batch_id = p_batch_id;
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    values (p_domain, p_batch_id, 'BATCH_CANCELED', v_now,
            jsonb_build_object('rows', v_rows, 'reason', p_reason), p_batch_id, p_actor);
    return true;
end $$;

-- Queues the stored commands of the next p_limit rows of a sealed load; returns how many rows are
-- behind it now. Who goes on after a crash, the loader or a chore, finds the rest.
create or replace function commandbus.dispatch_load(p_domain text, p_batch_id uuid, p_limit int) returns int
language plpgsql as $$
declare
    v_load commandbus.command_bus_load := commandbus.lock_load(p_domain, p_batch_id);
    v_last int := least(v_load.rows_dispatched + p_limit, v_load.rows_committed);
    v_began timestamptz := clock_timestamp();
    v_ids  uuid[];
begin
    perform commandbus.refuse_canceled_load(v_load);
    if v_load.status <> 'sealed' then
        raise exception 'the load of batch % is not complete', p_batch_id
            using errcode = 'CB003', hint = 'resume it first';
    end if;
    if v_last = v_load.rows_dispatched then
        return v_last;
    end if;
    -- By their numbers, which an index has: a search by state would step over all that is done.
    v_ids := array(select c.command_id from commandbus.command_bus_command c
                    where c.batch_id = p_batch_id and c.sequence_no > v_load.rows_dispatched
                      and c.sequence_no <= v_last);
    -- Waits for a session that cancels some of them just now; queue_stored would leave those out.
    perform commandbus.lock_commands(p_domain, v_ids);
    perform commandbus.queue_stored(p_domain, v_ids, array['scheduled']);
    update commandbus.command_bus_load l
       set rows_dispatched = v_last, updated_at = clock_timestamp() where l.batch_id = p_batch_id;
    update commandbus.command_bus_creation_metric m
       set queue_send_ms = m.queue_send_ms + commandbus.milliseconds_since(v_began),
           total_ms = commandbus.milliseconds_since(v_load.created_at)
     where m.batch_id = p_batch_id;
    return v_last;
end $$;

-- Notes why a load stopped; what it committed stays, and it can be resumed.
create or replace function commandbus.fail_load(p_domain text, p_batch_id uuid, p_error text) returns void
language sql as $$
    update commandbus.command_bus_load l
       set status = 'failed', last_error = p_error, updated_at = clock_timestamp()
     where l.batch_id = p_batch_id and l.domain = p_domain and l.status in ('loading', 'failed')
$$;
