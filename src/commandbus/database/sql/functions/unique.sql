-- Sending once: what to do with ids that are known, and with keys of which one command at a time is sent.
--
-- Locks: keys, sorted, before messages, commands and everything else (locks.sql). A sender holds its keys until it
-- commits; others who send with the same key wait for that. Workers wait only for keys that their handlers
-- send with. Two transactions that take keys in separate calls, in opposite orders, meet in a circle; one call with
-- all of them does not.

-- Of these ids, the ones that were sent before.
create or replace function commandbus.known_ids(p_domain text, p_command_ids uuid[]) returns uuid[]
language plpgsql as $$
begin
    p_command_ids := array(select distinct i from unnest(p_command_ids) i);
    return case when commandbus.setting('command_id_scope') = 'global'
                then array(select i.id from unnest(p_command_ids) i(id) where commandbus.is_sent_anywhere(i.id))
                else array(select c.command_id from commandbus.command_bus_command c
                            where c.domain = p_domain and c.command_id = any(p_command_ids)) end
        || case when pg_sequence_last_value('commandbus.command_bus_history_part'::regclass) is not null
                then commandbus.known_in_history(p_domain, p_command_ids) else '{}' end;
end $$;

-- Sends the commands whose id was not sent before, and returns which were left out, as numbers from 1. An id that is
-- twice in the call: the first. Bodies are not compared, and an ended command is known too.
create or replace function commandbus.offer_new(
    p_domain text, p_commands jsonb, p_batch_id uuid default null, p_actor text default null
) returns int[]
language plpgsql as $$
declare
    v_known    uuid[];
    v_new      jsonb;
    v_left_out int[];
    v_met      uuid[];
begin
    perform commandbus.ensure_target(p_domain, p_batch_id);
    v_known := commandbus.known_ids(p_domain, array(
        select (e ->> 'command_id')::uuid from jsonb_array_elements(p_commands) e));
    loop
        select jsonb_agg(i.command order by i.n) filter (where i.is_new),
               array_agg(i.n order by i.n) filter (where not i.is_new)
          into v_new, v_left_out
          from (select e.command, e.n::int, k.id is null and row_number() over (
                           partition by (e.command ->> 'command_id')::uuid order by e.n) = 1 as is_new
                  from jsonb_array_elements(p_commands) with ordinality as e(command, n)
                  left join (select distinct u from unnest(v_known) u) k(id)
                    on k.id = (e.command ->> 'command_id')::uuid) i;
        exit when v_new is null;
        -- Others may have sent some of them since the look. Then nothing was sent, and these are known now; no
        -- savepoint is needed for it.
        v_met := commandbus.offer_commands(p_domain, v_new, p_batch_id, p_actor);
        exit when v_met = '{}';
        v_known := v_known || v_met;
    end loop;
    return coalesce(v_left_out, '{}');
end $$;

-- Refuses what cannot be, and says what to do.
create or replace function commandbus.check_unique(p_commands jsonb, p_batch_id uuid) returns void
language plpgsql as $$
declare
    v_bad record;
begin
    select i.command_id, p.problem, p.hint into v_bad
      from jsonb_to_recordset(p_commands) as i(
               command_id uuid, unique_key text, unique_while jsonb, on_duplicate text, max_wait_seconds float8,
               delay_seconds float8, ordering_key text)
     cross join lateral (values
        (not length(i.unique_key) between 1 and 200, 'unique_key has not 1 to 200 characters',
         'use a short name, for example report:42'),
        (not case jsonb_typeof(i.unique_while)
             when 'number' then i.unique_while::float8 between 0.001 and 31622400
             else coalesce(i.unique_while #>> '{}', 'open') in ('waiting', 'open') end,
         'unique_while is not waiting, open or 0.001 to 31622400 seconds', 'use one of them'),
        (i.on_duplicate not in ('refuse', 'skip', 'replace'), 'on_duplicate is not refuse, skip or replace',
         'use one of them'),
        (i.on_duplicate = 'replace' and i.unique_while #>> '{}' is distinct from 'waiting',
         'only a command that waits can be replaced', 'use unique_while waiting'),
        (i.on_duplicate = 'replace' and (p_batch_id is not null or i.ordering_key is not null),
         'a command of a batch, or with an ordering key, is not replaced', 'send it without'),
        (i.on_duplicate = 'replace' and jsonb_array_length(p_commands) > 1,
         'a replacement is sent alone', 'send it in a call of its own'),
        (i.max_wait_seconds is not null and i.on_duplicate is distinct from 'replace',
         'max_wait_seconds is without on_duplicate replace', 'leave it out'),
        (not i.max_wait_seconds between greatest(i.delay_seconds, 0.001) and 31622400,
         'max_wait_seconds is less than delay_seconds, or more than a year', 'let it wait longer')
     ) p(is_bad, problem, hint)
     where i.unique_key is not null and p.is_bad limit 1;
    if found then
        perform commandbus.refuse_flow(v_bad.command_id, v_bad.problem, v_bad.hint);
    end if;
end $$;

-- Locks keys, in their order, whether they are held or not: the first sender and the second of a new key meet here.
create or replace function commandbus.claim_unique(p_domain text, p_keys text[]) returns void
language plpgsql as $$
begin
    insert into commandbus.command_bus_unique as u (domain, unique_key, first_at, look_at)
    select p_domain, k.unique_key, clock_timestamp(), clock_timestamp()
      from (select distinct i collate "C" as unique_key from unnest(p_keys) i) k order by k.unique_key
    -- Locks the row that is there, and leaves it as it is.
    on conflict (domain, unique_key) do update set first_at = u.first_at where false;
end $$;

-- Gives keys back that were claimed and not used.
create or replace function commandbus.drop_unique(p_domain text, p_keys text[]) returns void
language sql as $$
    delete from commandbus.command_bus_unique u
     where u.domain = p_domain and u.unique_key = any(p_keys) and u.command_id is null
$$;

-- Locks the keys that handlers send with, before the messages of their outcomes; false: there are none.
--   p_sends: as settle_commands has them
create or replace function commandbus.claim_unique_of(p_sends jsonb) returns boolean
language plpgsql as $$
declare
    v_domain text;
    v_keys   text[];
begin
    if not jsonb_path_exists(p_sends, '$[*].commands[*].unique_key') then
        return false;
    end if;
    for v_domain, v_keys in
        select s ->> 'domain', array_agg(c ->> 'unique_key')
          from jsonb_array_elements(p_sends) s cross join lateral jsonb_array_elements(s -> 'commands') c
         where c ? 'unique_key' group by 1 order by 1
    loop
        perform commandbus.claim_unique(v_domain, v_keys);
    end loop;
    return true;
end $$;

-- What claim_unique_of claimed and nobody used: its handler had lost its lease.
create or replace function commandbus.drop_unique_of(p_sends jsonb) returns void
language sql as $$
    delete from commandbus.command_bus_unique u
     using jsonb_array_elements(p_sends) s cross join lateral jsonb_array_elements(s -> 'commands') c
     where u.domain = s ->> 'domain' and u.unique_key = c ->> 'unique_key' and u.command_id is null
$$;

-- Which of these commands wait: queued, and no worker has them.
create or replace function commandbus.waiting_ids(p_domain text, p_command_ids uuid[]) returns uuid[]
language sql volatile as $$
    select array(select c.command_id from commandbus.command_bus_command c
                  where c.domain = p_domain and c.command_id = any(p_command_ids)
                    and c.status = 'PENDING' and c.leased_by is null and c.msg_id is not null
                  order by c.command_id)
$$;

-- Locks those of these commands that wait, and returns them: no worker leases one before the caller commits. So a
-- command that makes another unnecessary sees all that its sender has written. A worker may have leased
-- one meanwhile; then its lock is given back, by a rollback to the beginning of the block, because
-- the outcome would have to wait for the sender.
create or replace function commandbus.lock_waiting(p_domain text, p_command_ids uuid[]) returns uuid[]
language plpgsql as $$
declare
    v_ids   uuid[] := commandbus.waiting_ids(p_domain, p_command_ids);
    v_still uuid[];
begin
    while v_ids <> '{}' loop
        begin
            perform commandbus.lock_queued(p_domain, v_ids);
            v_still := commandbus.waiting_ids(p_domain, v_ids);
            if v_still = v_ids then
                return v_ids;
            end if;
            raise object_in_use using message = 'a worker has leased one';
        exception when object_in_use then
            v_ids := v_still;
        end;
    end loop;
    return v_ids;
end $$;

-- The holders of keys that the caller has locked, and whether they still hold them.
create or replace function commandbus.unique_holders(p_domain text, p_keys text[], p_now timestamptz)
returns table (unique_key text, command_id uuid, holds_while text, holds boolean)
language plpgsql as $$
#variable_conflict use_column
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        -- Its snapshot may show a command open that has ended. To lock it refuses that, with a serialization failure.
        -- The lock is given back, by a rollback to the beginning of the block: outcomes would wait for it.
        begin
            perform 1 from commandbus.command_bus_unique u
              join commandbus.command_bus_command c on c.domain = u.domain and c.command_id = u.command_id
             where u.domain = p_domain and u.unique_key = any(p_keys) and u.holds_while <> 'until'
             order by c.command_id for no key update of c;
            raise object_in_use using message = 'all of them are as they were';
        exception when object_in_use then
            null;
        end;
    end if;
    return query
    select u.unique_key::text, u.command_id, u.holds_while,
           u.command_id is not null and coalesce(case u.holds_while
               when 'until' then u.holds_until > p_now
               when 'open' then c.status in ('PENDING', 'IN_PROGRESS')
               else c.status = 'PENDING' and c.leased_by is null and c.msg_id is not null end, false)
      from commandbus.command_bus_unique u
      left join commandbus.command_bus_command c on c.domain = u.domain and c.command_id = u.command_id
     where u.domain = p_domain and u.unique_key = any(p_keys);
end $$;

-- Gives a waiting command, which the caller has locked, another payload and another time. What it has come to with the
-- former payload (attempts, lapses, snoozes, the last error) is over. It keeps its id, its queue of replies and all
-- else. Neither payload is in the audit.
--   p_sent_by: only what this user sent over HTTP may be replaced; null: anything
create or replace function commandbus.replace_waiting(
    p_domain text, p_holder uuid, p_command jsonb, p_actor text, p_sent_by text
) returns void
language plpgsql as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_id      uuid := (p_command ->> 'command_id')::uuid;
    v_row     commandbus.command_bus_command;
    v_due     timestamptz;
    v_limit   timestamptz;
    v_expires timestamptz;
begin
    perform commandbus.check_flow(jsonb_build_array(p_command), v_now);
    select c.* into v_row from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = p_holder;
    if v_row.command_type <> p_command ->> 'type' then
        perform commandbus.refuse_flow(
            v_id, format('its key is held by %s, a %s', p_holder, v_row.command_type),
            'use keys that name their command type');
    end if;
    if v_row.batch_id is not null or v_row.ordering_key is not null then
        raise exception 'command % holds the key, and belongs to a batch or has an ordering key', p_holder
            using errcode = 'CB003', detail = p_holder::text,
                  hint = 'such a command is not replaced; send with on_duplicate skip, or another key';
    end if;
    if p_sent_by is not null and not exists (
           select from commandbus.command_bus_sender s
            where s.domain = p_domain and s.command_id = p_holder and s.sent_by = p_sent_by) then
        raise exception 'the key is held by a command of another sender'
            using errcode = 'CB003', hint = 'only its sender replaces it; use another key';
    end if;
    v_due := coalesce((p_command ->> 'deliver_at')::timestamptz,
                      v_now + make_interval(secs => (p_command ->> 'delay_seconds')::float8), v_now);
    select u.first_at + make_interval(secs => (p_command ->> 'max_wait_seconds')::float8) into v_limit
      from commandbus.command_bus_unique u
     where u.domain = p_domain and u.unique_key = p_command ->> 'unique_key';
    v_due := greatest(least(v_due, v_limit), v_now);
    v_expires := coalesce((p_command ->> 'expires_at')::timestamptz,
                          v_now + make_interval(secs => (p_command ->> 'expires_in_seconds')::float8));
    -- At a limit it has no time of its own. What was due when its wait was over keeps its place among others.
    execute format(
        'update pgmq.%I q set message = jsonb_set(q.message - ''meta'', ''{data}'', $2) || $6,'
        '    vt = case when q.vt = ''infinity'' then q.vt when $4 <= $5 then least(q.vt, $3) else $3 end'
        ' where q.msg_id = $1', 'q_' || commandbus.physical_queue(p_domain || '.commands'))
      using v_row.msg_id, coalesce(p_command -> 'data', '{}'), v_due, v_limit, v_now,
            case when nullif(nullif(p_command -> 'meta', '{}'), 'null') is null then '{}'
                 else commandbus.meta_member(p_command -> 'meta') end;
    update commandbus.command_bus_command c
       set deliver_at = case when v_due > v_now then v_due end, expires_at = v_expires, updated_at = v_now,
           attempts = 0, lapses = 0, started_alone = false, snoozes = null,
           last_error_type = null, last_error_code = null, last_error_msg = null
     where c.domain = p_domain and c.command_id = p_holder;
    delete from commandbus.command_bus_expiry e where e.domain = p_domain and e.command_id = p_holder;
    perform commandbus.watch_expiry(p_domain, array[p_holder], array[v_expires]);
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values (p_domain, p_holder, 'REPLACED', v_now, jsonb_strip_nulls(jsonb_build_object(
        'offered_id', v_id, 'deliver_at', commandbus.iso8601(case when v_due > v_now then v_due end),
        'expires_at', commandbus.iso8601(v_expires))), p_actor);
end $$;
