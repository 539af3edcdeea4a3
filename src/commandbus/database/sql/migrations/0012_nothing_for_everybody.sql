-- 0012: the tables are for their owner and the roles that rights.sql names (docs/adr/0040). PostgreSQL gives
-- everybody nothing on tables; what somebody has given since is taken back, once.
do $$
declare
    v_schema text := (select c.relnamespace::regnamespace::text from pg_class c
                       where c.oid = 'commandbus.command_bus_command'::regclass);
begin
    execute 'revoke all on all tables in schema ' || v_schema || ' from public';
    execute 'revoke all on all sequences in schema ' || v_schema || ' from public';
    execute 'revoke create on schema ' || v_schema || ' from public';
end $$;
