-- Security: how the functions are protected, in one place, as rights.sql says (docs/adr/0040).
--
-- Entry points act with the rights of the owner and look names up in pg_catalog only, whatever the path of the
-- caller's session is. Helpers have neither: nobody but the owner may call them, so they are reached from an
-- entry point, under its path, and pay for no setting of their own. A SQL function with a body that was bound
-- when it was made (`begin atomic`, `return`) looks no name up when it runs: it needs no path, and can be part
-- of a view without losing its index. Triggers have the path too: nobody calls them, statements do.
--
-- Loaded last. Loading a function takes its settings away; they come back in the same transaction. The rights
-- that roles were given stay with a function that is replaced.
do $security$
declare
    v_function record;
begin
    for v_function in
        select p.oid::regprocedure as signature, p.prosqlbody is null as has_text, e.name is not null as is_entry,
               p.prorettype = 'trigger'::regtype as is_trigger
          from pg_proc p left join commandbus.entry_points() e on e.name = p.proname
         where p.pronamespace = (select c.relnamespace from pg_class c
                                  where c.oid = 'commandbus.command_bus_command'::regclass)
           and p.prokind = 'f'
    loop
        execute format('revoke all on function %s from public', v_function.signature);
        if v_function.is_entry and v_function.has_text then
            execute format('alter function %s security definer set search_path = pg_catalog, pg_temp',
                           v_function.signature);
        elsif v_function.is_trigger then
            execute format('alter function %s set search_path = pg_catalog, pg_temp', v_function.signature);
        end if;
    end loop;
end $security$;
