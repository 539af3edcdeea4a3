"""Times at the edges of what Python and PostgreSQL know: taken for the nearest, or refused."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest
from psycopg import AsyncConnection
from typer.testing import CliRunner, Result

from commandbus import CommandBus, InvalidInputError
from commandbus.cli.main import app
from commandbus.names import LAST_MOMENT, in_utc
from commandbus.troubleshooting import BulkFilter
from tests.http_world import app_of, caller, client_of

#: In UTC the first is in the year 0 and the second in the year 10000; the last two are hours that
#: PostgreSQL reads in no zone.
BEGIN, END = "0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00"
FAR_EAST, FAR_WEST = "2026-05-01T10:00:00+23:00", "2026-05-01T10:00:00-23:00"
EDGES = [BEGIN, END, FAR_EAST, FAR_WEST]
#: That of a schedule, which no request shows before it is put.
SCHEDULE = {"command_type": "Work", "data": {}}


@pytest.fixture
async def client(bus: CommandBus) -> AsyncIterator[httpx2.AsyncClient]:
    await bus.send("shop", "Work", uuid4(), {})
    async with client_of(app_of(bus)) as opened:
        yield opened


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(
    ("method", "path", "member"),
    [
        ("POST", "/api/v1/commands", "deliver_at"),
        ("POST", "/api/v1/commands", "expires_at"),
        ("POST", "/api/v1/commands/shop/{id}/reschedule", "deliver_at"),
        ("POST", "/api/v1/domains/shop/pause", "until"),
        ("PUT", "/api/v1/schedules/shop/x", "at"),
        ("POST", "/api/v1/bulk-operations/preview", "parked_after"),
        ("POST", "/api/v1/bulk-operations/preview", "parked_before"),
        ("POST", "/api/v1/admin/rate-limits/exemptions", "expires_at"),
    ],
)
async def test_a_time_at_the_edge_in_a_body_is_no_error_of_the_server(
    client: httpx2.AsyncClient, bus: CommandBus, method: str, path: str, member: str, edge: str
) -> None:
    if "{id}" in path:
        waiting = uuid4()
        await bus.send("shop", "Work", waiting, {})
        path = path.format(id=waiting)
    needed: dict[str, Any] = {}
    if path == "/api/v1/commands":
        needed = {"domain": "shop", "command_type": "Work", "data": {}}
    elif method == "PUT":
        needed = SCHEDULE
    elif "bulk" in path:
        needed = {"domain": "shop"}
    elif "exemptions" in path:
        needed = {"user_id": "bob", "reason": "x"}
    elif path.endswith("pause"):
        needed = {"reason": "x"}
    answer = await client.request(method, path, json={**needed, member: edge})
    assert answer.status_code < 500, answer.text
    assert answer.status_code != 404, answer.text
    # What was stored can be read.
    for listing in ("/api/v1/commands?domain=shop", "/api/v1/domains", "/api/v1/schedules",
                    "/api/v1/audit", "/api/v1/admin/rate-limits/status"):  # fmt: skip
        assert (await client.get(listing)).status_code == 200, listing


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("/api/v1/commands", "created_after"),
        ("/api/v1/commands", "created_before"),
        ("/api/v1/audit", "since"),
        ("/api/v1/audit", "until"),
        ("/api/v1/schedules/preview", "at"),
    ],
)
async def test_a_time_at_the_edge_in_a_query_is_no_error_of_the_server(
    client: httpx2.AsyncClient, path: str, member: str, edge: str
) -> None:
    answer = await client.get(path, params={member: edge})
    assert answer.status_code in {200, 400}, answer.text
    if path != "/api/v1/schedules/preview":
        assert answer.status_code == 200
        is_open = (edge == BEGIN) == (member in {"created_after", "since"})
        if edge in {BEGIN, END}:
            assert bool(answer.json()["items"]) == is_open


async def test_the_first_moment_of_the_calendar_is_now(
    client: httpx2.AsyncClient, bus: CommandBus
) -> None:
    wanted = uuid4()
    sent = await client.post(
        "/api/v1/commands",
        json={"domain": "shop", "command_type": "Work", "data": {}, "command_id": str(wanted),
              "deliver_at": BEGIN},
    )  # fmt: skip
    assert sent.status_code == 202, sent.text
    async with bus.consumer("shop") as consumer:
        assert wanted in {each.command.command_id for each in await consumer.receive(5)}
    again = await client.post(
        "/api/v1/commands",
        json={"domain": "shop", "command_type": "Work", "data": {}, "command_id": str(wanted),
              "deliver_at": BEGIN},
    )  # fmt: skip
    assert again.json()["is_repeat"]


async def test_the_verbs_of_python_take_times_at_the_edges_or_refuse_them(bus: CommandBus) -> None:
    begin, end = datetime.fromisoformat(BEGIN), datetime.fromisoformat(END)
    far = datetime.fromisoformat(FAR_WEST) + timedelta(days=365)
    command = uuid4()
    await bus.send("shop", "Work", command, {}, deliver_at=begin)
    with pytest.raises(InvalidInputError, match="two years"):
        await bus.send("shop", "Work", uuid4(), {}, expires_at=end)
    with pytest.raises(InvalidInputError, match="in the past"):
        await bus.send("shop", "Work", uuid4(), {}, expires_at=begin)
    await bus.send("shop", "Work", uuid4(), {}, expires_at=far)
    await bus.reschedule("shop", command, deliver_at=begin)
    await bus.pause("shop", reason="x", until=end)
    (pause,) = await bus.pauses("shop")
    assert pause.until == LAST_MOMENT
    assert len((await bus.search.commands(created_after=begin, created_before=end)).items) == 2
    assert (await bus.search.audit(since=begin, until=end)).items
    assert (await bus.search.people(since=begin, until=end)).next_cursor is None
    shown = await bus.bulk.preview(BulkFilter("shop", parked_after=begin, parked_before=end))
    assert shown.total == 0
    for at in (begin, end):
        with pytest.raises(InvalidInputError, match=r"in the past|use a time before"):
            await bus.schedules.put("shop", "x", "Work", {}, at=at)
    root = caller("admin")
    await bus.governance.exempt(root, "bob", "x", expires_at=end)
    (exemption,) = (await bus.governance.limits_status(root)).exemptions
    assert exemption.expires_at == LAST_MOMENT


async def test_a_preview_of_the_longest_interval_ends_with_the_calendar(bus: CommandBus) -> None:
    ticks = await bus.schedules.preview(every=timedelta(days=3_660), count=1_000)
    assert 700 < len(ticks) < 1_000
    assert ticks[-1].year > 9_980


@pytest.fixture
def run(dsn: str) -> Callable[[str], Result]:
    def invoke(line: str) -> Result:
        return CliRunner().invoke(app, [*line.split(), "--dsn", dsn])

    return invoke


def test_the_command_line_shows_that_preview(run: Callable[[str], Result]) -> None:
    shown = run("schedule preview --every 3660d --count 1000 --json")
    assert shown.exit_code == 0, shown.output
    assert 700 < len(json.loads(shown.stdout)["ticks"]) < 1_000


@pytest.fixture(params=["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def far_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process stands fourteen hours east of UTC, or eleven west."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.long
@pytest.mark.usefixtures("far_zone")
def test_the_command_line_has_an_answer_to_times_at_the_edges(run: Callable[[str], Result]) -> None:
    assert run("send shop Work").exit_code == 0
    for line in (
        "send shop Work --at {}", "send shop Work --expires-at {}",
        "pause shop --reason x --until {}", "schedule put shop x Work --at {}",
        "schedule preview --at {}", "list --domain shop --since {}", "audit --since {}",
        "audit --until {}",
    ):  # fmt: skip
        for edge in (BEGIN, END, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
                     "0001-01-01T00:00:00", "9999-12-31T23:59:59"):  # fmt: skip
            done = run(line.format(edge))
            assert done.exit_code in {0, 1, 2}, done.output
            assert done.exception is None or isinstance(done.exception, SystemExit), line
    for line in ("db prune --older-than 999999w", "doctor --since 999999w", "audit --since 999999w",
                 "db retention set audit 999999w", "db retention show", "db prune"):  # fmt: skip
        done = run(line)
        assert done.exception is None or isinstance(done.exception, SystemExit), line
        assert "bug" not in done.output
        assert (done.exit_code == 0) == ("set" not in line and "audit" not in line), done.output
    for listing in ("list", "list --json", "schedule list", "audit"):
        assert run(listing).exit_code == 0, listing


async def test_sql_refuses_what_no_client_could_read(
    bus: CommandBus, conn: AsyncConnection
) -> None:
    await bus.send("shop", "Work", uuid4(), {})
    for moment in ("-infinity", "0044-03-15 12:00 BC"):
        with pytest.raises(psycopg.Error, match="before the year 1"):
            await conn.execute(
                "select commandbus.send_command('shop', 'Work', gen_random_uuid(),"
                " p_deliver_at => %s::timestamptz)", (moment,)
            )  # fmt: skip
    for moment in ("infinity", "10000-01-01"):
        with pytest.raises(psycopg.Error, match=r"after the year 9999|not in the future"):
            await conn.execute(
                "select commandbus.pause_domain('shop', 'x', %s::timestamptz)", (moment,)
            )
    assert await bus.pauses() == []


def test_every_zone_of_python_becomes_utc() -> None:
    for hours in range(-23, 24):
        zone = timezone(timedelta(hours=hours))
        for text in ("0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"):
            edge = datetime.fromisoformat(text)
            found = in_utc(edge.replace(tzinfo=zone))
            assert found.tzinfo is UTC
            assert abs(found - edge) <= timedelta(hours=24)
