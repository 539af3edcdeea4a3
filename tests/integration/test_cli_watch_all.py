"""`batch watch` without an id: all open batches, until none is left."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any
from uuid import UUID, uuid4

import pytest
import typer

from commandbus import BatchCommand, CommandBus
from commandbus.batches.model import progress_of
from commandbus.cli import batch_watch_all
from commandbus.cli.batch import watch_batch
from commandbus.cli.batch_watch_all import EachLine, LiveBars, watch_all
from commandbus.cli.frame import Frame, Place, Session
from commandbus.cli.output import ExitCode
from commandbus.errors import ReplyTimeoutError
from tests.integration.http_shop import work_off
from tests.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_watch_all, "WATCH_SECONDS", 0.01)


async def batch(
    bus: CommandBus, *types: str, domain: str = "shop", name: str | None = None
) -> UUID:
    commands = [BatchCommand(each, uuid4(), {}) for each in types]
    return await bus.create_batch(domain, commands, name=name)


async def test_all_open_batches_are_watched_until_none_is_left(
    bus: CommandBus, capsys: pytest.CaptureFixture[str]
) -> None:
    first = await batch(bus, "Work", "Work", name="tea [green]")
    other = await batch(bus, "Work", domain="bank")
    ended = await batch(bus, "Work", domain="done")
    await work_off(bus, "done")
    watching = asyncio.create_task(watch_all(Session(bus, bus._store), None, as_json=False))
    said = ""

    def has_said(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return text in said

    await until(lambda: has_said(f"{other}  bank  0 of 1 ended"), "the first look")
    assert f"{first}  tea [green]  0 of 2 ended: 0 completed" in said
    await work_off(bus, "bank")
    await until(lambda: has_said(f"{other}  bank  1 of 1 ended: 1 completed; COMPLETED"), "an end")
    late = await batch(bus, "Work")  # created while it is watched
    await work_off(bus, "shop")

    found = await asyncio.wait_for(watching, 30)
    assert {each.batch_id for each in found} >= {first, other}
    assert str(ended) not in said
    has_said("")
    assert f"{first}  tea [green]  2 of 2 ended: 2 completed; COMPLETED" in said
    assert late is not None


async def test_only_a_domain_and_each_change_as_a_line_of_json(
    bus: CommandBus, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = await batch(bus, "Work")
    await batch(bus, "Work", domain="bank")
    watching = asyncio.create_task(watch_all(Session(bus, bus._store), "shop", as_json=True))
    said = ""

    def has_said(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return text in said

    await until(lambda: has_said(str(wanted)), "the first look")
    await work_off(bus, "shop")
    await asyncio.wait_for(watching, 30)
    has_said("")
    documents = [json.loads(line) for line in said.splitlines()]
    assert {each["batch"]["batch_id"] for each in documents} == {str(wanted)}
    assert [each["progress"]["ended"] for each in (documents[0], documents[-1])] == [0, 1]
    assert documents[-1]["batch"]["status"] == "COMPLETED"


async def test_the_exit_code_says_how_they_ended(
    bus: CommandBus, dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = Frame(as_json=False, place=Place(dsn=dsn))
    with pytest.raises(typer.Exit) as nothing:
        await watch_batch(frame, None)
    assert (nothing.value.exit_code, capsys.readouterr().out) == (0, "No batch is open.\n")

    await batch(bus, "Work")
    with pytest.raises(ReplyTimeoutError, match=r"1 batches have not ended within 0\.05 s"):
        await watch_batch(frame, None, timeout=0.05)

    async def one_failed(*_: Any, **__: Any) -> Any:
        [found] = await bus.batches.list_open("shop")
        return [found]

    monkeypatch.setattr("commandbus.cli.batch.watch_all", one_failed)
    with pytest.raises(typer.Exit) as failed:
        await watch_batch(frame, None, domain="shop")
    assert failed.value.exit_code == ExitCode.FAILED


async def test_a_terminal_has_a_bar_for_each(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    await batch(bus, "Work", "Work", name="tea")
    await batch(bus, "Work", domain="bank")
    found = await bus.batches.list_open()
    text = io.StringIO()
    monkeypatch.setattr(batch_watch_all, "is_fancy", lambda _: True)
    view = batch_watch_all.view_of_all(as_json=False)
    assert isinstance(view, LiveBars)
    view._console = Console(file=text, force_terminal=True, width=120, color_system=None)
    view._live.console = view._console
    with view:
        view.show(*(batch_watch_all._step(b, progress_of(b), as_json=False) for b in found))
    drawn = text.getvalue()
    assert "tea" in drawn
    assert "0 of 2 ended" in drawn
    assert drawn.count("━" * 20) >= 2
    assert isinstance(batch_watch_all.view_of_all(as_json=True), EachLine)
