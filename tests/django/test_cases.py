"""The cases of the project, run by Django's own test runner in a test database of its own."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from tests.conftest import Server
from tests.django.sites import by_connections, manage


@pytest.mark.parametrize("database", by_connections())
def test_the_cases_of_the_project_pass_and_leave_no_connection(
    server: Server, dsn: str, database: dict[str, Any]
) -> None:
    done = manage(dsn, "test", "--pattern", "*_cases.py", "--noinput", database=database)
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran is not None
    assert int(ran[1]) > 10
    # Connections that are left would make Django warn that it cannot drop the database.
    assert "RuntimeWarning" not in done.stderr
    with psycopg.connect(server.dsn("postgres")) as conn:
        name = f"test_{psycopg.conninfo.conninfo_to_dict(dsn)['dbname']}"
        query = "select count(*) from pg_database where datname = %s"
        assert conn.execute(query, (name,)).fetchone() == (0,)
