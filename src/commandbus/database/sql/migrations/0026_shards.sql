-- 0026: which shard a database is, and which domains the map of shards gives to which shard (docs/adr/0077).

-- One row, or none where there is one database for all domains.
create table commandbus.command_bus_shard (
    is_this       boolean primary key default true,
    shard         text not null,                     -- what the map calls this database
    version       int not null,                      -- of the map
    default_shard text null,                         -- of domains that are not named; null: they are refused
    domains       jsonb not null,                    -- the shard of each domain that is named
    adopted_at    timestamptz not null default now(),
    constraint one_shard check (is_this),
    constraint valid_map_version check (version > 0)
);
