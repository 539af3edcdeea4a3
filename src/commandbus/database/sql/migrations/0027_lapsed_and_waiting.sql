-- 0027: a command whose lease has lapsed and which waits at a limit or for the end of the pause of its type has no lease
-- any more, so that operators can end and move it. Those who wait so already kept it: their epoch has grown, so that it
-- fits no worker, and only the row still names one. A lapse that is counted, without a worker: the next receive knows.
with ended as (
    update commandbus.command_bus_command c
       set status = 'PENDING', leased_by = null, lease_expires_at = null, lapses = abs(c.lapses) + 1,
           updated_at = clock_timestamp()
      from commandbus.command_bus_waiting w
     where w.domain = c.domain and w.command_id = c.command_id and w.gate >= 'l:' and w.gate < 'l;'
       and c.status in ('PENDING', 'IN_PROGRESS') and c.leased_by is not null
    returning c.domain, c.command_id, c.batch_id
)
insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, batch_id)
select e.domain, e.command_id, 'LEASE_EXPIRED', clock_timestamp(), e.batch_id from ended e;
