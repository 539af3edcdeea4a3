"""Waiting for a governed batch: ETag, long poll and event stream."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
import pytest

from commandbus.http import HttpSettings
from commandbus.http.routes import events
from commandbus.http.serving import HttpServer, bind
from tests.http_world import problem
from tests.integration.http_farm import BATCHES, VMS, Farm, create, farm_on
from tests.waiting import until


def events_of(text: str) -> list[dict[str, str]]:
    """The events of a stream, comments left out."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if not line.startswith(":")]
        fields = {name: value for name, _, value in lines}
        if "event" in fields:
            found.append(fields)
    return found


def held(farm: Farm) -> int:
    count: int = farm.app.state.commandbus.polls.waiting
    return count


async def submitted(client: httpx2.AsyncClient, *names: str) -> str:
    url: str = (await client.post(VMS, json=create(*names))).json()["status_url"]
    return url


async def test_an_etag_holds_until_something_changes(dsn: str) -> None:
    async with farm_on(dsn) as farm, farm.client("ada") as ada:
        url = await submitted(ada, "a", "b")
        first = await ada.get(url)
        tag = first.headers["etag"]
        same = await ada.get(url, headers={"If-None-Match": f'"x", W/{tag}'})
        anything = await ada.get(url, headers={"If-None-Match": "*"})
        page = await ada.get(url, params={"limit": 1})
        async with farm.workers():
            ended = await ada.get(url, headers={"Prefer": "wait=20"})
        changed = await ada.get(url, headers={"If-None-Match": tag})

    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert anything.status_code == 304
    assert page.headers["etag"] != tag
    assert (changed.status_code, changed.headers["etag"]) == (200, ended.headers["etag"])
    assert changed.headers["etag"] != tag


async def test_a_long_poll_ends_with_the_batch_or_with_its_time(dsn: str) -> None:
    settings = HttpSettings(max_wait_seconds=20)
    async with farm_on(dsn, settings) as farm, farm.client("ada") as ada:
        url = await submitted(ada, "a")
        began = time.monotonic()
        short = await ada.get(url, headers={"Prefer": "wait=1"})
        waited = time.monotonic() - began
        poll = asyncio.create_task(ada.get(url, headers={"Prefer": "respond-async, wait=600"}))
        await until(lambda: held(farm) == 1, "a long poll")
        async with farm.workers():
            long = await poll
        over = await ada.get(url, headers={"Prefer": "wait=20"})

    assert short.json()["status"] == "IN_PROGRESS"
    assert short.headers["preference-applied"] == "wait=1"
    assert waited >= 0.9
    assert long.json()["status"] == "COMPLETED"
    assert long.headers["preference-applied"] == "wait=20"
    assert over.json()["status"] == "COMPLETED"
    assert "preference-applied" not in over.headers


async def test_a_long_poll_with_an_etag_ends_with_the_first_change(dsn: str) -> None:
    async with farm_on(dsn) as farm, farm.client("ada") as ada, farm.client("petra") as petra:
        async with farm.workers():
            await ada.get(await submitted(ada, "a"), headers={"Prefer": "wait=20"})
        asked = await ada.post(VMS, json={"operation": "delete", "items": [{"name": "a"}]})
        url = asked.json()["status_url"]
        tag = (await ada.get(url)).headers["etag"]
        unchanged = await ada.get(url, headers={"If-None-Match": tag, "Prefer": "wait=1"})
        poll = asyncio.create_task(
            ada.get(url, headers={"If-None-Match": tag, "Prefer": "wait=20"})
        )
        await until(lambda: held(farm) == 1, "a long poll")
        await petra.post(asked.json()["links"]["decision"], json={"decision": "approve"})
        changed = await poll

    assert unchanged.status_code == 304
    assert (changed.status_code, changed.json()["status"]) == (200, "IN_PROGRESS")


async def test_a_stream_tells_each_change_until_the_end_and_goes_on_where_it_was_left(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
    async with farm_on(dsn) as farm, farm.client("ada") as ada:
        url = (await ada.post(VMS, json=create("a", "b"))).json()["links"]["events"]
        stream = asyncio.create_task(ada.get(url))
        await until(lambda: held(farm) == 1, "a stream")
        await asyncio.sleep(0.2)  # some heartbeats
        async with farm.workers():
            answer = await stream
        await until(lambda: held(farm) == 0, "its place")
        told = events_of(answer.text)
        again = await ada.get(url, headers={"Last-Event-ID": told[0]["id"]})
        enough = await ada.get(url, headers={"Last-Event-ID": told[-1]["id"]})

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.startswith("retry: 2000\n\n")
    assert "\n\n: \n\n" in answer.text
    assert [each["event"] for each in told] == ["progress"] * (len(told) - 1) + ["end"]
    assert len(told) >= 2
    states: list[dict[str, Any]] = [json.loads(each["data"]) for each in told]
    assert (states[0]["pending_count"], states[-1]["status"]) == (2, "COMPLETED")
    assert len({each["id"] for each in told}) == len(told)
    assert [each["event"] for each in events_of(again.text)] == ["end"]
    assert (enough.status_code, enough.content) == (204, b"")


async def test_a_stream_ends_after_its_time_and_when_the_service_stops(dsn: str) -> None:
    settings = HttpSettings(max_stream_seconds=1)
    async with farm_on(dsn, settings) as farm, farm.client("ada") as ada:
        url = (await ada.post(VMS, json=create("a"))).json()["links"]["events"]
        timed = await ada.get(url)
    async with farm_on(dsn) as farm, farm.client("ada") as ada:
        waiting = [asyncio.create_task(ada.get(url))]
        waiting.append(
            asyncio.create_task(ada.get(url.removesuffix("/events"), headers={"Prefer": "wait=30"}))
        )
        await until(lambda: held(farm) == 2, "a stream and a long poll")
        farm.app.state.commandbus.polls.close()
        stream, poll = await asyncio.wait_for(asyncio.gather(*waiting), 5)

    assert [each["event"] for each in events_of(timed.text)] == ["progress"]
    assert [each["event"] for each in events_of(stream.text)] == ["progress"]
    assert poll.json()["status"] == "IN_PROGRESS"


async def test_only_so_many_may_wait(dsn: str) -> None:
    settings = HttpSettings(max_long_polls=1, max_stream_seconds=60)
    async with farm_on(dsn, settings) as farm, farm.client("ada") as ada:
        url = await submitted(ada, "a")
        batch_id = url.rpartition("/")[2]
        stream = asyncio.create_task(ada.get(f"{BATCHES}/{batch_id}/events"))
        await until(lambda: held(farm) == 1, "a stream")
        for again in (f"{BATCHES}/{batch_id}/events", url):
            refused = await ada.get(again, headers={"Prefer": "wait=5"})
            limit = problem(refused, 429, "RATE_LIMIT_EXCEEDED")["limit_type"]
            assert limit == "user_waiting"
        async with farm.client("olga") as olga:
            problem(await olga.get(f"{BATCHES}/{batch_id}/events"), 503, "UNAVAILABLE")
        assert (await ada.get(url)).status_code == 200
        await ada.post(f"{url}/cancel", json={"reason": "enough"})
        assert events_of((await stream).text)[-1]["event"] == "end"
        assert held(farm) == 0


async def test_a_client_that_goes_frees_its_place_and_a_stop_does_not_wait_for_streams(
    dsn: str,
) -> None:
    settings = HttpSettings(port=0, shutdown_grace_seconds=30)
    async with farm_on(dsn, settings) as farm, farm.client("ada") as ada:
        url = (await ada.post(VMS, json=create("a"))).json()["links"]["events"]
        server = HttpServer(farm.app, settings, bind("127.0.0.1", 0))
        started = asyncio.Event()
        serving = asyncio.create_task(server.run(started.set))
        await started.wait()
        headers = {"Authorization": "Bearer ada"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
            async with client.stream("GET", url) as stream:
                first = await anext(stream.aiter_text())
                assert held(farm) == 1
            await until(lambda: held(farm) == 0, "a place that is free again")
            async with client.stream("GET", url) as stream:
                await anext(stream.aiter_text())
                server.stop()
                await asyncio.wait_for(serving, 10)

    assert first.startswith("retry: 2000\n\n")
