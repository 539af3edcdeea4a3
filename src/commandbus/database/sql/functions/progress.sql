-- Progress: how far running commands have come, as their handlers say. The table is unlogged, and no proof of life:
-- that is the lease. A row is of one lease, and shown as long as the command has that lease; so nothing is removed
-- when a command ends, and a late row of a lost lease is never shown.

-- Keeps the last word of each lease, for all commands of a worker at once.
--   p_items: [{"command_id", "lease_epoch", "fraction", "message"?}], each command once
create or replace function commandbus.record_progress(p_domain text, p_items jsonb) returns void
language sql as $$
    insert into commandbus.command_bus_progress as p (domain, command_id, lease_epoch, fraction, message, at)
    select p_domain, i.command_id, i.lease_epoch, i.fraction, left(i.message, 500), clock_timestamp()
      from jsonb_to_recordset(p_items) as i(
               command_id uuid, lease_epoch bigint, fraction float8, message text)
     where i.fraction between 0 and 1
     order by i.command_id -- two workers may write of one command, one of them late: both in this order
    on conflict (command_id, domain) do update
       set lease_epoch = excluded.lease_epoch, fraction = excluded.fraction, message = excluded.message,
           at = excluded.at
     where excluded.lease_epoch >= p.lease_epoch
$$;

-- Of these commands, how far those have come that a worker has.
create or replace function commandbus.progress_of(p_domain text, p_command_ids uuid[])
returns table (command_id uuid, fraction float8, message text, at timestamptz)
language plpgsql stable as $$
#variable_conflict use_column
begin
    -- A replica has no unlogged table, and to read it there is an error.
    if pg_is_in_recovery() then
        return;
    end if;
    return query
    select p.command_id, p.fraction, p.message, p.at
      from commandbus.command_bus_progress p
      join commandbus.command_bus_command c on c.domain = p.domain and c.command_id = p.command_id
     where p.command_id = any(p_command_ids) and p.domain = p_domain
       and c.lease_epoch = p.lease_epoch and c.leased_by is not null;
end $$;

-- Removes what is not shown any more, at most p_limit rows that are ten minutes old; returns how many.
create or replace function commandbus.sweep_progress(p_limit int default 10000) returns int
language plpgsql as $$
declare
    v_count int;
begin
    delete from commandbus.command_bus_progress p
     where p.ctid = any(array(
            select o.ctid from commandbus.command_bus_progress o
             where o.at < clock_timestamp() - interval '10 minutes'
               and not exists (select from commandbus.command_bus_command c
                                where c.domain = o.domain and c.command_id = o.command_id
                                  and c.lease_epoch = o.lease_epoch and c.leased_by is not null)
             limit p_limit for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end $$;
