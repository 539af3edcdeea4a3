-- Rights: what each database role may call and read. Nothing else of this schema is open to anybody but its
-- owner, so a line here is the whole of what makes a function or a table reachable (docs/adr/0040).
--
-- The roles: migrator owns everything; api, worker, sender, operator and reader have what stands here.
-- roles.sql compares a database with these lists, security.sql protects the functions.

-- The functions that are called from outside: by statements of the library, or by name as docs/sql-api.md
-- describes. All others are helpers. `{}`: for the owner alone. Each takes its arguments as values, never as
-- a piece of SQL, because it acts with the rights of the owner.
create or replace function commandbus.entry_points() returns table (name text, roles text[])
language sql immutable as $$
    select e.name, e.roles::text[] from (values
        -- sending
        ('ensure_domain', '{sender,worker,operator,api}'),
        ('offer_one', '{sender,worker,api}'),
        ('offer_commands', '{sender,worker,api}'),
        ('send_packed', '{sender,worker,api}'),
        ('send_commands', '{sender,worker,api}'),
        ('send_command', '{sender,worker,api}'),
        -- batches, loads, and what is stored before it is queued
        ('create_batch', '{sender,worker,api}'),
        ('create_stored_batch', '{sender,worker,api}'),
        ('queue_pending', '{sender,worker,api}'),
        ('dispatch_heartbeat', '{sender,worker,api}'),
        ('finish_dispatch', '{sender,worker,api}'),
        ('mark_dispatched', '{sender,worker,api}'),
        ('mark_dispatch_failed', '{sender,worker,api}'),
        ('begin_load', '{sender,worker,api}'),
        ('load_chunk', '{sender,worker,api}'),
        ('seal_load', '{sender,worker,operator,api}'),
        ('fail_load', '{sender,worker,api}'),
        ('dispatch_load', '{sender,worker,operator,api}'),
        ('closing_command_id', '{sender,worker,operator,api,reader}'),
        ('stored_messages', '{worker}'),               -- gives payloads
        ('adopt_messages', '{worker}'),
        ('recover_dispatch', '{worker,operator}'),
        ('expose_unqueued', '{worker}'),
        -- replies: of queues of replies only, see check_reply_queue
        ('read_replies', '{sender,worker,api}'),
        ('delete_replies', '{sender,worker,api}'),
        ('archive_replies', '{sender,worker,api}'),
        ('lease_replies', '{sender,worker,api}'),
        ('acknowledge_replies', '{sender,worker,api}'),
        ('take_inbox_reply', '{sender,worker,api}'),
        -- workers and their chores
        ('receive_commands', '{worker}'),
        ('confirm_start', '{worker}'),
        ('extend_leases', '{worker}'),
        ('complete_commands', '{worker}'),
        ('settle_commands', '{worker}'),
        ('settle_own', '{worker}'),
        ('due_domains', '{worker}'),
        ('due_in', '{worker}'),
        ('next_due', '{worker}'),
        ('use_levels', '{sender,worker,operator,api}'),
        ('use_keys', '{sender,worker,operator,api}'),
        ('end_expired', '{worker}'),
        ('end_pauses', '{worker}'),
        ('paused_domains', '{worker,operator,api,reader}'),
        ('worker_heartbeat', '{worker}'),
        ('worker_gone', '{worker}'),
        ('prune_workers', '{worker}'),
        ('claim_chore', '{worker}'),
        ('next_bulk', '{worker}'),
        ('declare_secrets', '{worker,api}'),
        ('retention_due', '{worker,operator,reader}'),
        ('prune_due', '{worker}'),                     -- by the rules, which only the owner sets
        -- seals of the audit: worth nothing without the key, which the database does not have
        ('move_audit_horizon', '{worker,operator}'),
        ('draft_seal', '{worker,operator}'),
        ('add_seal', '{worker,operator}'),
        -- decisions of operators
        ('cancel_commands', '{operator,api}'),
        ('reschedule_commands', '{operator,api}'),
        ('pause_domain', '{operator,api}'),
        ('resume_domain', '{operator,api}'),
        ('set_priority', '{operator,api}'),
        ('set_level_seconds', '{operator,api}'),
        ('operator_retry', '{operator,api}'),
        ('operator_cancel', '{operator,api}'),
        ('operator_complete', '{operator,api}'),
        ('add_note', '{operator,api}'),
        ('skip_key', '{operator,api}'),
        ('set_key_policy', '{operator,api}'),
        ('cancel_batch', '{operator,api}'),
        ('retry_batch', '{operator,api}'),
        ('preview_bulk', '{operator,api,reader}'),
        ('bulk_matches', '{operator,api,reader}'),
        ('start_bulk', '{operator,api}'),
        ('stop_bulk', '{operator,api}'),
        ('resume_bulk', '{operator,api}'),
        ('run_bulk_chunk', '{worker,operator,api}'),
        ('parked_payloads', '{worker,operator,api}'),
        ('repair_queues', '{operator}'),
        ('repair_messages', '{operator}'),
        ('repair_lost_messages', '{operator}'),
        ('repair_troubleshooting', '{operator}'),
        ('repair_groups', '{operator}'),
        ('repair_batches', '{operator}'),
        ('repair_workers', '{operator}'),
        ('repair_keys', '{operator}'),
        -- governed batches
        ('begin_submission', '{api}'),
        ('create_ticket', '{api}'),
        ('register_batch_types', '{sender,worker,operator,api}'), -- by each process that declares them
        ('remove_governed_type', '{}'),                -- what was governed is so no more
        -- the caller says on whose behalf, and whether that one may pass governance by: only the service knows
        ('send_for', '{api}'),
        ('create_batch_for', '{api}'),
        ('load_chunk_for', '{api}'),
        ('edit_for', '{api}'),
        ('start_bulk_for', '{api}'),
        ('retry_ticket', '{operator,api}'),
        ('decide_ticket', '{worker,operator,api}'),
        ('decision_maker', '{worker,operator,api}'),
        ('decide_edit', '{worker,operator,api}'),
        ('waiting_edits', '{worker,operator,api}'),    -- gives payloads
        ('review_children', '{operator,api}'),         -- gives payloads
        ('page_undecided', '{operator,api,reader}'),
        ('expired_decisions', '{worker}'),
        ('expire_ticket', '{worker}'),
        ('expire_edit', '{worker}'),
        ('ticket_status', '{worker,operator,api,reader}'), -- in a view, where functions run as the caller
        ('count_request', '{api}'),
        ('limit_states', '{operator,api}'),
        ('pending_users', '{operator,api,reader}'),
        ('set_exemption', '{operator,api}'),
        ('clear_exemption', '{operator,api}'),
        ('set_user_limits', '{operator,api}'),
        -- schedules
        ('put_schedule', '{sender,worker,operator,api}'), -- by each process that declares them
        ('pause_schedule', '{operator,api}'),
        ('resume_schedule', '{operator,api}'),
        ('delete_schedule', '{operator,api}'),
        ('trigger_schedule', '{operator,api}'),
        ('due_schedules', '{worker,api}'),
        ('fire_schedules', '{worker,api}'),
        ('fail_schedule', '{worker,api}'),
        ('schedule_data', '{operator,api}'),           -- gives payloads
        -- tokens of the HTTP service: who makes one can do what it may
        ('create_api_token', '{api}'),
        ('rotate_api_token', '{api}'),
        ('revoke_api_token', '{operator,api}'),
        ('touch_api_token', '{api}'),
        -- reading; list_ and page_troubleshooting and command_payload give payloads
        ('list_troubleshooting', '{operator,api}'),
        ('page_troubleshooting', '{operator,api}'),
        ('command_payload', '{operator,api}'),
        ('list_failure_groups', '{operator,api,reader}'),
        ('failure_stack', '{operator,api,reader}'),
        ('query_commands', '{operator,api,reader}'),
        ('search_commands', '{operator,api,reader}'),
        ('scheduled_commands', '{operator,api,reader}'),
        ('waiting_commands', '{operator,api,reader}'),
        ('due_at', '{worker,operator,api,reader}'),
        ('waiting_text', '{worker,operator,api,reader}'),
        ('list_audit', '{operator,api,reader}'),
        ('visible_batch', '{operator,api,reader}'),
        ('page_batch_commands', '{operator,api,reader}'),
        ('list_tickets', '{operator,api,reader}'),
        ('list_keys', '{operator,api,reader}'),
        ('show_key', '{operator,api,reader}'),
        ('key_policy', '{operator,api,reader}'),
        ('key_figures', '{worker,operator,api,reader}'),
        ('find_domains', '{operator,api,reader}'),
        ('domain_figures', '{worker,operator,api,reader}'),
        ('dispatch_figures', '{worker,operator,api,reader}'),
        ('knows_domain', '{worker,operator,api,reader}'),
        ('count_prunable', '{operator,reader}'),
        ('doctor_domains', '{worker,operator,api,reader}'),
        -- the doctor
        ('doctor', '{operator,api,reader}'),
        ('check_messages', '{operator,api,reader}'),
        ('check_commands', '{operator,api,reader}'),
        ('check_troubleshooting', '{operator,api,reader}'),
        ('check_batches', '{operator,api,reader}'),
        ('check_audit', '{operator,api,reader}'),
        ('check_replies', '{operator,api,reader}'),
        ('check_reply_queues', '{operator,api,reader}'),
        ('check_work', '{operator,api,reader}'),
        ('check_server', '{operator,api,reader}'),
        ('check_roles', '{operator,api,reader}'),
        ('check_seals', '{operator,api,reader}'),
        ('check_keys', '{operator,api,reader}'),
        ('check_schedules', '{operator,api,reader}'),
        ('role_differences', '{operator,api,reader}'),
        -- the owner alone: these remove history, or change what holds for everybody
        ('prune_audit', '{}'),
        ('prune_archives', '{}'),
        ('prune_replies', '{}'),
        ('prune_commands', '{}'),
        ('prune_batches', '{}'),
        ('set_retention', '{}'),
        ('clear_retention', '{}'),
        ('change_setting', '{}')
    ) e(name, roles)
$$;

-- The tables and views, and who may read them. Nobody but the owner may do anything else to them.
--   columns: null: all; `a b`: these; `-a b`: all but these, also of columns that are added later.
create or replace function commandbus.readable() returns table (relation text, columns text, roles text[])
language sql immutable as $$
    select e.relation, e.columns, e.roles::text[] from (values
        ('command_bus_migration', null, '{sender,worker,operator,api,reader}'),
        ('command_bus_setting', null, '{sender,worker,operator,api,reader}'),
        ('command_bus_command', null, '{worker,operator,api,reader}'),
        -- which of many were sent, and how far a batch of its own is
        ('command_bus_command', 'domain command_id batch_id sequence_no status msg_id dispatch_status', '{sender}'),
        ('command_bus_batch', '-on_complete request_digest', '{worker,operator,api,reader}'),
        ('command_bus_batch', 'batch_id domain name custom_data status total_count completed_count'
            ' failed_count canceled_count in_troubleshooting_count created_at started_at completed_at',
            '{sender}'),
        ('command_bus_load', null, '{sender,worker,operator,api,reader}'),
        ('command_bus_load_checkpoint', null, '{sender,worker,operator,api,reader}'),
        ('command_bus_audit', null, '{operator,api,reader}'),
        ('command_bus_audit_seal', null, '{worker,operator,api,reader}'),
        ('command_bus_audit_removal', null, '{worker,operator,api,reader}'),
        ('command_bus_audit_horizon', null, '{operator,api,reader}'),
        ('command_bus_key', null, '{operator,api,reader}'),
        ('command_bus_key_due', null, '{operator,api,reader}'),
        ('command_bus_troubleshooting', null, '{operator,api,reader}'),
        ('command_bus_failure_group', null, '{operator,api,reader}'),
        -- the arguments have the edited parts of payloads, and results
        ('command_bus_bulk_operation', null, '{worker,operator,api}'),
        ('command_bus_bulk_operation', '-arguments', '{reader}'),
        ('command_bus_bulk_item', null, '{worker,operator,api,reader}'),
        ('command_bus_secret_key', null, '{worker,operator,api,reader}'),
        ('command_bus_worker', null, '{worker,operator,api,reader}'),
        ('command_bus_retention', null, '{worker,operator,api,reader}'),
        ('command_bus_dispatch', null, '{operator,api,reader}'),
        ('command_bus_unconfirmed', null, '{operator,api,reader}'),
        ('command_bus_flow', null, '{worker,operator,api,reader}'),
        ('command_bus_waiting', null, '{operator,api,reader}'),
        ('command_bus_expiry', null, '{operator,api,reader}'),
        ('command_bus_creation_metric', null, '{operator,api,reader}'),
        ('command_bus_chore', null, '{operator,api,reader}'),
        ('command_bus_governed_type', null, '{sender,worker,operator,api,reader}'),
        ('command_bus_schedule', '-data', '{sender,worker,operator,api,reader}'),
        ('command_bus_sender', '-digest', '{operator,api,reader}'),
        ('rate_limit_counter', null, '{operator,api,reader}'),
        ('rate_limit_exemption', null, '{operator,api,reader}'),
        ('rate_limit_override', null, '{operator,api,reader}'),
        ('command_bus_api_token', null, '{api}'),
        ('command_bus_api_token', '-secret_hash', '{operator,reader}'),
        ('v_pending_retry', null, '{operator,api,reader}'),
        ('v_batch_success_rate', null, '{operator,api,reader}'),
        ('v_queue_lag', null, '{operator,api,reader}'),
        ('batch_approval_tickets', null, '{worker,operator,api,reader}'),
        ('approval_tickets', null, '{worker,operator,api,reader}'),
        -- without the payload, and without what would let a digest prove a guess of it
        ('command_bus_edit', '-data salt', '{worker,operator,api,reader}'),
        -- payloads and results, and digests of payloads: through functions only
        ('command_bus_content', null, '{}'),
        ('command_bus_sender', null, '{}'),
        ('command_bus_payload_archive', null, '{}'),
        ('command_bus_reply_inbox', null, '{}')
    ) e(relation, columns, roles)
$$;
