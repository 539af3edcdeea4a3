-- Planner: which plans the functions may use, in one place. The planner chooses by statistics, and those
-- may say "one row" of a table that has thousands since; a session keeps such a plan until the table is
-- analyzed again (docs/adr/0027). So the functions below leave it no choice.
--
-- Loaded last. Loading a function takes its settings away; they come back in the same transaction.
-- What a function calls is planned under its settings as well, and a session keeps that plan for other
-- callers: a function that needs other plans than its callers says so here.
do $planner$
declare
    -- Before PostgreSQL 17 each item of a list costs a descent of its own, so that an index of (domain, id) is read for
    -- the domain alone where the statistics say "one row": all that the domain has. Where nothing costs, the plan with
    -- more conditions is taken.
    c_before_17 constant text := case when current_setting('server_version_num')::int < 170000 then
        ' set random_page_cost = 0 set seq_page_cost = 0 set cpu_operator_cost = 0 set cpu_index_tuple_cost = 0'
        else '' end;
    -- A group of items finds its rows by the key of each, never by a walk over the whole table.
    c_by_key  constant text := 'set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off';
    -- The same where the planner would still walk along an index, for its order. A bitmap has no order, and
    -- needs a condition: the key of the item is the only one.
    c_by_item constant text := c_by_key || ' set enable_indexscan = off set enable_bitmapscan = on' || c_before_17;
    -- With the arguments known each plan has only the conditions that are asked for.
    c_custom  constant text := 'set plan_cache_mode = force_custom_plan';
    v_rule record;
begin
    for v_rule in
        select r.settings, f.name from (values
            -- end_leases is called by outcomes only, and planned under their settings: to set five more for
            -- each group would cost a group of one a few per cent.
            -- One plan for every group: its shape is settled by these settings, and the server would plan anew for the
            -- arguments of each call, which was half of what a receive of one command cost it.
            (c_by_item || ' set plan_cache_mode = force_generic_plan', array['commandbus.receive_commands']),
            (c_by_item, array[
                'commandbus.turn_away', 'commandbus.keep_leases', 'commandbus.end_lapsed', 'commandbus.end_lapsed_paused',
                'commandbus.complete_leased', 'commandbus.retry_commands', 'commandbus.park_commands',
                'commandbus.fail_commands', 'commandbus.release_commands', 'commandbus.lock_commands',
                'commandbus.snooze_commands', 'commandbus.discard_commands', 'commandbus.cancel_leases',
                'commandbus.cancel_requests',
                'commandbus.expire_leased', 'commandbus.requeue_commands', 'commandbus.put_again',
                'commandbus.reschedule_commands', 'commandbus.refuse_times',
                'commandbus.enter_troubleshooting', 'commandbus.leave_troubleshooting',
                'commandbus.record_bulk', 'commandbus.handed_over', 'commandbus.still_out', 'commandbus.gates_of',
                'commandbus.in_turn', 'commandbus.wait_at_gates',
                'commandbus.keep_tokens',
                'commandbus.look_later']),
            (c_by_item || ' set plan_cache_mode = force_generic_plan', array[
                'commandbus.claim_stored', 'commandbus.stored_messages', 'commandbus.adopt_messages',
                'commandbus.mark_dispatched', 'commandbus.mark_dispatch_failed']),
            -- An index that has all columns of the query would be walked through, even as a bitmap.
            (c_by_item || ' set enable_indexonlyscan = off', array['commandbus.still_parked']),
            ('set enable_seqscan = off', array['commandbus.due_schedules']),
            (c_by_key, array[
                'commandbus.has_batch', 'commandbus.leave_keys', 'commandbus.enter_keys', 'commandbus.put_keyed',
                'commandbus.claim_keys_of', 'commandbus.move_batch_counters', 'commandbus.lock_batches',
                'commandbus.take_back', 'commandbus.known_ids', 'commandbus.waiting_ids',
                'commandbus.unique_holders', 'commandbus.give_unique', 'commandbus.prune_unique',
                'commandbus.store_commands', 'commandbus.fire_schedules', 'commandbus.expire_in']),
            -- With the states known, the planner would walk the index of all stored commands instead.
            (c_by_key || ' set plan_cache_mode = force_generic_plan' || c_before_17, array[
                'commandbus.queue_stored', 'commandbus.recover_dispatch', 'commandbus.forget_dispatched',
                'commandbus.expose_unsent', 'commandbus.forget_unconfirmed']),
            -- Pages in the order of an index, which a sort would have to read to its end first. What is
            -- sorted all the same is a page.
            (c_by_key || ' set enable_sort = off set enable_incremental_sort = off'
                || ' set enable_indexscan = on set enable_bitmapscan = off', array[
                'commandbus.waiting_page', 'commandbus.expose_unconfirmed', 'commandbus.take_gated',
                'commandbus.gates_due', 'commandbus.is_waited_for', 'commandbus.tend_gates',
                'commandbus.release_waiting', 'commandbus.gates_without_rule', 'commandbus.drop_unused_gates',
                'commandbus.slot_rows', 'commandbus.waiting_rows', 'commandbus.drop_places',
                'commandbus.dispatch_figures']),
            -- Called by functions that have index scans off; here the index gives the order of a key.
            (c_by_key || ' set enable_indexscan = on set enable_bitmapscan = off', array[
                'commandbus.promote_keys', 'commandbus.resume_keys']),
            -- Called by receive_commands, which has index scans off; here the index gives the order.
            -- No bitmap: to a planner that knows nothing of `headers` few messages seem to have none, and it would
            -- collect and sort all that are due.
            ('set enable_indexscan = on set enable_bitmapscan = off', array[
                'commandbus.read_messages', 'commandbus.read_levels', 'commandbus.read_levels_except']),
            (c_by_key || ' set enable_indexscan = on set enable_bitmapscan = off', array['commandbus.lapsed_lately']),
            ('set enable_indexscan = on', array['commandbus.take_levels']),
            ('set enable_seqscan = off set enable_bitmapscan = off', array[
                'commandbus.first_due', 'commandbus.scale_metric',
                'commandbus.domain_activity', 'commandbus.limit_activity', 'commandbus.queue_counts',
                'commandbus.domain_rates', 'commandbus.domain_figures']),
            -- Deletes messages in the order of the index, which is that of lock_messages.
            ('set enable_seqscan = off set enable_bitmapscan = off', array['commandbus.complete_commands']),
            -- By the index of what is pending, or of the numbers, also before the first analyze.
            ('set enable_seqscan = off', array[
                'commandbus.limit_states', 'commandbus.dispatch_load',
                'commandbus.draft_seal', 'commandbus.record_removal', 'commandbus.sees_batch',
                'commandbus.group_seen_by', 'commandbus.consider_ticket']),
            ('set enable_seqscan = off' || c_before_17, array['commandbus.decide_ticket']),
            (c_before_17, array['commandbus.run_bulk_chunk']),
            (c_custom, array[
                'commandbus.query_commands', 'commandbus.bulk_matches',
                'commandbus.drop_audit_parts', 'commandbus.count_audit_part', 'commandbus.drop_archive_parts',
                'commandbus.due_history', 'commandbus.count_due_history']),
            (c_custom || ' set enable_seqscan = off', array[
                'commandbus.search_commands', 'commandbus.search_window', 'commandbus.search_few',
                'commandbus.list_audit', 'commandbus.page_batch_commands', 'commandbus.group_trends',
                'commandbus.list_people', 'commandbus.find_id', 'commandbus.seal_state', 'commandbus.search_history',
                'commandbus.history_window', 'commandbus.history_floor', 'commandbus.moved_children',
                'commandbus.history_rows_anew']),
            ('set enable_seqscan = off set plan_cache_mode = force_generic_plan', array['commandbus.history_rows_once']),
            -- Along the index that has the order, never along one that has only the time: what is rare
            -- would be looked for in all that there is.
            (c_custom || ' set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off'
                || ' set enable_incremental_sort = off', array[
                'commandbus.list_tickets', 'commandbus.ticket_kinds'])
        ) r(settings, functions) cross join unnest(r.functions) f(name)
         where r.settings <> ''
    loop
        execute 'alter function ' || v_rule.name || ' ' || v_rule.settings;
    end loop;
end $planner$;
