"""Addresses of databases: as libpq, SQLAlchemy and Django write them, and from one to the other.

Nothing here connects. No error repeats a part of an address but the name of its scheme: whatever
cannot be read may well be a part of a password.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

from commandbus.errors import InvalidSettingError

#: Names of PostgreSQL in addresses; libpq itself knows the first two. Django's tools use the rest.
SCHEMES = ("postgresql", "postgres", "pgsql", "psql", "postgis", "timescale")

#: What drivers, SQLAlchemy and Django's tools add to an address, and what means nothing to the
#: connections that we open: how *they* keep statements, connections and transactions.
_OF_OTHERS = frozenset({
    "async_fallback", "atomic_requests", "autocommit", "command_timeout", "conn_health_checks",
    "conn_max_age", "disable_server_side_cursors", "engine", "executemany_mode",
    "isolation_level", "max_cacheable_statement_size", "max_cached_statement_lifetime",
    "plugin", "pool", "prepare_threshold", "prepared_statement_cache_size",
    "prepared_statement_name_func", "server_side_binding", "statement_cache_size",
    "time_zone", "use_native_hstore",
})  # fmt: skip
_YES = {"true", "1", "yes", "on"}
_NO = {"false", "0", "no", "off"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9._-]*)(?:\+([A-Za-z0-9_-]+))?://")
#: Shown in place of a password: it needs no escapes in a URL.
MASK = "***"
#: The parts of an address that a URL has a place for.
_PLACED = ("user", "password", "host", "port", "dbname")


def libpq_address(address: str) -> str:
    """The address as libpq takes it. Key/value addresses and URLs of libpq stay as they are."""
    address = address.strip()
    found = _SCHEME.match(address)
    if found is None:
        return address  # key/value: libpq reads it, or says what is wrong
    if found[1].lower() not in SCHEMES:
        raise InvalidSettingError(
            f"the address begins with {found[1]}://, and commandbus needs PostgreSQL, whose "
            "addresses begin with postgresql://"
        )
    authority, query = _split(address[found.end() :])
    if query is None:
        return f"postgresql://{authority}"
    decode = unquote if found[2] is None else unquote_plus
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    options = _options([(decode(key), decode(value)) for key, _, value in pairs])
    return f"postgresql://{authority}" + _query(options)


def _split(rest: str) -> tuple[str, str | None]:
    """What is before the options, and the options. A password may have a question mark in it."""
    name_end = rest.find("@")
    if name_end < 0 or "/" in rest[:name_end]:
        name_end = -1
    start = rest.find("?", name_end + 1)
    return (rest, None) if start < 0 else (rest[:start], rest[start + 1 :])


def _options(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """The options that libpq knows, by its names; each host and port has its place in a list."""
    hosts: list[str] = []
    ports: list[str] = []
    options: dict[str, str] = {}
    for key, value in pairs:
        name = key.lower()
        if name == "host":
            host, port = _host_and_port(value)
            hosts.append(host)
            ports.extend([port] if port else [])
        elif name == "port":
            ports.append(value)
        elif name in {"ssl", "ssl_require"}:
            mode = "require" if value.lower() in _YES else value
            mode = "disable" if value.lower() in _NO else mode
            if name == "ssl" or mode == "require":
                options["sslmode"] = mode
        elif name == "timeout":
            options["connect_timeout"] = _whole_seconds(value)
        elif name == "database":
            options["dbname"] = value
        elif name not in _OF_OTHERS:
            options[key] = value
    if hosts:
        options["host"] = ",".join(hosts)
    if ports:
        options["port"] = ",".join(ports)
    return options


def _host_and_port(value: str) -> tuple[str, str]:
    found = re.fullmatch(r"([^/:,][^:,]*):(\d+)", value)
    return (found[1], found[2]) if found else (value, "")


def _whole_seconds(value: str) -> str:
    try:
        return str(math.ceil(float(value)))
    except (ValueError, OverflowError):
        return value


# -- the other way: from the parts of an address


def url(parts: Mapping[str, Any], *, scheme: str = "postgresql", show_password: bool = True) -> str:
    """A URL. A folder of sockets stands behind the question mark, as everybody reads it there."""
    shown = {name: str(value) for name, value in parts.items() if value not in (None, "")}
    user = quote(shown.get("user", ""), safe="")
    if password := shown.get("password"):
        user += ":" + (quote(password, safe="") if show_password else MASK)
    host, port = shown.get("host", ""), shown.get("port", "")
    place = ""
    options = {name: value for name, value in shown.items() if name not in _PLACED}
    if host.startswith(("/", "@")) or "," in host or not host:
        options |= {name: shown[name] for name in ("host", "port") if name in shown}
    else:
        place = f"[{host}]" if ":" in host else quote(host, safe="")
        place += f":{port}" if port else ""
    name = quote(shown.get("dbname", ""), safe="")
    return f"{scheme}://{user}{'@' if user else ''}{place}/{name}{_query(options)}"


def sqlalchemy_url(
    parts: Mapping[str, Any], driver: str = "psycopg", *, show_password: bool = True
) -> str:
    """A URL of SQLAlchemy. Options go along, as that driver calls them."""
    if not re.fullmatch(r"\w+", driver):
        raise InvalidSettingError(f"{driver!r} is no driver; use psycopg, asyncpg or psycopg2")
    parts = dict(parts)
    if driver == "asyncpg" and "sslmode" in parts:
        parts["ssl"] = parts.pop("sslmode")
    return url(parts, scheme=f"postgresql+{driver}", show_password=show_password)


def django_database(parts: Mapping[str, Any], *, show_password: bool = True) -> dict[str, Any]:
    """An entry of Django's DATABASES."""
    given = {name: str(value) for name, value in parts.items() if value not in (None, "")}
    options = {name: value for name, value in given.items() if name not in _PLACED}
    password = given.get("password", "")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given.get("dbname", ""),
        "USER": given.get("user", ""),
        "PASSWORD": password if show_password or not password else MASK,
        "HOST": given.get("host", ""),
        "PORT": given.get("port", ""),
        **({"OPTIONS": options} if options else {}),
    }


def _query(options: Mapping[str, str]) -> str:
    pairs = [f"{quote(key, safe='')}={quote(value, safe='/,')}" for key, value in options.items()]
    return "?" + "&".join(pairs) if pairs else ""
