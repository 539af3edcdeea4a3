"""One database for many tests, washed in between: a clone for each takes most of the time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

_FINGERPRINT = """
select md5(string_agg(part, ',' order by part)) from (
    select p.oid::regprocedure::text || md5(p.prosrc) || coalesce(p.proconfig::text, '')
           || p.prosecdef::text as part from pg_proc p
     where p.pronamespace::regnamespace::text in ('commandbus', 'public', 'pgmq')
       and p.proname !~ '^queue_(take|put|fill|drop)_'
    union all
    select t.tgrelid::regclass::text || t.tgname || t.tgenabled::text from pg_trigger t
     where t.tgrelid::regclass::text like 'commandbus.%'
    union all
    select c.oid::regclass::text || c.relkind::text || coalesce(c.reloptions::text, '')
      from pg_class c where c.relnamespace::regnamespace::text in ('commandbus', 'public')
    union all
    select c.conrelid::regclass::text || c.conname from pg_constraint c
     where c.connamespace::regnamespace::text = 'commandbus'
    union all
    select s.setdatabase || s.setconfig::text from pg_db_role_setting s) x
"""
#: A statement that names the tables of ours that have rows.
_USED = """
select string_agg(format('select %1$L where exists (select from %1$s)', c.oid::regclass),
                  ' union all ')
  from pg_class c
 where c.relnamespace::regnamespace::text = 'commandbus' and c.relkind in ('r', 'p')
   and not c.relispartition and c.relname not in ('command_bus_migration', 'command_bus_setting')
"""
#: The functions that queues have of their own, which come and go with them.
_OF_QUEUES = """
select string_agg(p.oid::regprocedure::text, ', ') from pg_proc p
 where p.pronamespace::regnamespace::text = 'commandbus'
   and p.proname ~ '^queue_(take|put|fill|drop)_'
"""
#: The audit with its parts, and its seals, which refuse to be emptied: each behind what is emptied.
_GUARDED = """
select string_agg(distinct coalesce(i.inhparent, c.oid)::regclass || '=' || c.oid::regclass, ' ')
  from pg_trigger t join pg_class c on c.oid = t.tgrelid
  left join pg_inherits i on i.inhrelid = c.oid
 where c.relnamespace::regnamespace::text = 'commandbus' and not t.tgisinternal
"""
_OTHERS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


class OneDatabase:
    """A pytest plugin: lends the same database to each test, unless one has changed its schema.

    A function of it can be exchanged. `make` makes a new database, and returns its address.
    """

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self._dsn: str | None = None
        self._whole: object = None  # its fingerprint with all functions as they were
        self._now: object = None
        self._exchanged: tuple[str, str] | None = None
        #: Is told of each test which functions it has called.
        self.recorder: Callable[[str, list[str]], None] | None = None
        self._test = ""

    # -- the functions

    def exchange(self, name: str, statement: str) -> None:
        """From now on this function is another one in what is lent."""
        with psycopg.connect(self._lent(), autocommit=True) as conn:
            _end_others(conn)
            _install(conn, name, statement)
            self._now = _one(conn, _FINGERPRINT)
        self._exchanged = name, statement

    def restore(self, name: str, original: str) -> None:
        """The function is as it was; a database of which a test has changed more is given up."""
        self._exchanged = None
        with psycopg.connect(self._lent(), autocommit=True) as conn:
            _end_others(conn)
            _install(conn, name, original)
            self._now = _one(conn, _FINGERPRINT)
        if self._now != self._whole:
            self._dsn = None

    @property
    def name(self) -> str:
        """Of the database that is lent; empty if there is none."""
        return str(conninfo_to_dict(self._dsn or "").get("dbname", ""))

    def _lent(self) -> str:
        if self._dsn is None:
            self._dsn = self._make()
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                conn.execute(
                    "create table public.kept_setting as table commandbus.command_bus_setting"
                )
                self._whole = self._now = _one(conn, _FINGERPRINT)
                if self._exchanged is not None:
                    _install(conn, *self._exchanged)
                    self._now = _one(conn, _FINGERPRINT)
        return self._dsn

    # -- pytest

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        conftest: Any = sys.modules["tests.conftest"]
        conftest._new_database = self.lending(conftest._new_database)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid

    def lending(self, new_database: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
        def lent(server: Any, template: str | None) -> Iterator[str]:
            if template is None:
                yield from new_database(server, None)
                return
            if not self._wash():
                self._dsn = None
            dsn = self._lent()
            before = set() if self.recorder is None else _counted(dsn)
            yield dsn
            if self.recorder is not None:
                # A function that was called has another count.
                self.recorder(self._test, sorted({name for name, _ in _counted(dsn) - before}))

        return lent

    def _wash(self) -> bool:
        """Empty all tables and drop all queues; False if the schema is not what it was."""
        with psycopg.connect(self._lent(), autocommit=True) as conn:
            _end_others(conn)
            if _one(conn, _FINGERPRINT) != self._now:
                return False
            used = {str(row[0]) for row in conn.execute(str(_one(conn, _USED)).encode())}
            with conn.transaction():
                pairs = (each.split("=") for each in str(_one(conn, _GUARDED)).split())
                guarded = sorted(table for emptied, table in pairs if emptied in used)
                for table in guarded:
                    conn.execute(f"alter table {table} disable trigger user".encode())
                if used:
                    names = ", ".join(sorted(used))
                    conn.execute(f"truncate {names} restart identity cascade".encode())
                for table in guarded:
                    conn.execute(f"alter table {table} enable trigger user".encode())
                conn.execute("select pgmq.drop_queue(queue_name) from pgmq.meta")
                if of_queues := _one(conn, _OF_QUEUES):
                    conn.execute(f"drop function {of_queues}".encode())
                conn.execute("delete from commandbus.command_bus_setting")
                conn.execute(
                    "insert into commandbus.command_bus_setting select * from public.kept_setting"
                )
            return bool(_one(conn, _FINGERPRINT) == self._now)


def _install(conn: psycopg.Connection[Any], name: str, statement: str) -> None:
    """Load a function, which takes its settings away, and give them back."""
    with conn.transaction():
        rows = conn.execute(
            "select p.oid::regprocedure::text, p.proconfig, p.prosecdef from pg_proc p"
            " where p.pronamespace = 'commandbus'::regnamespace and p.proname = %s",
            (name,),
        ).fetchall()
        conn.execute(statement.encode())
        for signature, settings, is_definer in rows:
            wanted = ["security definer"] if is_definer else []
            for setting in settings or ():
                variable, _, value = setting.partition("=")
                # A path is a list, which quotes would make one name.
                is_list = variable == "search_path"
                quoted = value if is_list else sql.Literal(value).as_string(conn)
                wanted.append(f"set {variable} = {quoted}")
            if wanted:
                conn.execute(f"alter function {signature} {' '.join(wanted)}".encode())


def _end_others(conn: psycopg.Connection[Any]) -> None:
    conn.execute(f"select pg_terminate_backend(pid, 5000) {_OTHERS}".encode())


def _counted(dsn: str) -> set[tuple[str, int]]:
    """How often each function of ours was called, as the server counts it (`track_functions`).

    Sessions hand in their counts when they end, so they are made to.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        _end_others(conn)
        rows = conn.execute(
            "select funcname, sum(calls)::bigint from pg_stat_user_functions"
            " where schemaname = 'commandbus' group by 1"
        ).fetchall()
    return {(str(name), int(calls)) for name, calls in rows}


def _one(conn: psycopg.Connection[Any], query: str) -> object:
    row = conn.execute(query.encode()).fetchone()
    return row[0] if row else None
