"""A database with the tables of the project, made once for each process that runs tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest
from psycopg import sql

from tests.conftest import Server
from tests.django.sites import manage


def _drop(server: Server, name: str) -> None:
    with server.admin() as admin:
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def site_template(server: Server, template: str) -> Iterator[str]:
    """A clone of the template of all tests, migrated by Django as well."""
    name = f"site_{secrets.token_hex(6)}"
    with server.admin() as admin:
        clone = sql.SQL("create database {} template {}")
        admin.execute(clone.format(sql.Identifier(name), sql.Identifier(template)))
    done = manage(server.dsn(name), "migrate", "--verbosity", "0")
    assert done.returncode == 0, done.stderr
    yield name
    _drop(server, name)


@pytest.fixture
def new_site(server: Server, site_template: str) -> Iterator[Callable[[], str]]:
    """Makes databases of the project, for one test; returns their addresses."""
    made: list[str] = []

    def make() -> str:
        name = f"site_{secrets.token_hex(6)}"
        with server.admin() as admin:
            clone = sql.SQL("create database {} template {}")
            admin.execute(clone.format(sql.Identifier(name), sql.Identifier(site_template)))
        made.append(name)
        return server.dsn(name)

    yield make
    for name in made:
        _drop(server, name)


@pytest.fixture
def site(new_site: Callable[[], str]) -> str:
    """The address of a database of the project, for one test."""
    return new_site()
