-- Keys: commands of one ordering key run one after the other, in the order in which they were sent.
--
-- A key has one row in command_bus_key while commands of it are open. It names the head: the command that is due,
-- leased, backing off, at a limit or parked. All others of the key have vt = 'infinity' and a row in
-- command_bus_waiting, at the gate 'k:' || key, by their numbers.
--
-- The row is the lock of the key. A sender waits for it, before it touches anything else, and draws its number under
-- it: so numbers follow the order of commits, and nobody who has the lock overlooks one that is sent. Who ends a
-- command does not wait: a key that is locked goes to command_bus_key_due, and the next receive looks at it.
-- What is looked at under the lock is looked at by a new statement, which sees what was committed before the lock
-- was given; above READ COMMITTED no statement does, so there the look is left to a receive.

-- Whether a statement sees what was committed just before it.
create or replace function commandbus.sees_commits() returns boolean
language sql stable as $$ select current_setting('transaction_isolation') in ('read committed', 'read uncommitted') $$;

-- The domain has commands with keys from now on. Senders of the library call it in a transaction of its own, before
-- the first of them: the row of the domain must not be held by somebody's open transaction.
create or replace function commandbus.use_keys(p_domain text) returns void
language plpgsql as $$
begin
    if exists (select from commandbus.command_bus_flow f where f.domain = p_domain and f.has_keys) then
        return;
    end if;
    perform commandbus.check_domain(p_domain);
    insert into commandbus.command_bus_flow as f (domain, has_keys) values (p_domain, true)
    on conflict (domain) do update set has_keys = true, updated_at = clock_timestamp() where not f.has_keys;
end $$;

-- Locks these keys, in their order, for a sender; makes the rows of those that have none. Nulls are no keys.
-- A row that nothing has entered when the sender is done must go: forget_keys.
create or replace function commandbus.claim_keys(p_domain text, p_keys text[]) returns void
language plpgsql as $$
begin
    perform commandbus.use_keys(p_domain);
    insert into commandbus.command_bus_key (domain, ordering_key)
    select p_domain, u.key
      from (select distinct k from unnest(p_keys) k where k is not null) u(key)
     order by u.key collate "C"
    -- Locks the row that is there, and leaves it as it is.
    on conflict (domain, ordering_key) do update set head = null where false;
end $$;

-- The same for the keys of stored or parked commands that are about to be queued again; returns them, null if there
-- is none. Called before the commands are locked: a sender that has a key may wait for commands and batches.
create or replace function commandbus.claim_keys_of(p_domain text, p_command_ids uuid[]) returns text[]
language plpgsql as $$
declare
    v_keys text[];
begin
    if not exists (select from commandbus.command_bus_flow f where f.domain = p_domain and f.has_keys) then
        return null;
    end if;
    with item as materialized (
        select p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    )
    select array_agg(distinct c.ordering_key) into v_keys
      from item i
      join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id
     where c.ordering_key is not null;
    if v_keys is not null then
        perform commandbus.claim_keys(p_domain, v_keys);
    end if;
    return v_keys;
end $$;

-- Removes the rows of claimed keys that nothing has entered.
create or replace function commandbus.forget_keys(p_domain text, p_keys text[]) returns void
language plpgsql as $$
begin
    if p_keys is not null then
        delete from commandbus.command_bus_key k
         where k.domain = p_domain and k.ordering_key = any(p_keys) and k.head is null;
    end if;
end $$;

-- A number for each command that has a key, in the order of the commands; null if none has. Locks the keys.
create or replace function commandbus.take_numbers(p_domain text, p_keys text[]) returns bigint[]
language plpgsql as $$
begin
    if array_remove(p_keys, null) = '{}' then
        return null;
    end if;
    perform commandbus.claim_keys(p_domain, p_keys);
    return array(select case when u.key is not null then nextval('commandbus.command_bus_key_number') end
                   from unnest(p_keys) with ordinality u(key, n) order by u.n);
end $$;

-- When the messages of commands with these keys and numbers become due; those without a key at p_due. The keys are
-- locked. The first of a key of which nothing is open is due now (null), and so is the head, if it is put again.
create or replace function commandbus.key_places(
    p_domain text, p_command_ids uuid[], p_keys text[], p_numbers bigint[], p_due timestamptz[]
) returns timestamptz[]
language plpgsql as $$
begin
    if p_numbers is null then
        return p_due;
    end if;
    return array(
        select case when i.key is null then i.due
                    when k.head = i.id then null
                    when k.head is null
                         and row_number() over (partition by i.key order by i.number) = 1 then null
                    else 'infinity' end
          from unnest(p_command_ids, p_keys, p_numbers, p_due) with ordinality as i(id, key, number, due, n)
          left join commandbus.command_bus_key k on k.domain = p_domain and k.ordering_key = i.key
         order by i.n);
end $$;

-- Commands have their rows and messages, placed by key_places: notes who is the head and who waits. Looks at the
-- keys as well: where one sender follows another, a worker may never get the lock.
create or replace function commandbus.enter_keys(
    p_domain text, p_command_ids uuid[], p_msg_ids bigint[], p_keys text[], p_numbers bigint[],
    p_places timestamptz[]
) returns void
language plpgsql as $$
declare
    v_look text[];
begin
    with item as materialized (
        select p_domain as domain, u.*
          from unnest(p_command_ids, p_msg_ids, p_keys, p_numbers, p_places) u(id, msg_id, key, number, place)
         where u.key is not null
    ), behind as (
        insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)
        select i.domain, 'k:' || i.key, i.number, i.msg_id, i.id from item i where i.place = 'infinity'
    )
    update commandbus.command_bus_key k set head = i.id
      from item i
     where i.place is distinct from 'infinity' and k.domain = i.domain and k.ordering_key = i.key
       and k.head is null;
    select array_agg(k.ordering_key) into v_look
      from commandbus.command_bus_key k
     where k.domain = p_domain and k.ordering_key = any(p_keys)
       and (k.head is null or k.head <> all(p_command_ids));
    if v_look is null then
        return;
    end if;
    if commandbus.sees_commits() then
        v_look := commandbus.promote_keys(p_domain, v_look);
    else
        -- The head that was to be has met a duplicate: nobody's turn, until a receive has looked.
        update commandbus.command_bus_key k set head = commandbus.nobody()
         where k.domain = p_domain and k.ordering_key = any(v_look) and k.head is null;
    end if;
    perform commandbus.note_keys(p_domain, v_look);
end $$;

-- put_placed for commands that are stored already, of which some have keys; the caller has locked them. The head of
-- a key is due at once, and is blocked no more. One that waits keeps its number; another one, whose turn is over or
-- has not come yet, gets a new number, at the end.
create or replace function commandbus.put_keyed(
    p_domain text, p_command_ids uuid[], p_messages jsonb[], p_due timestamptz[], p_levels smallint[]
) returns bigint[]
language plpgsql as $$
declare
    v_keys    text[];
    v_numbers bigint[];
    v_places  timestamptz[];
    v_msg_ids bigint[];
begin
    v_keys := array(
        select c.ordering_key from unnest(p_command_ids) with ordinality as i(id, n)
          join commandbus.command_bus_command c on c.domain = p_domain and c.command_id = i.id
         order by i.n);
    perform commandbus.claim_keys(p_domain, v_keys);
    v_numbers := array(
        select case when c.ordering_key is null then null
                    when k.head = c.command_id or c.status in ('PENDING', 'IN_PROGRESS')
                        then coalesce(c.key_seq, nextval('commandbus.command_bus_key_number'))
                    else nextval('commandbus.command_bus_key_number') end
          from unnest(p_command_ids) with ordinality as i(id, n)
          join commandbus.command_bus_command c on c.domain = p_domain and c.command_id = i.id
          left join commandbus.command_bus_key k on k.domain = p_domain and k.ordering_key = c.ordering_key
         order by i.n);
    v_places := commandbus.key_places(p_domain, p_command_ids, v_keys, v_numbers, p_due);
    v_msg_ids := commandbus.put_placed(p_domain || '.commands', p_messages, v_places, p_levels);
    -- What waited with its former message, behind its key or at a limit, waits no more with that.
    delete from commandbus.command_bus_waiting w
     where w.domain = p_domain and w.command_id = any(p_command_ids);
    update commandbus.command_bus_command c set key_seq = i.number
      from unnest(p_command_ids, v_numbers) i(id, number)
     where c.domain = p_domain and c.command_id = i.id and c.key_seq is distinct from i.number;
    update commandbus.command_bus_key k set blocked_by = null, blocked_at = null
     where k.domain = p_domain and k.ordering_key = any(v_keys) and k.blocked_by = any(p_command_ids);
    perform commandbus.enter_keys(p_domain, p_command_ids, v_msg_ids, v_keys, v_numbers, v_places);
    return v_msg_ids;
end $$;
