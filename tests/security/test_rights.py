"""The lists of rights against the statements of the package, the documents and the catalogs.

A function that a statement calls, or that docs/sql-api.md describes, needs a line in `entry_points`
of src/commandbus/database/sql/functions/rights.sql, with the roles that may call it; a table or
view needs one in `readable`. All else is closed.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import psycopg

import commandbus
from commandbus.database.migrations import function_text
from commandbus.upkeep.doctor import CHECKS
from commandbus.upkeep.findings import FINDINGS
from commandbus.upkeep.retention import PRUNERS
from tests.docs.markdown import DOCS

FUNCTIONS = files("commandbus").joinpath("database", "sql", "functions")
RIGHTS = FUNCTIONS.joinpath("rights.sql")


def listed(name: str) -> set[str]:
    text = RIGHTS.read_text(encoding="utf-8")
    body = text[text.index(f"function commandbus.{name}()") :]
    return set(re.findall(r"\n        \('(\w+)', ", body[: body.index("$$;")]))


def sources() -> str:
    """The package's Python, but that of the demo, which is an application."""
    folder = Path(commandbus.__path__[0])
    paths = [path for path in folder.rglob("*.py") if "demo" not in path.relative_to(folder).parts]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def called() -> set[str]:
    """The functions that statements of the package call."""
    found = set(re.findall(r"\{schema\}\.(\w+)\(", sources()))
    for functions in PRUNERS.values():
        found |= set(functions)
    found |= {known.repair for known in FINDINGS.values() if known.repair}
    # In a view that statements read, functions run with the rights of the reader.
    views = files("commandbus").joinpath("database", "sql", "views.sql").read_text(encoding="utf-8")
    return found | set(CHECKS) | set(re.findall(r"commandbus\.(\w+)\(", views))


def documented() -> set[str]:
    text = (DOCS / "sql-api.md").read_text(encoding="utf-8")
    in_tables = set(re.findall(r"(?m)^\| `(\w+)` \|", text))
    functions = set(re.findall(r"create or replace function commandbus\.(\w+)", function_text()))
    return (in_tables | set(re.findall(r"`commandbus\.(\w+)\(", text))) & functions


#: Called by `commandbus db drop` and by the reset of test databases, which only the owner can do.
OWNERS = {"is_made_by_us", "own_queues"}


def test_every_function_that_is_called_from_outside_has_its_line_and_no_other() -> None:
    outside = (called() | documented()) - OWNERS
    entries = listed("entry_points")
    missing, needless = sorted(outside - entries), sorted(entries - outside)
    assert not missing, f"add to entry_points in rights.sql, with the roles that call it: {missing}"
    assert not needless, f"nothing calls these, take them out of entry_points: {needless}"


def test_no_function_has_two_lines() -> None:
    """The rights of both would be given, and a reader sees one of them."""
    text = RIGHTS.read_text(encoding="utf-8")
    names = re.findall(r"\n        \('(\w+)', '\{", text)
    assert sorted(names) == sorted(set(names))


def test_no_statement_calls_a_function_of_pgmq() -> None:
    # Roles have no rights in that schema. PgmqClient is for another database, or for the owner, and
    # only the owner may remove the bus.
    folder = Path(commandbus.__path__[0])
    found = [
        path.name
        for path in folder.rglob("*.py")
        if re.search(r"(select|from) pgmq\.\w+\(", path.read_text(encoding="utf-8"))
    ]
    assert sorted(found) == ["client.py", "removal.py"]


async def test_every_table_and_view_has_its_line(conn: psycopg.AsyncConnection) -> None:
    rows = await (
        await conn.execute(
            "select relname from pg_class where relnamespace = 'commandbus'::regnamespace"
            " and relkind in ('r', 'p', 'v', 'm') and not relispartition"  # read with the whole
        )
    ).fetchall()
    there, lines = {row[0] for row in rows}, listed("readable")
    missing, gone = sorted(there - lines), sorted(lines - there)
    assert not missing, f"add to readable in rights.sql, with the roles that may read it: {missing}"
    assert not gone, f"not there any more, take them out of readable: {gone}"


async def test_every_function_is_protected(conn: psycopg.AsyncConnection) -> None:
    """An entry point acts as the owner under a pinned path; a helper is the owner's alone."""
    rows = await (
        await conn.execute(
            "select p.proname, p.prosecdef, p.prosqlbody is not null,"
            "       p.prorettype = 'trigger'::regtype,"
            "       coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp'],"
            "       (select count(*)"
            "          from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
            "         where a.grantee <> p.proowner)"
            "  from pg_proc p where p.pronamespace = 'commandbus'::regnamespace"
        )
    ).fetchall()
    entries = listed("entry_points")
    assert len(rows) > 200
    for name, is_definer, is_bound, is_trigger, is_pinned, others in rows:
        assert others == 0, f"{name} is executable by others than its owner"
        if is_bound:
            assert not is_definer, name
        elif name in entries:
            assert (is_definer, is_pinned) == (True, True), f"{name}: security.sql did not see it"
        elif is_trigger:
            assert (is_definer, is_pinned) == (False, True), name
        else:
            assert (is_definer, is_pinned) == (False, False), f"{name}: a helper, but protected"


#: What parts are made of: names from regclass, numbers, words of our own.
SAFE = {
    "p_table", "p_archive", "p_queue", "p_part", "p_sequence", "v_piece", "v_part",
    "v_piece.piece", "v_tail.part", "v_cut", "v_last + 10 * p_rows",
    "commandbus.part_begin(v_tail.first_id)", "v_run.o_below",
    "commandbus.part_begin(v_run.o_first)", "v_right.privilege_type",
    "case v_right.grantee when 0 then 'public' else v_right.grantee::regrole::text end",
    "case commandbus.part_begin(v_tail.first_id) when 'minvalue' then '' else"
    " format('%I >= %s and', p_key, v_tail.first_id) end",
    "case commandbus.part_begin(v_run.o_first) when 'minvalue' then '' else 'msg_id >= ' ||"
    " v_run.o_first || ' and' end",
    # the name of a schema, quoted
    "v_schema",
    # looked at just there
    r"case when p_options ~ '^\w+ ?= ?[\w.+-]+(, \w+ ?= ?[\w.+-]+)*$' then 'with (' ||"
    " p_options || ')' else '' end",
}  # fmt: skip


def put_in_as_text(statement: str) -> list[str]:
    """The arguments of `format` whose place is %s."""
    parts, depth, start, is_text = [], 0, 0, ""
    for place, sign in enumerate(statement):
        if statement.startswith("$q$", place):
            is_text = "" if is_text == "$" else "$"
        elif sign == "'" and is_text != "$":
            is_text = "" if is_text else "'"
        elif not is_text and sign in "()":
            depth += 1 if sign == "(" else -1
        elif not is_text and not depth and sign == ",":
            parts.append(statement[start:place])
            start = place + 1
    text, *arguments = [*parts, statement[start:]]
    arguments = [" ".join(re.sub(r"--[^\n]*", "", each).split()) for each in arguments]
    if "$s" in text:
        return [arguments[int(number) - 1] for number in re.findall(r"%(\d)\$s", text)]
    places = re.findall(r"%([sIL])", text)
    return [arguments[n] for n, kind in enumerate(places) if kind == "s"]


def test_what_is_called_as_the_owner_builds_no_sql_of_what_it_is_given() -> None:
    """Dynamic SQL takes names by %I and values by `using`; %s only for text of our own."""
    moving = "".join(
        FUNCTIONS.joinpath(f"{name}.sql").read_text(encoding="utf-8")
        for name in ("moving_parts", "moving")
    )
    dynamic = re.compile(r"execute format\((.*?)\)\s*(?:into|using|;)", re.S)
    owners = set(dynamic.findall(moving))  # put together from the list of parts, and from regclass
    parts = "".join(
        FUNCTIONS.joinpath(f"{name}.sql").read_text(encoding="utf-8")
        for name in ("audit_parts", "audit_drops")
    )
    of_parts = set(dynamic.findall(parts))  # put together from regclass and numbers
    given_texts = re.findall(r"\b(p_\w+) text", parts)
    assert "p_actor" in given_texts
    assert len(of_parts) > 5
    assert [s for s in of_parts if any(name in s for name in given_texts)] == []
    history = "".join(
        FUNCTIONS.joinpath(f"{name}.sql").read_text(encoding="utf-8")
        for name in ("history", "retention_history")
    )
    # put together from regclass and numbers; the domain as a literal, and checked before
    of_parts |= set(dynamic.findall(history))
    named = [s for s in dynamic.findall(history) if "p_domain" in s]
    assert [re.findall(r"%(.)", s)[1:] for s in named] == [["L", "s", "L", "s"]]
    assert history.index("check_domain(p_domain)") < history.index(named[0])
    for statement in dynamic.findall(function_text()):
        texts = re.findall(r"%(?:\d\$)?s", statement)
        assert (
            not texts or statement in owners | of_parts or "is_old_reply" in statement
            or "signature" in statement or set(put_in_as_text(statement)) <= SAFE
        ), statement  # fmt: skip
    # Nobody else calls what moves a domain, so none of it is called as the owner.
    given = dict(re.findall(r"\n        \('(\w+)', '\{(.*?)\}", RIGHTS.read_text(encoding="utf-8")))
    defined = re.findall(r"create or replace function commandbus\.(\w+)", moving)
    with_format = [
        name for name in defined
        if "execute format" in moving.split(f"function commandbus.{name}(", 1)[1].split("$$;", 1)[0]
    ]  # fmt: skip
    assert len(with_format) > 5
    assert [name for name in with_format if given.get(name)] == []


async def test_an_upgrade_takes_the_rights_of_everybody_away(conn: psycopg.AsyncConnection) -> None:
    await conn.execute("grant execute on all functions in schema commandbus to public")
    await conn.execute("alter function commandbus.offer_one security invoker reset search_path")
    found = await (
        await conn.execute("select code, subject from commandbus.check_roles()")
    ).fetchall()
    assert {row[0] for row in found} == {"FUNCTION_OPEN"}
    assert len(found) > 200

    await conn.execute(function_text().encode())

    found = await (await conn.execute("select * from commandbus.check_roles()")).fetchall()
    assert found == []
