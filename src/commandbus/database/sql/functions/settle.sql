-- Settle: what a worker commits at once, whatever its handlers came to.

-- The keys of what handlers send, by domain.
create or replace function commandbus.sent_keys(p_sends jsonb) returns table (domain text, keys text[])
language sql stable as $$
    select s.value ->> 'domain', array_agg(c.value ->> 'ordering_key')
      from jsonb_array_elements(p_sends) s
     cross join lateral jsonb_array_elements(s.value -> 'commands') c
     where c.value ->> 'ordering_key' is not null
     group by 1 order by 1
$$;

-- Locks them, before anything else: a worker that sends to a key is a sender, and waits for it with nothing in its
-- hands that others wait for. The keys whose commands end are taken later, and not waited for.
create or replace function commandbus.claim_sent_keys(p_sends jsonb) returns void
language plpgsql as $$
begin
    perform commandbus.claim_keys(k.domain, k.keys) from commandbus.sent_keys(p_sends) k;
end $$;

-- Removes those that nothing was sent to after all: the lease of the handler was lost.
create or replace function commandbus.forget_sent_keys(p_sends jsonb) returns void
language plpgsql as $$
begin
    perform commandbus.forget_keys(k.domain, k.keys) from commandbus.sent_keys(p_sends) k;
end $$;

-- A group of mixed outcomes in one round trip: what a worker commits at once. All messages are
-- locked in one sorted pass before the first command is touched.
--   p_outcomes: {"complete": [...], "retry": [...], "park": [...], "fail": [...], "release": [...],
--                "snooze": [...], "discard": [...],
--                "send": [{"by", "lease_epoch", "domain", "commands", "batch_id"?, "actor"?}]}
-- What a handler sends goes out only if its own outcome counts: `by` must hold its lease.
-- A duplicate among the commands to send is an error that undoes the group; the worker then
-- settles one by one and finds the one to blame.
--   p_is_own: the transaction has other work in it, and no part of it should be a transaction in it.
create or replace function commandbus.settle_commands(
    p_domain text, p_outcomes jsonb, p_is_own boolean default false
) returns setof uuid
language plpgsql as $$
declare
    v_sends  jsonb;
    v_send   jsonb;
    v_keyed  boolean := p_outcomes @? '$.send[*].commands[*].ordering_key';
    v_unique boolean := p_outcomes @? '$.send[*].commands[*].unique_key';
    -- Locked first, all of it; one kind alone does that by itself.
    v_locks  boolean := p_is_own or (select count(*) > 1 from jsonb_object_keys(p_outcomes));
begin
    if v_unique then
        perform commandbus.claim_unique_of(p_outcomes -> 'send');
    end if;
    if v_keyed then
        perform commandbus.claim_sent_keys(p_outcomes -> 'send');
    end if;
    if v_locks then
        perform commandbus.lock_messages(p_domain || '.commands', array(
            select (i ->> 'msg_id')::bigint
              from jsonb_each(p_outcomes - 'send') o
             cross join lateral jsonb_array_elements(o.value) i));
    end if;
    if p_outcomes ? 'send' then
        select jsonb_agg(s.value) into v_sends
          from jsonb_array_elements(p_outcomes -> 'send') s
          join commandbus.command_bus_command c
            on c.domain = p_domain and c.command_id = (s.value ->> 'by')::uuid
           and c.lease_epoch = (s.value ->> 'lease_epoch')::bigint and c.leased_by is not null;
    end if;
    if v_locks then
        perform commandbus.lock_batches(
            p_domain,
            array(select (i ->> 'command_id')::uuid
                    from jsonb_each(p_outcomes - 'send') o
                   cross join lateral jsonb_array_elements(o.value) i),
            array(select (s ->> 'batch_id')::uuid from jsonb_array_elements(v_sends) s
                   where s ->> 'batch_id' is not null));
    end if;
    if v_locks and p_outcomes ? 'complete' then
        -- Not complete_commands: its block would update, as a transaction of its own, what is locked
        -- out here, and the server would keep a list of both for each row.
        return query select commandbus.reject_stale(
            p_domain, p_outcomes -> 'complete',
            commandbus.complete_leased(p_domain, p_outcomes -> 'complete'));
    elsif p_outcomes ? 'complete' then
        return query select commandbus.complete_commands(p_domain, p_outcomes -> 'complete');
    end if;
    if p_outcomes ? 'retry' then
        return query select commandbus.retry_commands(p_domain, p_outcomes -> 'retry');
    end if;
    if p_outcomes ? 'fail' then
        return query select commandbus.fail_commands(p_domain, p_outcomes -> 'fail');
    end if;
    if p_outcomes ? 'release' then
        return query select commandbus.release_commands(p_domain, p_outcomes -> 'release');
    end if;
    if p_outcomes ? 'snooze' then
        return query select commandbus.snooze_commands(p_domain, p_outcomes -> 'snooze');
    end if;
    if p_outcomes ? 'discard' then
        return query select commandbus.discard_commands(p_domain, p_outcomes -> 'discard');
    end if;
    for v_send in select s from jsonb_array_elements(v_sends) s loop
        perform commandbus.send_commands(v_send ->> 'domain', v_send -> 'commands',
                                         (v_send ->> 'batch_id')::uuid, v_send ->> 'actor');
    end loop;
    if v_keyed then
        perform commandbus.forget_sent_keys(p_outcomes -> 'send');
    end if;
    if v_unique then
        perform commandbus.drop_unique_of(p_outcomes -> 'send');
    end if;
    -- Last, because parking ends with the locks of failure groups, and everything above takes
    -- those of batches.
    if p_outcomes ? 'park' then
        return query select commandbus.park_commands(p_domain, p_outcomes -> 'park');
    end if;
end $$;

-- settle_commands for a handler whose own rows are in the transaction, and whose commit follows. From
-- here on it holds the row of a batch, for which all other workers of the batch wait: a process that
-- is paused or cut off between the two must not keep them waiting for as long as it is away.
create or replace function commandbus.settle_own(p_domain text, p_outcomes jsonb) returns setof uuid
language plpgsql as $$
begin
    perform set_config('idle_in_transaction_session_timeout', '2s', true);
    return query select commandbus.settle_commands(p_domain, p_outcomes, true);
end $$;
