-- Queue verbs: what is done most with the messages of a queue, as functions of each queue, which have its name in
-- them. A session plans such a statement once; one that is put together for each call is parsed and planned for
-- each, which was a third of what a receive of one command cost the server (docs/adr/0088).
--
-- They hold no rule: what may be taken, deleted or put is decided by who calls them. A queue without them, one that
-- another program made for example, is served by the statements that are put together.

-- The function of a queue for a verb, as it is called; null: it has none.
create or replace function commandbus.queue_verb(p_verb text, p_physical text) returns text
language sql stable as $$
    select to_regproc(
        split_part('commandbus.here', '.', 1) || '.' || quote_ident('queue_' || p_verb || '_' || p_physical))::text
$$;

-- Makes those of a queue anew.
--   take: leases what has been due for longest; read_messages says more. Along the index that has the order, whatever
--   the statistics say: the plan stays.
--   drop: in the order of lock_messages, under the settings of complete_commands, which alone calls it.
--   put: one message, due at once; fill: several.
create or replace function commandbus.make_queue_verbs(p_physical text) returns void
language plpgsql as $make$
declare
    v_schema      text := split_part('commandbus.here', '.', 1);
    v_is_commands boolean := p_physical like '%\_\_commands';
begin
    -- Two sessions that make one function at the same moment would get in the way of one another, and fail.
    perform pg_advisory_xact_lock(hashtextextended('commandbus.queue_verbs/' || p_physical, 0));
    execute format($verb$
        create or replace function %3$I.%1$I(p_message jsonb) returns bigint[]
        language plpgsql set plan_cache_mode = force_generic_plan as $body$
        declare
            v_msg_ids bigint[];
        begin
            insert into pgmq.%2$I (vt, message) values (clock_timestamp(), p_message)
            returning array[msg_id] into v_msg_ids;
            return v_msg_ids;
        end $body$ $verb$, 'queue_put_' || p_physical, 'q_' || p_physical, v_schema);
    execute format('revoke all on function %I.%I from public', v_schema, 'queue_put_' || p_physical);
    execute format($verb$
        create or replace function %3$I.%1$I(p_messages jsonb[]) returns bigint[]
        language plpgsql set plan_cache_mode = force_generic_plan as $body$
        declare
            v_now     timestamptz := clock_timestamp();
            v_msg_ids bigint[];
        begin
            with put as (insert into pgmq.%2$I (vt, message) select v_now, m from unnest(p_messages) m returning msg_id)
            select array_agg(p.msg_id order by p.msg_id) into v_msg_ids from put p;
            return v_msg_ids;
        end $body$ $verb$, 'queue_fill_' || p_physical, 'q_' || p_physical, v_schema);
    execute format('revoke all on function %I.%I from public', v_schema, 'queue_fill_' || p_physical);
    if not v_is_commands then
        return;
    end if;
    execute format($verb$
        create or replace function %3$I.%1$I(
            p_now timestamptz, p_vt int, p_quantity int, out msg_ids bigint[], out messages jsonb[])
        language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_indexscan = on
        set enable_bitmapscan = off set enable_sort = off as $body$
        begin
            with taken as (
                update pgmq.%2$I m set vt = p_now + make_interval(secs => p_vt), read_ct = m.read_ct + 1
                 where m.ctid = any(array(
                     select q.ctid from pgmq.%2$I q where q.headers is null and q.vt <= p_now
                      order by q.vt, q.msg_id limit p_quantity for update skip locked))
                returning m.msg_id, m.message
            )
            select array_agg(t.msg_id order by t.msg_id), array_agg(t.message order by t.msg_id)
              into msg_ids, messages from taken t;
        end $body$ $verb$, 'queue_take_' || p_physical, 'q_' || p_physical, v_schema);
    execute format('revoke all on function %I.%I from public', v_schema, 'queue_take_' || p_physical);
    execute format($verb$
        create or replace function %3$I.%1$I(p_msg_ids bigint[]) returns void
        language plpgsql set plan_cache_mode = force_generic_plan as $body$
        begin
            delete from pgmq.%2$I where msg_id = any(p_msg_ids);
        end $body$ $verb$, 'queue_drop_' || p_physical, 'q_' || p_physical, v_schema);
    execute format('revoke all on function %I.%I from public', v_schema, 'queue_drop_' || p_physical);
end $make$;

-- Messages that are due, as read_messages finds them, in two lists; null: none is.
create or replace function commandbus.take_messages(
    p_queue text, p_now timestamptz, p_vt int, p_quantity int, p_from_head boolean, p_except text[],
    out msg_ids bigint[], out messages jsonb[]
)
language plpgsql as $$
declare
    v_take text;
begin
    if not p_from_head and p_except = '{}' then
        v_take := commandbus.queue_verb('take', commandbus.physical_queue(p_queue));
    end if;
    if v_take is null then
        select array_agg(r.msg_id order by r.msg_id), array_agg(r.message order by r.msg_id)
          into msg_ids, messages
          from commandbus.read_messages(p_queue, p_now, p_vt, p_quantity, p_from_head, p_except) r;
    else
        execute 'select * from ' || v_take || '($1, $2, $3)'
           into msg_ids, messages using p_now, p_vt, p_quantity;
    end if;
end $$;

-- Deletes messages; the caller says what it means.
create or replace function commandbus.drop_messages(p_queue text, p_msg_ids bigint[]) returns void
language plpgsql as $$
declare
    v_physical text := commandbus.physical_queue(p_queue);
    v_drop     text := commandbus.queue_verb('drop', v_physical);
begin
    if v_drop is null then
        execute format('delete from pgmq.%I where msg_id = any($1)', 'q_' || v_physical) using p_msg_ids;
    else
        execute 'select ' || v_drop || '($1)' using p_msg_ids;
    end if;
end $$;

-- The queues that there are get them when the functions are loaded, those of other programs not.
do $queues$
begin
    perform commandbus.make_queue_verbs(q.physical) from commandbus.own_queues() q
      where commandbus.is_made_by_us(q.physical);
end $queues$;
