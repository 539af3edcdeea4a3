-- Operators and keys: the policy of a domain, and stepping over the command that blocks a key.

-- An audit line about the keys of a domain. p_command_id null: about all of them.
create or replace function commandbus.record_keys(
    p_domain text, p_command_id uuid, p_event text, p_details jsonb, p_actor text
) returns void
language sql as $$
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    values (p_domain, coalesce(p_command_id, commandbus.nobody()), p_event, clock_timestamp(),
            jsonb_strip_nulls(p_details),
            (select c.batch_id from commandbus.command_bus_command c
              where c.domain = p_domain and c.command_id = p_command_id), p_actor);
$$;

-- Says whether a parked command blocks its key ('block') or is stepped over ('skip'). With 'skip' the keys that are
-- blocked go on: by the next receives, because their rows may be locked.
create or replace function commandbus.set_key_policy(
    p_domain text, p_on_park text, p_actor text default null, p_reason text default null
) returns void
language plpgsql as $$
declare
    v_before text;
    v_keys   text[];
begin
    perform commandbus.check_domain(p_domain);
    if p_on_park is null or p_on_park not in ('block', 'skip') then
        raise exception 'the policy of keys is %, not block or skip', quote_nullable(p_on_park)
            using errcode = 'CB005', hint = 'block: a parked command holds its key; skip: it is stepped over';
    end if;
    insert into commandbus.command_bus_flow (domain) values (p_domain) on conflict (domain) do nothing;
    -- Waits for those who block a key just now (block_keys): the statement after it sees their keys.
    select f.on_park into v_before from commandbus.command_bus_flow f where f.domain = p_domain for update;
    if v_before = p_on_park then
        return;
    end if;
    update commandbus.command_bus_flow f set on_park = p_on_park, updated_at = clock_timestamp()
     where f.domain = p_domain;
    perform commandbus.record_keys(
        p_domain, null, 'KEY_POLICY_SET',
        jsonb_build_object('on_park', p_on_park, 'before', v_before, 'reason', p_reason), p_actor);
    if p_on_park = 'skip' then
        v_keys := array(select k.ordering_key from commandbus.command_bus_key k
                         where k.domain = p_domain and k.blocked_by is not null);
        perform commandbus.note_keys(p_domain, v_keys);
        perform commandbus.wake_workers(p_domain);
    end if;
end $$;

-- The policy of a domain.
create or replace function commandbus.key_policy(p_domain text) returns text
language sql stable as $$
    select coalesce((select f.on_park from commandbus.command_bus_flow f where f.domain = p_domain), 'block')
$$;

-- Steps over the parked command that blocks a key, and returns it: it stays parked, the next one goes, and a later
-- retry puts it at the end of the key. Refused if the key is not blocked, or by another command than p_expected.
create or replace function commandbus.skip_key(
    p_domain text, p_key text, p_actor text default null, p_reason text default null,
    p_expected uuid default null
) returns uuid
language plpgsql as $$
declare
    v_blocker uuid;
begin
    perform commandbus.check_domain(p_domain);
    -- A key is locked first of all, so waiting for it is harmless.
    select k.blocked_by into v_blocker from commandbus.command_bus_key k
     where k.domain = p_domain and k.ordering_key = p_key for update;
    if not found then
        raise exception 'key % of domain % has no open commands', quote_literal(p_key), quote_literal(p_domain)
            using errcode = 'CB003', hint = 'look at the keys of the domain';
    end if;
    if v_blocker is null or v_blocker <> p_expected then
        raise exception 'key % of domain % is not blocked by %', quote_literal(p_key), quote_literal(p_domain),
            coalesce(p_expected::text, 'a parked command')
            using errcode = 'CB003', hint = 'look at the key again: only a parked command can be stepped over';
    end if;
    -- Not null: if another session has the next one, the turn is over, and those who wait still go first.
    update commandbus.command_bus_key k set head = commandbus.nobody(), blocked_by = null, blocked_at = null
     where k.domain = p_domain and k.ordering_key = p_key;
    perform commandbus.record_keys(
        p_domain, v_blocker, 'KEY_SKIPPED', jsonb_build_object('ordering_key', p_key, 'reason', p_reason), p_actor);
    perform commandbus.note_keys(p_domain, case when commandbus.sees_commits()
                                                then commandbus.promote_keys(p_domain, array[p_key])
                                                else array[p_key] end);
    perform commandbus.wake_workers(p_domain);
    return v_blocker;
end $$;
