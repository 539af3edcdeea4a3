"""Addresses: what they say wins, and several hosts are tried in a sensible order."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from commandbus.database import hosts
from commandbus.database.hosts import Host, all_failed, attempts, guarded, hosts_of, note_good

TWO = "host=a,b port=5432,5433"


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_silent_until", "_good", "_addresses", "_asked_at", "_failures"):
        monkeypatch.setattr(hosts, name, {})
    for name in ("PGHOST", "PGPORT", "PGSERVICE", "PGCONNECT_TIMEOUT", "PGTARGETSESSIONATTRS"):
        monkeypatch.delenv(name, raising=False)


def test_what_the_address_says_wins_over_ours() -> None:
    said = {
        "connect_timeout": "9", "keepalives_idle": "1", "keepalives_interval": "2",
        "keepalives_count": "4", "tcp_user_timeout": "77", "target_session_attrs": "any",
    }  # fmt: skip
    assert guarded(" ".join(f"{name}={value}" for name, value in said.items()), {}) == {}
    assert guarded("", dict(said)) == {}
    ours = guarded("host=a", {})
    assert ours.keys() == said.keys()
    assert ours["target_session_attrs"] == "read-write"


def test_the_environment_and_a_service_win_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "7")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "primary")
    assert guarded("host=a", {}).keys() & {"connect_timeout", "target_session_attrs"} == set()
    assert guarded("service=main", {}) == {}


def test_one_of_several_hosts_has_less_time_than_one_alone() -> None:
    assert guarded("host=a", {})["connect_timeout"] == hosts.ONE_HOST_SECONDS
    assert guarded(TWO, {})["connect_timeout"] == hosts.EACH_HOST_SECONDS


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("host=a", [Host("a", None, None)]),
        (TWO, [Host("a", None, "5432"), Host("b", None, "5433")]),
        ("host=a,b port=6000", [Host("a", None, "6000"), Host("b", None, "6000")]),
        ("postgresql://a:1,b:2/x", [Host("a", None, "1"), Host("b", None, "2")]),
        ("hostaddr=::1,::2", [Host(None, "::1", None), Host(None, "::2", None)]),
    ],
)
def test_an_address_names_its_hosts(address: str, expected: list[Host]) -> None:
    assert list(hosts_of(address, {})) == expected


def test_a_list_of_ports_that_does_not_fit_is_left_to_libpq() -> None:
    assert [each.port for each in hosts_of("host=a,b,c port=1,2", {})] == ["1,2"] * 3


def test_the_good_one_is_tried_first_and_the_silent_one_last() -> None:
    first, second = hosts_of(TWO, {})
    assert attempts(TWO, {}) == [first, second]
    note_good(TWO, {}, second, "10.0.0.2")
    assert attempts(TWO, {}) == [second, first]
    # By the address at which it was found: that is what a connection tells of its server.
    hosts.note_silence("10.0.0.2:5433")
    assert attempts(TWO, {}) == [first, second]
    # It costs its whole time: not each connection asks it again.
    assert attempts(TWO, {}) == [first]
    hosts.note_silence("a:5432")
    assert attempts(TWO, {}) == [second, first]
    note_good(TWO, {}, second, "10.0.0.2")
    assert attempts(TWO, {}) == [second, first]


@pytest.mark.parametrize("address", ["host=a", f"{TWO} target_session_attrs=prefer-standby"])
def test_the_driver_sees_to_what_it_knows_better(address: str) -> None:
    assert attempts(address, {}) == []


def test_hosts_that_share_the_load_are_tried_in_any_order() -> None:
    orders = {tuple(attempts(f"{TWO} load_balance_hosts=random", {})) for _ in range(100)}
    assert len(orders) == 2


def test_the_error_of_all_hosts_names_each_of_them() -> None:
    long = 'connection to server at "10.0.0.1", port 5432 failed: session is read-only'
    errors: list[tuple[Host, Any]] = [
        (Host("a", None, "1"), psycopg.OperationalError(long)),
        (Host("b", None, None), psycopg.OperationalError("timeout expired")),
    ]
    text = str(all_failed(errors))
    assert text == "none of 2 servers: a:1: session is read-only; b:5432: timeout expired"
