-- Sessions of the console: begun, used, proved again, ended; and what is written of them into the audit. Events
-- stand under the id of the session, in the domain '*', which no domain can be called: only those who may see
-- all domains find them.

-- Begins a session; it ends p_longest later, or with its token if that is earlier. Old ones are removed, a few at a
-- time: each sign-in pays for some.
create or replace function commandbus.begin_console_session(
    p_session_id uuid, p_secret_hash bytea, p_token_id text, p_user_id text, p_longest interval,
    p_token_ends timestamptz, p_details jsonb
) returns timestamptz
language plpgsql as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_expires timestamptz := least(v_now + p_longest, p_token_ends);
begin
    delete from commandbus.command_bus_console_session s
     where s.session_id in (select o.session_id from commandbus.command_bus_console_session o
                             where o.expires_at < v_now - interval '30 days'
                             order by o.expires_at limit 100 for update skip locked);
    insert into commandbus.command_bus_console_session (
        session_id, secret_hash, token_id, user_id, address, agent, created_at, proved_at, last_seen_at, expires_at)
    values (p_session_id, p_secret_hash, p_token_id, p_user_id, p_details ->> 'address', p_details ->> 'agent',
            v_now, v_now, v_now, v_expires);
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values ('*', p_session_id, 'CONSOLE_SIGNED_IN', v_now,
            p_details || jsonb_build_object('token_id', p_token_id, 'via', 'console'), p_user_id);
    return v_expires;
end $$;

-- The session of a cookie, if it goes on: nobody has ended it, it is not over, and it was used within p_idle. If
-- it is used now, it says so, once a minute at most; a note that a crash costs is worth nothing. A page that only
-- stays open does not use it.
create or replace function commandbus.use_console_session(
    p_secret_hash bytea, p_idle interval, p_is_used boolean
) returns setof commandbus.command_bus_console_session
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    update commandbus.command_bus_console_session s set last_seen_at = clock_timestamp()
     where p_is_used and s.secret_hash = p_secret_hash and s.ended_at is null and s.expires_at > clock_timestamp()
       and s.last_seen_at > clock_timestamp() - p_idle
       and s.last_seen_at < clock_timestamp() - interval '1 minute';
    return query
    select s.* from commandbus.command_bus_console_session s
     where s.secret_hash = p_secret_hash and s.ended_at is null and s.expires_at > clock_timestamp()
       and s.last_seen_at > clock_timestamp() - p_idle;
end $$;

-- The token was given again, so what administrators do is taken for some minutes.
create or replace function commandbus.prove_console_session(p_session_id uuid) returns void
language sql as $$
    update commandbus.command_bus_console_session s set proved_at = clock_timestamp()
     where s.session_id = p_session_id and s.ended_at is null
$$;

-- Ends a session of a user, or of anybody if p_user_id is null; whether it did. A second call changes nothing.
create or replace function commandbus.end_console_session(
    p_session_id uuid, p_user_id text, p_actor text, p_details jsonb
) returns boolean
language plpgsql as $$
begin
    -- Of two who end it at once the second waits, finds the guard, and writes no second event.
    update commandbus.command_bus_console_session s set ended_at = clock_timestamp()
     where s.session_id = p_session_id and s.ended_at is null
       and (p_user_id is null or s.user_id = p_user_id);
    if not found then
        return false;
    end if;
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values ('*', p_session_id, 'CONSOLE_SIGNED_OUT', clock_timestamp(),
            p_details || jsonb_build_object('via', 'console'), p_actor);
    return true;
end $$;

-- Writes what was done in the console, beside the event of what it did. The details were redacted before.
create or replace function commandbus.note_console_action(p_session_id uuid, p_actor text, p_details jsonb)
returns void
language sql as $$
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values ('*', p_session_id, 'CONSOLE_ACTION', clock_timestamp(),
            p_details || jsonb_build_object('via', 'console'), p_actor);
$$;

-- Writes what was refused there: a sign-in, or a form.
create or replace function commandbus.note_console_refusal(p_session_id uuid, p_actor text, p_details jsonb)
returns void
language sql as $$
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values ('*', p_session_id, 'CONSOLE_REFUSED', clock_timestamp(),
            p_details || jsonb_build_object('via', 'console'), p_actor);
$$;

-- Makes a code that begins one session; those that were never used are removed.
create or replace function commandbus.create_console_code(
    p_secret_hash bytea, p_token_id text, p_life interval
) returns void
language plpgsql as $$
begin
    delete from commandbus.command_bus_console_code c where c.expires_at < clock_timestamp();
    insert into commandbus.command_bus_console_code (secret_hash, token_id, expires_at)
    values (p_secret_hash, p_token_id, clock_timestamp() + p_life);
end $$;

-- Uses a code up; the token that it stands for, null if there is none. Of two who use it at once one gets it.
create or replace function commandbus.use_console_code(p_secret_hash bytea) returns text
language plpgsql as $$
declare
    v_token_id text;
begin
    delete from commandbus.command_bus_console_code c
     where c.secret_hash = p_secret_hash and c.expires_at > clock_timestamp()
    returning c.token_id into v_token_id;
    return v_token_id;
end $$;

-- What an id is, for somebody who only has the id: every table by its key, each domain by its own.
--   p_domains: those that the caller reaches; null: all. p_viewer: see visibility.sql
create or replace function commandbus.find_id(p_id uuid, p_domains text[], p_viewer text)
returns table (kind text, domain text, status text)
language plpgsql stable as $$
declare
    v_domains text[] := coalesce(p_domains, array(select d from commandbus.doctor_domains(null) d));
begin
    return query
    select 'command', c.domain, c.status from commandbus.command_bus_command c
     where c.domain = any(v_domains) and c.command_id = p_id and commandbus.sees_batch(p_viewer, c.batch_id)
    union all
    select 'command', r.domain, r.status from commandbus.command_bus_history_domain h
     cross join lateral commandbus.history_rows(h.domain, array[p_id]) r
     where h.domain = any(v_domains) and commandbus.sees_batch(p_viewer, r.batch_id)
    union all
    select case when b.batch_type is null then 'batch' else 'ticket' end, b.domain, b.status
      from commandbus.command_bus_batch b
     where b.batch_id = p_id and b.domain = any(v_domains) and commandbus.sees_batch(p_viewer, b.batch_id)
    union all
    select 'operation', o.domain, o.status from commandbus.command_bus_bulk_operation o
     where o.operation_id = p_id and o.domain = any(v_domains) and (p_viewer is null or not o.is_governed);
    -- Of many commands with one correlation id the first is enough to lead to all of them.
    return query
    select 'correlation', c.domain, null::text from commandbus.command_bus_command c
     where c.correlation_id = p_id and c.domain = any(v_domains) and commandbus.sees_batch(p_viewer, c.batch_id)
     limit 1;
end $$;
