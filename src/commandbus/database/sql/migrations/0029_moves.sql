-- 0029: moves of domains with their history from one shard to another (docs/adr/0091).

-- A move, in both databases under one id. It stays when it is over, and says where the history went.
--   is_leaving: the domain leaves this database; false: it comes here
--   phase: 'copying': traffic goes on; 'closing': nothing new is let in, what runs ends; 'verified': both have the
--   same, and nobody changes it; 'switched': the map says it; 'finished' and 'canceled' are its ends
--   is_frozen: nothing of the domain can be changed here but by the move
create table commandbus.command_bus_move (
    move_id     uuid primary key,
    domain      text not null,
    is_leaving  boolean not null,
    from_shard  text not null,
    to_shard    text not null,
    phase       text not null default 'copying',
    is_frozen   boolean not null default false,
    counts      jsonb not null default '{}',         -- rows by part, once they are verified
    started_at  timestamptz not null default clock_timestamp(),
    changed_at  timestamptz not null default clock_timestamp(),
    finished_at timestamptz null,
    constraint valid_move_phase check (
        phase in ('copying', 'closing', 'verified', 'switched', 'finished', 'canceled')),
    constraint whole_move_end check ((finished_at is null) = (phase not in ('finished', 'canceled')))
);
-- One at a time; and what asks whether a domain is moving reads this.
create unique index uq_move_open on commandbus.command_bus_move (domain) where finished_at is null;

-- Which events came with a move, chunk by chunk: the n-th of old_ids has become the n-th of new_ids. The digest is of
-- the events without their numbers.
create table commandbus.command_bus_moved_audit (
    move_id   uuid not null references commandbus.command_bus_move (move_id),
    chunk_no  int not null,
    after_id  bigint not null,                       -- of the numbers there: its range begins after this one
    upto_id   bigint not null,
    old_ids   int8multirange not null,
    new_ids   int8multirange not null,
    row_count int not null,
    digest    bytea not null,
    constraint pk_moved_audit primary key (move_id, chunk_no)
);
