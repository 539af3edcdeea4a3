-- Limits of submissions, for all users and for each: two layers, exact under concurrency, in PostgreSQL alone.
--
-- What is pending is counted from live rows, so it cannot drift; only what has a window of time is
-- kept in rate_limit_counter. A submission that counts in order to decide holds the locks of
-- lock_submission until its commit; all others only look.
--   p_defaults: {"<limit_type>": n} for all five, from the settings of the process

-- Whether batches of this type are limited, and count for others. Decisions about batches are not: when
-- everything is full of batches that wait for a decision, deciding is what makes room.
create or replace function commandbus.is_counted(p_batch_type text) returns boolean
language sql immutable as $$ select p_batch_type <> 'BATCH_APPROVE' $$;

-- The two layers as rows, in the order in which they are checked. max_value null: lifted.
--   p_user null: the global layer only
create or replace function commandbus.limit_states(p_user text, p_defaults jsonb)
returns table (limit_type text, scope text, current_value int, max_value int, reset_seconds int)
language plpgsql stable as $$
declare
    v_now       timestamptz := clock_timestamp();
    v_is_exempt boolean;
    v_own       commandbus.rate_limit_override;
    v_cooldown  int;
    v_left      int;
begin
    limit_type := 'global_api_requests'; scope := 'global';
    current_value := coalesce((
        select c.current_value from commandbus.rate_limit_counter c
         where c.scope = 'global' and c.subject_id = 'global'
           and c.limit_type = 'global_api_requests'
           and c.window_start = date_trunc('minute', v_now, 'UTC')), 0);
    max_value := (p_defaults ->> limit_type)::int;
    reset_seconds := commandbus.seconds_left_in_minute(v_now);
    return next;

    limit_type := 'global_pending_batches'; reset_seconds := null;
    current_value := (select count(*) from commandbus.command_bus_batch b
                       where b.is_pending and commandbus.is_counted(b.batch_type));
    max_value := (p_defaults ->> limit_type)::int;
    return next;

    if p_user is null then
        return;
    end if;
    v_is_exempt := exists (
        select from commandbus.rate_limit_exemption e
         where e.user_id = p_user and (e.expires_at is null or e.expires_at > v_now));
    select * into v_own from commandbus.rate_limit_override o where o.user_id = p_user;

    limit_type := 'user_pending_batches'; scope := 'user';
    current_value := (select count(*) from commandbus.command_bus_batch b
                       where b.is_pending and b.created_by = p_user
                         and commandbus.is_counted(b.batch_type));
    max_value := case when not v_is_exempt
                      then coalesce(v_own.max_pending_batches, (p_defaults ->> limit_type)::int) end;
    return next;

    limit_type := 'user_cooldown';
    v_cooldown := coalesce(v_own.cooldown_seconds, (p_defaults ->> limit_type)::int);
    select ceil(extract(epoch from c.window_start + make_interval(secs => v_cooldown) - v_now))
      into v_left
      from commandbus.rate_limit_counter c
     where c.scope = 'user' and c.subject_id = p_user and c.limit_type = 'user_cooldown'
     order by c.window_start desc limit 1;
    current_value := case when v_is_exempt then 0 else greatest(coalesce(v_left, 0), 0) end;
    max_value := case when not v_is_exempt then v_cooldown end;
    reset_seconds := current_value;
    return next;

    limit_type := 'user_pending_children'; reset_seconds := null;
    current_value := coalesce((
        select sum(b.total_count - b.completed_count - b.failed_count - b.canceled_count
                   - b.in_troubleshooting_count)
          from commandbus.command_bus_batch b
         where b.is_pending and b.created_by = p_user and commandbus.is_counted(b.batch_type)), 0);
    max_value := case when not v_is_exempt
                      then coalesce(v_own.max_pending_children, (p_defaults ->> limit_type)::int) end;
    return next;
end $$;

-- When a window of one minute ends.
create or replace function commandbus.seconds_left_in_minute(p_at timestamptz) returns int
language sql stable as $$
    select ceil(extract(epoch from
        date_trunc('minute', p_at, 'UTC') + interval '1 minute' - p_at))::int
$$;

-- One more API request in this minute, also one that is about to be refused: hence a transaction of
-- its own, which no refusal takes back. A count that a crash of the server loses harms nobody, so no
-- request waits for the disk.
create or replace function commandbus.count_request(p_now timestamptz default clock_timestamp())
returns table (current_value int, reset_seconds int)
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into commandbus.rate_limit_counter as c
           (scope, subject_id, limit_type, window_start, current_value)
    values ('global', 'global', 'global_api_requests', date_trunc('minute', p_now, 'UTC'), 1)
    on conflict on constraint pk_rate_limit_counter do update
       set current_value = c.current_value + 1
    returning c.current_value into count_request.current_value;
    reset_seconds := commandbus.seconds_left_in_minute(p_now);
    if count_request.current_value = 1 then
        -- Once in a minute: windows that nobody looks at any more.
        delete from commandbus.rate_limit_counter c
         where c.limit_type = 'global_api_requests' and c.window_start < p_now - interval '1 hour'
            or c.limit_type = 'user_cooldown' and c.window_start < p_now - interval '8 days';
    end if;
    return next;
end $$;

-- The user's cooldown begins. Under the user's lock: there is one row of each user.
create or replace function commandbus.begin_cooldown(p_user text, p_now timestamptz) returns void
language plpgsql as $$
begin
    update commandbus.rate_limit_counter c set window_start = p_now, current_value = 1
     where c.scope = 'user' and c.subject_id = p_user and c.limit_type = 'user_cooldown';
    if not found then
        insert into commandbus.rate_limit_counter (
            scope, subject_id, limit_type, window_start, current_value)
        values ('user', p_user, 'user_cooldown', p_now, 1);
    end if;
end $$;

-- Users with anything pending, the fullest first: what an administrator looks at.
create or replace function commandbus.pending_users(p_defaults jsonb, p_limit int default 100)
returns table (user_id text, limit_type text, scope text, current_value int, max_value int,
               reset_seconds int)
language sql stable as $$
    select u.created_by, s.limit_type, s.scope, s.current_value, s.max_value, s.reset_seconds
      from (select b.created_by, count(*) as batches
              from commandbus.command_bus_batch b
             where b.is_pending and commandbus.is_counted(b.batch_type)
             group by b.created_by order by count(*) desc, b.created_by limit p_limit) u
     cross join lateral commandbus.limit_states(u.created_by, p_defaults) with ordinality
           as s(limit_type, scope, current_value, max_value, reset_seconds, place)
     where s.scope = 'user'
     order by u.batches desc, u.created_by, s.place
$$;

-- What administrators change is in the audit: without a domain, and about no command.
create or replace function commandbus.audit_limits(p_event text, p_actor text, p_details jsonb)
returns void
language sql as $$
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values ('*', commandbus.nobody(), p_event, clock_timestamp(), p_details, p_actor);
$$;

-- Lifts the limits of a user, until p_expires_at or without limit; returns when.
create or replace function commandbus.set_exemption(
    p_user text, p_actor text, p_reason text, p_expires_at timestamptz default null
) returns timestamptz
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into commandbus.rate_limit_exemption (user_id, exempted_by, reason, expires_at, created_at)
    values (p_user, p_actor, p_reason, p_expires_at, v_now)
    on conflict (user_id) do update
       set exempted_by = excluded.exempted_by, reason = excluded.reason,
           expires_at = excluded.expires_at, created_at = excluded.created_at;
    perform commandbus.audit_limits('LIMIT_EXEMPTED', p_actor, jsonb_build_object(
        'user_id', p_user, 'reason', p_reason, 'expires_at', commandbus.iso8601(p_expires_at)));
    return v_now;
end $$;

-- Takes an exemption back; returns whether there was one.
create or replace function commandbus.clear_exemption(p_user text, p_actor text) returns boolean
language plpgsql as $$
begin
    delete from commandbus.rate_limit_exemption e where e.user_id = p_user;
    if not found then
        return false;
    end if;
    perform commandbus.audit_limits(
        'LIMIT_EXEMPTION_ENDED', p_actor, jsonb_build_object('user_id', p_user));
    return true;
end $$;

-- A user's own limits: null leaves one as it is; all three null: the defaults hold again.
create or replace function commandbus.set_user_limits(
    p_user text, p_actor text, p_max_pending_batches int default null,
    p_max_pending_children int default null, p_cooldown_seconds int default null
) returns setof commandbus.rate_limit_override
language plpgsql as $$
declare
    v_own commandbus.rate_limit_override;
begin
    if coalesce(p_max_pending_batches, p_max_pending_children, p_cooldown_seconds) is null then
        delete from commandbus.rate_limit_override o where o.user_id = p_user;
        if not found then
            return;
        end if;
    else
        insert into commandbus.rate_limit_override as o (
            user_id, max_pending_batches, max_pending_children, cooldown_seconds, updated_by,
            updated_at)
        values (p_user, p_max_pending_batches, p_max_pending_children, p_cooldown_seconds, p_actor,
                clock_timestamp())
        on conflict (user_id) do update
           set max_pending_batches = coalesce(excluded.max_pending_batches, o.max_pending_batches),
               max_pending_children = coalesce(excluded.max_pending_children, o.max_pending_children),
               cooldown_seconds = coalesce(excluded.cooldown_seconds, o.cooldown_seconds),
               updated_by = excluded.updated_by, updated_at = excluded.updated_at
        returning * into v_own;
        return next v_own;
    end if;
    perform commandbus.audit_limits('LIMITS_CHANGED', p_actor, jsonb_build_object(
        'user_id', p_user, 'max_pending_batches', v_own.max_pending_batches,
        'max_pending_children', v_own.max_pending_children,
        'cooldown_seconds', v_own.cooldown_seconds));
end $$;
