-- Locks: the order in which rows are locked, everywhere:
--
--     unique key -> key -> queue message -> command -> batch -> failure group -> audit; each kind in the order of its ids
--
-- Keys are locked by senders, and by those who queue parked commands again. Who ends commands takes their keys after
-- the batches, and the messages of the next ones after the keys, but waits for neither: what another session has is
-- left to the next receive (key_turns.sql). Stored commands are locked before their keys: nobody who has a key
-- waits for one that is not queued.
--
-- A transaction that needs several takes them in that order. Otherwise two sessions would deadlock exactly
-- when a lease lapses: receive has the message and waits for the command.

-- Locks messages of a queue, before the commands that they belong to.
create or replace function commandbus.lock_messages(p_queue text, p_msg_ids bigint[]) returns void
language plpgsql as $$
begin
    execute format(
        'select 1 from pgmq.%I where msg_id = any($1) order by msg_id for update',
        'q_' || commandbus.physical_queue(p_queue)) using p_msg_ids;
end $$;

-- Locks commands, and returns the time after the wait: what is then written is not older than what the
-- transaction has waited for.
create or replace function commandbus.lock_commands(p_domain text, p_command_ids uuid[])
returns timestamptz
language plpgsql as $$
begin
    perform 1 from commandbus.command_bus_command c
      where c.domain = p_domain and c.command_id = any(p_command_ids)
      order by c.command_id for update;
    return clock_timestamp();
end $$;

-- Locks commands that may be queued, their messages first. A stored command may get its message while this
-- session waits for the command, for example from an approval. To lock that message now would be the wrong
-- way round: its receiver has it, and waits for the command. So what was locked is given back, by a
-- rollback to the beginning of the block, and locked again.
create or replace function commandbus.lock_queued(p_domain text, p_command_ids uuid[]) returns timestamptz
language plpgsql as $$
declare
    v_queue  text := p_domain || '.commands';
    v_before bigint[];
    v_now    timestamptz;
begin
    for attempt in 1 .. 100 loop
        begin
            v_before := commandbus.message_ids(p_domain, p_command_ids);
            if commandbus.queue_exists(v_queue) then
                perform commandbus.lock_messages(v_queue, v_before);
            end if;
            v_now := commandbus.lock_commands(p_domain, p_command_ids);
            if commandbus.message_ids(p_domain, p_command_ids) is not distinct from v_before then
                return v_now;
            end if;
            raise serialization_failure using message = 'the messages of commands keep changing';
        exception when serialization_failure then
            if attempt = 100 then
                raise;
            end if;
        end;
    end loop;
end $$;

-- Keeps decisions, cancels and retries of one batch apart until they commit; taken before any row. Otherwise
-- one that waits for the commands of an approval gets them one by one when it commits, by their ids, while a
-- receiver takes the same ones in the order of their new messages: a circle.
create or replace function commandbus.claim_ticket(p_batch_id uuid) returns void
language sql volatile as $$
    select pg_advisory_xact_lock(hashtextextended('commandbus.ticket/' || p_batch_id, 0))
$$;

-- The messages of these commands, in the order of the commands; null: it has none.
create or replace function commandbus.message_ids(p_domain text, p_command_ids uuid[]) returns bigint[]
language sql volatile as $$
    select array(select c.msg_id from commandbus.command_bus_command c
                  where c.domain = p_domain and c.command_id = any(p_command_ids)
                  order by c.command_id)
$$;

-- Locks what a mixed group is about to touch, if batches are among it: all its commands, then all
-- their batches, each in one sorted pass. The functions for each kind of outcome lock in order by
-- themselves; called one after the other they would take the batches of the completed, then those of
-- the parked, and meet another group in a circle. Without a batch nothing is locked here.
create or replace function commandbus.lock_batches(p_domain text, p_command_ids uuid[], p_also uuid[])
returns void
language plpgsql as $$
declare
    -- a command never changes its batch
    v_batches uuid[] := p_also || array(
        select distinct c.batch_id from commandbus.command_bus_command c
         where c.domain = p_domain and c.command_id = any(p_command_ids) and c.batch_id is not null);
begin
    if v_batches = '{}' then
        return;
    end if;
    perform commandbus.lock_commands(p_domain, p_command_ids);
    perform 1 from commandbus.command_bus_batch b
      where b.batch_id = any(v_batches) order by b.batch_id for update;
end $$;
