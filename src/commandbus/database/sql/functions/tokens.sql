-- API tokens: created, revoked, and seen in use. No secret comes near the database, only its HMAC.

-- The events of a token stand under its id, in the domain '*', which no domain can be called: only
-- those who may see all domains find them.
create or replace function commandbus.create_api_token(
    p_token_id text, p_user_id text, p_scopes text[], p_domains text[], p_label text,
    p_secret_hash bytea, p_expires_at timestamptz, p_actor text default null
) returns timestamptz
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into commandbus.command_bus_api_token (
        token_id, user_id, scopes, domains, label, secret_hash, created_by, created_at, expires_at)
    values (p_token_id, p_user_id, p_scopes, p_domains, p_label, p_secret_hash, p_actor, v_now,
            p_expires_at);
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values ('*', p_token_id::uuid, 'TOKEN_CREATED', v_now, jsonb_build_object(
        'user_id', p_user_id, 'scopes', p_scopes, 'domains', p_domains, 'label', p_label,
        'expires_at', commandbus.iso8601(p_expires_at)), p_actor);
    return v_now;
end $$;

-- Ends a token; returns when it was ended, which may have been before; null if there is none.
create or replace function commandbus.revoke_api_token(p_token_id text, p_actor text default null)
returns timestamptz
language plpgsql as $$
declare
    v_revoked_at timestamptz;
    v_user_id    text;
begin
    -- Of two who revoke at once the second waits, finds the guard, and writes no second event.
    update commandbus.command_bus_api_token t set revoked_at = clock_timestamp()
     where t.token_id = p_token_id and t.revoked_at is null
    returning t.revoked_at, t.user_id into v_revoked_at, v_user_id;
    if not found then
        select t.revoked_at into v_revoked_at
          from commandbus.command_bus_api_token t where t.token_id = p_token_id;
        return v_revoked_at;
    end if;
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values ('*', p_token_id::uuid, 'TOKEN_REVOKED', v_revoked_at,
            jsonb_build_object('user_id', v_user_id), p_actor);
    return v_revoked_at;
end $$;

-- Notes that a token is in use, once a minute at most. A note that a crash costs is worth nothing.
create or replace function commandbus.touch_api_token(p_token_id text) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    update commandbus.command_bus_api_token t set last_used_at = clock_timestamp()
     where t.token_id = p_token_id
       and (t.last_used_at is null or t.last_used_at < clock_timestamp() - interval '1 minute');
end $$;
