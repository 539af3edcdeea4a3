-- 0006: workers say how many of their places are kept by handlers that did not end.

alter table commandbus.command_bus_worker add column stuck int not null default 0;
