-- Gates: how many commands run at once and how often they start, over all workers.

-- read_due where the domain has limits or paused types.
create or replace function commandbus.read_gated(
    p_flow commandbus.command_bus_flow, p_now timestamptz, p_vt int, p_quantity int, p_from_head boolean,
    p_except text[]
) returns table (msg_id bigint, message jsonb)
language plpgsql as $$
begin
    return query select * from commandbus.read_due(p_flow, p_now, p_vt, p_quantity, p_from_head, p_except);
end $$;

-- The leases of these commands have ended, or the commands have: they hold no place any more.
create or replace function commandbus.free_places(p_domain text, p_command_ids uuid[]) returns void
language plpgsql as $$
begin
    null;
end $$;
