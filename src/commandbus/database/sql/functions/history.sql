-- History: finished commands that retention has moved out of the table of commands (docs/adr/0097).
--
-- Each domain has parts of its own: ranges of the numbers that its commands get in the order of moving, each a table. They are
-- made by those who move, who lock the row of the domain in command_bus_history_domain first, and dropped as a whole when all in them is
-- older than the rule `history`. Lock order: that row, then commands, then batches.
--
-- An id in the history is known. Who sends looks here after its insert, with a snapshot of its own: a move of the same id at the same
-- time has locked the row that the insert collides with, so the insert has waited for its commit, and the look sees what it moved.
--
-- Nobody pays for it who has no history: command_bus_history_part has given no number then, which is no query.

-- The parts of one domain, or of all, as the catalogs have them.
create or replace function commandbus.history_parts(p_domain text default null)
returns table (part regclass, domain text, first_no bigint, below_no bigint)
language sql stable as $$
    select c.oid::regclass, b.bound[1], b.bound[2]::bigint, b.bound[3]::bigint
      from pg_inherits i join pg_class c on c.oid = i.inhrelid
     cross join lateral (
           select regexp_match(pg_get_expr(c.relpartbound, c.oid),
                               'FROM \(''([^'']+)'', ''?(\d+)''?\) TO \(''[^'']+'', ''?(\d+)''?\)') as bound) b
     where i.inhparent = 'commandbus.command_bus_history'::regclass and (p_domain is null or b.bound[1] = p_domain)
     order by 2, 3
$$;

-- Whether commands of a domain are moved when their time is over, or removed.
create or replace function commandbus.goes_to_history(p_domain text) returns boolean
language sql stable as $$
    select exists (select from commandbus.command_bus_retention r
                    where r.kind = 'history' and r.domain in (p_domain, '*'))
$$;

-- Keeps others from moving commands of this domain until the end of the transaction.
create or replace function commandbus.claim_history(p_domain text) returns commandbus.command_bus_history_domain
language plpgsql as $$
declare
    v_history commandbus.command_bus_history_domain;
begin
    insert into commandbus.command_bus_history_domain (domain) values (p_domain) on conflict do nothing;
    select * into v_history from commandbus.command_bus_history_domain h where h.domain = p_domain for update;
    return v_history;
end $$;

-- Sees to it that these numbers of a domain have parts. A new part is attached beside all work: that waits for nobody who
-- reads or writes the history.
create or replace function commandbus.make_history_parts(p_domain text, p_first bigint, p_last bigint) returns void
language plpgsql as $$
declare
    v_rows  bigint;
    v_no    bigint := p_first;
    v_below bigint;
    v_name  bigint;
begin
    perform commandbus.check_domain(p_domain);
    while v_no <= p_last loop
        select p.below_no into v_below from commandbus.history_parts(p_domain) p
         where v_no >= p.first_no and v_no < p.below_no;
        if not found then
            -- larger ones where much is kept: some dozens, and not thousands
            v_rows := greatest(commandbus.setting('history_part_rows')::bigint, (
                select (v_no - min(p.first_no)) / 16 from commandbus.history_parts(p_domain) p));
            v_below := least(v_no + v_rows, (select min(p.first_no) from commandbus.history_parts(p_domain) p
                                              where p.first_no > v_no));
            v_name := nextval('commandbus.command_bus_history_part');
            execute format('create table commandbus.command_bus_history_%s (like commandbus.command_bus_history including all)'
                           ' with (autovacuum_vacuum_insert_scale_factor = 0.1)', v_name);
            execute format('alter table commandbus.command_bus_history attach partition commandbus.command_bus_history_%s'
                           ' for values from (%L, %s) to (%L, %s)', v_name, p_domain, v_no, p_domain, v_below);
        end if;
        v_no := v_below;
    end loop;
end $$;

-- Where the next command of a domain goes: after the last one, or behind the part that was begun so long ago that what is in
-- it would be kept for much longer than the rule says.
create or replace function commandbus.next_history_no(p_domain text, p_last_no bigint) returns bigint
language sql stable as $$
    select coalesce((
        select p.below_no from commandbus.history_parts(p_domain) p
         cross join lateral (
               select h.moved_at from commandbus.command_bus_history h
                where h.domain = p_domain and h.history_no >= p.first_no and h.history_no < p.below_no
                order by h.history_no limit 1) f
         where p_last_no + 1 >= p.first_no and p_last_no + 1 < p.below_no
           and f.moved_at < now() - (
               select r.keep from commandbus.command_bus_retention r
                where r.kind = 'history' and r.domain in (p_domain, '*') order by r.domain = '*' limit 1) / 8),
        p_last_no + 1)
$$;

-- An id that begins with the time.
create or replace function commandbus.has_time(p_command_id uuid) returns boolean
language sql immutable as $$ select substr(p_command_id::text, 15, 1) = '7' $$;

-- Moves commands that have ended, locked by the caller, who has claimed the history before.
create or replace function commandbus.put_in_history(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
declare
    v_history commandbus.command_bus_history_domain;
    v_first   bigint;
    v_count   int := cardinality(p_command_ids);
    v_moved   int;
begin
    if v_count = 0 then
        return;
    end if;
    select * into strict v_history from commandbus.command_bus_history_domain h where h.domain = p_domain;
    v_first := commandbus.next_history_no(p_domain, v_history.last_no);
    perform commandbus.make_history_parts(p_domain, v_first, v_first + v_count - 1);
    insert into commandbus.command_bus_history
    select v_first - 1 + row_number() over (order by c.created_at, c.command_id), clock_timestamp(),
           s.sent_by, s.digest, c.*
      from commandbus.command_bus_command c
      left join commandbus.command_bus_sender s on s.domain = c.domain and s.command_id = c.command_id
     where c.domain = p_domain and c.command_id = any(p_command_ids)
       and c.status in ('COMPLETED', 'CANCELED', 'FAILED');
    get diagnostics v_moved = row_count;
    if v_moved <> v_count then
        raise exception '% of % commands could not be moved', v_count - v_moved, v_count;
    end if;
    perform commandbus.remove_commands(p_domain, p_command_ids);
    update commandbus.command_bus_history_domain h
       set last_no = v_first + v_count - 1,
           newest_id = greatest(h.newest_id, (select i from unnest(p_command_ids) i where commandbus.has_time(i)
                                               order by i desc limit 1)),
           has_other_ids = h.has_other_ids or exists (
               select from unnest(p_command_ids) i where not commandbus.has_time(i))
     where h.domain = p_domain;
end $$;

-- Of these ids, the ones that are in the history: of the domain, or of any if ids are unique in all. For those who have just
-- inserted commands under these ids.
create or replace function commandbus.known_in_history(p_domain text, p_command_ids uuid[]) returns uuid[]
language plpgsql as $$
declare
    v_all  boolean := commandbus.setting('command_id_scope') = 'global';
    v_look uuid[];
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- The snapshot is older than the insert. A move since then is a serialization failure, and the row of the
        -- domain what both meet at.
        insert into commandbus.command_bus_history_domain (domain) values (p_domain) on conflict do nothing;
        perform 1 from commandbus.command_bus_history_domain h where h.domain = p_domain or v_all
          order by h.domain for share;
    end if;
    select array_agg(distinct i.id) into v_look
      from commandbus.command_bus_history_domain h
     cross join unnest(p_command_ids) i(id)
     where (h.domain = p_domain or v_all)
       and case when commandbus.has_time(i.id) then i.id <= h.newest_id else h.has_other_ids end;
    return case when v_look is null then '{}'
                else commandbus.find_in_history(case when not v_all then p_domain end, v_look) end;
end $$;

-- Of these ids, the ones in the history of a domain, or of all.
create or replace function commandbus.find_in_history(p_domain text, p_command_ids uuid[]) returns uuid[]
language plpgsql as $$
begin
    return array(select distinct r.command_id
                   from commandbus.command_bus_history_domain h
                  cross join lateral commandbus.history_rows(h.domain, p_command_ids) r
                  where p_domain is null or h.domain = p_domain);
end $$;

-- What a domain has in its history of these ids. One plan for all calls opens the parts of all domains, which is the
-- cheaper as long as they are few; otherwise each call is planned, and opens those of its domain.
create or replace function commandbus.history_rows(p_domain text, p_command_ids uuid[])
returns setof commandbus.command_bus_history
language plpgsql stable as $$
begin
    if (select count(*) from (select from pg_inherits i
                               where i.inhparent = 'commandbus.command_bus_history'::regclass limit 129) p) <= 128 then
        return query select * from commandbus.history_rows_once(p_domain, p_command_ids);
    else
        return query select * from commandbus.history_rows_anew(p_domain, p_command_ids);
    end if;
end $$;

create or replace function commandbus.history_rows_once(p_domain text, p_command_ids uuid[])
returns setof commandbus.command_bus_history
language plpgsql stable as $$
begin
    return query
    select h.* from commandbus.command_bus_history h
     where h.command_id = any(p_command_ids) and h.domain = p_domain;
end $$;

create or replace function commandbus.history_rows_anew(p_domain text, p_command_ids uuid[])
returns setof commandbus.command_bus_history
language plpgsql stable as $$
begin
    return query
    select h.* from commandbus.command_bus_history h
     where h.command_id = any(p_command_ids) and h.domain = p_domain;
end $$;

-- A command wherever it is. For those who only look: what is in the history changes no more.
create or replace function commandbus.known_command(p_domain text, p_command_id uuid)
returns setof commandbus.command_bus_command
language plpgsql stable as $$
begin
    return query
    select c.* from commandbus.command_bus_command c where c.domain = p_domain and c.command_id = p_command_id;
    if not found and pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is not null then
        return query
        select r.* from commandbus.history_rows(p_domain, array[p_command_id]) h
         cross join lateral jsonb_populate_record(null::commandbus.command_bus_command, to_jsonb(h)) r;
    end if;
end $$;

-- What was sent under an id: the status of the command now, and by whom, if it came over HTTP.
create or replace function commandbus.sent_as(p_domain text, p_command_id uuid)
returns table (status text, sent_by text, digest bytea)
language plpgsql as $$
begin
    return query
    select c.status, s.sent_by, s.digest
      from commandbus.command_bus_command c
      left join commandbus.command_bus_sender s on s.domain = c.domain and s.command_id = c.command_id
     where c.domain = p_domain and c.command_id = p_command_id;
    if not found and pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is not null then
        return query
        select h.status, h.sent_by, h.digest from commandbus.history_rows(p_domain, array[p_command_id]) h;
    end if;
end $$;

-- What SENT tells of a command that is in the history; null if it is not.
create or replace function commandbus.moved_details(p_domain text, p_command_id uuid) returns jsonb
language plpgsql stable as $$
begin
    if pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is null then
        return null;
    end if;
    return (select jsonb_build_object('type', h.command_type, 'correlation_id', h.correlation_id)
              from commandbus.history_rows(p_domain, array[p_command_id]) h);
end $$;

-- Refuses what somebody wants to do with a command that is in the history.
create or replace function commandbus.refuse_moved(p_domain text, p_command_id uuid) returns void
language plpgsql as $$
declare
    v_since timestamptz;
begin
    if pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is null then
        return;
    end if;
    select h.moved_at into v_since from commandbus.history_rows(p_domain, array[p_command_id]) h;
    if found then
        raise exception 'command % is in the history since %: it has ended, and does not change any more',
            p_command_id, commandbus.iso8601(v_since)
            using errcode = 'CB003', detail = p_command_id::text, hint = 'send the work again under another id';
    end if;
end $$;

-- Refuses to open a batch whose commands are in the history, or are being moved or removed.
create or replace function commandbus.refuse_moved_batch(p_batch_id uuid) returns void
language plpgsql as $$
declare
    v_batch commandbus.command_bus_batch;
begin
    select * into v_batch from commandbus.command_bus_batch b
     where b.batch_id = p_batch_id and b.pruning_since is not null;
    if v_batch.history_since is not null then
        raise exception 'batch % is in the history since %: its commands do not change any more', p_batch_id,
            commandbus.iso8601(v_batch.history_since)
            using errcode = 'CB003', hint = 'send the work again in a new batch';
    elsif found then
        raise exception 'batch % is being % by retention', p_batch_id,
            case when commandbus.goes_to_history(v_batch.domain) then 'moved to the history' else 'removed' end
            using errcode = 'CB003', hint = 'send the work again in a new batch';
    end if;
end $$;
