"""Emptying the bus of a test database."""

from __future__ import annotations

from django.db import connections

from commandbus.django.conf import configuration
from commandbus.django.sending import forget_known
from commandbus.errors import InvalidOperationError

#: All tables but those that say how the bus is installed and set up.
_EMPTY = """
do $do$
declare
    v_table text;
    v_found boolean;
    v_names text[] := cast(array[] as text[]);
begin
    for v_table in
        select cast(cast(t.oid as regclass) as text) from pg_catalog.pg_class t
         where t.relkind = 'r' and t.relnamespace = (
                   select m.relnamespace from pg_catalog.pg_class m
                    where m.oid = cast('{schema}.command_bus_migration' as regclass))
           and t.relname not in (
                   'command_bus_migration', 'command_bus_setting', 'command_bus_retention',
                   'command_bus_flow', 'command_bus_secret_key', 'command_bus_governed_type',
                   'command_bus_flow_rule', 'command_bus_audit_horizon')
         union all
        select 'pgmq.' || quote_ident(k.kind || q.physical)
          from {schema}.own_queues() q cross join unnest(array['q_', 'a_']) k(kind)
    loop
        execute 'select exists (select from ' || v_table || ')' into v_found;
        if v_found then
            v_names := v_names || v_table;
        end if;
    end loop;
    if cardinality(v_names) > 0 then
        -- The audit is append-only for everybody else; its owner may say so of a test database.
        foreach v_table in array v_names loop
            execute 'alter table ' || v_table || ' disable trigger user';
        end loop;
        execute 'truncate ' || array_to_string(v_names, ', ');
        foreach v_table in array v_names loop
            execute 'alter table ' || v_table || ' enable trigger user';
        end loop;
    end if;
end $do$
"""


def reset_for_tests(alias: str | None = None) -> None:
    """Remove all commands, batches and messages; refused outside a test database."""
    found = configuration()
    wrapper = connections[alias or found.database]
    refuse_real(wrapper.settings_dict["NAME"], wrapper.settings_dict["TEST"].get("NAME"))
    schema = found.bus_settings.schema
    with wrapper.cursor() as cursor:
        cursor.execute(_EMPTY.replace("{schema}", f'"{schema}"'))
    forget_known()


def refuse_real(name: object, test_name: str | None) -> None:
    """Raise unless this is a database that Django made for a run of tests, or a clone of one."""
    text = str(name or "")
    named = test_name is not None and (text == test_name or text.startswith(f"{test_name}_"))
    if not named and not text.startswith("test_"):
        raise InvalidOperationError(
            f"the database {text!r} is none that Django made for tests; reset_for_tests would "
            "remove all its commands"
        )
