"""Hosts: an address may name several servers, of which one accepts writes.

What the address says wins over what we would add. The servers are tried one after the other, each
with its own time: first the one that was good before, last those that gave no answer lately, and
these only now and then.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

#: Seconds for one host: alone, and one of several.
ONE_HOST_SECONDS = 5
EACH_HOST_SECONDS = 3
#: A server that gave no answer is tried last for this many seconds.
SILENCE_SECONDS = 60.0
#: How often it is tried at all then, by all pools of a process together, in seconds.
ASK_SILENT_SECONDS = 5.0
#: What we add to an address that does not say it: TCP settings that find a dead peer in seconds,
#: harmless on a local socket; and that a server which only reads is not the one to talk to.
_GUARDS: dict[str, Any] = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "target_session_attrs": "read-write",
}
_VARIABLES = {
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
}

#: What comes before the reasons in an error of the driver, and before each in one of libpq.
_OF_DRIVER = "Multiple connection attempts failed. All failures were:"
_OF_LIBPQ = re.compile(r"\n(?=connection to server )")

#: Until when a server goes last, by its address and port.
_silent_until: dict[str, float] = {}
#: The server that was good last, for each list of hosts.
_good: dict[tuple[Host, ...], Host] = {}
#: When a silent server was tried last.
_asked_at: dict[Host, float] = {}
#: Where a server with a name was found last.
_addresses: dict[Host, str] = {}
#: When and why no connection could be made, by the text of the address.
_failures: dict[str, tuple[float, str, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True)
class Host:
    """One of the servers that an address names."""

    host: str | None
    hostaddr: str | None
    port: str | None

    @property
    def parts(self) -> dict[str, Any]:
        """As libpq takes it; what is None is left out."""
        parts = {"host": self.host, "hostaddr": self.hostaddr, "port": self.port}
        return {name: value for name, value in parts.items() if value is not None}

    def __str__(self) -> str:
        return f"{self.hostaddr or self.host}:{self.port or 5432}"

    @property
    def name(self) -> str:
        """As people know it."""
        return f"{self.host or self.hostaddr}:{self.port or 5432}"


def guarded(conninfo: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What to add to an address and the arguments of a connection."""
    named = conninfo_to_dict(conninfo)
    if _is_service(named):
        return {}  # the file of services says it all
    seconds = EACH_HOST_SECONDS if len(hosts_of(conninfo, kwargs)) > 1 else ONE_HOST_SECONDS
    guards = {"connect_timeout": seconds, **_GUARDS}
    said = {name for name, variable in _VARIABLES.items() if os.environ.get(variable)}
    return {
        name: value
        for name, value in guards.items()
        if name not in named and name not in kwargs and name not in said
    }


def _is_service(named: dict[str, Any]) -> bool:
    return "service" in named or "PGSERVICE" in os.environ


def hosts_of(conninfo: str, kwargs: dict[str, Any]) -> tuple[Host, ...]:
    """The servers that an address names, in its order."""
    named = {**conninfo_to_dict(conninfo), **kwargs}

    def listed(name: str, variable: str) -> list[str | None]:
        text = str(named.get(name) or os.environ.get(variable) or "")
        return [each or None for each in text.split(",")]

    hosts = listed("host", "PGHOST")
    addresses = listed("hostaddr", "PGHOSTADDR")
    ports = listed("port", "PGPORT")
    number = max(len(hosts), len(addresses))
    return tuple(
        Host(_at(hosts, i, number), _at(addresses, i, number), _at(ports, i, number))
        for i in range(number)
    )


def _at(values: list[str | None], place: int, number: int) -> str | None:
    """One of a list, or the only one; a list of another length is for libpq to refuse."""
    if len(values) == number:
        return values[place]
    return values[0] if len(values) == 1 else ",".join(each or "" for each in values)


def attempts(conninfo: str, kwargs: dict[str, Any]) -> list[Host]:
    """The servers in the order in which to try them; none if the driver should see to that."""
    hosts = hosts_of(conninfo, kwargs)
    named = {**conninfo_to_dict(conninfo), **kwargs}
    is_plain = named.get("target_session_attrs") != "prefer-standby" and not _is_service(named)
    if len(hosts) == 1 or not is_plain:
        return []
    order = list(hosts)
    if named.get("load_balance_hosts") == "random":
        random.shuffle(order)
    elif (good := _good.get(hosts)) is not None:
        order.sort(key=lambda each: each != good)
    now = time.monotonic()
    silent = [each for each in order if _is_silent(each, now)]
    if len(silent) == len(order):
        return order
    # Each costs its whole time, so not all who look for the leader ask them again.
    due = [each for each in silent if now - _asked_at.get(each, 0.0) >= ASK_SILENT_SECONDS]
    _asked_at.update(dict.fromkeys(due, now))
    return [each for each in order if each not in silent] + due


def _is_silent(host: Host, now: float) -> bool:
    keys = (str(host), _addresses.get(host, ""))
    return any(_silent_until.get(key, 0.0) > now for key in keys)


def note_good(conninfo: str, kwargs: dict[str, Any], host: Host, address: str) -> None:
    """This server took a connection, at this address."""
    _good[hosts_of(conninfo, kwargs)] = host
    _addresses[host] = f"{address}:{host.port or 5432}"
    for key in (str(host), _addresses[host]):
        _silent_until.pop(key, None)


def note_silence(address: str) -> None:
    """This server gave no answer."""
    _silent_until[address] = time.monotonic() + SILENCE_SECONDS


class NoServerError(psycopg.OperationalError):
    """None of several servers takes a connection."""

    #: Why not, one for each server.
    reasons: tuple[str, ...] = ()


def all_failed(errors: Sequence[tuple[Host, psycopg.Error]]) -> NoServerError:
    """The error when no server takes a connection; names each."""
    texts = [f"{host.name}: {_short(str(error))}" for host, error in errors]
    failed = NoServerError(f"none of {len(errors)} servers: {'; '.join(texts)}")
    failed.reasons = tuple(reason for _, error in errors for reason in reasons_of(error))
    return failed


def reasons_of(error: BaseException) -> tuple[str, ...]:
    """Why a connection could not be made, one text for each server that was tried.

    The driver tries the addresses of a name by itself, and libpq those of a service; both put the
    reasons into one text.
    """
    reasons: tuple[str, ...] | None = getattr(error, "reasons", None)
    if reasons:
        return reasons
    text = str(error)
    _, mark, listed = text.partition(_OF_DRIVER)
    parts = listed.split("\n- ") if mark else _OF_LIBPQ.split(text)
    return tuple(part for part in map(str.strip, parts) if part) or (text,)


def _short(text: str) -> str:
    """The reason alone, without what libpq says about the address."""
    first = " ".join(text.split())
    return first.rpartition(" failed: ")[2] or first


# -- failures, to explain why a pool has no connection


def note_failure(conninfo: str, error: BaseException) -> None:
    """No connection could be made with this address."""
    _failures[conninfo] = (time.monotonic(), str(error), reasons_of(error))


def forget_failure(conninfo: str) -> None:
    """One could be made."""
    _failures.pop(conninfo, None)


def failure_since(conninfo: object, moment: float) -> NoServerError | None:
    """Why connections could not be made since that moment; None if the last one was."""
    if not isinstance(conninfo, str) or conninfo not in _failures:
        return None
    at, text, reasons = _failures[conninfo]
    if at < moment:
        return None
    failed = NoServerError(text)
    failed.reasons = reasons
    return failed
