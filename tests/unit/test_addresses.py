"""Addresses: what SQLAlchemy and Django write is read, and written, as they mean it."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from commandbus import addresses
from commandbus.addresses import libpq_address
from commandbus.errors import InvalidSettingError
from commandbus.privacy.redaction import redact_text

SOCKET = {
    "host": "/run/my folder",
    "port": 5432,
    "user": "us er",
    "password": "p@ss:/?#%",
    "dbname": "shop",
}


@pytest.mark.parametrize(
    "address",
    [
        "host=/tmp dbname=x password='a://b'",
        "postgresql://u:p@h:1/d?sslmode=require&application_name=x",
        "postgresql://u:p?w@h/d",
        "postgresql://u:p?w@h/d?connect_timeout=3",
        "dbname=x",
    ],
)
def test_an_address_of_libpq_means_the_same(address: str) -> None:
    assert conninfo_to_dict(libpq_address(address)) == conninfo_to_dict(address)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("postgresql+psycopg://u:p%40@h/d", {"password": "p@", "host": "h", "dbname": "d"}),
        ("postgresql+asyncpg://u@h/d?ssl=require", {"sslmode": "require"}),
        (
            "postgresql+asyncpg://u@h/d?ssl=false&timeout=2.5",
            {"sslmode": "disable", "connect_timeout": "3"},
        ),
        ("postgresql+asyncpg://u@h/d?timeout=soon", {"connect_timeout": "soon"}),
        (
            "postgresql+asyncpg://u@h/d?prepared_statement_cache_size=0&command_timeout=5",
            {"user": "u"},
        ),
        ("postgresql+psycopg://u@/d?host=a:1&host=b:2", {"host": "a,b", "port": "1,2"}),
        (
            "postgresql+asyncpg://u@/?host=/run/x&port=7&database=d",
            {"host": "/run/x", "port": "7", "dbname": "d"},
        ),
        ("postgresql+psycopg://u@h/d?application_name=a+b", {"application_name": "a b"}),
        (
            "postgres://u@h/d?conn_max_age=600&CONN_HEALTH_CHECKS=True&ssl_require=True",
            {"sslmode": "require"},
        ),
        ("postgres://u@h/d?ssl_require=False", {"host": "h"}),
        ("pgsql://u:p@h:5/d", {"port": "5"}),
        (" POSTGIS://u@h/d?options=-csearch_path%3Da ", {"options": "-csearch_path=a"}),
    ],
)
def test_addresses_of_sqlalchemy_and_django_are_read(address: str, parts: dict[str, str]) -> None:
    found = conninfo_to_dict(libpq_address(address))

    assert parts.items() <= found.items()
    assert not {"ssl", "timeout", "conn_max_age", "command_timeout"} & found.keys()


@pytest.mark.parametrize("address", ["mysql+aiomysql://u:secret@h/d", "sqlite:///secret.db"])
def test_an_address_of_another_database_is_refused_without_its_secrets(address: str) -> None:
    with pytest.raises(InvalidSettingError, match="needs PostgreSQL") as refused:
        libpq_address(address)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "parts", [SOCKET, {**SOCKET, "host": "::1"}, {"dbname": "d"}, {**SOCKET, "host": "a,b"}]
)
def test_a_url_says_what_its_parts_say(parts: dict[str, str]) -> None:
    expected = {name: str(value) for name, value in parts.items()}

    assert conninfo_to_dict(addresses.url(parts)) == expected
    assert conninfo_to_dict(libpq_address(addresses.sqlalchemy_url(parts))) == expected


def test_a_password_is_masked_where_it_is_not_asked_for() -> None:
    shown = [
        addresses.url(SOCKET, show_password=False),
        addresses.sqlalchemy_url(SOCKET, show_password=False),
        str(addresses.django_database(SOCKET, show_password=False)),
    ]

    for text in shown:
        assert "***" in text
        assert "p@ss" not in text
        assert "p%40ss" not in text
    assert addresses.django_database({"dbname": "d"}, show_password=False)["PASSWORD"] == ""


def test_options_go_to_where_each_library_looks_for_them() -> None:
    parts = {**SOCKET, "host": "db.example", "sslmode": "require"}

    assert "&ssl=require" in addresses.sqlalchemy_url(parts, "asyncpg").replace("?", "&")
    assert "sslmode=require" in addresses.sqlalchemy_url(parts)
    assert addresses.django_database(parts)["OPTIONS"] == {"sslmode": "require"}
    with pytest.raises(InvalidSettingError, match="no driver"):
        addresses.sqlalchemy_url(parts, "a b")


def test_what_is_said_of_an_address_of_another_database_has_nothing_to_mask() -> None:
    with pytest.raises(InvalidSettingError) as refused:
        libpq_address("mysql://user:word@host/db")

    assert str(refused.value).endswith("addresses begin with postgresql://")
    assert redact_text(str(refused.value)) == str(refused.value)
