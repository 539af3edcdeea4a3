-- Former functions: those that an earlier version had under another name or with other arguments. Loaded
-- first, so that no call can reach one of them by mistake. None of them is called by anything else in
-- the database.
drop function if exists commandbus.complete_held;
drop function if exists commandbus.create_held_batch;
drop function if exists commandbus.domain_figures; -- it had fewer columns
drop function if exists commandbus.find_batch;
drop function if exists commandbus.find_bulk;
drop function if exists commandbus.held_envelopes;
drop function if exists commandbus.hold_commands;
drop function if exists commandbus.next_bulk(text, text, interval);
drop function if exists commandbus.queue_held;
drop function if exists commandbus.receive_commands(text, int, int, text, jsonb, boolean, boolean);
drop function if exists commandbus.resolve_parked;
drop function if exists commandbus.run_bulk_chunk(uuid, int, text);
drop function if exists commandbus.start_bulk(uuid, text, text, jsonb, jsonb, float8, text, boolean);
drop function if exists commandbus.try_bulk(text, text, jsonb, text, uuid[]);
