-- Repair: what `doctor --fix` does. Each function looks for its finding itself, takes the locks in the
-- order of locks.sql, looks again under them, and writes an event for each thing it repaired. It
-- returns what it repaired, at most p_limit: call it again until nothing comes back. In READ COMMITTED
-- only: under the lock it must see what was committed since.

-- The audit line of a repair. p_command_id: of the command or batch; null: it is about neither.
create or replace function commandbus.record_repair(
    p_domain text, p_command_id uuid, p_batch_id uuid, p_details jsonb, p_actor text
) returns void
language sql as $$
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id, actor)
    values (p_domain, coalesce(p_command_id, commandbus.nobody()), 'DOCTOR_REPAIR', clock_timestamp(),
            p_details, p_batch_id, p_actor);
$$;

-- Messages that no command waits for go to the archive, where nothing is lost. Once a message is
-- stray it stays so: a command that is sent again gets a new one.
create or replace function commandbus.repair_messages(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_queue text := p_domain || '.commands';
    v_msgs  bigint[];
    v_ids   uuid[];
    v_codes text[];
begin
    v_msgs := array(select m.msg_id from commandbus.check_messages(p_domain) m
                     order by m.msg_id limit p_limit);
    if v_msgs = '{}' then
        return;
    end if;
    perform commandbus.lock_messages(v_queue, v_msgs);
    execute format($q$
        select array_agg(m.msg_id order by m.msg_id), array_agg(m.command_id order by m.msg_id),
               array_agg(case when c.command_id is null then 'MESSAGE_UNKNOWN'
                              when c.status = 'IN_TROUBLESHOOTING_QUEUE' then 'MESSAGE_OF_PARKED'
                              when c.status not in ('PENDING', 'IN_PROGRESS') then 'MESSAGE_OF_ENDED'
                              else 'MESSAGE_SUPERSEDED' end order by m.msg_id)
          from (select q.msg_id, commandbus.message_command_id(q.message) as command_id
                  from pgmq.%I q where q.msg_id = any($2)) m
          left join commandbus.command_bus_command c
            on c.domain = $1 and c.command_id = m.command_id
         where c.command_id is null or c.status not in ('PENDING', 'IN_PROGRESS')
            or c.msg_id <> m.msg_id $q$, 'q_' || commandbus.physical_queue(v_queue))
       into v_msgs, v_ids, v_codes using p_domain, v_msgs;
    if v_msgs is null then
        return;
    end if;
    perform pgmq.archive(commandbus.physical_queue(v_queue), v_msgs);
    perform commandbus.record_repair(
                p_domain, m.id, null, jsonb_build_object('code', m.code, 'archived_msg_id', m.msg_id), p_actor)
       from unnest(v_msgs, v_ids, v_codes) m(msg_id, id, code);
    return query select coalesce(m.id::text, 'message ' || m.msg_id)
                   from unnest(v_msgs, v_ids) m(msg_id, id);
end $$;

-- An open command whose message is gone gets a new one, with the payload of the archive. If a worker
-- holds it, the message shows up when the lease is over: its result, until then, takes it along.
create or replace function commandbus.repair_lost_messages(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_queue    text := commandbus.physical_queue(p_domain || '.commands');
    v_now      timestamptz;
    v_ids      uuid[];
    v_batches  uuid[];
    v_messages jsonb[];
    v_leases   timestamptz[];
    v_msg_ids  bigint[];
    v_lease    timestamptz;
    v_keys     text[];
begin
    v_ids := array(select f.subject::uuid from commandbus.check_commands(p_domain) f
                    where f.code = 'MESSAGE_LOST' order by 1 limit p_limit);
    if v_ids = '{}' then
        return;
    end if;
    v_keys := commandbus.claim_keys_of(p_domain, v_ids);
    v_now := commandbus.lock_commands(p_domain, v_ids);
    execute format($q$
        select array_agg(c.command_id order by c.sequence_no, c.command_id),
               array_agg(c.batch_id order by c.sequence_no, c.command_id),
               array_agg(coalesce(a.message, p.payload_json) order by c.sequence_no, c.command_id),
               array_agg(c.lease_expires_at order by c.sequence_no, c.command_id)
          from commandbus.command_bus_command c
          left join pgmq.%I q on q.msg_id = c.msg_id
          left join pgmq.%I a on a.msg_id = c.msg_id
          left join commandbus.command_bus_payload_archive p
            on p.domain = c.domain and p.command_id = c.command_id
         where c.domain = $1 and c.command_id = any($2) and c.status in ('PENDING', 'IN_PROGRESS')
           and c.msg_id is not null and q.msg_id is null
           and (a.msg_id is not null or p.command_id is not null) $q$,
        'q_' || v_queue, 'a_' || v_queue)
       into v_ids, v_batches, v_messages, v_leases using p_domain, v_ids;
    if v_ids is null then
        perform commandbus.forget_keys(p_domain, v_keys);
        return;
    end if;
    v_msg_ids := commandbus.put_again(p_domain, v_ids, v_messages);
    update commandbus.command_bus_command c set msg_id = n.msg_id, updated_at = v_now
      from unnest(v_ids, v_msg_ids) n(command_id, msg_id)
     where c.domain = p_domain and c.command_id = n.command_id
       and c.status in ('PENDING', 'IN_PROGRESS');
    for v_lease in select distinct l from unnest(v_leases) l where l is not null loop
        perform pgmq.set_vt(v_queue, array(
            select n.msg_id from unnest(v_msg_ids, v_leases) n(msg_id, lease)
             where n.lease = v_lease order by 1), v_lease);
    end loop;
    perform commandbus.record_repair(p_domain, n.id, n.batch_id, jsonb_build_object(
                'code', 'MESSAGE_LOST', 'msg_id', n.msg_id), p_actor)
       from unnest(v_ids, v_msg_ids, v_batches) n(id, msg_id, batch_id);
    perform commandbus.forget_keys(p_domain, v_keys);
    perform commandbus.wake_workers(p_domain);
    return query select i::text from unnest(v_ids) i;
end $$;

-- The list of what waits for an operator is made to fit the commands, never the other way round.
create or replace function commandbus.repair_troubleshooting(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_ids      uuid[];
    v_unlisted uuid[];
    v_reasons  text[];
    v_listed   uuid[];
begin
    v_ids := array(select f.subject::uuid from commandbus.check_troubleshooting(p_domain) f
                    where f.code in ('PARKED_UNLISTED', 'LISTED_NOT_PARKED') order by 1 limit p_limit);
    perform commandbus.lock_commands(p_domain, v_ids);
    select array_agg(c.command_id), array_agg(coalesce(
               (select a.details_json ->> 'reason' from commandbus.command_bus_audit a
                 where a.command_id = c.command_id and a.domain = c.domain
                   and a.event_type = 'MOVED_TO_TROUBLESHOOTING_QUEUE'
                 order by a.audit_id desc limit 1), 'PERMANENT'))
      into v_unlisted, v_reasons
      from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = any(v_ids) and c.status = 'IN_TROUBLESHOOTING_QUEUE'
       and not exists (select from commandbus.command_bus_troubleshooting t
                        where t.domain = c.domain and t.command_id = c.command_id);
    if v_unlisted is not null then
        perform commandbus.enter_troubleshooting(p_domain, v_unlisted, v_reasons, clock_timestamp());
    end if;
    select array_agg(t.command_id) into v_listed
      from commandbus.command_bus_troubleshooting t
     where t.domain = p_domain and t.command_id = any(v_ids)
       and not exists (select from commandbus.command_bus_command c
                        where c.domain = t.domain and c.command_id = t.command_id
                          and c.status = 'IN_TROUBLESHOOTING_QUEUE');
    perform commandbus.leave_troubleshooting(p_domain, v_listed);
    perform commandbus.record_repair(p_domain, u, null, '{"code": "PARKED_UNLISTED"}', p_actor)
       from unnest(v_unlisted) u;
    perform commandbus.record_repair(p_domain, l, null, '{"code": "LISTED_NOT_PARKED"}', p_actor)
       from unnest(v_listed) l;
    return query select r::text from unnest(v_unlisted || v_listed) r;
end $$;

-- Counts the groups again. Who moves a counter holds the list's row and the group's until its
-- commit, so under the group's lock the list is what has been counted. A group that is not there at
-- all is made by the next command of its kind, or by leaving and entering: here it is entered again.
create or replace function commandbus.repair_groups(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_found   text[];
    v_members uuid[];
    v_reasons text[];
begin
    v_found := array(select f.subject from commandbus.check_troubleshooting(p_domain) f
                      where f.code = 'GROUP_COUNTERS' order by 1 limit p_limit);
    perform 1 from commandbus.command_bus_failure_group g
      where g.domain = p_domain and g.fingerprint = any(v_found) order by g.fingerprint for update;
    update commandbus.command_bus_failure_group g
       set parked_count = (select count(*) from commandbus.command_bus_troubleshooting t
                            where t.domain = g.domain and t.fingerprint = g.fingerprint)
     where g.domain = p_domain and g.fingerprint = any(v_found);
    select array_agg(t.command_id), array_agg(t.reason) into v_members, v_reasons
      from commandbus.command_bus_troubleshooting t
     where t.domain = p_domain and t.fingerprint = any(v_found)
       and not exists (select from commandbus.command_bus_failure_group g
                        where g.domain = t.domain and g.fingerprint = t.fingerprint);
    if v_members is not null then
        perform commandbus.leave_troubleshooting(p_domain, v_members);
        perform commandbus.enter_troubleshooting(p_domain, v_members, v_reasons, clock_timestamp());
    end if;
    perform commandbus.record_repair(p_domain, null, null, jsonb_build_object(
                'code', 'GROUP_COUNTERS', 'group', f), p_actor)
       from unnest(v_found) f;
    return query select unnest(v_found);
end $$;

-- Recounts batches, each under its lock: who moves a counter holds it until its commands are
-- committed too, so what is counted then is exact. A batch whose commands have all ended is closed,
-- and calls back, as it should have been; one that has not ended is open again.
create or replace function commandbus.repair_batches(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_now   timestamptz;
    v_id    uuid;
    v_batch commandbus.command_bus_batch;
    v_count record;
    v_done  boolean;
begin
    for v_id in select distinct f.subject::uuid from commandbus.check_batches(p_domain) f
                 order by 1 limit p_limit
    loop
        select * into v_batch from commandbus.command_bus_batch b
         where b.batch_id = v_id and b.pruning_since is null for update;
        continue when not found;
        v_now := clock_timestamp();
        select * into v_count from commandbus.recount_batch(v_id);
        -- an empty batch waits for commands, unless it has ended: a load that brought none
        v_done := v_batch.total_sealed and (v_count.total > 0 or v_batch.completed_at is not null)
              and v_count.completed + v_count.failed + v_count.canceled = v_count.total;
        update commandbus.command_bus_batch b
           set total_count = v_count.total, completed_count = v_count.completed,
               failed_count = v_count.failed, canceled_count = v_count.canceled,
               in_troubleshooting_count = v_count.parked, updated_at = v_now,
               completed_at = case when v_done and b.status like 'COMPLETED%' then b.completed_at end,
               status = case when v_done and b.completed_at is not null
                             then commandbus.ended_status(v_id, v_count.failed + v_count.canceled)
                             when b.status like 'COMPLETED%' then 'IN_PROGRESS'
                             else b.status end
         where b.batch_id = v_id;
        perform commandbus.record_repair(v_batch.domain, v_id, v_id, jsonb_build_object(
                    'code', 'BATCH_COUNTERS', 'is_done', v_done,
                    'was', jsonb_build_array(
                        v_batch.total_count, v_batch.completed_count, v_batch.failed_count,
                        v_batch.canceled_count, v_batch.in_troubleshooting_count),
                    'is', jsonb_build_array(v_count.total, v_count.completed, v_count.failed,
                                            v_count.canceled, v_count.parked)), p_actor);
        if v_done then
            perform commandbus.close_batches(array[v_id], v_now);
        end if;
        return next v_id::text;
    end loop;
end $$;

-- Workers that said nothing for a minute are struck off. One that was only cut off is back with its
-- next heartbeat.
create or replace function commandbus.repair_workers(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
declare
    v_worker text;
begin
    for v_worker in
        delete from commandbus.command_bus_worker w
         where w.worker_id in (
               select s.worker_id from commandbus.command_bus_worker s
                where s.domain = p_domain and s.heartbeat_at < clock_timestamp() - interval '1 minute'
                order by s.worker_id limit p_limit for update skip locked)
        returning w.worker_id
    loop
        perform commandbus.record_repair(p_domain, null, null, jsonb_build_object(
                    'code', 'WORKER_SILENT', 'worker', v_worker), p_actor);
        return next v_worker;
    end loop;
end $$;

-- The queues of a domain are made again; what should lie in them is then found as MESSAGE_LOST.
create or replace function commandbus.repair_queues(p_domain text, p_actor text default null, p_limit int default 1000)
returns setof text
language plpgsql as $$
begin
    if p_limit < 1 or not exists (select from commandbus.check_commands(p_domain) f
                                   where f.code = 'QUEUE_MISSING') then
        return;
    end if;
    perform commandbus.ensure_domain(p_domain);
    perform commandbus.record_repair(p_domain, null, null, '{"code": "QUEUE_MISSING"}', p_actor);
    return next p_domain || '.commands';
end $$;
