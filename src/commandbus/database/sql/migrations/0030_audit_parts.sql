-- 0030: the audit in parts by ranges of audit_id, so that what is old goes as a whole. The table that was there becomes the
-- first part, as it is: nothing is read or written, and the lock ends with this transaction. docs/adr/0079 has the reasons.

-- Functions name the table as a type: they come back with the function files.
do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select distinct d.objid::regprocedure from pg_depend d
          join pg_class c on c.oid = 'commandbus.command_bus_audit'::regclass and c.reltype = d.refobjid
          join pg_proc p on p.oid = d.objid and p.pronamespace = c.relnamespace
         where d.classid = 'pg_proc'::regclass and d.refclassid = 'pg_type'::regclass
    loop
        execute format('drop function %s', v_function);
    end loop;
end $$;

-- Views of others name the table itself: they are defined once more when there is the new one. With nothing on the search
-- path but the catalogs, their text has whole names.
select set_config('former_audit.path', current_setting('search_path'), true),
       set_config('search_path', 'pg_catalog', true);
select set_config('former_audit.views', coalesce(jsonb_agg(jsonb_build_object(
           'name', format('%I.%I', n.nspname, c.relname), 'text', pg_get_viewdef(c.oid),
           'options', coalesce(array_to_string(c.reloptions, ', '), ''))), '[]')::text, true)
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('v', 'm') and c.oid in (
       select r.ev_class from pg_rewrite r
         join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
        where d.refclassid = 'pg_class'::regclass and d.refobjid = 'commandbus.command_bus_audit'::regclass);
select set_config('search_path', current_setting('former_audit.path'), true);

alter table commandbus.command_bus_audit rename to command_bus_audit_first;
alter index commandbus.command_bus_audit_pkey rename to command_bus_audit_first_pkey;
alter index commandbus.ix_command_bus_audit_cmdid_ts rename to ix_command_bus_audit_first_cmdid_ts;
alter index commandbus.ix_audit_people rename to ix_audit_first_people;

create table commandbus.command_bus_audit (
    like commandbus.command_bus_audit_first including defaults,
    constraint command_bus_audit_pkey primary key (audit_id)
) partition by range (audit_id);
create index ix_command_bus_audit_cmdid_ts on commandbus.command_bus_audit (command_id, ts);
create index ix_audit_people on commandbus.command_bus_audit (audit_id)
    where actor is not null and event_type not in ('SENT', 'RECEIVED', 'AUDIT_PRUNED');
alter sequence commandbus.command_bus_audit_audit_id_seq owned by commandbus.command_bus_audit.audit_id;
-- Every id is in this range, so no row needs to be looked at.
alter table commandbus.command_bus_audit
    attach partition commandbus.command_bus_audit_first for values from (minvalue) to (maxvalue);

-- Who could read it can read it still.
do $$
declare
    v_right record;
begin
    for v_right in
        select a.grantee, a.privilege_type from pg_class c cross join aclexplode(c.relacl) a
         where c.oid = 'commandbus.command_bus_audit_first'::regclass and a.grantee <> c.relowner
    loop
        execute format('grant %s on commandbus.command_bus_audit to %s', v_right.privilege_type,
                       case v_right.grantee when 0 then 'public' else v_right.grantee::regrole::text end);
        execute format('revoke %s on commandbus.command_bus_audit_first from %s', v_right.privilege_type,
                       case v_right.grantee when 0 then 'public' else v_right.grantee::regrole::text end);
    end loop;
end $$;

-- What is in a part to which nothing can be added any more: counted once, so that to drop it needs no look at each row.
create table commandbus.command_bus_audit_part (
    first_id   bigint primary key,
    below_id   bigint not null,
    row_count  bigint not null,
    events     jsonb not null,                          -- by domain
    newest_ts  timestamptz null,                        -- null: it has no rows
    counted_at timestamptz not null default now(),
    look_after timestamptz not null default '-infinity' -- too much of it was in use
);

-- How many numbers a part has, at least.
insert into commandbus.command_bus_setting (name, value) values ('audit_part_rows', '1000000');

-- A view keeps its owner, its rights and what is built on it. One that cannot be made anew, because it is not ours, is
-- materialized or has the whole row as a column, goes on to read the first part only; the doctor names it.
do $$
declare
    v_view record;
begin
    for v_view in
        select v.name, v.text, v.options
          from jsonb_to_recordset(current_setting('former_audit.views')::jsonb) v(name text, text text, options text)
    loop
        begin
            execute format('create or replace view %s%s as %s', v_view.name,
                           case v_view.options when '' then '' else ' with (' || v_view.options || ')' end, v_view.text);
        exception when others then
            raise warning 'the view % still reads the first part of the audit only: %', v_view.name, sqlerrm;
        end;
    end loop;
end $$;
