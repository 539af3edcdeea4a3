-- Settings that hold for the whole database, so that two processes cannot disagree on them.

-- The value of a setting; null if there is none.
create or replace function commandbus.setting(p_name text) returns text
language sql stable as $$
    select s.value from commandbus.command_bus_setting s where s.name = p_name
$$;

-- Changes a setting. The scope of ids may only be widened while it is safe: to 'global' when no id
-- stands in two domains; back to 'domain' always.
create or replace function commandbus.change_setting(p_name text, p_value text) returns void
language plpgsql as $$
begin
    if not (p_name = 'command_id_scope' and p_value in ('domain', 'global')
            or p_name = 'payload_archive' and p_value in ('on', 'off')
            or p_name in ('audit_part_rows', 'archive_part_rows', 'history_part_rows') and p_value ~ '^[1-9]\d{3,8}$') then
        raise exception 'no such setting: % = %', quote_literal(p_name), quote_literal(p_value)
            using errcode = 'CB007';
    end if;
    if p_name = 'command_id_scope' and p_value = 'global' and exists (
        select from (select c.domain, c.command_id from commandbus.command_bus_command c
                     union all select h.domain, h.command_id from commandbus.command_bus_history h) c
         group by c.command_id having count(*) > 1) then
        raise exception 'some command ids stand in two domains, so ids cannot be made global'
            using errcode = 'CB007';
    end if;
    update commandbus.command_bus_setting s set value = p_value, updated_at = now()
     where s.name = p_name;
end $$;
