-- 0025: what workers have counted, by domain and command type, for metrics of the service (docs/adr/0070).

-- Workers add to it with a heartbeat, never for a command. Sums of all workers, those that are gone included.
create table commandbus.command_bus_worker_count (
    domain       text not null,
    command_type text not null,
    outcome      text not null,                      -- as metrics name it; `handled`: calls of handlers
    count        bigint not null,
    seconds      double precision not null default 0, -- of calls of handlers
    constraint pk_worker_count primary key (domain, command_type, outcome)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
