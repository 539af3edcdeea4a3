-- Keys, seen from outside: which are open, which are blocked and by what, and who waits behind whom.

-- What a command waits for that has this number in its key: how many are before it, and the first of them. One of a
-- governed batch is not named: not everybody who sees this command may know of it.
create or replace function commandbus.key_text(p_domain text, p_key text, p_number bigint) returns text
language sql stable as $$
    select format('number %s behind %s of key %s%s',
                  (select count(*) from commandbus.command_bus_waiting w
                    where w.domain = p_domain and w.gate = 'k:' || p_key and w.seq <= p_number),
                  coalesce(case when b.batch_type is null then k.head::text end, 'others'), p_key,
                  case when k.blocked_by is not null then ', which is parked and blocks it' else '' end)
      from (select 1) one
      left join commandbus.command_bus_key k on k.domain = p_domain and k.ordering_key = p_key
      left join commandbus.command_bus_command c on c.domain = k.domain and c.command_id = k.head
      left join commandbus.command_bus_batch b on b.batch_id = c.batch_id
$$;

-- The open keys of a domain: those that are blocked first, the longest of them before the others; then the rest by their
-- names. To go on, give is_blocked, since and the key of the last row.
--   waiting: how many are behind the head; since: when it was blocked, or since when the first of them waits
--   p_viewer: as in visibility.sql
create or replace function commandbus.list_keys(
    p_domain text, p_is_blocked boolean default null, p_viewer text default null,
    p_after_blocked boolean default null, p_after_at timestamptz default null, p_after text default null,
    p_limit int default 100
) returns table (
    ordering_key text, head uuid, head_type text, head_status text, is_blocked boolean, waiting bigint,
    since timestamptz)
language sql stable as $$
    with listed as (
        (select k.*, 1 as part, c.command_type, c.status from commandbus.command_bus_key k
           left join commandbus.command_bus_command c on c.domain = k.domain and c.command_id = k.head
          where k.domain = p_domain and k.blocked_by is not null and coalesce(p_is_blocked, true)
            and coalesce(p_after_blocked, true)
            and (p_after is null or (k.blocked_at, k.ordering_key) > (p_after_at, p_after))
            and commandbus.sees_batch(p_viewer, c.batch_id)
          order by k.blocked_at, k.ordering_key limit p_limit)
        union all
        (select k.*, 2, c.command_type, c.status from commandbus.command_bus_key k
           left join commandbus.command_bus_command c on c.domain = k.domain and c.command_id = k.head
          where k.domain = p_domain and k.blocked_by is null and not coalesce(p_is_blocked, false)
            and (p_after is null or p_after_blocked or k.ordering_key > p_after)
            and commandbus.sees_batch(p_viewer, c.batch_id)
          order by k.ordering_key limit p_limit)
    )
    select l.ordering_key, l.head, l.command_type::text, l.status::text, l.blocked_by is not null, w.behind,
           coalesce(l.blocked_at, w.since)
      from listed l
     cross join lateral (select count(*) as behind, min(x.since) as since
                           from commandbus.command_bus_waiting x
                          where x.domain = l.domain and x.gate = 'k:' || l.ordering_key) w
     order by l.part, case when l.part = 1 then l.blocked_at end, l.ordering_key
     limit p_limit
$$;

-- The commands of one key in their order, the head first: its place is 0.
create or replace function commandbus.show_key(
    p_domain text, p_key text, p_viewer text default null, p_limit int default 100
) returns table (
    place bigint, command_id uuid, command_type text, status text, number bigint, since timestamptz,
    is_blocking boolean)
language sql stable as $$
    select o.place, o.command_id, c.command_type::text, c.status::text, c.key_seq, o.since, o.is_blocking
      from (select 0::bigint as place, k.head as command_id, k.blocked_at as since,
                   k.blocked_by is not null as is_blocking
              from commandbus.command_bus_key k where k.domain = p_domain and k.ordering_key = p_key
            union all
            (select row_number() over (order by w.seq, w.msg_id), w.command_id, w.since, false
               from commandbus.command_bus_waiting w
              where w.domain = p_domain and w.gate = 'k:' || p_key order by w.seq, w.msg_id limit p_limit)) o
      join commandbus.command_bus_command c on c.domain = p_domain and c.command_id = o.command_id
     where commandbus.sees_batch(p_viewer, c.batch_id)
     order by o.place
     limit p_limit
$$;

-- How many keys of a domain are open and how many blocked, and for how long the first of those has been. Counts at most
-- 10,000 of each.
create or replace function commandbus.key_figures(
    p_domain text, out open_keys bigint, out blocked_keys bigint, out blocked_seconds double precision)
language sql stable as $$
    select (select count(*) from (select from commandbus.command_bus_key k
                                   where k.domain = p_domain limit 10000) o),
           b.n, coalesce(extract(epoch from clock_timestamp() - b.since), 0)
      from (select count(*) as n, min(x.blocked_at) as since
              from (select k.blocked_at from commandbus.command_bus_key k
                     where k.domain = p_domain and k.blocked_by is not null
                     order by k.blocked_at limit 10000) x) b
$$;
