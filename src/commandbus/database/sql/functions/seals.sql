-- Seals: what makes a change of the audit show, even one by the owner of the database (docs/adr/0041).
--
-- A seal closes a range of audit_id: it has the digest of every row in it and is signed by the process
-- that asked for it, with a key that the database does not have. Lock order: the row of
-- command_bus_audit_horizon first, which lets one sealer act at a time; then seals, then removals.

-- The digest of an event: of all its columns, each with a mark for null and, but for the last, a length.
-- It depends on no setting, and is the same after a dump and in every version. The doctor does not call
-- this function, since the owner could replace it: commandbus.upkeep.seal_reading has the same expression.
create or replace function commandbus.audit_row_digest(p_event commandbus.command_bus_audit) returns bytea
language sql stable as $$
    select substr(sha256(
        int8send(p_event.audit_id)
        || coalesce('\x01'::bytea || timestamptz_send(p_event.ts), '\x00'::bytea)
        || coalesce('\x01'::bytea || uuid_send(p_event.command_id), '\x00'::bytea)
        || coalesce('\x01'::bytea || uuid_send(p_event.batch_id), '\x00'::bytea)
        || convert_to(
            coalesce(length(p_event.domain) || ':' || p_event.domain, '-')
            || coalesce(length(p_event.event_type) || ':' || p_event.event_type, '-')
            || coalesce(length(p_event.actor) || ':' || p_event.actor, '-')
            || coalesce('+' || p_event.details_json::text, '-'), 'UTF8')), 1, 16)
$$;

-- Seals and removals are only added, but for the number of the seal that signs a removal.
create or replace function commandbus.refuse_seal_change() returns trigger
language plpgsql as $$
begin
    if tg_op = 'UPDATE' and tg_table_name = 'command_bus_audit_removal' then
        if old.sealed_by is null and to_jsonb(new) - 'sealed_by' = to_jsonb(old) - 'sealed_by' then
            return new;
        end if;
    end if;
    raise exception '% on % is refused: the seals of the audit are append-only', tg_op, tg_table_name
        using errcode = 'CB008';
end $$;

create or replace trigger command_bus_audit_seal_append_only
    before update or delete on commandbus.command_bus_audit_seal
    for each row execute function commandbus.refuse_seal_change();
create or replace trigger command_bus_audit_seal_no_truncate
    before truncate on commandbus.command_bus_audit_seal
    for each statement execute function commandbus.refuse_seal_change();
create or replace trigger command_bus_audit_removal_append_only
    before update or delete on commandbus.command_bus_audit_removal
    for each row execute function commandbus.refuse_seal_change();
create or replace trigger command_bus_audit_removal_no_truncate
    before truncate on commandbus.command_bus_audit_removal
    for each statement execute function commandbus.refuse_seal_change();

-- The sequence of audit_id: its name, the last number it gave, and how many a session takes at once.
create or replace function commandbus.audit_sequence(
    out o_sequence regclass, out o_last bigint, out o_cache bigint
)
language sql volatile as $$
    select q.seqrelid::regclass, case when s.is_called then s.last_value else s.last_value - 1 end,
           q.seqcache
      from commandbus.command_bus_audit_audit_id_seq s, pg_sequence q
     where q.seqrelid = 'commandbus.command_bus_audit_audit_id_seq'::regclass
$$;

-- Transactions that are open and have taken a number for the audit. nextval locks its sequence until the
-- end of the transaction, also in a rolled back savepoint or a prepared transaction, and before it takes
-- the number. Backups and readers hold a weaker lock.
create or replace function commandbus.audit_writers(p_sequence regclass)
returns table (virtual_transaction text, pid int)
language sql volatile as $$
    select distinct l.virtualtransaction, l.pid from pg_locks l
     where l.locktype = 'relation' and l.relation = p_sequence and l.granted
       and l.database = (select d.oid from pg_database d where d.datname = current_database())
       and l.mode <> 'AccessShareLock'
$$;

-- Moves the horizon on as far as it can go now, and returns it, with what it waits for. The last number
-- of the sequence is read first and the open transactions after it: who has a number up to that one is
-- among them, or has ended. Once all of these have ended, no row up to that number can come any more.
create or replace function commandbus.move_audit_horizon(
    out o_safe_to bigint, out o_waits_for text[], out o_noted_at timestamptz
)
language plpgsql as $$
declare
    v_row      commandbus.command_bus_audit_horizon;
    v_sequence record;
begin
    -- A statement must see what was committed before it began, not before the transaction began.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'the audit is sealed in read committed transactions only' using errcode = 'CB003';
    end if;
    select h.* into strict v_row from commandbus.command_bus_audit_horizon h for update;
    v_sequence := commandbus.audit_sequence();
    if v_sequence.o_cache <> 1 then
        raise exception 'the sequence of the audit has a cache of %: it cannot be sealed', v_sequence.o_cache
            using errcode = 'CB003', hint = format('alter sequence %s cache 1', v_sequence.o_sequence);
    end if;
    for v_round in 1..2 loop
        if v_row.candidate_id is not null then
            v_row.waits_for := array(
                select w.virtual_transaction from commandbus.audit_writers(v_sequence.o_sequence) w
                 where w.virtual_transaction = any(v_row.waits_for) order by 1);
            exit when v_row.waits_for <> '{}';
            v_row.safe_to := v_row.candidate_id;
        end if;
        v_row.candidate_id := null;
        v_row.noted_at := null;
        exit when v_sequence.o_last is not distinct from v_row.safe_to;
        v_row.candidate_id := v_sequence.o_last;
        v_row.noted_at := clock_timestamp();
        v_row.waits_for := array(
            select w.virtual_transaction from commandbus.audit_writers(v_sequence.o_sequence) w
             order by 1);
        exit when v_row.waits_for <> '{}';
    end loop;
    update commandbus.command_bus_audit_horizon h
       set safe_to = v_row.safe_to, candidate_id = v_row.candidate_id, waits_for = v_row.waits_for,
           noted_at = v_row.noted_at
     where h is distinct from v_row;
    o_safe_to := v_row.safe_to;
    o_waits_for := v_row.waits_for;
    o_noted_at := v_row.noted_at;
end $$;

-- The next range to seal, of p_limit rows at most, for the caller to sign and to give to add_seal in the
-- same transaction. No row: everything up to the horizon is sealed, and no removal waits for a signature.
create or replace function commandbus.draft_seal(p_limit int) returns table (
    seal_number bigint, first_id bigint, last_id bigint, row_count int, oldest_ts timestamptz,
    entries bytea, previous bytea, previous_key text)
language plpgsql as $$
#variable_conflict use_column
declare
    v_safe  bigint;
    v_last  commandbus.command_bus_audit_seal;
    v_from  bigint;
    v_upper bigint;
begin
    select h.safe_to into strict v_safe from commandbus.command_bus_audit_horizon h for update;
    select s.seal_number, s.last_id, s.digest, s.key_id
      into v_last.seal_number, v_last.last_id, v_last.digest, v_last.key_id
      from commandbus.command_bus_audit_seal s order by s.seal_number desc limit 1;
    v_from := coalesce(
        v_last.last_id + 1, least(1, (select min(a.audit_id) from commandbus.command_bus_audit a)));
    v_safe := case when v_safe is not null then least(v_safe, (commandbus.audit_sequence()).o_last) end;
    if v_safe is null or v_safe < v_from then
        if not exists (select from commandbus.command_bus_audit_removal r where r.sealed_by is null) then
            return;
        end if;
        v_safe := v_from - 1;
    end if;
    -- the place of a row in its seal has four bytes
    v_safe := least(v_safe, v_from + 2147483646);
    select a.audit_id into v_upper from commandbus.command_bus_audit a
     where a.audit_id >= v_from and a.audit_id <= v_safe order by a.audit_id offset p_limit - 1 limit 1;
    v_upper := coalesce(v_upper, v_safe);
    return query
    select coalesce(v_last.seal_number, 0) + 1, v_from, v_upper, count(*)::int,
           -- those that a program can read: the owner can write others
           min(a.ts) filter (where a.ts between '1000-01-01 00:00Z' and '9998-01-01 00:00Z'),
           coalesce(string_agg(
               int4send((a.audit_id - v_from)::int) || commandbus.audit_row_digest(a), ''::bytea
               order by a.audit_id), ''::bytea),
           coalesce(v_last.digest, decode(repeat('00', 32), 'hex')), v_last.key_id
      from commandbus.command_bus_audit a where a.audit_id between v_from and v_upper;
end $$;

-- Adds a seal that was drafted in the same transaction and signed since; refuses any other.
create or replace function commandbus.add_seal(
    p_number bigint, p_first bigint, p_last bigint, p_rows int, p_oldest timestamptz, p_entries bytea,
    p_entries_digest bytea, p_removals bytea, p_removal_numbers bigint[], p_previous bytea,
    p_sealed_at timestamptz, p_key_id text, p_digest bytea, p_signature bytea
) returns void
language plpgsql as $$
declare
    v_last record;
begin
    perform 1 from commandbus.command_bus_audit_horizon h for update;
    select s.seal_number, s.last_id, s.digest into v_last
      from commandbus.command_bus_audit_seal s order by s.seal_number desc limit 1;
    if p_number <> coalesce(v_last.seal_number, 0) + 1
       or v_last.seal_number is not null
          and (p_first <> v_last.last_id + 1 or p_previous <> v_last.digest) then
        raise exception 'seal % does not follow the last one, %', p_number, v_last.seal_number
            using errcode = 'CB003', hint = 'draft it again';
    end if;
    insert into commandbus.command_bus_audit_seal (
        seal_number, first_id, last_id, row_count, oldest_ts, entries, entries_digest, removals,
        previous, sealed_at, key_id, digest, signature)
    values (p_number, p_first, p_last, p_rows, p_oldest, p_entries, p_entries_digest, p_removals,
            p_previous, p_sealed_at, p_key_id, p_digest, p_signature);
    update commandbus.command_bus_audit_removal r set sealed_by = p_number
     where r.removal_number = any(p_removal_numbers) and r.sealed_by is null;
end $$;

-- Records that these events are removed from the audit, in the transaction that removes them and before
-- it does. The digest lets the doctor say whether they were as they had been sealed. What was counted in parts goes down.
create or replace function commandbus.record_removal(
    p_domain text, p_ids bigint[], p_before timestamptz, p_actor text
) returns void
language plpgsql as $$
begin
    insert into commandbus.command_bus_audit_removal (
        domain, ids, row_count, sealed_to, rows_digest, before, keep_seconds, actor)
    select p_domain, range_agg(int8range(a.audit_id, a.audit_id, '[]')), count(*), s.last_id,
           sha256(coalesce(string_agg(commandbus.audit_row_digest(a), ''::bytea order by a.audit_id)
                           filter (where a.audit_id <= s.last_id), ''::bytea)),
           p_before,
           -- a month has as many seconds as it has at this time
           (select case when p_before <= now() - r.keep
                        then floor(extract(epoch from now() - (now() - r.keep)))::bigint end
              from commandbus.command_bus_retention r
             where r.kind = 'audit' and r.domain in (p_domain, '*') order by r.domain = '*' limit 1),
           p_actor
      from commandbus.command_bus_audit a
     cross join (select coalesce((select x.last_id from commandbus.command_bus_audit_seal x
                                   order by x.seal_number desc limit 1), 0)) s(last_id)
     where a.audit_id = any(p_ids)
     group by s.last_id;
    perform 1 from commandbus.command_bus_audit_part p
      where p.below_id > (select min(i) from unnest(p_ids) i) and p.first_id <= (select max(i) from unnest(p_ids) i)
      order by p.first_id for update;
    update commandbus.command_bus_audit_part c
       set row_count = c.row_count - n.gone,
           events = c.events || jsonb_build_object(p_domain, coalesce((c.events ->> p_domain)::bigint, 0) - n.gone)
      from (select p.first_id, count(*) as gone from commandbus.command_bus_audit_part p
              join unnest(p_ids) i(id) on i.id >= p.first_id and i.id < p.below_id
             group by p.first_id) n
     where c.first_id = n.first_id;
end $$;

-- Seals by what everyone can see: is the audit sealed in time, can it be, and is what protects it there?
-- `commandbus doctor --audit` looks into the seals themselves.
create or replace function commandbus.check_seals(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint)
language plpgsql stable as $$
declare
    v_sealed_to bigint := (select s.last_id from commandbus.command_bus_audit_seal s
                            order by s.seal_number desc limit 1);
    -- before the sequence: every number that is seen here was given before
    v_highest   bigint := (select max(a.audit_id) from commandbus.command_bus_audit a);
    v_sequence  record := commandbus.audit_sequence();
begin
    return query
    select 'AUDIT_UNSEALED', null::text,
           'event ' || a.audit_id || ' of ' || commandbus.iso8601(a.ts)
               || case when v_sealed_to is null then ' (nothing was ever sealed)' else '' end, null::bigint
      from (select e.audit_id, e.ts from commandbus.command_bus_audit e
             where e.audit_id > coalesce(v_sealed_to, -9223372036854775808)
             order by e.audit_id limit 1) a
     where a.ts < now() - interval '1 hour'
       -- where no worker has run for an hour, nobody was there to begin
       and (v_sealed_to is not null or exists (
            select from commandbus.command_bus_worker w
             where w.heartbeat_at > now() - interval '1 minute' and w.started_at < now() - interval '1 hour'));
    return query
    select 'SEAL_WAITS', null::text, 'since ' || commandbus.iso8601(h.noted_at) || ' for '
               || coalesce('session ' || w.pid, 'the prepared transaction ' || w.virtual_transaction),
           null::bigint
      from commandbus.command_bus_audit_horizon h
     cross join commandbus.audit_writers(v_sequence.o_sequence) w
     where w.virtual_transaction = any(h.waits_for) and h.noted_at < now() - interval '10 minutes';
    if v_sequence.o_cache <> 1 then
        return query select 'AUDIT_SEQUENCE', null::text,
            v_sequence.o_sequence || ' has a cache of ' || v_sequence.o_cache, null::bigint;
    end if;
    if v_highest > v_sequence.o_last then
        return query select 'AUDIT_SEQUENCE', null::text,
            'event ' || v_highest || ' is above the last number ' || v_sequence.o_last, null::bigint;
    end if;
    return query
    select 'AUDIT_UNPROTECTED', null::text, t.name, null::bigint
      from (values ('command_bus_audit_seal', 'commandbus.command_bus_audit_seal'::regclass),
                   ('command_bus_audit_removal', 'commandbus.command_bus_audit_removal'::regclass)
           ) t(name, place)
     where not exists (
           select from pg_trigger g
            where g.tgrelid = t.place
              and g.tgname = t.name || '_append_only' and g.tgenabled in ('O', 'A'));
end $$;
