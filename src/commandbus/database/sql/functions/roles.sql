-- Roles: a database compared with rights.sql. Read-only: `commandbus db roles --apply` runs the statements that
-- come out of it, and a migration those of the kind `right`.

-- The names of the roles: <prefix>_<role>. Roles belong to the whole server, so each installation has a prefix.
create or replace function commandbus.role_names(p_prefix text) returns table (role text, name text, id oid)
language sql stable as $$
    select r.role, p_prefix || '_' || r.role, g.oid
      from unnest(array['migrator', 'sender', 'worker', 'operator', 'api', 'reader']) r(role)
      left join pg_roles g on g.rolname = p_prefix || '_' || r.role
$$;

-- This schema, and PGMQ's: what `db roles` is about.
create or replace function commandbus.schema_id() returns oid
language sql stable as $$
    select c.relnamespace from pg_class c where c.oid = 'commandbus.command_bus_command'::regclass
$$;

-- What everybody, and the roles but the migrator, have and should not have, or should have and have not.
-- A column is null where the right is to the whole.
create or replace function commandbus.right_differences(p_prefix text)
returns table (role text, problem text, statement text)
language sql stable as $$
    with who(role, name, id) as (
        select n.role, quote_ident(n.name), n.id from commandbus.role_names(p_prefix) n where n.role <> 'migrator'
        union all select 'public', 'public', 0
    ), function(id, name) as (
        select p.oid, p.proname::text from pg_proc p where p.pronamespace = commandbus.schema_id()
    ), relation(id, name, acl, owner, what) as (
        select c.oid, c.relname::text, c.relacl, c.relowner, case c.relkind when 'S' then 'sequence' else 'table' end
          from pg_class c where c.relnamespace = commandbus.schema_id() and c.relkind in ('r', 'p', 'v', 'm', 'S')
        union all
        select c.oid, null, c.relacl, c.relowner, case c.relkind when 'S' then 'sequence' else 'table' end
          from commandbus.queue_tables() q join pg_class c on c.oid = q.relation
    ), wanted(role, what, object, "right", "column") as (
        select r.role, 'schema', commandbus.schema_id()::regnamespace::text, 'USAGE', null
          from who r where r.role <> 'public'
        union all
        select r.role, 'function', f.id::regprocedure::text, 'EXECUTE', null
          from function f join commandbus.entry_points() e on e.name = f.name cross join unnest(e.roles) r(role)
        union all
        select r.role, 'table', t.id::regclass::text, 'SELECT', case when e.columns is not null then a.attname end
          from relation t join commandbus.readable() e on e.relation = t.name cross join unnest(e.roles) r(role)
          join pg_attribute a on a.attrelid = t.id and a.attnum > 0 and not a.attisdropped
           and case when e.columns is null then a.attnum = 1
                    when e.columns like '-%' then a.attname <> all(string_to_array(substr(e.columns, 2), ' '))
                    else a.attname = any(string_to_array(e.columns, ' ')) end
    ), given(grantee, what, object, "right", "column") as (
        select a.grantee, 'schema', n.oid::regnamespace::text, a.privilege_type, null::name
          from pg_namespace n cross join aclexplode(n.nspacl) a where n.oid = commandbus.schema_id()
        union all
        select a.grantee, 'function', p.oid::regprocedure::text, a.privilege_type, null
          from pg_proc p cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
         where p.pronamespace = commandbus.schema_id()
        union all
        select a.grantee, t.what, t.id::regclass::text, a.privilege_type, null
          from relation t cross join aclexplode(t.acl) a
        union all
        select x.grantee, t.what, t.id::regclass::text, x.privilege_type, a.attname
          from relation t join pg_attribute a on a.attrelid = t.id and a.attacl is not null
         cross join aclexplode(a.attacl) x
    ), had(role, what, object, "right", "column") as (
        select w.role, g.what, g.object, g."right", g."column" from given g join who w on w.id = g.grantee
    ), difference(is_lacking, role, what, object, "right", "column") as (
        (select true, d.* from (select * from wanted except select * from had) d)
        union all
        (select false, d.* from (select * from had except select * from wanted) d)
    )
    select w.role,
           case when d.is_lacking then 'lacks ' else 'has ' end || lower(d."right") || ' on ' || d.object
               || coalesce(' (' || string_agg(d."column", ', ' order by d."column") || ')', ''),
           case when d.is_lacking then 'grant ' else 'revoke ' end || lower(d."right")
               || coalesce(' (' || string_agg(quote_ident(d."column"), ', ' order by d."column") || ')', '')
               || ' on ' || d.what || ' ' || d.object
               || case when d.is_lacking then ' to ' else ' from ' end || w.name
      from difference d join who w on w.role = d.role
     group by d.is_lacking, w.role, w.name, d.what, d.object, d."right", d."column" is null
     -- what is too much goes first: to revoke a right to a table takes that to its columns along
     order by d.is_lacking, w.role, d.what, d.object
$$;

-- What belongs to somebody else than the migrator, and what that role lacks of PGMQ.
create or replace function commandbus.owner_differences(p_prefix text)
returns table (kind text, problem text, statement text)
language sql stable as $$
    with owner(name, id) as (
        select n.name, coalesce(n.id, 0) from commandbus.role_names(p_prefix) n where n.role = 'migrator'
    ), thing(place, kind, what, owner, text) as (
        select 1, 'owner', 'schema', n.nspowner, n.oid::regnamespace::text
          from pg_namespace n where n.oid = commandbus.schema_id()
        union all
        -- the sequence of a column goes with its table
        select 3, 'owner', 'table', c.relowner, c.oid::regclass::text
          from pg_class c where c.relnamespace = commandbus.schema_id() and c.relkind in ('r', 'p', 'v', 'm')
        union all
        select 3, 'owner', 'function', p.proowner, p.oid::regprocedure::text
          from pg_proc p where p.pronamespace = commandbus.schema_id()
        union all
        select 3, 'queue', 'table', c.relowner, c.oid::regclass::text
          from commandbus.queue_tables() q join pg_class c on c.oid = q.relation
    ), step(place, kind, problem, statement) as (
        select t.place, t.kind, t.what || ' ' || t.text || ' belongs to ' || t.owner::regrole,
               format('alter %s %s owner to %I', t.what, t.text, o.name)
          from thing t cross join owner o where t.owner <> o.id
        union all
        select 2, 'pgmq', 'lacks usage or create on schema pgmq', format('grant usage, create on schema pgmq to %I', o.name)
          from owner o where o.id = 0 or not has_schema_privilege(o.id, 'pgmq', 'usage')
                          or not has_schema_privilege(o.id, 'pgmq', 'create')
        union all
        select 2, 'pgmq', 'lacks rights on ' || c.oid::regclass,
               format('grant select, insert, update, delete on table %s to %I', c.oid::regclass, o.name)
          from owner o join pg_class c on c.relnamespace = 'pgmq'::regnamespace and c.relkind in ('r', 'p')
           and c.relname !~ '^[qa]_'
         where o.id = 0 or exists (
               select from unnest(array['select', 'insert', 'update', 'delete']) r(r)
                where not has_table_privilege(o.id, c.oid, r.r))
        union all
        select 2, 'pgmq', 'lacks execute on functions of pgmq',
               format('grant execute on all functions in schema pgmq to %I', o.name)
          from owner o where o.id = 0 or exists (
               select from pg_proc p where p.pronamespace = 'pgmq'::regnamespace
                  and not has_function_privilege(o.id, p.oid, 'execute'))
        union all
        select 4, 'default', 'makes functions that everybody may call',
               format('alter default privileges for role %I revoke execute on functions from public', o.name)
          from owner o where not exists (
               select from pg_default_acl d where d.defaclrole = o.id and d.defaclobjtype = 'f'
                  and d.defaclnamespace = 0 and not exists (
                      select from aclexplode(d.defaclacl) a where a.grantee = 0))
    )
    select s.kind, s.problem, s.statement from step s order by s.place, s.kind, s.statement
$$;

-- Everything that is not as it should be, with the statement that puts it right, in the order to run them in.
-- p_prefix null: as `db roles --apply` has noted; nothing if it never ran.
--   kind: role (takes the right to create roles), owner, queue, pgmq, default, right (the owner can)
create or replace function commandbus.role_differences(p_prefix text default null)
returns table (kind text, role text, problem text, statement text)
language plpgsql stable as $$
declare
    v_prefix text := coalesce(p_prefix, commandbus.setting('role_prefix'));
begin
    if v_prefix is null then
        return;
    end if;
    return query
    select 'role', n.role, 'role ' || n.name || ' is missing', format('create role %I nologin', n.name)
      from commandbus.role_names(v_prefix) n where n.id is null;
    return query
    select 'role', n.role, 'role ' || n.name || ' has more than a role of commandbus needs',
           -- only what it has: to name another attribute takes a right of its own
           format('alter role %I ', n.name) || concat_ws(' ',
               case when r.rolcanlogin then 'nologin' end, case when r.rolsuper then 'nosuperuser' end,
               case when r.rolcreatedb then 'nocreatedb' end, case when r.rolcreaterole then 'nocreaterole' end,
               case when r.rolreplication then 'noreplication' end,
               case when r.rolbypassrls then 'nobypassrls' end)
      from commandbus.role_names(v_prefix) n join pg_roles r on r.oid = n.id
     where r.rolcanlogin or r.rolsuper or r.rolcreatedb or r.rolcreaterole or r.rolreplication or r.rolbypassrls;
    return query
    select 'role', n.role, 'role ' || n.name || ' is a member of ' || m.roleid::regrole,
           format('revoke %s from %I', m.roleid::regrole, n.name)
      from commandbus.role_names(v_prefix) n join pg_auth_members m on m.member = n.id
     where n.role <> 'migrator' or m.roleid::regrole::text like 'pg\_%';
    return query
    select o.kind, 'migrator', o.problem, o.statement from commandbus.owner_differences(v_prefix) o;
    return query
    select 'right', d.role, d.problem, d.statement from commandbus.right_differences(v_prefix) d;
end $$;

-- For the doctor: functions that are open, roles that are not as they should be, and a login with too much.
create or replace function commandbus.check_roles(p_domain text default null, p_since timestamptz default null)
returns table (code text, domain text, subject text, msg_id bigint)
language sql stable as $$
    with finding(code, subject) as (
        select 'FUNCTION_OPEN', p.oid::regprocedure::text
          from pg_proc p left join commandbus.entry_points() e on e.name = p.proname
         where p.pronamespace = commandbus.schema_id()
           and (exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                         where a.grantee = 0 or e.name is null and a.grantee <> p.proowner)
                or e.name is not null and p.prosqlbody is null and not (
                   p.prosecdef and coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']))
        union all
        select 'ROLE_RIGHTS', d.role || ': ' || d.problem from commandbus.role_differences() d
        union all
        select 'ROLE_OWNER', session_user::text
         where commandbus.setting('role_prefix') is not null
           and pg_has_role(session_user, (select n.nspowner from pg_namespace n
                                           where n.oid = commandbus.schema_id()), 'member')
    )
    select f.code, null::text, f.subject, null::bigint from finding f
$$;
