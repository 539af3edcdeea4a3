-- Basics: what all the others use. Names, times, and the refusals.
--
-- Refusals carry their own SQLSTATE, which commandbus.errors maps to a class:
--   CB001 duplicate command      CB002 command not found     CB003 not in a state that allows it
--   CB004 batch not found        CB005 badly formed name     CB006 payload no longer archived
--   CB007 setting refused        CB008 append-only table     CB009 other total than expected
--   CB010 bulk operation not found  CB011 governed command type CB012 start of a command refused

-- An error if this cannot be the name of a domain.
create or replace function commandbus.check_domain(p_domain text) returns void
language plpgsql immutable as $$
begin
    -- 37 + length('__commands') = 47, the longest name PGMQ takes. `__` stands for the dot.
    if p_domain is null or p_domain !~ '^[a-z][a-z0-9_]*$' or p_domain ~ '__'
       or length(commandbus.queue_mark() || p_domain) > 37 then
        raise exception 'domain % is not well formed', coalesce(quote_literal(p_domain), 'null')
            using errcode = 'CB005',
                  hint = format('use a-z, 0-9 and single underscores, a letter first, at most %s characters',
                                37 - length(commandbus.queue_mark()));
    end if;
end $$;

-- The one place where a logical, dotted queue name becomes the name of a PGMQ queue. queue_mark() keeps
-- the queues of two schemas apart; migration 0005 makes it.
create or replace function commandbus.physical_queue(p_queue text) returns text
language sql immutable as $$ select commandbus.queue_mark() || replace(p_queue, '.', '__') $$;

-- The channel of a hint. The default schema has the plain names; others have a mark of their own.
-- commandbus.names.schema_mark makes the same one.
create or replace function commandbus.channel(p_name text) returns text
language sql immutable as $$
    select 'commandbus' || '.'
        || case split_part('commandbus.here', '.', 1) when 'command' || 'bus' then ''
                else '0' || left(encode(sha256(split_part('commandbus.here', '.', 1)::bytea), 'hex'), 4) || '_' end
        || p_name
$$;

-- Times in messages, replies and reports: UTC, with microseconds.
create or replace function commandbus.iso8601(p_ts timestamptz) returns text
language sql stable as $$
    select to_char(p_ts at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- How long something took.
create or replace function commandbus.milliseconds_since(p_began timestamptz) returns double precision
language sql volatile as $$
    select round(extract(epoch from clock_timestamp() - p_began) * 1000, 3)::double precision
$$;

-- Stands in the audit where an event is about no single command.
create or replace function commandbus.nobody() returns uuid
language sql immutable as $$ select '00000000-0000-0000-0000-000000000000'::uuid $$;

-- The command that a message or a reply is about; null if it does not say.
create or replace function commandbus.message_command_id(p_message jsonb) returns uuid
language sql immutable as $$
    select case when p_message ->> 'command_id'
                     ~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$'
                then (p_message ->> 'command_id')::uuid end
$$;
