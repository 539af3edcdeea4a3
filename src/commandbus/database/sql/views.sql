-- Views: what dashboards show of dispatching, and the tickets of governed batches. Read-only.
--
-- Loaded after the functions. Columns may be added at the end; to change or remove one, a migration
-- drops the view first. The columns have the names that the specification of the bus prints.

-- What waits to be sent again, by batch (null: commands without one).
create or replace view commandbus.v_pending_retry as
select c.batch_id, count(*) as pending_tasks, min(c.created_at) as oldest_task,
       max(c.queue_attempt_count) as max_attempts, c.domain
  from commandbus.command_bus_command c
 where c.dispatch_status = 'pending_retry' and c.status = 'PENDING'
 group by c.domain, c.batch_id;

-- By day (UTC): how many batches were created, and how many of them are in their queue to the last
-- command. avg_attempts is 0 for commands that were stored and queued in one transaction. A batch
-- without commands, as an empty load leaves, has nothing to queue: it counts neither way. One whose load is
-- not complete, or was canceled, is not in its queue to the last command, whatever is there already.
create or replace view commandbus.v_batch_success_rate as
select (b.created_at at time zone 'UTC')::date as date,
       count(*) as total_batches,
       count(*) filter (where s.is_queued) as successful_batches,
       sum(s.attempts) / nullif(sum(s.commands), 0) as avg_attempts,
       count(*) filter (where s.is_queued)::numeric / count(*) as success_rate,
       b.domain
  from commandbus.command_bus_batch b
 cross join lateral (
       select count(*) as commands, sum(c.queue_attempt_count)::numeric as attempts,
              count(*) filter (where c.dispatch_status <> 'queued') = 0 and b.total_sealed
              and not exists (select from commandbus.command_bus_load l
                               where l.batch_id = b.batch_id and l.status = 'canceled') as is_queued
         from commandbus.command_bus_command c
        where c.batch_id = b.batch_id) s
 where b.total_count > 0 and b.moved_to is null       -- those have no commands here any more
 group by b.domain, (b.created_at at time zone 'UTC')::date;

-- Of the last hour, by batch: where its commands are. `processing` is what a worker has leased,
-- whether it is marked IN_PROGRESS or not.
create or replace view commandbus.v_queue_lag as
select c.batch_id,
       count(*) filter (where c.dispatch_status = 'pending_queue' and c.status = 'PENDING') as pending,
       count(*) filter (where c.dispatch_status = 'queued' and c.status = 'PENDING'
                              and c.leased_by is null) as queued,
       count(*) filter (where c.leased_by is not null) as processing,
       count(*) filter (where c.status = 'COMPLETED') as completed,
       count(*) filter (where c.dispatch_status = 'pending_retry' and c.status = 'PENDING')
           as pending_retry,
       c.domain
  from commandbus.command_bus_command c
 where c.created_at > now() - interval '1 hour'
 group by c.domain, c.batch_id;

-- Governed batches and their commands, as tables of tickets. What the specification does not print is at
-- the end.
create or replace view commandbus.batch_approval_tickets as
select b.batch_id as ticket_id, b.batch_type, b.total_count as child_count,
       b.completed_count as success_count,
       b.failed_count + b.in_troubleshooting_count as failed_count,
       b.total_count - b.completed_count - b.failed_count - b.canceled_count
           - b.in_troubleshooting_count as pending_count,
       commandbus.ticket_status(b) as status, b.reason, b.created_by, b.created_at, b.updated_at,
       b.canceled_count, b.domain::text as domain, b.completed_at, b.requires_approval, b.decided_by,
       b.decided_at, b.decision, b.decision_reason, b.request_id, b.is_pending,
       encode(k.digest, 'hex') as content_digest, b.edit_count,
       case when b.is_pending and b.requires_approval and b.decision is null
            then k.expires_at end as expires_at
  from commandbus.command_bus_batch b
  left join commandbus.command_bus_content k on k.batch_id = b.batch_id
 where b.batch_type is not null;

-- error_message was redacted when it was stored. attempt_count counts dispatches: none before an
-- approval.
create or replace view commandbus.approval_tickets as
select c.command_id as ticket_id, c.batch_id as parent_ticket_id, c.sequence_no,
       case c.status when 'COMPLETED' then 'SUCCESS' when 'FAILED' then 'FAILED'
                     when 'IN_TROUBLESHOOTING_QUEUE' then 'FAILED' when 'CANCELED' then 'CANCELED'
                     else 'PENDING' end as status,
       case when c.status in ('FAILED', 'IN_TROUBLESHOOTING_QUEUE')
            then left(c.last_error_msg, 512) end as error_message,
       case when c.queued_at is null then 0 else c.attempt_count end as attempt_count,
       c.last_attempt_at, c.domain, c.command_type
  from commandbus.command_bus_command c
  join commandbus.command_bus_batch b on b.batch_id = c.batch_id and b.domain = c.domain
 where b.batch_type is not null;

-- The same of commands that are in the history.
create or replace view commandbus.command_bus_moved_ticket as
select h.command_id as ticket_id, h.batch_id as parent_ticket_id, h.sequence_no,
       case h.status when 'COMPLETED' then 'SUCCESS' when 'FAILED' then 'FAILED' else 'CANCELED' end as status,
       case when h.status = 'FAILED' then left(h.last_error_msg, 512) end as error_message,
       case when h.queued_at is null then 0 else h.attempt_count end as attempt_count,
       h.last_attempt_at, h.domain::text as domain, h.command_type
  from commandbus.command_bus_history h
  join commandbus.command_bus_batch b on b.batch_id = h.batch_id and b.domain = h.domain
 where b.batch_type is not null;
