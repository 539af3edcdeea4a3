-- API tokens: created, rotated, revoked, and seen in use. No secret comes near the database, only its HMAC.

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
create or replace function commandbus.revoke_api_token(
    p_token_id text, p_actor text default null, p_reason text default null)
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
            jsonb_strip_nulls(jsonb_build_object('user_id', v_user_id, 'reason', p_reason)), p_actor);
    return v_revoked_at;
end $$;

-- Gives a token another secret: a new token with the same user, rights and end, in place of the old one, which
-- ends p_overlap later at the most. Returns the new one; no row if there is no such token.
create or replace function commandbus.rotate_api_token(
    p_token_id text, p_new_id text, p_secret_hash bytea, p_overlap interval default '0',
    p_actor text default null
) returns setof commandbus.command_bus_api_token
language plpgsql as $$
declare
    v_now timestamptz;
    v_old commandbus.command_bus_api_token;
begin
    -- Of two who rotate at once the second waits, finds the guard, and makes no second token.
    select t.* into v_old from commandbus.command_bus_api_token t
     where t.token_id = p_token_id for update;
    if not found then
        return;
    end if;
    v_now := clock_timestamp();
    if v_old.revoked_at is not null or v_old.expires_at <= v_now or v_old.replaced_by is not null then
        raise exception 'token % has ended, or was rotated before', p_token_id
            using errcode = 'CB003', hint = 'rotate the token that took its place, or create another one';
    end if;
    perform commandbus.create_api_token(
        p_new_id, v_old.user_id, v_old.scopes, v_old.domains, v_old.label, p_secret_hash,
        v_old.expires_at, p_actor);
    update commandbus.command_bus_api_token t
       set replaced_by = p_new_id,
           revoked_at = case when p_overlap <= interval '0' then v_now end,
           expires_at = case when p_overlap <= interval '0' then t.expires_at
                             else least(t.expires_at, v_now + p_overlap) end
     where t.token_id = p_token_id;
    insert into commandbus.command_bus_audit (domain, command_id, event_type, ts, details_json, actor)
    values ('*', p_token_id::uuid, 'TOKEN_ROTATED', v_now, jsonb_build_object(
        'user_id', v_old.user_id, 'new_token_id', p_new_id,
        'overlap_seconds', greatest(extract(epoch from p_overlap), 0)), p_actor);
    return query select t.* from commandbus.command_bus_api_token t where t.token_id = p_new_id;
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
