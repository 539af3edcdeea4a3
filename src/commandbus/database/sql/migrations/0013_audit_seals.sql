-- 0013: seals of the audit, and records of what was lawfully removed from it. docs/adr/0041 has the reasons.

-- A seal closes a range of audit_id for good. Chained by `previous`, signed with a key outside the database.
create table commandbus.command_bus_audit_seal (
    seal_number    bigint primary key,
    first_id       bigint not null,
    last_id        bigint not null,                     -- less than first_id: no range, only removals
    row_count      int not null,
    oldest_ts      timestamptz null,                    -- of its rows; null: it has none
    entries        bytea not null,                      -- of each row 4 bytes of place and 16 of digest
    entries_digest bytea not null,
    removals       bytea not null,                      -- of each removal 8 bytes of number and 16 of digest
    previous       bytea not null,                      -- the digest of the seal before
    sealed_at      timestamptz not null,                -- by the clock of the process that sealed
    key_id         text not null,
    digest         bytea not null,
    signature      bytea not null
);
-- Digests cannot be compressed: do not try.
alter table commandbus.command_bus_audit_seal alter column entries set storage external;

-- What a lawful removal took out of the audit. Written with it, signed by the next seal.
create table commandbus.command_bus_audit_removal (
    removal_number bigint generated always as identity primary key,
    domain         text not null,
    ids            int8multirange not null,
    row_count      int not null,
    sealed_to      bigint not null,                     -- the last sealed id at that time
    rows_digest    bytea not null,                      -- of the digests of the sealed rows among them
    before         timestamptz not null,
    keep_seconds   bigint null,                         -- of the rule that asked for it; null: none did
    actor          text null,
    removed_at     timestamptz not null default clock_timestamp(),
    sealed_by      bigint null
);
create index ix_audit_removal_ids on commandbus.command_bus_audit_removal using gist (ids);
create index ix_audit_removal_sealed on commandbus.command_bus_audit_removal (sealed_by);

-- How far the audit can be sealed: no transaction that is open may still add an id up to safe_to.
create table commandbus.command_bus_audit_horizon (
    is_one       boolean primary key default true check (is_one),
    safe_to      bigint null,
    candidate_id bigint null,                           -- safe once those of waits_for have ended
    waits_for    text[] not null default '{}',          -- virtual transactions, as pg_locks shows them
    noted_at     timestamptz null
);
insert into commandbus.command_bus_audit_horizon default values;
