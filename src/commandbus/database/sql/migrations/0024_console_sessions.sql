-- 0024: sessions of the console, and the codes that begin one.

-- The secret of a session is in its cookie alone: secret_hash is SHA-256 of 256 random bits. A session never
-- outlives its token, whatever is written here: the service asks for the token too. token_id has no reference:
-- the token of `commandbus up` is in the memory of one process.
create table commandbus.command_bus_console_session (
    session_id   uuid primary key,
    secret_hash  bytea not null,
    token_id     text not null,
    user_id      text not null,
    address      text null,                          -- where it was begun from
    agent        text null,                          -- and by which browser
    created_at   timestamptz not null default now(),
    proved_at    timestamptz not null default now(), -- when the token itself was given last
    last_seen_at timestamptz not null default now(), -- written once a minute at most
    expires_at   timestamptz not null,
    ended_at     timestamptz null,
    constraint valid_session_hash check (octet_length(secret_hash) = 32)
) with (fillfactor = 50);
create unique index ix_console_session_secret on commandbus.command_bus_console_session (secret_hash);
create index ix_console_session_user on commandbus.command_bus_console_session (user_id, created_at);
create index ix_console_session_expires on commandbus.command_bus_console_session (expires_at);

-- A code is used once, within a minute.
create table commandbus.command_bus_console_code (
    secret_hash bytea primary key,
    token_id    text not null,
    expires_at  timestamptz not null
);
