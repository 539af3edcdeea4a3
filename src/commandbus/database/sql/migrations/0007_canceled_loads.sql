-- Loads that were canceled, and how the columns of a CSV file are separated (null: found out by its header).
--
-- The table has one row for each load, so checking the new constraint takes no time that counts. A worker
-- of an earlier version passes over a canceled load: it looks for 'loading' and 'sealed' only.
alter table commandbus.command_bus_load add column delimiter text null;
alter table commandbus.command_bus_load drop constraint valid_load_status;
alter table commandbus.command_bus_load add constraint valid_load_status
    check (status in ('loading', 'sealed', 'failed', 'canceled'));
