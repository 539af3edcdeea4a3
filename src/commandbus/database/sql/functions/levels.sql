-- Levels: priority. A message of level 0 has no headers; another one carries {"priority": n}.

-- The messages that are due, in the order in which a domain wants them.
create or replace function commandbus.read_due(
    p_flow commandbus.command_bus_flow, p_now timestamptz, p_vt int, p_quantity int, p_from_head boolean,
    p_except text[]
) returns table (msg_id bigint, message jsonb)
language plpgsql as $$
begin
    return query select * from commandbus.read_messages(
        p_flow.domain || '.commands', p_now, p_vt, p_quantity, p_from_head, p_except);
end $$;
