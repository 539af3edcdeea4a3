-- Shards: a database that knows which shard it is refuses domains of others, whatever map a process has. Where nobody
-- has said so, all domains are here, and nothing below costs anything. Sends do not look: a domain of another shard
-- has no queue here, or one that refuses (docs/adr/0077).

-- The shard that a map puts a domain on; null: on none.
create or replace function commandbus.shard_of(p_map commandbus.command_bus_shard, p_domain text) returns text
language sql immutable as $$ select coalesce(p_map.domains ->> p_domain, p_map.default_shard) $$;

-- Raises for a domain that the map puts elsewhere.
create or replace function commandbus.refuse_shard(p_map commandbus.command_bus_shard, p_domain text) returns void
language plpgsql as $$
begin
    raise exception 'domain % is not on this shard (%): version % of the map puts it on %', quote_literal(p_domain),
        quote_literal(p_map.shard), p_map.version,
        coalesce(quote_literal(commandbus.shard_of(p_map, p_domain)), 'none')
        using errcode = 'CB018',
              hint = 'send it there; a process with an older map must be started again with the new one';
end $$;

-- Refuses a domain of another shard. Shared with all who begin a domain, apart from who changes the map.
create or replace function commandbus.check_shard(p_domain text) returns void
language plpgsql as $$
declare
    v_map commandbus.command_bus_shard;
begin
    select * into v_map from commandbus.command_bus_shard s for share;
    if found and commandbus.shard_of(v_map, p_domain) is distinct from v_map.shard then
        perform commandbus.refuse_shard(v_map, p_domain);
    end if;
end $$;

-- The domains that chores leave alone, because nothing of them can be changed here: those that a move has closed where
-- they leave, and the copies where they come to, until they are whole (moving.sql). A handful at most.
create or replace function commandbus.domains_on_the_way() returns text[]
language sql stable as $$
    select coalesce(array_agg(m.domain), '{}') from commandbus.command_bus_move m
     where m.finished_at is null
       and case when m.is_leaving then m.phase <> 'copying' else m.phase <> 'switched' end
$$;

-- On the queue of a domain that has left: senders who made sure of it long ago are refused too.
create or replace function commandbus.refuse_left_domain() returns trigger
language plpgsql as $$
declare
    v_map commandbus.command_bus_shard;
begin
    -- but for the move that brings it here (moving.sql)
    if current_setting('commandbus_move.domain', true) is distinct from tg_argv[0] then
        select * into v_map from commandbus.command_bus_shard s;
        perform commandbus.refuse_shard(v_map, tg_argv[0]);
    end if;
    return null;
end $$;

-- On the queue of a domain that is about to leave: nothing new comes in, what is there is worked off. What ends there may
-- end its batch, with the command that was asked for.
create or replace function commandbus.refuse_moving_domain() returns trigger
language plpgsql as $$
begin
    if current_setting('commandbus_move.ends', true) = tg_argv[0] then
        return null;
    end if;
    raise exception 'domain % is being moved to another shard', quote_literal(tg_argv[0])
        using errcode = 'CB019', hint = 'nothing was written; repeat the call until the move is over';
end $$;

-- Closes domains to new messages, until they leave or are opened again. Waits for open transactions that have sent,
-- two seconds for each; those that come later wait for this one.
create or replace function commandbus.close_domains(p_domains text[]) returns void
language plpgsql set lock_timeout = '2s' as $$
declare
    v_domain text;
begin
    for v_domain in select d.domain from commandbus.domains_here() d
                     where d.domain = any(p_domains) and not d.has_left
                    except select c from commandbus.closed_domains() c order by 1 loop
        execute format('create trigger commandbus_moving before insert on pgmq.%I for each statement'
                       ' execute function commandbus.refuse_moving_domain(%L)',
                       'q_' || commandbus.physical_queue(v_domain || '.commands'), v_domain);
    end loop;
end $$;

-- Opens them again: all that are closed.
create or replace function commandbus.open_domains() returns setof text
language plpgsql as $$
declare
    v_domain text;
begin
    for v_domain in select c from commandbus.closed_domains() c order by 1 loop
        execute format('drop trigger commandbus_moving on pgmq.%I',
                       'q_' || commandbus.physical_queue(v_domain || '.commands'));
        return next v_domain;
    end loop;
end $$;

-- What a domain still has to do here, and so what keeps it from leaving. History is not in it.
create or replace function commandbus.left_in_domain(p_domain text)
returns table (what text, amount bigint)
language plpgsql as $$
declare
    v_commands text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
    v_replies  text := 'q_' || commandbus.physical_queue(p_domain || '.replies');
    v_table    text;
begin
    -- Its commands, and all queues of its name that replies go to: others than .replies are read by their name.
    for v_table in select v_commands where commandbus.queue_exists(p_domain || '.commands')
                   union all
                   select t from commandbus.reply_tables(p_domain) t where starts_with(t, 'q_')
    loop
        what := case v_table
                    when v_commands then 'commands that wait or run'
                    when v_replies then 'replies that nobody has read'
                    else 'messages that nobody has read in ' || quote_literal(substr(v_table, 3)) end;
        execute format('select count(*) from pgmq.%I', v_table) into amount;
        return next;
    end loop;
    return query
        select 'replies of calls that nobody has taken', count(*) from commandbus.command_bus_reply_inbox i
         where i.domain = p_domain
        union all
        select 'commands at a broker', count(*) from commandbus.command_bus_unconfirmed u
         where u.domain = p_domain
        union all
        select 'running bulk operations', count(*) from commandbus.command_bus_bulk_operation o
         where o.domain = p_domain and o.status = 'running'
        union all
        -- The other shard would not know them, and would take the same key again.
        select 'unique keys that are held', count(*) from commandbus.command_bus_unique u
         where u.domain = p_domain and (u.holds_until > clock_timestamp() or exists (
                   select from commandbus.command_bus_command c
                    where c.domain = u.domain and c.command_id = u.command_id
                      and c.status in ('PENDING', 'IN_PROGRESS', 'IN_TROUBLESHOOTING_QUEUE')))
        union all
        select 'parked commands', count(*) from commandbus.command_bus_troubleshooting t where t.domain = p_domain
        union all
        select 'commands that are stored and not queued', count(*) from commandbus.command_bus_command c
         where c.domain = p_domain and c.dispatch_status <> 'queued' and c.status = 'PENDING'
        union all
        select 'open batches', count(*) from commandbus.command_bus_batch b
         where b.domain = p_domain and b.status in ('PENDING', 'IN_PROGRESS')
        union all
        select 'schedules', count(*) from commandbus.command_bus_schedule s
         where s.domain = p_domain and s.next_tick_at is not null;
end $$;

-- Open batches that send a command at their end to a domain which is on another shard, if p_domain is on p_shard and all
-- others are where the map says: it could not be sent, and who ends the batch writes here alone. Null: there are none.
create or replace function commandbus.callbacks_across(p_domain text, p_shard text) returns text
language sql stable as $$
    select string_agg(w.batches || ' of domain ' || quote_literal(w.domain) || ' that call domain '
                      || quote_literal(w.called), ', ' order by w.domain, w.called)
      from (select b.domain, b.on_complete ->> 'domain' as called, count(*) as batches
              from commandbus.command_bus_batch b
             where b.status in ('PENDING', 'IN_PROGRESS') and b.on_complete is not null
               and p_domain in (b.domain, b.on_complete ->> 'domain') and b.domain <> b.on_complete ->> 'domain'
             group by 1, 2) w
     cross join commandbus.command_bus_shard s
     where commandbus.shard_of(s, case w.domain when p_domain then w.called else w.domain end)
           is distinct from p_shard
$$;

-- The domains that have a queue here, and whether it refuses because they have left.
create or replace function commandbus.domains_here() returns table (domain text, has_left boolean)
language sql stable as $$
    select split_part(q.queue, '.', 1), exists (
               select from pg_trigger t
                where t.tgrelid = to_regclass('pgmq.' || quote_ident('q_' || q.physical))
                  and t.tgname = 'commandbus_left')
      from commandbus.own_queues() q
     where q.queue like '%.commands' and commandbus.is_made_by_us(q.physical)
     order by 1
$$;

-- The domains that are closed because they are about to leave.
create or replace function commandbus.closed_domains() returns setof text
language sql stable as $$
    select d.domain from commandbus.domains_here() d
     where exists (select from pg_trigger t
                    where t.tgrelid = to_regclass('pgmq.' || quote_ident(
                              'q_' || commandbus.physical_queue(d.domain || '.commands')))
                      and t.tgname = 'commandbus_moving')
$$;

-- Lets a domain go: its queue refuses new messages from now on. Refused while anything is left to do. Waits for open
-- transactions that have sent; those that come later wait for this one.
create or replace function commandbus.let_domain_go(p_domain text) returns void
language plpgsql as $$
declare
    v_table text := 'q_' || commandbus.physical_queue(p_domain || '.commands');
    v_left  text;
begin
    execute format('lock table pgmq.%I in share row exclusive mode', v_table);
    v_left := commandbus.callbacks_across(
        p_domain, (select commandbus.shard_of(s, p_domain) from commandbus.command_bus_shard s));
    if v_left is not null then
        raise exception 'domain % cannot leave this shard yet: open batches call another shard at their end: %',
            quote_literal(p_domain), v_left
            using errcode = 'CB003', hint = 'wait for the end of these batches, or let both domains be on one shard';
    end if;
    -- Everything of it is on the other shard, and nobody can change it here (moving.sql).
    if not exists (select from commandbus.command_bus_move m
                    where m.domain = p_domain and m.is_leaving and m.phase = 'verified' and m.is_frozen) then
        select string_agg(l.amount || ' ' || l.what, ', ') into v_left
          from commandbus.left_in_domain(p_domain) l where l.amount > 0;
    end if;
    if v_left is not null then
        raise exception 'domain % cannot leave this shard yet: %', quote_literal(p_domain), v_left
            using errcode = 'CB003',
                  hint = 'stop its senders, let its workers empty it, decide what is parked, and try again';
    end if;
    execute format('create trigger commandbus_left before insert on pgmq.%I for each statement'
                   ' execute function commandbus.refuse_left_domain(%L)', v_table, p_domain);
    execute format('drop trigger if exists commandbus_moving on pgmq.%I', v_table);
end $$;

-- Says which shard this database is, and where the map puts each domain. The same again changes nothing. Refused: an
-- older map, another one of the same version, and one that takes a domain away which has something to do here.
--   p_domains: {"payments": "big"}; p_default: the shard of all others, null: none
create or replace function commandbus.adopt_map(p_shard text, p_version int, p_default text, p_domains jsonb)
returns boolean
language plpgsql as $$
declare
    v_old    commandbus.command_bus_shard;
    v_new    commandbus.command_bus_shard;
    v_domain text;
    v_left   boolean;
begin
    -- Who begins a domain waits, also while there is no row yet.
    lock table commandbus.command_bus_shard in exclusive mode;
    select * into v_old from commandbus.command_bus_shard s;
    if v_old.shard <> p_shard then
        raise exception 'this database is shard %, and the map calls it %', quote_literal(v_old.shard),
            quote_literal(p_shard)
            using errcode = 'CB007', hint = 'are two addresses of the map exchanged?';
    elsif v_old.version > p_version then
        raise exception 'the map has version %, and shard % has version % already', p_version, quote_literal(p_shard),
            v_old.version using errcode = 'CB007', hint = 'use the newer map';
    elsif v_old.version = p_version then
        if v_old.default_shard is distinct from p_default or v_old.domains <> p_domains then
            raise exception 'version % of the map says something else on shard %', p_version, quote_literal(p_shard)
                using errcode = 'CB007', hint = 'a map that was changed needs a higher version';
        end if;
        return false;
    end if;
    insert into commandbus.command_bus_shard as s (shard, version, default_shard, domains)
    values (p_shard, p_version, p_default, p_domains)
    on conflict (is_this) do update
       set version = excluded.version, default_shard = excluded.default_shard, domains = excluded.domains,
           adopted_at = now()
    returning * into v_new;
    for v_domain, v_left in select d.domain, d.has_left from commandbus.domains_here() d loop
        if commandbus.shard_of(v_new, v_domain) is distinct from p_shard then
            if not v_left then
                perform commandbus.let_domain_go(v_domain);
            end if;
        elsif v_left then
            execute format('drop trigger commandbus_left on pgmq.%I',
                           'q_' || commandbus.physical_queue(v_domain || '.commands'));
        end if;
    end loop;
    return true;
end $$;
