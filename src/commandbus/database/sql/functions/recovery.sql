-- Recovery: what was stored but did not reach its queue is queued after all, or given up.
--
-- Run by the worker that claims the chore; running it twice at once is harmless, because a command
-- is locked (SKIP LOCKED) and gets at most one message. Every try counts: a success when the command
-- is queued, a failure here. Old commands are resolved like young ones; their age is reported.
--
-- Lock order: dispatch -> command -> batch (in the order of ids) -> audit.

-- These could not be queued: to be tried again, or, after p_max_attempts, FAILED with the reply and
-- the counters that go with it. What meanwhile was queued, or ended, is left alone. Returns how many
-- were given up.
create or replace function commandbus.mark_dispatch_failed(
    p_domain text, p_command_ids uuid[], p_error text, p_max_attempts int default 3
) returns int
language plpgsql as $$
declare
    c_code    constant text := 'QUEUE_RETRIES_EXCEEDED';
    c_message constant text := 'Max queue retries exceeded';
    v_now     timestamptz := commandbus.lock_commands(p_domain, p_command_ids);
    v_done    text := commandbus.iso8601(v_now);
    v_batches uuid[];
    v_queues  text[];
    v_replies jsonb[];
begin
    perform commandbus.forget_unconfirmed(p_domain, p_command_ids);
    with failed as (
        update commandbus.command_bus_command c
           set dispatch_status = 'pending_retry', last_queue_error = p_error,
               queue_attempt_count = c.queue_attempt_count + 1, updated_at = v_now
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.status = 'PENDING' and c.msg_id is null
           and c.dispatch_status in ('pending_queue', 'pending_retry', 'queued')
           and c.queue_attempt_count + 1 < p_max_attempts
    ), given_up as (
        update commandbus.command_bus_command c
           set status = 'FAILED', dispatch_status = 'failed', last_queue_error = p_error,
               queue_attempt_count = c.queue_attempt_count + 1, updated_at = v_now,
               last_error_type = 'TRANSIENT', last_error_code = c_code, last_error_msg = c_message
         where c.domain = p_domain and c.command_id = any(p_command_ids)
           and c.status = 'PENDING' and c.msg_id is null
           and c.dispatch_status in ('pending_queue', 'pending_retry', 'queued')
           and c.queue_attempt_count + 1 >= p_max_attempts
        returning c.command_id, c.batch_id, c.reply_queue, c.queue_attempt_count,
                  commandbus.reply_body(p_domain, c.command_id, c.correlation_id, c.command_type,
                      'FAILED', v_done, null,
                      commandbus.reply_error(c_code, c_message, 'TRANSIENT')) as reply
    ), audited as (
        insert into commandbus.command_bus_audit (
            domain, command_id, event_type, ts, details_json, batch_id)
        select p_domain, g.command_id, 'FAILED', v_now,
               commandbus.failure_details(0, 'TRANSIENT', c_code, c_message, jsonb_build_object(
                   'queue_attempts', g.queue_attempt_count, 'queue_error', p_error), null),
               g.batch_id
          from given_up g
        union all
        select p_domain, g.command_id, 'GIVEN_UP', v_now, null, g.batch_id from given_up g
    )
    select array_agg(g.batch_id), array_agg(g.reply_queue), array_agg(g.reply)
      into v_batches, v_queues, v_replies from given_up g;
    if v_replies is null then
        return 0;
    end if;
    perform commandbus.publish_replies(p_domain, v_queues, v_replies);
    perform commandbus.move_batch_counters(v_batches, 'open', 'failed');
    return cardinality(v_replies);
end $$;

-- Queues commands that the caller has locked. A group that fails is halved until what is to blame
-- stands alone: only that is counted as failed.
create or replace function commandbus.try_queue(
    p_domain text, p_command_ids uuid[], p_max_attempts int,
    out o_queued int, out o_failed int, out o_given_up int)
language plpgsql as $$
declare
    v_size   int := cardinality(p_command_ids);
    v_queued uuid[];
    v_lost   uuid[];
    v_half   record;
    v_error  text;
begin
    begin
        v_queued := commandbus.queue_stored(p_domain, p_command_ids,
                                          array['pending_queue', 'pending_retry']);
        v_lost := array(select i from unnest(p_command_ids) i where i <> all(v_queued));
        v_error := 'the stored payload is gone';
    exception when others then
        if sqlstate in ('CB018', 'CB019') then
            raise;                                      -- the domain moves: none of them is to blame
        end if;
        v_queued := '{}';
        v_lost := p_command_ids;
        v_error := left(sqlstate || ': ' || sqlerrm, 500);
    end;
    o_queued := cardinality(v_queued);
    o_failed := 0;
    o_given_up := 0;
    if o_queued > 0 or v_size = 1 then
        o_failed := cardinality(v_lost);
        if o_failed > 0 then
            o_given_up := commandbus.mark_dispatch_failed(p_domain, v_lost, v_error, p_max_attempts);
        end if;
        return;
    end if;
    for v_half in
        select t.* from (values (p_command_ids[:v_size / 2]), (p_command_ids[v_size / 2 + 1:])) h(ids)
         cross join lateral commandbus.try_queue(p_domain, h.ids, p_max_attempts) t
    loop
        o_queued := o_queued + v_half.o_queued;
        o_failed := o_failed + v_half.o_failed;
        o_given_up := o_given_up + v_half.o_given_up;
    end loop;
end $$;

-- The next commands of a domain that wait to be queued, oldest first: p_after is [created_at,
-- sequence_no, command_id] of the last one that was looked at; null: from the beginning. What has the
-- same age as the ends of the page is read as well; a batch has one age.
--
-- Compared and ordered by domain and age together, so that only the index of what waits can serve it,
-- whatever the statistics say: without sorts (planner.sql) every other index is out of the question.
create or replace function commandbus.waiting_page(p_domain text, p_after jsonb, p_limit int)
returns table (
    n bigint, command_id uuid, batch_id uuid, created_at timestamptz, sequence_no int,
    is_retry boolean, updated_at timestamptz)
language plpgsql stable as $$
declare
    v_from  timestamptz := coalesce((p_after ->> 0)::timestamptz, '-infinity');
    v_until timestamptz;
begin
    select max(w.created_at) into v_until from (
        select c.created_at from commandbus.command_bus_command c
         where (c.domain, c.created_at) > (p_domain, v_from)
           and (c.domain, c.created_at) <= (p_domain, timestamptz 'infinity')
           and c.dispatch_status in ('pending_retry', 'pending_queue')
         order by c.domain, c.created_at limit p_limit) w;
    return query
    with page as materialized (
        select c.command_id, c.batch_id, c.created_at, coalesce(c.sequence_no, -1) as sequence_no,
               c.dispatch_status = 'pending_retry' as is_retry, c.updated_at
          from commandbus.command_bus_command c
         where (c.domain, c.created_at) >= (p_domain, v_from)
           and (c.domain, c.created_at) <= (p_domain, coalesce(v_until, v_from))
           and c.dispatch_status in ('pending_retry', 'pending_queue') and c.status = 'PENDING'
         order by c.domain, c.created_at
    )
    select row_number() over (), s.* from (
        select p.* from page p
         where p_after is null or (p.created_at, p.sequence_no, p.command_id)
               > (v_from, (p_after ->> 1)::int, (p_after ->> 2)::uuid)
         order by p.created_at, p.sequence_no, p.command_id limit p_limit) s;
end $$;

-- Locks those of these commands that have no message and are in one of these states; what somebody
-- else holds is left out. By their keys (planner.sql), and with the states as an argument, so that no
-- index of such commands is read once more for each of them.
create or replace function commandbus.claim_stored(p_domain text, p_command_ids uuid[], p_from text[])
returns table (command_id uuid, batch_id uuid, created_at timestamptz, sequence_no int)
language plpgsql as $$
begin
    return query
    select c.command_id, c.batch_id, c.created_at, c.sequence_no
      from commandbus.command_bus_command c
     where c.domain = p_domain and c.command_id = any(p_command_ids)
       and c.status = 'PENDING' and c.msg_id is null and c.dispatch_status = any(p_from)
       for update skip locked;
end $$;

-- One page of a round for one domain: queues, in groups by batch, what waits for a retry and what a
-- process left behind when it ended (no sign of life for p_grace). At most p_limit; call it again with
-- p_after => next_after until that is null. Without p_after the round begins. A batch with a rate goes on at
-- that rate: as many as the time since its heartbeat allows.
--
-- Each page is bounded, also if nothing of it is due: a round that is cut short has done its pages.
create or replace function commandbus.recover_dispatch(
    p_domain text, p_grace interval default interval '2 minutes', p_limit int default 1000,
    p_max_attempts int default 3, p_group int default 100,
    p_alert_after interval default interval '30 minutes',
    p_unconfirmed_after interval default interval '1 hour', p_after jsonb default null
) returns table (queued int, failed int, given_up int, overdue int, unconfirmed int, next_after jsonb)
language plpgsql as $$
declare
    c_pages     constant int := 20;   -- that one call looks at, if nothing of them is due
    v_now       timestamptz := clock_timestamp();
    v_throttled uuid[];
    v_due       uuid[];
    v_ids       uuid[];
    v_batches   uuid[];
    v_found     int;
    v_group     record;
    v_tried     record;
begin
    queued := 0; failed := 0; given_up := 0; overdue := 0; unconfirmed := 0; next_after := p_after;
    if p_domain = any(commandbus.domains_on_the_way()) then
        next_after := null;                             -- it is done where the domain is then
        return next;
        return;
    end if;
    if p_after is null then
        select e.o_unconfirmed into unconfirmed
          from commandbus.expose_unqueued(p_domain, p_grace, p_unconfirmed_after, p_limit) e;
    end if;
    -- A rate is spent by one recoverer at a time.
    v_throttled := array(
        select d.batch_id from commandbus.command_bus_dispatch d
         where d.domain = p_domain and d.dispatch_rate is not null
           and (d.ended_at is not null or d.heartbeat_at <= v_now - p_grace)
         order by d.batch_id for update skip locked);

    for v_page in 1 .. c_pages loop
        with page as materialized (
            select * from commandbus.waiting_page(p_domain, next_after, p_limit)
        ), due as materialized (
            select p.n, p.command_id, row_number() over (partition by p.batch_id order by p.n) as k,
                   floor(d.dispatch_rate * extract(epoch from v_now - d.heartbeat_at)) as allowance
              from page p
              left join commandbus.command_bus_dispatch d on d.batch_id = p.batch_id
             where (p.is_retry or p.updated_at <= v_now - p_grace)
               and (p.is_retry or d.batch_id is null
                    or d.ended_at is not null or d.heartbeat_at <= v_now - p_grace)
               and (d.dispatch_rate is null or d.batch_id = any(v_throttled))
        )
        select array(select u.command_id from due u where u.allowance is null or u.k <= u.allowance),
               (select count(*) from page),
               (select jsonb_build_array(p.created_at, p.sequence_no, p.command_id)
                  from page p order by p.n desc limit 1)
          into v_due, v_found, next_after;
        select array_agg(k.command_id order by k.batch_id, k.sequence_no, k.command_id),
               array_agg(k.batch_id order by k.batch_id, k.sequence_no, k.command_id),
               count(*) filter (where k.created_at < v_now - p_alert_after)
          into v_ids, v_batches, overdue
          from commandbus.claim_stored(p_domain, v_due, array['pending_retry', 'pending_queue']) k;
        if v_found < p_limit then
            next_after := null;
        end if;
        exit when next_after is null or v_ids is not null;
    end loop;

    for v_group in
        select g.batch_id, array_agg(g.command_id order by g.k) as ids
          from (select u.*, row_number() over (partition by u.batch_id order by u.k) as n
                  from unnest(v_ids, v_batches) with ordinality as u(command_id, batch_id, k)) g
         group by g.batch_id, (g.n - 1) / p_group
         order by g.batch_id, min(g.k)
    loop
        v_tried := commandbus.try_queue(p_domain, v_group.ids, p_max_attempts);
        queued := queued + v_tried.o_queued;
        failed := failed + v_tried.o_failed;
        given_up := given_up + v_tried.o_given_up;
    end loop;

    -- What was taken is spent of the rate; what the page had no room for is still allowed.
    update commandbus.command_bus_dispatch d
       set heartbeat_at = least(v_now, d.heartbeat_at + make_interval(secs => t.taken / d.dispatch_rate))
      from (select b as batch_id, count(*) as taken from unnest(v_batches) b group by b) t
     where d.batch_id = t.batch_id and d.batch_id = any(v_throttled);
    if next_after is null then
        perform commandbus.forget_dispatched(array(
            select d.batch_id from commandbus.command_bus_dispatch d
             where d.domain = p_domain
               and (d.ended_at is not null or d.heartbeat_at <= v_now - p_grace)));
    end if;
    return next;
end $$;

-- Commands that are marked as queued and have no message, where that will not change by itself: they
-- wait for a retry from now on. At most p_limit of each kind; o_is_all: there are no more.
create or replace function commandbus.expose_unqueued(
    p_domain text, p_grace interval, p_unconfirmed_after interval, p_limit int,
    out o_unsent int, out o_unconfirmed int, out o_is_all boolean)
language plpgsql as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_removed int;
begin
    o_unsent := commandbus.expose_unsent(p_domain, v_now - p_grace, v_now, p_limit);
    select e.o_unconfirmed, e.o_removed into o_unconfirmed, v_removed
      from commandbus.expose_unconfirmed(p_domain, v_now - p_unconfirmed_after, v_now, p_limit) e;
    o_is_all := o_unsent < p_limit and v_removed < p_limit;
end $$;

-- Optimistic creation says 'queued' before it sends. If its process ended in between, the commands
-- without a message are to be sent: some may already be in another database's queue, and are adopted
-- once all the same. When nothing of a batch is left, its record is that of a batch that marks
-- afterwards, and is not looked at here again. Returns how many were exposed, at most p_limit.
create or replace function commandbus.expose_unsent(
    p_domain text, p_alive_since timestamptz, p_now timestamptz, p_limit int
) returns int
language plpgsql as $$
declare
    v_batch   uuid;
    v_ids     uuid[];
    v_exposed int := 0;
begin
    for v_batch in
        select d.batch_id from commandbus.command_bus_dispatch d
         where d.domain = p_domain and d.pattern = 'optimistic'
           and d.heartbeat_at <= p_alive_since and (d.ended_at is null or d.queue is null)
         order by d.batch_id
    loop
        v_ids := array(
            select c.command_id from commandbus.command_bus_command c
             where c.batch_id = v_batch and c.domain is not distinct from p_domain
               and c.status = 'PENDING' and c.dispatch_status = 'queued' and c.msg_id is null
             order by c.sequence_no limit p_limit - v_exposed for update skip locked);
        update commandbus.command_bus_command c
           set dispatch_status = 'pending_retry', updated_at = p_now,
               last_queue_error = 'its process ended before it was sent'
         where c.domain = p_domain and c.command_id = any(v_ids);
        v_exposed := v_exposed + cardinality(v_ids);
        exit when v_exposed >= p_limit;
        update commandbus.command_bus_dispatch d set pattern = 'two_phase'
         where d.batch_id = v_batch and not exists (
               select from commandbus.command_bus_command c
                where c.batch_id = v_batch and c.status = 'PENDING'
                  and c.dispatch_status = 'queued' and c.msg_id is null);
    end loop;
    return v_exposed;
end $$;

-- Commands that a queue in another database accepted before p_before, and that have not come back since:
-- neither adopted nor ended. They are to be queued here. A copy that comes late finds that the command
-- has a message, and is removed. Records of commands that have come back or ended are removed too.
--
-- Waits for no lock: who adopts one of them just now has its command first, and then its record.
create or replace function commandbus.expose_unconfirmed(
    p_domain text, p_before timestamptz, p_now timestamptz, p_limit int,
    out o_unconfirmed int, out o_removed int)
language plpgsql as $$
declare
    v_page uuid[];
    v_ids  uuid[];
begin
    v_page := array(
        select u.command_id from commandbus.command_bus_unconfirmed u
         where (u.domain, u.handed_at) >= (p_domain, timestamptz '-infinity')
           and (u.domain, u.handed_at) <= (p_domain, p_before)
         order by u.domain, u.handed_at limit p_limit for update skip locked);
    v_ids := array(
        select k.command_id from commandbus.claim_stored(p_domain, v_page, array['queued']) k);
    with exposed as (
        update commandbus.command_bus_command c
           set dispatch_status = 'pending_retry', updated_at = p_now,
               last_queue_error = 'a queue in another database accepted it and did not bring it back'
         where c.domain = p_domain and c.command_id = any(v_ids)
        returning c.command_id, c.batch_id
    )
    insert into commandbus.command_bus_audit (
        domain, command_id, event_type, ts, details_json, batch_id)
    select p_domain, e.command_id, 'UNCONFIRMED', p_now,
           jsonb_build_object('queue', u.queue, 'handed_at', commandbus.iso8601(u.handed_at)),
           e.batch_id
      from exposed e
      join commandbus.command_bus_unconfirmed u
        on u.command_id = e.command_id and u.domain is not distinct from p_domain;
    delete from commandbus.command_bus_unconfirmed u
     where u.domain is not distinct from p_domain and u.command_id = any(v_page)
       and (u.command_id = any(v_ids) or not exists (
               select from commandbus.command_bus_command c
                where c.domain = u.domain and c.command_id = u.command_id
                  and c.status = 'PENDING' and c.dispatch_status = 'queued' and c.msg_id is null));
    get diagnostics o_removed = row_count;
    o_unconfirmed := cardinality(v_ids);
end $$;
