-- 0004: the key of what is parked begins with the command.

-- Three other indexes of this table begin with the domain. While the statistics say that it is as
-- good as empty, PostgreSQL takes any of them for as good as the key, and reads the whole domain for
-- each item of a decision. Only the key has the command in front, and decisions look for nothing else.
alter table commandbus.command_bus_troubleshooting
    drop constraint pk_troubleshooting,
    add constraint pk_troubleshooting primary key (command_id, domain);
