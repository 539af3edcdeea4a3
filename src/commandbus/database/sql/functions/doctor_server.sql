-- The doctor, second part: workers, chores and the server. These look at clocks and statistics, so
-- they say "for some minutes", never "at this moment". doctor.sql says what a check returns.

-- Workers that should be there, and work that nobody has taken up.
create or replace function commandbus.check_work(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint) language plpgsql stable as $$
begin
    for domain in select * from commandbus.queued_domains(p_domain) loop
        continue when exists (
            select from commandbus.command_bus_worker w
             where w.domain = check_work.domain and w.heartbeat_at > now() - interval '1 minute');
        return query execute format($q$
            select case when c.leased_by is null then 'NO_WORKER' else 'LEASE_LAPSED' end,
                   $1, coalesce(c.command_id::text, 'message ' || q.msg_id), q.msg_id
              from pgmq.%I q
              left join commandbus.command_bus_command c
                on c.domain = $1 and c.command_id = commandbus.message_command_id(q.message)
             where q.vt < now() - interval '5 minutes' $q$,
            'q_' || commandbus.physical_queue(domain || '.commands')) using domain;
    end loop;
    return query
    select 'WORKER_SILENT', w.domain, w.worker_id, null::bigint
      from commandbus.command_bus_worker w
     where w.heartbeat_at < now() - interval '1 minute' and (p_domain is null or w.domain = p_domain);
    return query
    select 'WORKER_STUCK', w.domain, w.worker_id, null::bigint
      from commandbus.command_bus_worker w
     where w.stuck > 0 and w.heartbeat_at > now() - interval '1 minute'
       and (p_domain is null or w.domain = p_domain);
    -- A worker says that it waits only while it listens. Without the right to see the statements of
    -- other sessions nothing can be said.
    return query
    select 'WAKEUPS_DEAD', w.domain, w.worker_id, null::bigint
      from commandbus.command_bus_worker w
     where w.is_idle and w.heartbeat_at > now() - interval '30 seconds'
       and (p_domain is null or w.domain = p_domain)
       and not exists (
           select from pg_stat_activity s
            where s.datname = current_database()
              and (s.query ilike 'listen %' or s.query ilike '%pg_listening_channels()%'
                   or s.query = '<insufficient privilege>') and s.pid <> pg_backend_pid());
    return query
    select 'DISPATCH_STUCK', c.domain, c.command_id::text, null::bigint
      from commandbus.command_bus_command c
     where c.dispatch_status in ('pending_retry', 'pending_queue') and c.status = 'PENDING'
       and c.created_at < now() - interval '30 minutes' and (p_domain is null or c.domain = p_domain);
    return query
    select 'DISPATCH_UNCONFIRMED', u.domain,
           commandbus.iso8601(u.handed_at) || ' ' || u.command_id, null::bigint
      from commandbus.command_bus_unconfirmed u
      join commandbus.command_bus_command c on c.domain = u.domain and c.command_id = u.command_id
     where u.handed_at < now() - interval '30 minutes' and (p_domain is null or u.domain = p_domain)
       and c.status = 'PENDING' and c.dispatch_status = 'queued' and c.msg_id is null;
    return query
    select 'DOMAIN_PAUSED', p.domain, 'since ' || commandbus.iso8601(p.paused_at)
               || coalesce(' until ' || commandbus.iso8601(p.paused_until), '')
               || coalesce(' by ' || p.paused_by, '') || ': ' || p.pause_reason, null::bigint
      from commandbus.paused_domains() p where p_domain is null or p.domain = p_domain;
    return query
    select 'LOAD_INTERRUPTED', l.domain, l.batch_id::text, null::bigint
      from commandbus.command_bus_load l
     where (l.status in ('loading', 'failed')
            or l.status = 'sealed' and l.rows_dispatched < l.rows_committed)
       and l.updated_at < now() - interval '5 minutes' and (p_domain is null or l.domain = p_domain);
    return query
    select 'PRUNE_INTERRUPTED', b.domain::text, b.batch_id::text, null::bigint
      from commandbus.command_bus_batch b
     where b.pruning_since < now() - interval '1 hour' and b.moved_to is null and (p_domain is null or b.domain = p_domain);
    return query
    select 'RETENTION_BEHIND', r.domain, r.kind || ' of ' || commandbus.iso8601(r.oldest), null::bigint
      from commandbus.retention_behind(p_domain) r;
    return query
    select 'CHORE_LATE', w.domain, 'recover dispatch of ' || w.domain, null::bigint
      from commandbus.command_bus_worker w
     where w.heartbeat_at > now() - interval '1 minute' and w.started_at < now() - interval '1 hour'
       and (p_domain is null or w.domain = p_domain)
       and not exists (select from commandbus.command_bus_chore k
                        where k.name = 'recover dispatch of ' || w.domain
                          and k.started_at > now() - interval '1 hour')
     group by w.domain;
end $$;

-- Queues of replies that nobody reads, and what was found in them that is no reply.
create or replace function commandbus.check_reply_queues(
    p_domain text default null, p_since timestamptz default null
) returns table (code text, domain text, subject text, msg_id bigint)
language sql stable as $$
    select f.code, d.name, b.queue || ': ' || f.found, null::bigint
      from commandbus.doctor_domains(p_domain) d(name)
     cross join lateral commandbus.reply_backlog(d.name) b
     cross join lateral (values
           ('REPLIES_UNREAD', b.unread, b.unread >= 1000 or b.unread_since < now() - interval '1 day'),
           ('REPLIES_REFUSED', b.refused, b.refused > 0)) f(code, found, is_so)
     where f.is_so
$$;

-- Tables, indexes, rights and settings of the server that commandbus rests on. p_patience: how long a
-- transaction may be open before it is named.
create or replace function commandbus.check_server(
    p_domain text default null, p_since timestamptz default null,
    p_patience interval default interval '10 minutes'
) returns table (code text, domain text, subject text, msg_id bigint)
language sql stable as $$
    with ours as (
        select t.oid, t.relname, t.relkind, t.relpersistence, t.reloptions,
               format('%I.%I', s.nspname, t.relname) as name,
               split_part(q.queue, '.', 1) as queue_domain,
               t.relnamespace = 'pgmq'::regnamespace as is_queue
          from pg_class t join pg_namespace s on s.oid = t.relnamespace
          left join commandbus.queue_tables() q on q.relation = t.oid
         where t.relkind in ('r', 'p') and (
               t.relnamespace = (select c.relnamespace from pg_class c
                                  where c.oid = 'commandbus.command_bus_command'::regclass)
               or q.queue like '%._%'
                  and split_part(q.queue, '.', 1) in (select * from commandbus.doctor_domains(p_domain)))
    ), finding(code, domain, subject) as (
        select 'AUDIT_UNPROTECTED', null, a.name
          from (select 'commandbus.command_bus_audit'::regclass, 'command_bus_audit'
                union all select p.part, p.name from commandbus.audit_parts() p) a(place, name)
         where not exists (
               select from pg_trigger g
                where g.tgrelid = a.place
                  and g.tgname = 'command_bus_audit_append_only' and g.tgenabled in ('O', 'A'))
        union all
        select 'AUDIT_PART_MISSING', null, 'the part of the events ' || c.first_id || ' to ' || c.below_id - 1
          from commandbus.command_bus_audit_part c
         where not exists (select from commandbus.audit_parts() p
                            where p.first_id = c.first_id and p.below_id = c.below_id)
        union all
        select 'AUDIT_PARTS_LATE', null, p.name || ' has the events from ' || v.begins || ' to ' || v.ends || ' and goes on'
          from commandbus.audit_parts() p
         cross join lateral (select min(a.audit_id), max(a.audit_id) from commandbus.command_bus_audit a
                              where a.audit_id >= p.first_id) v(begins, ends)
         where p.is_tail and v.ends - v.begins > 2 * commandbus.audit_part_rows()
        union all
        select 'AUDIT_PART_READ', null, c.oid::regclass || ' reads ' || p.name
          from commandbus.audit_parts() p
          join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.refclassid = 'pg_class'::regclass
               and d.refobjid = p.part
          join pg_rewrite r on r.oid = d.objid
          join pg_class c on c.oid = r.ev_class
         group by c.oid, p.name
        union all
        select 'INDEX_INVALID', null, i.indexrelid::regclass::text
          from pg_index i join ours o on o.oid = i.indrelid
         where not i.indisvalid or not i.indisready
        union all
        select 'QUEUE_UNLOGGED', o.queue_domain, o.name from ours o
         where o.is_queue and o.relpersistence = 'u'
        union all
        select 'QUEUE_PARTITIONED', o.queue_domain, o.name from ours o
         where o.is_queue and o.relkind = 'p'
           -- not the archives that we have divided
           and not exists (select from commandbus.parts_of(o.oid::regclass) p where starts_with(p.name, o.relname || '#'))
        union all
        select 'RIGHTS_MISSING', null, o.name || ': ' || string_agg(r.right_name, ', ')
          from ours o cross join unnest(array['select', 'insert', 'update', 'delete']) r(right_name)
         where not has_table_privilege(o.oid, r.right_name)
           and not ((o.relname in ('command_bus_migration', 'command_bus_audit_seal')
                     or o.oid = 'commandbus.command_bus_audit'::regclass
                     or o.oid in (select p.part from commandbus.audit_parts() p))
                    and r.right_name in ('update', 'delete'))
           and not (o.relname = 'command_bus_audit_removal' and r.right_name = 'delete')
           and not (o.relname = 'command_bus_audit_horizon' and r.right_name in ('insert', 'delete'))
           and not (o.relname = 'command_bus_migration' and r.right_name = 'insert')
         group by o.name
        union all
        -- current_user is the owner here: this function acts with the owner's rights
        select 'ROLE_SUPERUSER', null, r.rolname::text from pg_roles r
         where r.rolname in (current_user, session_user) and r.rolsuper
        union all
        select 'AUTOVACUUM_OFF', null, 'autovacuum' where current_setting('autovacuum') = 'off'
        union all
        select 'AUTOVACUUM_OFF', null, o.name from ours o
         where exists (select from unnest(o.reloptions) p
                        where lower(p) ~ '^autovacuum_enabled=(false|off|no|0)$')
        union all
        select 'DURABILITY_OFF', null, s.name from pg_settings s
         where s.name in ('fsync', 'full_page_writes', 'synchronous_commit') and s.setting = 'off'
        union all
        select 'DEAD_ROWS', null, o.name || ': ' || t.n_dead_tup from pg_stat_all_tables t
          join ours o on o.oid = t.relid
         where t.n_dead_tup > 50000 and t.n_dead_tup > t.n_live_tup
        union all
        select 'VACUUM_HELD_BACK', null,
               'session ' || s.pid || ' of ' || coalesce(s.usename, '?') || ', open since '
                   || commandbus.iso8601(s.xact_start)
          from pg_stat_activity s
         where s.xact_start < now() - p_patience and s.pid <> pg_backend_pid()
           and (s.backend_xmin is not null or s.backend_xid is not null)
           and s.backend_type = 'client backend'
        union all
        select 'VACUUM_HELD_BACK', null, 'prepared transaction ' || x.gid
          from pg_prepared_xacts x where x.prepared < now() - p_patience
        union all
        select 'VACUUM_HELD_BACK', null, 'replication slot ' || s.slot_name
          from pg_replication_slots s
         where not s.active and (s.xmin is not null or s.catalog_xmin is not null)
        union all
        select 'NOTIFY_QUEUE_FULL', null, round(u * 100) || ' % of the notification queue is used'
          from (select pg_notification_queue_usage()::numeric) n(u) where u > 0.1
    )
    select f.code, f.domain, f.subject, null::bigint from finding f
$$;

-- All of it, counted, for psql. Run by `commandbus doctor`, which adds what the server tells.
create or replace function commandbus.doctor(
    p_domain text default null, p_since timestamptz default null
) returns table (code text, domain text, found bigint, examples text[])
language sql stable as $$
    select f.code, f.domain, count(*), (array_agg(f.subject order by f.subject))[1:5]
      from (select * from commandbus.check_messages(p_domain, p_since)
            union all select * from commandbus.check_commands(p_domain, p_since)
            union all select * from commandbus.check_troubleshooting(p_domain, p_since)
            union all select * from commandbus.check_batches(p_domain, p_since)
            union all select * from commandbus.check_audit(p_domain, p_since)
            union all select * from commandbus.check_replies(p_domain, p_since)
            union all select * from commandbus.check_reply_queues(p_domain, p_since)
            union all select * from commandbus.check_gates(p_domain, p_since)
            union all select * from commandbus.check_work(p_domain, p_since)
            union all select * from commandbus.check_server(p_domain, p_since)
            union all select * from commandbus.check_seals(p_domain, p_since)
            union all select * from commandbus.check_keys(p_domain, p_since)
            union all select * from commandbus.check_schedules(p_domain, p_since)
            union all select * from commandbus.check_roles(p_domain, p_since)) f
     group by f.code, f.domain order by f.code, f.domain
$$;
