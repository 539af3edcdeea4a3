"""`list` as a search, `audit`, `tsq show|note|edit` and `cancel` against a real database."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner, Result

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    Secret,
)
from commandbus.cli import audit
from commandbus.cli.frame import page_view
from commandbus.cli.list import COMMANDS
from commandbus.cli.main import app
from commandbus.cli.options import parse_moment
from commandbus.commands.tail import AuditTail
from commandbus.errors import InvalidInputError
from commandbus.models import AuditEvent, CommandMetadata
from commandbus.paging import Page
from commandbus.privacy.values import MASK
from tests.waiting import until, until_status, working

Run = Callable[..., Result]


@dataclass
class Sale:
    what: str
    card: Annotated[str, Secret] = ""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    monkeypatch.delenv("COMMANDBUS_DEBUG", raising=False)
    monkeypatch.setenv("LOGNAME", "bob")


@pytest.fixture
def run(dsn: str) -> Run:
    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn], input=stdin)

    return invoke


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def parked(dsn: str) -> str:
    """A command that waits for an operator, with a field that is marked as secret."""

    async def work() -> str:
        async with CommandBus.connect(dsn) as bus:

            @bus.handler("shop", "Sell", payload_type=Sale)
            async def sell(command: Command, ctx: HandlerContext) -> None:
                raise PermanentCommandError("SOLD_OUT", f"no {command.data['what']} left")

            sent = await bus.send("shop", "Sell", uuid4(), {"what": "tea", "card": "4711-0815"})
            async with working(bus, "shop"):
                await until_status(bus, "shop", sent, "IN_TROUBLESHOOTING_QUEUE")
            return str(sent)

    return asyncio.run(work())


# -- tsq show, note, edit


def test_tsq_show_tells_the_life_and_what_can_be_done(run: Run, parked: str) -> None:
    text = run("tsq", "show", parked).stdout
    shown = document(run("tsq", "show", parked, "--json"))

    assert "SOLD_OUT: no tea left" in text
    assert "4711" not in text
    assert "payload" not in shown
    for verb in ("retry", "edit", "cancel", "complete", "note"):
        assert f"commandbus tsq {verb} {parked}" in text
        assert any(f"tsq {verb}" in step["command"] for step in shown["next"])
    attempts = {e["event_type"]: e["attempt"] for e in shown["events"]}
    assert (attempts["SENT"], attempts["RECEIVED"], attempts["FAILED"]) == (None, 1, 1)
    steps = [e["seconds_since_previous"] for e in shown["events"]]
    assert steps[0] is None
    assert sum(steps[1:]) == pytest.approx(shown["events"][-1]["seconds_since_sent"], abs=0.01)


def test_a_marked_field_is_masked_for_a_program_that_has_no_handlers(run: Run, parked: str) -> None:
    masked = document(run("tsq", "show", parked, "--payload", "--json"))
    plain = document(run("show", parked, "--show-secrets", "--json"))

    assert masked["payload"] == {"what": "tea", "card": MASK}
    assert plain["payload"] == {"what": "tea", "card": "4711-0815"}


def test_tsq_show_of_what_does_not_wait_says_what_is_left_to_do(run: Run, parked: str) -> None:
    pending = run("send", "shop", "Sell", "--data", "{}").stdout.strip()
    assert f"commandbus cancel {pending}" in run("tsq", "show", pending).stdout
    run("tsq", "cancel", parked, "--reason", "no")
    assert "It is CANCELED: there is nothing to decide." in run("tsq", "show", parked).stdout


def test_a_note_is_shown_with_its_author(run: Run, parked: str) -> None:
    result = run("tsq", "note", parked, "ask the [supplier] password=hunter22")
    assert result.stdout == f"{parked} has a note\n"
    run("tsq", "note", parked, "asked", "--operator", "ann")

    text = run("show", parked).stdout
    events = document(run("show", parked, "--json"))["events"]

    assert f"ask the [supplier] password={MASK}" in text
    assert [(e["actor"], e["details"]["text"][:5]) for e in events[-2:]] == [
        ("bob", "ask t"), ("ann", "asked"),
    ]  # fmt: skip
    assert run("tsq", "note", parked, " ").exit_code == 2
    assert run("tsq", "note", str(uuid4()), "x").exit_code == 1


def test_an_edited_payload_is_sent_and_its_difference_shown(
    run: Run, parked: str, tmp_path: Path
) -> None:
    shown = document(run("tsq", "show", parked, "--payload", "--json"))["payload"]
    file = tmp_path / "payload.json"
    file.write_text(json.dumps({**shown, "what": "coffee", "cups": 2}))

    result = run("tsq", "edit", parked, "--data-file", str(file), "--operator", "ann")

    assert result.stdout == f"{parked} is queued again, edited\n"
    text = run("show", parked).stdout
    assert 'data.what: "tea" -> "coffee"' in text
    assert "data.cups added: 2" in text
    after = document(run("show", parked, "--show-secrets", "--json"))["payload"]
    assert after == {"what": "coffee", "card": "4711-0815", "cups": 2}
    assert run("tsq", "edit", parked, "--data", "{}").exit_code == 1  # it is not parked any more


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "--data or --data-file"),
        (["--data", "[1]"], 2, "data must be a dict"),
        (["--data", "{"], 2, "is not JSON"),
        (["--data", "@data.json"], 2, "use --data-file"),
        (["--data", f'{{"new": "{MASK}"}}'], 2, "give the real value"),
    ],
)
def test_a_payload_that_is_none_is_refused(
    run: Run, parked: str, arguments: list[str], code: int, message: str
) -> None:
    result = run("tsq", "edit", parked, *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert document(run("show", parked, "--json"))["command"]["status"].startswith("IN_TR")


def test_cancel_ends_what_has_not_started(run: Run, parked: str) -> None:
    pending = run("send", "shop", "Sell", "--data", "{}").stdout.strip()
    assert run("cancel", pending, "--reason", "ordered twice").stdout == f"{pending} is canceled\n"
    last = document(run("show", pending, "--json"))["events"][-1]
    assert (last["event_type"], last["actor"]) == ("CANCELED", "bob")
    refused = run("cancel", parked, "--reason", "x")
    assert refused.exit_code == 1
    assert "only a command that is PENDING" in refused.stderr


# -- list


def test_list_finds_by_every_criterion(run: Run, dsn: str, parked: str) -> None:
    relation = str(uuid4())
    other = run("send", "bank", "Pay", "--correlation-id", relation).stdout.strip()

    def found(*arguments: str) -> list[str]:
        page = document(run("list", "--json", *arguments))
        return [command["command_id"] for command in page["commands"]]

    assert found() == [other, parked]
    assert found("--error-code", "SOLD_OUT") == [parked]
    assert found("--status", "in_troubleshooting_queue") == [parked]
    assert found("--correlation-id", relation) == [other]
    assert found("--id", parked) == [parked]
    assert found("--batch", str(uuid4())) == []
    assert found("--since", "1h") == [other, parked]
    assert found("--until", "1h") == []
    assert run("list", "--id", "x").exit_code == 2
    assert run("list", "--since", "yesterday").exit_code == 2


def test_list_goes_on_with_a_cursor(run: Run) -> None:
    for _ in range(3):
        run("send", "shop", "Sell")
    first = document(run("list", "--limit", "2", "--json"))
    rest = document(run("list", "--limit", "2", "--json", "--cursor", first["next_cursor"]))

    assert (len(first["commands"]), len(rest["commands"]), rest["next_cursor"]) == (2, 1, None)
    assert f"--cursor {first['next_cursor']}" in run("list", "--limit", "2").stdout
    assert run("list", "--cursor", "x").exit_code == 2


def test_a_bounded_search_says_how_far_it_came(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: Page[CommandMetadata] = Page([], "abc", datetime(2020, 5, 1, tzinfo=UTC))
    page_view(found, "commands", COMMANDS.print).print()
    out = capsys.readouterr().out
    assert "Searched as far as 2020-0" in out
    assert "--cursor abc" in out
    assert "No commands" not in out


# -- audit


def test_audit_lists_what_happened_and_who_did_it(run: Run, parked: str, dsn: str) -> None:
    run("tsq", "note", parked, "look at this", "--operator", "ann")

    newest = document(run("audit", "--limit", "1", "--json"))
    mine = document(run("audit", "--actor", "ann", "--json"))["events"]
    notes = run("audit", parked, "--event", "note").stdout

    assert newest["events"][0]["event_type"] == "NOTE"
    assert newest["next_cursor"]
    older = document(run("audit", "--limit", "1", "--json", "--cursor", newest["next_cursor"]))
    assert older["events"][0]["audit_id"] < newest["events"][0]["audit_id"]
    assert [(e["command_id"], e["actor"]) for e in mine] == [(parked, "ann")]
    assert "look at this" in notes
    assert "RECEIVED" not in notes
    assert run("audit", "--event", "nothing").exit_code == 2
    assert run("audit", str(uuid4())).stdout == "No events.\n"
    assert run("audit", "--since", "0s").stdout == "No events.\n"
    assert "SENT" in run("audit", "--domain", "shop", "--since", "1h", "--until", "0s").stdout


def test_audit_of_a_batch_has_its_commands_too(run: Run, dsn: str) -> None:
    async def create() -> str:
        async with CommandBus.connect(dsn) as bus:
            command = BatchCommand("Sell", uuid4(), {})
            batch_id = await bus.create_batch("shop", [command])
            await bus.batches.cancel("shop", batch_id, "no")
            return str(batch_id)

    batch_id = asyncio.run(create())
    kinds = [
        e["event_type"] for e in document(run("audit", "--batch", batch_id, "--json"))["events"]
    ]
    assert sorted(kinds) == ["BATCH_COMPLETED", "CANCELED", "SENT"]


def _is_in(part: str, lines: list[str]) -> bool:
    return any(part in line for line in lines)


@pytest.mark.parametrize("as_json", [True, False])
def test_audit_follows_what_happens(
    run: Run, dsn: str, parked: str, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "FOLLOW_SECONDS", 0.02)
    seen: list[str] = []
    monkeypatch.setattr(
        audit, "print" if as_json else "say", lambda text, **_: seen.append(text), raising=False
    )
    arguments = ["audit", "--follow", "--for", "60", "--limit", "2"]
    results: list[Result] = []
    stop = threading.Event()
    real = AuditTail.look

    async def look(tail: AuditTail) -> list[AuditEvent]:
        if stop.is_set():
            raise InvalidInputError("enough")
        return await real(tail)

    monkeypatch.setattr(AuditTail, "look", look)
    following = threading.Thread(
        target=lambda: results.append(run(*arguments, *(["--json"] if as_json else [])))
    )
    following.start()

    async def act() -> None:
        await until(lambda: len(seen) == 2, "the latest two events")
        async with CommandBus.connect(dsn) as bus:
            for n in range(3):
                await bus.troubleshooting.note("shop", UUID(parked), f"note {n}")
                await until(partial(_is_in, f"note {n}", seen), "the note")

    try:
        asyncio.run(act())
    finally:
        stop.set()
        following.join()
    assert len(seen) == 5
    if as_json:
        assert [json.loads(line)["event_type"] for line in seen[-3:]] == ["NOTE"] * 3


def test_audit_follows_for_a_time(run: Run, parked: str) -> None:
    assert "NOTE" not in run("audit", "--for", "0.05", "--limit", "3").stdout


# -- moments


def test_a_moment_may_be_a_time_or_how_long_ago() -> None:
    now = datetime.now(UTC)
    assert 59 < (now - parse_moment("1m", "x")).total_seconds() < 61
    assert parse_moment("2026-05-01T10:00+02:00", "x") == datetime(2026, 5, 1, 8, tzinfo=UTC)
    assert parse_moment("2026-05-01", "x").tzinfo is not None
    for wrong in ("", "5", "5y", "soon", "999999999w", "-1h"):
        with pytest.raises(InvalidInputError, match="--since"):
            parse_moment(wrong, "--since")
