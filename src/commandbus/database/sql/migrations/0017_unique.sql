-- 0017: keys of which one command at a time is sent. docs/adr/0047 has the reasons.

-- Who holds a key. Nothing releases it: whether it still holds is looked at when the next command asks for it.
--   holds_while: 'waiting': until a worker leases the command; 'open': until it has ended or is parked;
--                'until': until holds_until, whatever becomes of the command
--   command_id: null only in the transaction that claims the key
--   first_at: when the command was sent; a replacement does not change it
--   look_at: when the row is looked at whether anybody needs it
create table commandbus.command_bus_unique (
    domain      text not null,
    unique_key  text collate "C" not null,
    command_id  uuid null,
    holds_while text not null default 'until',
    holds_until timestamptz null,
    first_at    timestamptz not null,
    look_at     timestamptz not null,
    constraint pk_unique primary key (domain, unique_key),
    constraint valid_holds_while check (holds_while in ('waiting', 'open', 'until'))
) with (fillfactor = 70);
create index ix_unique_look_at on commandbus.command_bus_unique (look_at);
