-- Former functions: those that an earlier version had under another name or with other arguments. Loaded
-- first, so that no call can reach one of them by mistake. None of them is called by anything else in
-- the database.
drop function if exists commandbus.bulk_matches(text, jsonb);
drop function if exists commandbus.unpack_commands(text, jsonb, text);
drop function if exists commandbus.send_command(text, text, uuid, jsonb, text, uuid);
-- It had fewer columns; workers of earlier versions name those that they read.
drop function if exists commandbus.receive_commands(
    text, int, int, text, jsonb, boolean, boolean, text[], text[]);
drop function if exists commandbus.receive_commands(
    text, int, int, text, jsonb, boolean, boolean, text[], text[], int);
drop function if exists commandbus.complete_and_receive; -- the same
drop function if exists commandbus.end_leases(text, jsonb, text, boolean, timestamptz, boolean); -- the same
drop function if exists commandbus.reply_body(text, uuid, uuid, text, text, text, jsonb, jsonb);
drop function if exists commandbus.send_command(
    text, text, uuid, jsonb, text, uuid, interval, timestamptz, timestamptz, int, text, text);
drop function if exists commandbus.send_unique(
    text, text, uuid, jsonb, text, text, text, interval, interval);
drop function if exists commandbus.list_audit(
    text, uuid, uuid, text, text[], timestamptz, timestamptz, bigint, boolean, int, int);
drop function if exists commandbus.list_audit(
    text, uuid, uuid, text, text[], timestamptz, timestamptz, bigint, boolean, int, int, text, boolean);
drop function if exists commandbus.list_failure_groups(text, text, boolean, int, text);
drop function if exists commandbus.page_troubleshooting(
    text, text, text, uuid, timestamptz, uuid, int, int);
-- These four returned something else.
drop function if exists commandbus.page_batch_commands(text, uuid, text, int, timestamptz, uuid, int, int);
drop function if exists commandbus.domain_rates(text[]);
drop function if exists commandbus.make_gates(text, text[]);
drop function if exists commandbus.gates_of(text, timestamptz, bigint[], uuid[]);
drop function if exists commandbus.preview_bulk(text, jsonb);
drop function if exists commandbus.search_commands(
    text, text, text, uuid, uuid, timestamptz, timestamptz, uuid, text, timestamptz, uuid, int, int);
drop function if exists commandbus.search_few(
    text, text, text, uuid, uuid, timestamptz, timestamptz, uuid, text);
drop function if exists commandbus.search_window(
    boolean, text, text, text, uuid, timestamptz, timestamptz, text, timestamptz, timestamptz, uuid,
    int);
drop function if exists commandbus.begin_load(
    text, uuid, text, jsonb, text, int, text, jsonb, text, jsonb);
-- It has one more argument, with a default.
drop function if exists commandbus.use_levels(text);
-- Senders of version 0.1.0 call these five, and find those of today: their new arguments have defaults.
drop function if exists commandbus.create_batch(text, uuid, jsonb, text, jsonb, text, jsonb, boolean);
drop function if exists commandbus.create_stored_batch(
    text, uuid, jsonb, text, jsonb, text, jsonb, boolean, text, double precision, text);
drop function if exists commandbus.begin_load(
    text, uuid, text, jsonb, text, int, text, jsonb, text, jsonb, boolean, text);
drop function if exists commandbus.load_chunk(text, uuid, int, int, jsonb, bytea);
drop function if exists commandbus.send_packed(text, text, text, text, text, text, text, uuid);
drop function if exists commandbus.close_batches(uuid[], timestamptz);
drop function if exists commandbus.seal_total(uuid, timestamptz);
drop function if exists commandbus.complete_held;
drop function if exists commandbus.create_held_batch;
drop function if exists commandbus.create_ticket(
    text, uuid, jsonb, text, text, text, uuid, bytea, boolean, jsonb, jsonb);
drop function if exists commandbus.decide_ticket(text, uuid, text, text, text, boolean);
drop function if exists commandbus.domain_figures; -- it had fewer columns
drop function if exists commandbus.command_facts(text, uuid); -- the same
drop function if exists commandbus.end_leases(text, jsonb, text, boolean, timestamptz);
drop function if exists commandbus.expose_unsent(text, timestamptz, timestamptz);
drop function if exists commandbus.find_batch;
drop function if exists commandbus.find_bulk;
drop function if exists commandbus.held_envelopes;
drop function if exists commandbus.hold_commands;
drop function if exists commandbus.leave_troubleshooting(text, uuid[]);
drop function if exists commandbus.next_bulk(text, text, interval);
drop function if exists commandbus.queue_held;
drop function if exists commandbus.receive_commands(text, int, int, text, jsonb, boolean, boolean);
drop function if exists commandbus.recover_dispatch(text, interval, int, int, int, interval);
drop function if exists commandbus.resolve_parked;
drop function if exists commandbus.run_bulk_chunk(uuid, int, text);
drop function if exists commandbus.seal_load(text, uuid, int);
drop function if exists commandbus.start_bulk(uuid, text, text, jsonb, jsonb, float8, text, boolean);
drop function if exists commandbus.try_bulk(text, text, jsonb, text, uuid[]);
-- They have more arguments, with defaults.
drop function if exists commandbus.start_bulk(
    uuid, text, text, jsonb, jsonb, float8, text, boolean, bigint);
drop function if exists commandbus.start_bulk_for(
    uuid, text, text, jsonb, jsonb, float8, boolean, bigint, jsonb);
drop function if exists commandbus.list_failure_groups(text, text, boolean, int, text, text);
-- Workers of version 0.1.0 call these two, and find those of today: their new arguments have defaults.
drop function if exists commandbus.receive_commands(text, int, int, text, jsonb, boolean, boolean);
drop function if exists commandbus.worker_heartbeat(text, text, boolean, int, int);
drop function if exists commandbus.read_messages(text, timestamptz, int, int, boolean);
-- It has one more argument, with a default: workers of earlier versions find it.
drop function if exists commandbus.worker_heartbeat(text, text, boolean, int, int, int);
-- They take a reason too, with a default: those who call them without find those of today.
drop function if exists commandbus.audit_bulk(uuid, text, text);
drop function if exists commandbus.resume_bulk(uuid, text, float8);
drop function if exists commandbus.resume_domain(text, text);
drop function if exists commandbus.resume_type(text, text, text);
drop function if exists commandbus.end_type_pause(commandbus.command_bus_flow_rule, text);
drop function if exists commandbus.resume_schedule(text, text, bigint, timestamptz, boolean, text);
drop function if exists commandbus.delete_schedule(text, text, text);
drop function if exists commandbus.trigger_schedule(text, text, uuid, text, jsonb);
drop function if exists commandbus.revoke_api_token(text, text);
drop function if exists commandbus.leave_flow(text, uuid[], boolean);
-- They are take_gated and take_levels now, and answer with two lists.
drop function if exists commandbus.read_gated;
drop function if exists commandbus.take_by_flow;
drop function if exists commandbus.take_due;
drop function if exists commandbus.read_by_flow;
drop function if exists commandbus.read_due;
-- They answer with more, or with something else.
drop function if exists commandbus.mark_frozen(uuid);
drop function if exists commandbus.move_chunk(text, text, boolean, jsonb, int);
drop function if exists commandbus.put_moved_events(uuid, int, bigint, bigint, bigint[], text[], bytea);
