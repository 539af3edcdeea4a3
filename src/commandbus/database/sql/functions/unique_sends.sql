-- Sends with unique keys: the functions that senders call. unique.sql has the keys themselves, and the order of locks.

-- Sends commands of which some have a unique_key. Returns what became of each: sent; skipped (command_id: who holds
-- its key, or its own if the id is known); replaced (command_id: whose payload it is now). Or, and then nothing of the
-- call was created: refused (command_id: who holds the key), known (command_id: its own).
--   p_commands: as offer_commands takes them, with "unique_key", "unique_while": "waiting" | "open" | seconds
--   (left out: open), "on_duplicate": "refuse" | "skip" | "replace" (left out: refuse), "max_wait_seconds"?
--   p_skips_known: known ids are left out, as offer_new does
create or replace function commandbus.offer_unique(
    p_domain text, p_commands jsonb, p_batch_id uuid default null, p_actor text default null,
    p_skips_known boolean default false, p_sent_by text default null
) returns table (n int, verdict text, command_id uuid)
language plpgsql as $$
#variable_conflict use_column
declare
    v_keys    text[] := array(select e ->> 'unique_key' from jsonb_array_elements(p_commands) e
                               where e ? 'unique_key');
    v_orders  text[] := array(select e ->> 'ordering_key' from jsonb_array_elements(p_commands) e
                               where e ->> 'ordering_key' is not null);
    v_now     timestamptz;
    v_held    text[];      -- keys that are held, and by whom
    v_holders uuid[];
    v_waiting uuid[];
    v_ns      int[];       -- of each command: its verdict so far, and who holds its key
    v_what    text[];
    v_whose   uuid[];
    v_fresh   jsonb;
    v_fresh_n int[];
    v_known   uuid[] := '{}';
    v_out     int[] := '{}';
begin
    perform commandbus.check_unique(p_commands, p_batch_id);
    perform commandbus.ensure_target(p_domain, p_batch_id);
    perform commandbus.claim_unique(p_domain, v_keys);
    if v_orders <> '{}' then
        -- Before the messages of those that hold the keys.
        perform commandbus.claim_keys(p_domain, v_orders);
    end if;
    v_now := clock_timestamp();
    select array_agg(h.unique_key), array_agg(h.command_id),
           array_agg(h.command_id) filter (where h.holds_while = 'waiting')
      into v_held, v_holders, v_waiting
      from commandbus.unique_holders(p_domain, v_keys, v_now) h where h.holds;
    if v_waiting is not null then
        v_waiting := array(select w from unnest(v_waiting) w
                           except select s from unnest(commandbus.lock_waiting(p_domain, v_waiting)) s);
        -- those that a worker has leased meanwhile hold nothing any more
        select array_agg(h.k), array_agg(h.id) into v_held, v_holders
          from unnest(v_held, v_holders) h(k, id) where h.id <> all(v_waiting);
    end if;

    select array_agg(i.n order by i.n), array_agg(i.what order by i.n), array_agg(i.whose order by i.n),
           jsonb_agg(i.command order by i.n) filter (where i.what = 'sent'),
           array_agg(i.n order by i.n) filter (where i.what = 'sent')
      into v_ns, v_what, v_whose, v_fresh, v_fresh_n
      from (select e.n::int, e.command,
                   case when e.command ->> 'unique_key' is null then 'sent'
                        when h.id is null and e.place = 1 then 'sent'
                        else case coalesce(e.command ->> 'on_duplicate', 'refuse')
                             when 'skip' then 'skipped' when 'replace' then 'replaced' else 'refused' end
                   end as what,
                   -- the second of a key in one call: the first has it
                   coalesce(h.id, e.first_id, (e.command ->> 'command_id')::uuid) as whose
              from (select x.command, x.n, row_number() over w as place,
                           case when x.command ->> 'unique_key' is not null then
                               (first_value(x.command ->> 'command_id') over w)::uuid end as first_id
                      from jsonb_array_elements(p_commands) with ordinality as x(command, n)
                    window w as (partition by x.command ->> 'unique_key' order by x.n)) e
              left join unnest(v_held, v_holders) h(k, id) on h.k = e.command ->> 'unique_key') i;

    if 'refused' = any(v_what) then
        perform commandbus.drop_unique(p_domain, v_keys);
        perform commandbus.forget_keys(p_domain, nullif(v_orders, '{}'));
        return query select i.n, i.what, i.whose from unnest(v_ns, v_what, v_whose) i(n, what, whose)
                      where i.what = 'refused';
        return;
    end if;
    if v_fresh is not null then
        if p_skips_known then
            v_out := array(select v_fresh_n[o]
                             from unnest(commandbus.offer_new(p_domain, v_fresh, p_batch_id, p_actor)) o);
        else
            v_known := commandbus.offer_commands(p_domain, v_fresh, p_batch_id, p_actor);
        end if;
    end if;
    if v_known <> '{}' then
        perform commandbus.drop_unique(p_domain, v_keys);
        perform commandbus.forget_keys(p_domain, nullif(v_orders, '{}'));
        return query select i.n, 'known', i.whose from unnest(v_ns, v_what, v_whose) i(n, what, whose)
                      where i.what = 'sent' and i.whose = any(v_known);
        return;
    end if;
    if 'replaced' = any(v_what) then
        perform commandbus.replace_waiting(p_domain, v_whose[1], p_commands -> 0, p_actor, p_sent_by);
    end if;
    if v_held is not null then
        -- What was locked above may be due, and a worker has stepped over it.
        perform commandbus.wake_workers(p_domain);
    end if;
    perform commandbus.give_unique(p_domain, p_commands, array(
        select f from unnest(v_fresh_n) f where f <> all(v_out)), v_now);
    perform commandbus.drop_unique(p_domain, v_keys);
    perform commandbus.forget_keys(p_domain, nullif(v_orders, '{}'));
    return query select i.n, case when i.n = any(v_out) then 'skipped' else i.what end, i.whose
                   from unnest(v_ns, v_what, v_whose) i(n, what, whose);
end $$;

-- The commands with these numbers were sent: they hold their keys from now on, as long as they say.
create or replace function commandbus.give_unique(p_domain text, p_commands jsonb, p_numbers int[], p_now timestamptz)
returns void
language plpgsql as $$
begin
    with item as materialized (
        select p_domain as domain, e.command ->> 'unique_key' as unique_key,
               (e.command ->> 'command_id')::uuid as command_id, coalesce(e.command ->> 'unique_while', 'open') as rule,
               jsonb_typeof(e.command -> 'unique_while') = 'number' as is_timed
          from jsonb_array_elements(p_commands) with ordinality as e(command, n)
         where e.n = any(p_numbers) and e.command ? 'unique_key'
    )
    update commandbus.command_bus_unique u
       set command_id = i.command_id, first_at = p_now,
           holds_while = case when i.is_timed then 'until' else i.rule end,
           holds_until = case when i.is_timed then p_now + make_interval(secs => i.rule::float8) end,
           look_at = case when i.is_timed then p_now + make_interval(secs => i.rule::float8)
                          else p_now + interval '10 minutes' end
      from item i where u.domain = i.domain and u.unique_key = i.unique_key;
end $$;

-- send_commands for commands of which some have a unique_key; returns how many were sent.
create or replace function commandbus.send_by_keys(
    p_domain text, p_commands jsonb, p_batch_id uuid, p_actor text
) returns int
language plpgsql as $$
declare
    v_sent  int := 0;
    v_known uuid[] := '{}';
    v_found record;
begin
    for v_found in select * from commandbus.offer_unique(p_domain, p_commands, p_batch_id, p_actor) loop
        if v_found.verdict = 'refused' then
            raise exception 'the key % of domain % is held by command %',
                quote_literal(p_commands -> (v_found.n - 1) ->> 'unique_key'), quote_literal(p_domain),
                v_found.command_id
                using errcode = 'CB017', detail = json_build_object(
                          'unique_key', p_commands -> (v_found.n - 1) ->> 'unique_key',
                          'command_id', v_found.command_id)::text,
                      hint = 'nothing of this call was created';
        elsif v_found.verdict = 'known' then
            v_known := v_known || v_found.command_id;
        elsif v_found.verdict = 'sent' then
            v_sent := v_sent + 1;
        end if;
    end loop;
    if v_known <> '{}' then
        perform commandbus.refuse_known_ids(p_domain, p_commands, v_known);
    end if;
    return v_sent;
end $$;

-- One command with a key, for psql and triggers; returns the id of the command that holds the key: that of this one
-- if it was sent. select commandbus.send_unique('reports', 'Rebuild', gen_random_uuid(), '{}', 'report:42', '1 minute').
--   p_unique_while: 'waiting', 'open', or for how long, as an interval
create or replace function commandbus.send_unique(
    p_domain text, p_command_type text, p_command_id uuid, p_data jsonb, p_unique_key text,
    p_unique_while text default 'open', p_on_duplicate text default 'skip', p_delay interval default null,
    p_max_wait interval default null, p_meta jsonb default null
) returns uuid
language plpgsql as $$
declare
    v_rule    jsonb := case when p_unique_while in ('waiting', 'open') then to_jsonb(p_unique_while)
                            else to_jsonb(extract(epoch from p_unique_while::interval)) end;
    v_command jsonb := jsonb_strip_nulls(jsonb_build_object(
        'unique_key', p_unique_key, 'unique_while', v_rule, 'on_duplicate', p_on_duplicate,
        'delay_seconds', extract(epoch from p_delay), 'max_wait_seconds', extract(epoch from p_max_wait),
        'meta', p_meta))
        || jsonb_build_object('command_id', p_command_id, 'type', p_command_type, 'data', p_data);
begin
    if p_unique_key is null then
        perform commandbus.refuse_flow(p_command_id, 'it has no unique_key', 'give one, or use send_command');
    end if;
    if p_on_duplicate = 'refuse' then
        perform commandbus.send_by_keys(p_domain, jsonb_build_array(v_command), null, null);
        return p_command_id;
    end if;
    return (select case when o.verdict = 'known'
                        then commandbus.refuse_known_ids(p_domain, jsonb_build_array(v_command), array[o.command_id])
                        else o.command_id end
              from commandbus.offer_unique(p_domain, jsonb_build_array(v_command)) o);
end $$;

-- Removes keys that nobody holds any more, at most p_limit; returns how many were looked at: call it again until that
-- is less than p_limit. It waits for nobody, and who waits for it finds the key free.
create or replace function commandbus.prune_unique(p_limit int default 1000) returns int
language plpgsql as $$
declare
    v_now    timestamptz := clock_timestamp();
    v_others text[] := commandbus.domains_on_the_way();
    v_looked int;
begin
    with looked as materialized (
        select u.domain, u.unique_key, u.command_id, u.holds_while, u.holds_until
          from commandbus.command_bus_unique u
         where u.look_at <= v_now and u.domain <> all(v_others)
         order by u.look_at limit p_limit for update skip locked
    ), judged as materialized (
        -- what is parked may be sent again, and then holds its key again
        select l.domain, l.unique_key,
               case when l.holds_while = 'until' then l.holds_until <= v_now
                    else coalesce(c.status in ('COMPLETED', 'CANCELED', 'FAILED'), true) end as is_over
          from looked l
          left join commandbus.command_bus_command c
            on c.domain = l.domain and c.command_id = l.command_id
    ), removed as (
        delete from commandbus.command_bus_unique u using judged j
         where j.is_over and u.domain = j.domain and u.unique_key = j.unique_key
    ), kept as (
        update commandbus.command_bus_unique u
           set look_at = coalesce(u.holds_until, v_now + interval '10 minutes')
          from judged j
         where not j.is_over and u.domain = j.domain and u.unique_key = j.unique_key
    )
    select count(*) into v_looked from looked;
    return v_looked;
end $$;

-- What a known id is for a user: repeat, if that user sent it with one of these digests, or refused. No row: it is new.
create or replace function commandbus.sent_before(p_domain text, p_command_id uuid, p_digests bytea[], p_user text)
returns table (verdict text, status text)
language sql volatile as $$
    select case when o.is_own then 'repeat' else 'refused' end, case when o.is_own then s.status end
      from commandbus.sent_as(p_domain, p_command_id) s
     cross join lateral (select coalesce(s.sent_by = p_user and s.digest = any(p_digests), false) as is_own) o
$$;

-- send_for with a unique_key. What comes over HTTP replaces only what the same user sent over HTTP, and nothing of a
-- governed type, whatever the user may do: it was let in as it is.
--   verdict: sent; repeat; skipped, replaced (command_id: who holds the key); held (the same, and it must not be);
--   refused: the id is known
create or replace function commandbus.send_unique_for(
    p_domain text, p_command jsonb, p_digests bytea[], p_on_behalf jsonb
) returns table (verdict text, status text, command_id uuid)
language plpgsql as $$
#variable_conflict use_column
declare
    v_id       uuid := (p_command ->> 'command_id')::uuid;
    v_user     text := p_on_behalf ->> 'user';
    v_types    text[] := array[p_command ->> 'type'];
    v_governed text[] := commandbus.require_ungoverned(p_domain, v_types, p_on_behalf);
    v_found    record;
begin
    if p_command ->> 'on_duplicate' = 'replace' and v_governed <> '{}' then
        raise exception '% is governed, and what was sent of it is not replaced', v_types[1]
            using errcode = 'CB011', detail = '[]', hint = 'send it without on_duplicate replace';
    end if;
    return query select b.verdict, b.status, v_id
                   from commandbus.sent_before(p_domain, v_id, p_digests, v_user) b;
    if found then
        return;
    end if;
    select * into v_found from commandbus.offer_unique(
        p_domain, jsonb_build_array(p_command), null, v_user, false, v_user);
    if v_found.verdict = 'sent' then
        perform commandbus.remember_sender(p_domain, array[v_id], p_digests[1:1], p_on_behalf);
        perform commandbus.audit_bypass(p_domain, array[v_id], v_types, v_governed, p_on_behalf, 'send');
        return query select 'sent', 'PENDING', v_id;
    elsif v_found.command_id = v_id then
        -- the same request was sent twice at once, and this one has waited for the other
        return query select b.verdict, b.status, v_id
                       from commandbus.sent_before(p_domain, v_id, p_digests, v_user) b;
    else
        return query
        select case v_found.verdict when 'refused' then 'held' else v_found.verdict end, c.status, c.command_id
          from commandbus.command_bus_command c
         where c.domain = p_domain and c.command_id = v_found.command_id;
    end if;
end $$;
