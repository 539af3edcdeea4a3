-- 0021: what travels with the commands of a schedule, beside their data.

alter table commandbus.command_bus_schedule add column meta jsonb null;
