-- Turns: the next command of a key becomes due when the turn of the one before it is over (keys.sql). Nothing here
-- waits for a lock.

-- These keys are to be looked at by the next receive.
create or replace function commandbus.note_keys(p_domain text, p_keys text[]) returns void
language plpgsql as $$
begin
    if p_keys <> '{}' then
        insert into commandbus.command_bus_key_due (domain, ordering_key)
        select p_domain, k from unnest(p_keys) k;
    end if;
end $$;

-- Looks at keys that the caller has locked, and does what is missing: where the turn of the head is over, the next
-- one becomes due and the head; where nobody waits, the row goes; where the head is parked and that blocks, the row
-- says so. May be called at any time, in READ COMMITTED. Waits for nothing: returns the keys that it could not deal
-- with, because another session has the message of the next one, or the domain's row.
create or replace function commandbus.promote_keys(p_domain text, p_keys text[]) returns text[]
language plpgsql as $$
declare
    v_skips  boolean;
    v_parked text[];
    v_over   text[];
    v_left   text[] := '{}';
    v_ids    uuid[];
    v_msgs   bigint[];
    v_moved  bigint[];
begin
    v_skips := coalesce((select f.on_park = 'skip' from commandbus.command_bus_flow f where f.domain = p_domain), false);
    with item as materialized (
        select p_domain as domain, u.key from unnest(p_keys) u(key)
    )
    select array_agg(k.ordering_key) filter (where c.status = 'IN_TROUBLESHOOTING_QUEUE' and not v_skips),
           array_agg(k.ordering_key) filter (
               where c.status is null or c.status in ('COMPLETED', 'FAILED', 'CANCELED')
                  or c.status = 'IN_TROUBLESHOOTING_QUEUE' and v_skips)
      into v_parked, v_over
      from item i
      join commandbus.command_bus_key k on k.domain = i.domain and k.ordering_key = i.key
      left join commandbus.command_bus_command c on c.domain = k.domain and c.command_id = k.head;
    if v_parked is not null then
        v_left := commandbus.block_keys(p_domain, v_parked);
    end if;
    if v_over is null then
        return v_left;
    end if;
    -- The lowest number of each, also if somebody is about to cancel it: one behind it must not go first.
    select array_agg(o.key order by o.key), array_agg(w.command_id order by o.key),
           array_agg(w.msg_id order by o.key)
      into v_over, v_ids, v_msgs
      from unnest(v_over) o(key)
      left join lateral (
           select x.command_id, x.msg_id from commandbus.command_bus_waiting x
            where x.domain = p_domain and x.gate = 'k:' || o.key order by x.seq, x.msg_id limit 1) w on true;
    delete from commandbus.command_bus_key k
     where k.domain = p_domain and k.ordering_key = any(array(
           select o.key from unnest(v_over, v_ids) o(key, id) where o.id is null));
    if array_remove(v_ids, null) = '{}' then
        return v_left;
    end if;
    -- Who has the message of one may be canceling it, and wait for the batch that this session has. Due as of the
    -- call: a receive that looks at its keys first takes what is due at its own beginning.
    execute format(
        'with due as (update pgmq.%1$I m set vt = $1'
        '              where m.msg_id = any(array(select q.msg_id from pgmq.%1$I q where q.msg_id = any($2)'
        '                                            for update skip locked))'
        '             returning m.msg_id) select array_agg(d.msg_id) from due d',
        'q_' || commandbus.physical_queue(p_domain || '.commands'))
       into v_moved using statement_timestamp(), v_msgs;
    with item as materialized (
        select p_domain as domain, o.key, o.id from unnest(v_over, v_ids, v_msgs) o(key, id, msg_id)
         where o.msg_id = any(v_moved)
    ), passed as (
        delete from commandbus.command_bus_waiting w using item i
         where w.domain = i.domain and w.command_id = i.id
    )
    update commandbus.command_bus_key k set head = i.id, blocked_by = null, blocked_at = null
      from item i where k.domain = i.domain and k.ordering_key = i.key;
    if v_moved is not null then
        perform commandbus.wake_workers(p_domain);
    end if;
    return v_left || array(select o.key from unnest(v_over, v_msgs) o(key, msg_id)
                            where o.msg_id <> all(coalesce(v_moved, '{}')));
end $$;

-- The heads of these keys are parked, and that blocks them. The domain's row is locked until the commit, so that who
-- changes its policy sees which keys are blocked; who has it just now leaves the keys to a later look, which are
-- returned.
create or replace function commandbus.block_keys(p_domain text, p_keys text[]) returns text[]
language plpgsql as $$
declare
    v_blocks boolean;
begin
    select f.on_park = 'block' into v_blocks
      from commandbus.command_bus_flow f where f.domain = p_domain for share skip locked;
    if v_blocks is not true then
        return p_keys;
    end if;
    update commandbus.command_bus_key k set blocked_by = k.head, blocked_at = clock_timestamp()
     where k.domain = p_domain and k.ordering_key = any(p_keys) and k.blocked_by is distinct from k.head;
    return '{}';
end $$;

-- These commands will not start again by themselves: the next of their keys may.
create or replace function commandbus.leave_keys(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
declare
    v_keys  text[];
    v_ended uuid[];
    v_mine  text[];
begin
    with item as materialized (
        select p_domain as domain, u.command_id from unnest(p_command_ids) u(command_id)
    )
    select array_agg(distinct c.ordering_key), array_agg(c.command_id) filter (where c.status = 'CANCELED')
      into v_keys, v_ended
      from item i
      join commandbus.command_bus_command c on c.domain = i.domain and c.command_id = i.command_id
     where c.ordering_key is not null;
    if v_keys is null then
        return;
    end if;
    if v_ended is not null then  -- only these may have waited; their messages are locked
        delete from commandbus.command_bus_waiting w
         where w.domain = p_domain and w.command_id = any(v_ended) and w.gate like 'k:%';
    end if;
    if not commandbus.sees_commits() then
        perform commandbus.note_keys(p_domain, v_keys);
        perform commandbus.wake_workers(p_domain);
        return;
    end if;
    v_mine := array(
        select k.ordering_key from commandbus.command_bus_key k
         where k.domain = p_domain and k.ordering_key = any(v_keys) and k.head = any(p_command_ids)
           for update skip locked);
    v_keys := array(
        select k.ordering_key from commandbus.command_bus_key k
         where k.domain = p_domain and k.ordering_key = any(v_keys) and k.head = any(p_command_ids)
           and k.ordering_key <> all(v_mine));
    if v_mine <> '{}' then
        v_keys := v_keys || commandbus.promote_keys(p_domain, v_mine);
    end if;
    if v_keys <> '{}' then
        perform commandbus.note_keys(p_domain, v_keys);
        perform commandbus.wake_workers(p_domain);
    end if;
end $$;

-- Lets go what an earlier call could not, because another session had its key.
create or replace function commandbus.resume_keys(p_domain text) returns void
language plpgsql as $$
declare
    c_limit constant int := 200;
    v_dues  bigint[];
    v_keys  text[];
    v_mine  text[];
    v_left  text[];
begin
    if not commandbus.sees_commits() then
        return;
    end if;
    v_dues := array(
        select d.due_id from commandbus.command_bus_key_due d
         where d.domain = p_domain order by d.due_id limit c_limit for update skip locked);
    if v_dues = '{}' then
        return;
    end if;
    v_keys := array(select distinct d.ordering_key from commandbus.command_bus_key_due d
                     where d.domain = p_domain and d.due_id = any(v_dues));
    v_mine := array(select k.ordering_key from commandbus.command_bus_key k
                     where k.domain = p_domain and k.ordering_key = any(v_keys) for update skip locked);
    -- One that is not there has nothing open, or will have by the sender that just makes it.
    v_left := array(select k.ordering_key from commandbus.command_bus_key k
                     where k.domain = p_domain and k.ordering_key = any(v_keys)
                       and k.ordering_key <> all(v_mine))
              || commandbus.promote_keys(p_domain, v_mine);
    delete from commandbus.command_bus_key_due d
     where d.domain = p_domain and d.due_id = any(v_dues)
       and (d.ordering_key <> all(v_left) or cardinality(v_dues) = c_limit);
    if cardinality(v_dues) = c_limit then  -- behind the others, which would else never be looked at
        perform commandbus.note_keys(p_domain, v_left);
    end if;
end $$;
