"""`commandbus serve` and `commandbus up`, as a user runs them."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx2
import pytest

from commandbus import CommandBus
from tests.acceptance.programs import program
from tests.waiting import until


async def test_serve_answers_until_it_is_told_to_stop(dsn: str, tmp_path: Path) -> None:
    async with CommandBus.connect(dsn) as bus:
        made = await bus.tokens.create("ann", ["read"], actor="test")
    headers = {"Authorization": f"Bearer {made.text}"}

    async with program(tmp_path, "serve", "--port", "0", "--dsn", dsn) as served:
        await until(lambda: "Stop with Ctrl-C" in served.printed, "a service")
        found = re.search(r"http://127\.0\.0\.1:\d+", served.printed)
        assert found is not None
        async with httpx2.AsyncClient(base_url=found[0], headers=headers) as client:
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.get("/api/v1/whoami")).json()["user_id"] == "ann"
        served.signal(signal.SIGTERM)
        assert await served.ended() == 0

    assert made.text not in served.printed + served.logged


async def test_serve_refuses_a_database_that_is_not_set_up(empty_dsn: str, tmp_path: Path) -> None:
    async with program(tmp_path, "serve", "--port", "0", "--dsn", empty_dsn) as served:
        assert await served.ended() == 3

    assert "run `commandbus db init`" in served.logged


@pytest.mark.long
async def test_up_with_the_demo_writes_a_token_that_works_until_it_ends(
    dsn: str, tmp_path: Path
) -> None:
    arguments = ("up", "--demo", "--dsn", dsn, "--port", "0", "--log-level", "warning")
    async with program(tmp_path, *arguments, "--token-file", "token") as up:
        await until(lambda: "Stop with Ctrl-C" in up.printed, "an up that is up")
        url = re.search(r"http\s+(http://127\.0\.0\.1:\d+)", up.printed)
        assert url is not None
        assert f'curl -H "Authorization: Bearer $TOKEN" {url[1]}/api/v1/' in up.printed
        token = (tmp_path / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=url[1], headers=headers) as client:

            async def is_known() -> bool:
                items = (await client.get("/api/v1/domains")).json()["items"]
                return "vms" in {item["domain"] for item in items}

            await until(is_known, "the domain of the demo")  # its worker begins beside the service
            assert (await client.get("/api/v1/vms")).json() == {"items": []}
            made = await client.post(
                "/api/v1/vms/batch", json={"operation": "create", "items": [{"name": "web-1"}]}
            )
            shown = await client.get(made.headers["location"], headers={"Prefer": "wait=20"})
            assert shown.json()["status"] == "COMPLETED"
            (machine,) = (await client.get("/api/v1/vms")).json()["items"]
            assert (machine["name"], machine["is_running"]) == ("web-1", False)
        up.signal(signal.SIGINT)
        assert await up.ended() == 0

    assert up.logged == ""
    assert token not in up.printed


async def test_a_port_that_is_taken_is_an_error_if_it_was_asked_for(
    dsn: str, tmp_path: Path
) -> None:
    async with program(tmp_path, "serve", "--port", "0", "--dsn", dsn) as first:
        await until(lambda: "Stop with Ctrl-C" in first.printed, "a service")
        port = first.printed.split("127.0.0.1:")[1].split()[0]
        async with program(tmp_path, "serve", "--port", port, "--dsn", dsn) as second:
            assert await second.ended() == 2

    assert f"cannot listen on 127.0.0.1 port {port}" in second.logged
