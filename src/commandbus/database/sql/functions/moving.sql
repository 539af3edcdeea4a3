-- Moves: a domain goes from this database to another with all that belongs to it (docs/adr/0091). What is here is the
-- record of a move, and what keeps a domain still while it is compared; moving_parts.sql has what is carried.
--
-- A program drives a move, and may end at any point: what it does is decided by the two records and by comparing the
-- databases, so the same call goes on. Lock order: the record of the move first.

-- Its record here, locked, and from now to the end of the transaction we may change what is frozen.
create or replace function commandbus.require_move(p_move_id uuid, p_is_leaving boolean)
returns commandbus.command_bus_move
language plpgsql as $$
declare
    v_move commandbus.command_bus_move;
begin
    select * into v_move from commandbus.command_bus_move m
     where m.move_id = p_move_id and m.is_leaving = p_is_leaving and m.finished_at is null for update;
    if not found then
        raise exception 'no such move is going on here' using errcode = 'CB002', detail = p_move_id::text;
    elsif not p_is_leaving and v_move.phase not in ('copying', 'closing') then
        raise exception 'the copy of domain % is complete, and is not changed any more', quote_literal(v_move.domain)
            using errcode = 'CB003';
    end if;
    perform set_config('commandbus_move.domain', v_move.domain, true);
    return v_move;
end $$;

-- The same for those who remove: what has left here, and copies of a domain that does not come, or not yet.
create or replace function commandbus.require_removal(p_move_id uuid) returns commandbus.command_bus_move
language plpgsql as $$
declare
    v_move commandbus.command_bus_move;
begin
    select * into v_move from commandbus.command_bus_move m
     where m.move_id = p_move_id and m.finished_at is null
       and (m.is_leaving and m.phase = 'switched' or not m.is_leaving and m.phase in ('copying', 'closing'))
       for update;
    if not found then
        raise exception 'nothing of this move may be removed here' using errcode = 'CB003', detail = p_move_id::text;
    end if;
    perform set_config('commandbus_move.domain', v_move.domain, true);
    return v_move;
end $$;

-- Begins a move where the domain is. Returns its id; the one that is going on already, if it leads to the same shard.
create or replace function commandbus.begin_leaving(p_domain text, p_to_shard text) returns uuid
language plpgsql as $$
declare
    v_map  commandbus.command_bus_shard;
    v_move commandbus.command_bus_move;
begin
    select * into v_map from commandbus.command_bus_shard s for share;
    if not found or commandbus.shard_of(v_map, p_domain) is distinct from v_map.shard then
        raise exception 'domain % is not on this shard', quote_literal(p_domain) using errcode = 'CB003';
    end if;
    insert into commandbus.command_bus_move (move_id, domain, is_leaving, from_shard, to_shard)
    values (gen_random_uuid(), p_domain, true, v_map.shard, p_to_shard)
    on conflict (domain) where finished_at is null do nothing;
    select * into v_move from commandbus.command_bus_move m
     where m.domain = p_domain and m.finished_at is null;
    if not v_move.is_leaving or v_move.to_shard <> p_to_shard then
        raise exception 'domain % is on its way from % to %', quote_literal(p_domain),
            quote_literal(v_move.from_shard), quote_literal(v_move.to_shard)
            using errcode = 'CB003', hint = 'end that move first, or cancel it';
    end if;
    return v_move.move_id;
end $$;

-- The same where it comes to, with queues like those that it has. Refused if the domain has left something here.
create or replace function commandbus.begin_arriving(
    p_move_id uuid, p_domain text, p_from_shard text, p_to_shard text, p_queues text[]
) returns void
language plpgsql as $$
declare
    v_table text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
    v_queue text;
    v_found text;
begin
    if not exists (select from commandbus.command_bus_move m where m.move_id = p_move_id) then
        select string_agg(c.amount || ' ' || c.part, ', ') into v_found
          from commandbus.count_parts(p_domain) c
         where c.amount > 0
           -- what processes tell every database that they use
           and c.part not in ('command_bus_secret_key', 'command_bus_governed_type', 'command_bus_retention',
                              'command_bus_setting', 'command_bus_flow', 'command_bus_history_domain');
        if v_found is not null then
            raise exception 'shard % has rows of domain % from an earlier stay: %', quote_literal(p_to_shard),
                quote_literal(p_domain), v_found
                using errcode = 'CB003', hint = 'two histories cannot be made one; move it to another shard';
        end if;
        insert into commandbus.command_bus_move (move_id, domain, is_leaving, from_shard, to_shard)
        values (p_move_id, p_domain, false, p_from_shard, p_to_shard);
    end if;
    foreach v_queue in array p_queues loop
        perform commandbus.ensure_queue(v_queue);
    end loop;
    if not exists (select from pg_trigger t where t.tgrelid = to_regclass('pgmq.' || quote_ident(v_table))
                                              and t.tgname = 'commandbus_left') then
        execute format('create trigger commandbus_left before insert on pgmq.%I for each statement'
                       ' execute function commandbus.refuse_left_domain(%L)', v_table, p_domain);
    end if;
end $$;

-- Notes how far a move is. The same again changes nothing. It goes back to copying, or is canceled, as long as the map
-- of the shard that it leaves has not let it go. Where it comes to it stays frozen until then: copies are nobody's work.
-- That it is verified where it leaves is for note_verified to say.
create or replace function commandbus.note_move(p_move_id uuid, p_phase text, p_counts jsonb default null)
returns void
language plpgsql as $$
begin
    -- A map that is being taken at this moment is waited for.
    perform 1 from commandbus.command_bus_shard s for share;
    update commandbus.command_bus_move m
       set phase = p_phase, counts = coalesce(p_counts, m.counts), changed_at = clock_timestamp(),
           is_frozen = m.is_frozen and p_phase not in ('finished', 'canceled')
                       -- where it came to it is open as soon as the map says so
                       and p_phase <> case when m.is_leaving then 'copying' else 'switched' end,
           finished_at = case when p_phase in ('finished', 'canceled') then clock_timestamp() end
     where m.move_id = p_move_id and m.phase <> p_phase and m.finished_at is null
       and (m.phase <> 'switched' or p_phase = 'finished')
       and (p_phase <> 'verified' or not m.is_leaving)
       and (p_phase not in ('copying', 'closing', 'canceled') or not m.is_leaving or exists (
            select from commandbus.command_bus_shard s
             where commandbus.shard_of(s, m.domain) is not distinct from s.shard));
    if not found and not exists (select from commandbus.command_bus_move m
                                  where m.move_id = p_move_id
                                    and (m.phase = p_phase or m.phase = 'finished' and p_phase = 'switched')) then
        raise exception 'the move cannot become % now', p_phase using errcode = 'CB003', detail = p_move_id::text;
    end if;
end $$;

-- Says that both databases have the same. Refused if somebody else has opened the domain since it was frozen, at
-- p_frozen_at: two processes may run one move, and what one has compared may have changed when the other gave up.
create or replace function commandbus.note_verified(p_move_id uuid, p_counts jsonb, p_frozen_at timestamptz)
returns void
language plpgsql as $$
begin
    update commandbus.command_bus_move m
       set phase = 'verified', counts = p_counts, changed_at = clock_timestamp()
     where m.move_id = p_move_id and m.is_leaving and m.phase = 'closing' and m.is_frozen
       and m.changed_at = p_frozen_at;
    if not found and not exists (select from commandbus.command_bus_move m
                                  where m.move_id = p_move_id and m.is_leaving
                                    and (m.phase = 'verified' and m.is_frozen or m.phase in ('switched', 'finished'))) then
        raise exception 'the domain was opened again by somebody else, while it was compared'
            using errcode = 'CB003', detail = p_move_id::text, hint = 'run the move again';
    end if;
end $$;

-- adopt_map where a domain leaves. Refused if the move is not as it was left: given up, or opened by another process.
create or replace function commandbus.adopt_moved_map(
    p_move_id uuid, p_shard text, p_version int, p_default text, p_domains jsonb
) returns boolean
language plpgsql as $$
begin
    -- As adopt_map does: before the record, which who gives up locks after it.
    lock table commandbus.command_bus_shard in exclusive mode;
    if not exists (select from commandbus.command_bus_move m
                    where m.move_id = p_move_id and m.is_leaving
                      and (m.phase = 'verified' and m.is_frozen or m.phase in ('switched', 'finished'))) then
        raise exception 'the move was opened or given up by somebody else' using errcode = 'CB003',
            detail = p_move_id::text, hint = 'run it again';
    end if;
    return commandbus.adopt_map(p_shard, p_version, p_default, p_domains);
end $$;

-- Held to the end of the transaction by who is about to give the shards a new map: versions are counted by one at a
-- time. Taken on the same shard by all.
create or replace function commandbus.lock_map() returns void
language plpgsql set lock_timeout = '10s' as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('commandbus.map', 0));
end $$;

-- For those who remove history: what moves is compared with its copy, and neither may lose what the other refers to.
create or replace function commandbus.refuse_while_moving(p_domain text) returns void
language plpgsql as $$
begin
    if exists (select from commandbus.command_bus_move m where m.domain = p_domain and m.finished_at is null) then
        raise exception 'domain % is being moved to another shard: nothing is removed meanwhile',
            quote_literal(p_domain) using errcode = 'CB003', hint = 'repeat it when the move is over';
    end if;
end $$;

-- On the queue of a domain that closes: a message that somebody wants to lease stays as it is, as if it were not due.
create or replace function commandbus.pass_over_message() returns trigger
language plpgsql as $$
begin
    return null;
end $$;

-- Lets nothing into a domain any more, and nothing be leased; what runs may end. Waits for open transactions that
-- have sent or leased, two seconds for each.
create or replace function commandbus.close_leases(p_domain text) returns void
language plpgsql set lock_timeout = '2s' as $$
declare
    v_table text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
begin
    perform commandbus.close_domains(array[p_domain]);
    -- only a lease counts how often a message was read
    execute format('create or replace trigger commandbus_closed before update on pgmq.%I for each row'
                   ' when (new.read_ct > old.read_ct) execute function commandbus.pass_over_message()', v_table);
end $$;

-- Lets both happen again. A domain that has left lets nothing in by another trigger.
create or replace function commandbus.open_leases(p_domain text) returns void
language plpgsql set lock_timeout = '2s' as $$
declare
    v_table text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
begin
    execute format('drop trigger if exists commandbus_closed on pgmq.%I', v_table);
    execute format('drop trigger if exists commandbus_moving on pgmq.%I', v_table);
end $$;

-- How many commands run: their leases have not lapsed. Those that are leased are among what was read and is due later.
create or replace function commandbus.running_in_domain(p_domain text) returns bigint
language plpgsql stable as $$
declare
    v_found bigint;
begin
    execute format(
        'select count(*) from pgmq.%I q join commandbus.command_bus_command c'
        '    on c.domain = $1 and c.command_id = commandbus.message_command_id(q.message) and c.msg_id = q.msg_id'
        ' where q.vt > $2 and q.vt < ''infinity'' and q.read_ct > 0'
        '   and c.leased_by is not null and c.lease_expires_at > $2',
        'q_' || commandbus.physical_queue(p_domain || '.commands'))
       into v_found using p_domain, clock_timestamp();
    return v_found;
end $$;

-- On every table that has rows of a domain which moves: as long as it is frozen, only the move changes them. What is
-- refused was not written, and may be repeated.
create or replace function commandbus.refuse_frozen() returns trigger
language plpgsql as $$
declare
    v_domain text := tg_argv[0];
    v_row    jsonb;
    v_is_own boolean := true;
begin
    if current_setting('commandbus_move.domain', true) is distinct from v_domain
       and exists (select from commandbus.command_bus_move m where m.domain = v_domain and m.is_frozen) then
        -- Tables without a domain: rows of one of its batches, or operations.
        if tg_argv[1] in ('batch', 'operation') then
            if tg_op = 'DELETE' then
                v_row := to_jsonb(old);
            else
                v_row := to_jsonb(new);
            end if;
            if tg_argv[1] = 'batch' then
                v_is_own := exists (select from commandbus.command_bus_batch b
                                     where b.batch_id = (v_row ->> 'batch_id')::uuid and b.domain = v_domain);
            else
                v_is_own := exists (select from commandbus.command_bus_bulk_operation o
                                     where o.operation_id = (v_row ->> 'operation_id')::uuid and o.domain = v_domain);
            end if;
        end if;
        if v_is_own then
            raise exception 'domain % is being moved to another shard', quote_literal(v_domain)
                using errcode = 'CB019', hint = 'nothing was written; repeat the call until the move is over';
        end if;
    end if;
    if tg_op = 'DELETE' then
        return old;
    end if;
    return new;
end $$;

-- The tables that are frozen with a domain, and how their rows are told from those of others.
create or replace function commandbus.frozen_tables(p_domain text) returns table (relation regclass, parent text)
language sql stable as $$
    select p.relation,
           case when p.scope = 'true' then 'all'
                when p.scope like 't.batch_id in %' then 'batch'
                when p.scope like 't.operation_id in %' then 'operation'
                else '' end
      from commandbus.move_parts(p_domain) p where p.part <> 'command_bus_setting'
    union all
    select 'commandbus.command_bus_audit'::regclass, ''
    order by 1
$$;

-- The name of the triggers of a domain: two may move at a time.
create or replace function commandbus.frozen_name(p_domain text) returns text
language sql immutable as $$
    select 'commandbus_frozen_' || left(encode(sha256(convert_to(p_domain, 'UTF8')), 'hex'), 16)
$$;

-- Says that a domain is frozen. It is from the moment on in which freeze_table was called for each of its tables:
-- who has changed one of them in an open transaction is waited for there. Returns since when, for note_verified.
create or replace function commandbus.mark_frozen(p_move_id uuid) returns timestamptz
language plpgsql as $$
declare
    v_since timestamptz;
begin
    update commandbus.command_bus_move m set is_frozen = true, changed_at = clock_timestamp()
     where m.move_id = p_move_id and not m.is_frozen and m.finished_at is null
       and (m.phase = 'closing' or not m.is_leaving);
    select m.changed_at into v_since from commandbus.command_bus_move m
     where m.move_id = p_move_id and m.is_frozen and (m.phase in ('closing', 'verified') or not m.is_leaving);
    if not found then
        raise exception 'the move was opened again or ended by somebody else' using errcode = 'CB003',
            detail = p_move_id::text, hint = 'run it again';
    end if;
    return v_since;
end $$;

-- Two seconds at most: who writes to the table for other domains waits behind us.
create or replace function commandbus.freeze_table(p_domain text, p_relation regclass, p_parent text) returns void
language plpgsql set lock_timeout = '2s' as $$
declare
    v_name text := commandbus.frozen_name(p_domain);
    v_new  text := case when p_parent = '' then format('when (new.domain = %L)', p_domain) else '' end;
    v_old  text := case when p_parent = '' then format('when (old.domain = %L)', p_domain) else '' end;
begin
    if exists (select from pg_trigger t where t.tgrelid = p_relation and t.tgname = v_name || '_d') then
        return;
    end if;
    execute format('create trigger %I before insert or update on %s for each row %s'
                   ' execute function commandbus.refuse_frozen(%L, %L)',
                   v_name || '_w', p_relation, v_new, p_domain, p_parent);
    execute format('create trigger %I before delete on %s for each row %s'
                   ' execute function commandbus.refuse_frozen(%L, %L)',
                   v_name || '_d', p_relation, v_old, p_domain, p_parent);
end $$;

-- The tables that still have the triggers of a domain. They refuse nothing once it is frozen no more.
create or replace function commandbus.tables_with_ice(p_domain text) returns setof regclass
language sql stable as $$
    select distinct t.tgrelid::regclass from pg_trigger t
     where t.tgname in (commandbus.frozen_name(p_domain) || '_w', commandbus.frozen_name(p_domain) || '_d')
       and t.tgparentid = 0                             -- those of parts go with that of the whole
     order by 1
$$;

create or replace function commandbus.thaw_table(p_domain text, p_relation regclass) returns void
language plpgsql set lock_timeout = '2s' as $$
begin
    execute format('drop trigger if exists %I on %s', commandbus.frozen_name(p_domain) || '_w', p_relation);
    execute format('drop trigger if exists %I on %s', commandbus.frozen_name(p_domain) || '_d', p_relation);
end $$;

-- The numbers that a domain has been given: of its keys, and by each of its queues.
create or replace function commandbus.numbers_of(p_domain text) returns table (sequence text, last bigint)
language plpgsql stable as $$
declare
    v_queue record;
begin
    for v_queue in select q.queue, pg_get_serial_sequence('pgmq.' || quote_ident('q_' || q.physical), 'msg_id') as name
                     from commandbus.own_queues() q
                    where split_part(q.queue, '.', 1) = p_domain and q.queue like '%._%' loop
        sequence := v_queue.queue;
        execute format('select s.last_value from %s s', v_queue.name) into last;
        return next;
    end loop;
    sequence := '';
    last := (select s.last_value from commandbus.command_bus_key_number s);
    return next;
end $$;

-- Sees to it that new numbers come after those.
create or replace function commandbus.go_past_numbers(p_sequences text[], p_last bigint[]) returns void
language plpgsql as $$
declare
    v_item record;
    v_name text;
    v_here bigint;
begin
    for v_item in select * from unnest(p_sequences, p_last) u(sequence, last) loop
        v_name := case v_item.sequence when '' then 'commandbus.command_bus_key_number'
                  else pg_get_serial_sequence(
                           'pgmq.' || quote_ident('q_' || commandbus.physical_queue(v_item.sequence)), 'msg_id') end;
        execute format('select s.last_value from %s s', v_name) into v_here;
        if v_here <= v_item.last then
            -- Others may take numbers meanwhile: fewer than these.
            perform setval(v_name, v_item.last + case v_item.sequence when '' then 1000 else 1 end);
        end if;
    end loop;
end $$;
