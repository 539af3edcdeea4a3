-- Retention of the history: its parts are dropped as a whole, and batches go when the last of their commands has gone.

-- The parts of a domain that are due, the oldest first: all before the first one in which something is to be kept. o_rest: the
-- first number that stays; null: nothing does.
create or replace function commandbus.due_history(
    p_domain text, p_before timestamptz, out o_parts regclass[], out o_rest bigint, out o_below bigint
)
language plpgsql stable as $$
declare
    v_part record;
begin
    o_parts := '{}';
    for v_part in select * from commandbus.history_parts(p_domain) loop
        if exists (select from (
               select h.moved_at from commandbus.command_bus_history h
                where h.domain = p_domain and h.history_no >= v_part.first_no and h.history_no < v_part.below_no
                order by h.history_no desc limit 1) n where n.moved_at >= p_before) then
            o_rest := v_part.first_no;
            return;
        end if;
        o_parts := o_parts || v_part.part;
        o_below := v_part.below_no;
    end loop;
end $$;

-- Batches of which nothing is left in the history when what comes before p_rest is gone (null: all).
create or replace function commandbus.is_over_history(
    p_batch commandbus.command_bus_batch, p_domain text, p_before timestamptz, p_rest bigint
) returns boolean
language sql stable as $$
    select p_batch.domain = p_domain and p_batch.moved_to is not null
       and (p_rest is null or p_batch.moved_to < p_rest) and p_batch.history_since < p_before
$$;

-- Drops one part in a call, and then p_limit batches. It locks the whole history for milliseconds, and waits for that a quarter
-- of a second at most: who looks for an id waits behind it. It comes again later.
create or replace function commandbus.prune_history(
    p_domain text, p_before timestamptz, p_limit int, p_after text default null,
    p_actor text default null, out o_pruned jsonb, out o_after text, out o_is_done boolean
)
language plpgsql set lock_timeout = '250ms' as $$
declare
    v_due     record;
    v_rows    bigint := 0;
    v_batches uuid[];
begin
    o_pruned := '{}';
    o_is_done := true;
    perform commandbus.refuse_while_moving(p_domain);
    -- nobody moves into the part meanwhile
    perform 1 from commandbus.command_bus_history_domain h where h.domain = p_domain for update;
    v_due := commandbus.due_history(p_domain, p_before);
    if v_due.o_parts <> '{}' then
        execute format('select count(*) from %s', v_due.o_parts[1]) into v_rows;
        execute format('drop table %s', v_due.o_parts[1]);
        o_pruned := jsonb_build_object('commands of the history', v_rows);
        o_is_done := false;
        return;
    end if;
    v_batches := array(select b.batch_id from commandbus.command_bus_batch b
                        where b.domain = p_domain and b.moved_to is not null
                          and commandbus.is_over_history(b, p_domain, p_before, v_due.o_rest)
                        order by b.batch_id limit p_limit for update skip locked);
    perform commandbus.remove_batches(v_batches);
    o_pruned := jsonb_build_object('commands of the history', 0, 'batches of the history', cardinality(v_batches));
    o_is_done := cardinality(v_batches) < p_limit;
exception when lock_not_available or deadlock_detected then
    o_is_done := true;                                  -- somebody reads for long, or drops another part: the next run
end $$;

-- How many a run would remove of the history, exactly, if nothing changed meanwhile.
create or replace function commandbus.count_due_history(p_domain text, p_before timestamptz)
returns table (what text, prunable bigint)
language plpgsql stable as $$
declare
    v_due record := commandbus.due_history(p_domain, p_before);
begin
    return query
    select 'commands of the history', count(*) from commandbus.command_bus_history h
     where h.domain = p_domain and h.history_no < v_due.o_below
    union all
    select 'batches of the history', count(*) from commandbus.command_bus_batch b
     where b.domain = p_domain and b.moved_to is not null
       and commandbus.is_over_history(b, p_domain, p_before, v_due.o_rest);
end $$;
