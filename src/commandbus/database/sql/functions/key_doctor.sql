-- The doctor, third part: keys. doctor.sql says what a check returns, repair.sql what a repair does.

-- Keys that stand still, what waits at a key in vain, and keys that a parked command blocks. subject: the key, or the
-- command.
create or replace function commandbus.check_keys(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language plpgsql stable as $$
begin
    -- The turn of the head is over, and nobody has noted it.
    return query
    select 'KEY_STANDS', k.domain, k.ordering_key, null::bigint
      from commandbus.command_bus_key k
      left join commandbus.command_bus_command c on c.domain = k.domain and c.command_id = k.head
      left join commandbus.command_bus_flow f on f.domain = k.domain
     where (p_domain is null or k.domain = p_domain)
       and (c.status is null or c.status in ('COMPLETED', 'FAILED', 'CANCELED')
            or c.status = 'IN_TROUBLESHOOTING_QUEUE' and (f.on_park = 'skip' or k.blocked_by is null))
       and not exists (select from commandbus.command_bus_key_due d
                        where d.domain = k.domain and d.ordering_key = k.ordering_key);
    return query
    select 'KEY_BLOCKED', k.domain, k.ordering_key || ' by ' || k.blocked_by, null::bigint
      from commandbus.command_bus_key k
     where k.blocked_by is not null and (p_domain is null or k.domain = p_domain);
    -- A place of a command that does not wait, or of a key that is not there.
    return query
    select 'KEY_PLACE_UNKNOWN', w.domain, w.command_id::text, w.msg_id
      from commandbus.command_bus_waiting w
      left join commandbus.command_bus_command c on c.domain = w.domain and c.command_id = w.command_id
     where w.gate like 'k:%' and (p_domain is null or w.domain = p_domain)
       and ((c.status = 'PENDING' and c.leased_by is null and c.msg_id = w.msg_id
             and 'k:' || c.ordering_key = w.gate) is not true
            or not exists (select from commandbus.command_bus_key k
                            where k.domain = w.domain and k.ordering_key = c.ordering_key));
    -- A command with a key that is neither the head nor waits. Its message may be gone: that is another finding.
    for domain in
        select f.domain from commandbus.command_bus_flow f
         where f.has_keys and (p_domain is null or f.domain = p_domain)
           and commandbus.queue_exists(f.domain || '.commands')
    loop
        return query execute format($q$
            select 'KEY_PLACE_LOST', c.domain, c.command_id::text, c.msg_id
              from commandbus.command_bus_command c
              join pgmq.%I q on q.msg_id = c.msg_id
             where c.domain = $1 and c.status = 'PENDING' and c.leased_by is null and c.ordering_key is not null
               and ($2 is null or c.updated_at >= $2)
               and not exists (select from commandbus.command_bus_waiting w
                                where w.domain = c.domain and w.command_id = c.command_id)
               and (q.vt = 'infinity' or not exists (
                       select from commandbus.command_bus_key k
                        where k.domain = c.domain and k.ordering_key = c.ordering_key
                          and k.head = c.command_id)) $q$,
            'q_' || commandbus.physical_queue(domain || '.commands')) using domain, p_since;
    end loop;
end $$;

-- Gives commands their places in their keys again, by their numbers, removes places that nobody has, and looks at the
-- keys. Under the locks of the keys, then of the messages and the commands.
create or replace function commandbus.repair_keys(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_found    text[];
    v_codes    text[];
    v_ids      uuid[];
    v_keys     text[];
    v_lost     uuid[];
begin
    select array_agg(f.subject), array_agg(f.code) into v_found, v_codes
      from (select c.subject, c.code from commandbus.check_keys(p_domain) c
             where c.code <> 'KEY_BLOCKED' order by 1 limit p_limit) f;
    if v_found is null then
        return;
    end if;
    v_ids := array(select f.subject::uuid from unnest(v_found, v_codes) f(subject, code)
                    where f.code <> 'KEY_STANDS');
    v_keys := array(select f.subject from unnest(v_found, v_codes) f(subject, code) where f.code = 'KEY_STANDS'
                    union
                    select c.ordering_key from commandbus.command_bus_command c
                     where c.domain = p_domain and c.command_id = any(v_ids) and c.ordering_key is not null);
    perform commandbus.claim_keys(p_domain, v_keys);
    perform commandbus.lock_queued(p_domain, v_ids);
    delete from commandbus.command_bus_waiting w
     where w.domain = p_domain and w.command_id = any(v_ids) and w.gate like 'k:%'
       and not exists (select from commandbus.command_bus_command c
                        where c.domain = w.domain and c.command_id = w.command_id and c.status = 'PENDING'
                          and c.leased_by is null and c.msg_id = w.msg_id and 'k:' || c.ordering_key = w.gate);
    with placed as (
        insert into commandbus.command_bus_waiting (domain, gate, seq, msg_id, command_id)
        select c.domain, 'k:' || c.ordering_key,
               coalesce(c.key_seq, nextval('commandbus.command_bus_key_number')), c.msg_id, c.command_id
          from commandbus.command_bus_command c
         where c.domain = p_domain and c.command_id = any(v_ids) and c.status = 'PENDING'
           and c.leased_by is null and c.msg_id is not null and c.ordering_key is not null
           and not exists (select from commandbus.command_bus_waiting w
                            where w.domain = c.domain and w.command_id = c.command_id)
        on conflict do nothing
        returning command_id
    )
    select array_agg(p.command_id) into v_lost from placed p;
    if v_lost is not null then
        execute format('update pgmq.%I q set vt = ''infinity'' where q.msg_id = any($1)',
                       'q_' || commandbus.physical_queue(p_domain || '.commands'))
          using array_remove(commandbus.message_ids(p_domain, v_lost), null);
        -- It was the head all the same: it goes first, by its number.
        update commandbus.command_bus_key k set head = commandbus.nobody()
         where k.domain = p_domain and k.ordering_key = any(v_keys) and k.head = any(v_lost);
    end if;
    perform commandbus.note_keys(p_domain, commandbus.promote_keys(p_domain, v_keys));
    perform commandbus.record_repair(
                p_domain, case when f.code <> 'KEY_STANDS' then f.subject::uuid end, null,
                jsonb_strip_nulls(jsonb_build_object(
                    'code', f.code, 'ordering_key', case when f.code = 'KEY_STANDS' then f.subject end)), p_actor)
       from unnest(v_found, v_codes) f(subject, code);
    return query select distinct f from unnest(v_found) f;
end $$;
