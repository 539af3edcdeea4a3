"""One database for many tests, washed in between: a clone for each takes most of the time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

_FINGERPRINT = """
select md5(string_agg(part, ',' order by part)) from (
    select p.oid::regprocedure::text || md5(p.prosrc) as part from pg_proc p
     where p.pronamespace::regnamespace::text in ('commandbus', 'public', 'pgmq')
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
_TABLES = """
select string_agg(c.oid::regclass::text, ', ') from pg_class c
 where c.relnamespace::regnamespace::text = 'commandbus' and c.relkind in ('r', 'p')
   and c.relname not in ('command_bus_migration', 'command_bus_setting')
"""
#: The audit and its seals, which refuse to be emptied.
_GUARDED = """
select string_agg(distinct c.oid::regclass::text, ' ')
  from pg_trigger t join pg_class c on c.oid = t.tgrelid
 where c.relnamespace::regnamespace::text = 'commandbus' and not t.tgisinternal
"""


class OneDatabase:
    """A pytest plugin: lends the same database to each test, unless one has changed its schema."""

    def __init__(self) -> None:
        self._dsn: str | None = None
        self._fingerprint: object = None
        self._made: list[Iterator[str]] = []  # kept: what ends is dropped

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        conftest: Any = sys.modules["tests.conftest"]
        conftest._new_database = self._lending(conftest._new_database)

    def _lending(self, new_database: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
        def lent(server: Any, template: str | None) -> Iterator[str]:
            if template is None:
                yield from new_database(server, None)
                return
            if self._dsn is None or not wash(self._dsn, self._fingerprint):
                made = new_database(server, template)
                self._made.append(made)
                self._dsn = next(made)
                self._fingerprint = prepare(self._dsn)
            yield self._dsn

        return lent


def prepare(dsn: str) -> object:
    """Keep what washing brings back; returns what the schema looks like."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table public.kept_setting as table commandbus.command_bus_setting")
        return _one(conn, _FINGERPRINT)


def wash(dsn: str, fingerprint: object) -> bool:
    """Empty all tables and drop all queues; False if the schema is not what it was."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        if _one(conn, _FINGERPRINT) != fingerprint:
            return False
        tables = str(_one(conn, _TABLES))
        with conn.transaction():
            guarded = str(_one(conn, _GUARDED)).split()
            for table in guarded:
                conn.execute(f"alter table {table} disable trigger user".encode())
            conn.execute(f"truncate {tables} restart identity cascade".encode())
            for table in guarded:
                conn.execute(f"alter table {table} enable trigger user".encode())
            conn.execute("select pgmq.drop_queue(queue_name) from pgmq.meta")
            conn.execute("truncate commandbus.command_bus_setting")
            conn.execute(
                "insert into commandbus.command_bus_setting select * from public.kept_setting"
            )
        return bool(_one(conn, _FINGERPRINT) == fingerprint)


def _one(conn: psycopg.Connection[Any], query: str) -> object:
    row = conn.execute(query.encode()).fetchone()
    return row[0] if row else None
