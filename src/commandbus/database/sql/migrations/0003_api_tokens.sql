-- 0003: API tokens of the HTTP service, and what its metrics look for.

-- The secret itself is nowhere: secret_hash is HMAC-SHA-256 of it under a pepper that only the
-- service knows. A token is never deleted: the audit names it.
create table commandbus.command_bus_api_token (
    token_id     text primary key,
    user_id      text not null,
    scopes       text[] not null,
    domains      text[] null,                        -- null: all of them
    label        text null,
    secret_hash  bytea not null,
    created_by   text null,
    created_at   timestamptz not null default now(),
    expires_at   timestamptz null,                   -- null: never
    revoked_at   timestamptz null,
    last_used_at timestamptz null,                   -- written once a minute at most
    constraint valid_token_id check (token_id ~ '^[0-9a-f]{32}$'),
    constraint valid_token_scopes check (
        cardinality(scopes) > 0
        and scopes <@ array['read', 'read-payload', 'send', 'operate', 'approve', 'admin']),
    constraint valid_token_domains check (cardinality(domains) > 0)
) with (fillfactor = 50);
create index ix_api_token_created on commandbus.command_bus_api_token (created_at, token_id);

-- Governed batches that are open, or that ended lately. Counters of a batch change without it; only
-- its end, which writes all indexes anyhow (status), changes completed_at.
create index ix_batch_governed_completed
    on commandbus.command_bus_batch (completed_at) where batch_type is not null;
