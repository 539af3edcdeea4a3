"""`send`, `show`, `list` and `tsq` against a real database."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from commandbus import (
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)
from commandbus.cli.main import app
from tests.waiting import until_status, working


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_DSN", raising=False)
    monkeypatch.delenv("COMMANDBUS_DEBUG", raising=False)


@pytest.fixture
def run(dsn: str) -> Any:
    """Run the program on the test's database."""

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn], input=stdin)

    return invoke


def register(bus: CommandBus) -> None:
    policy = RetryPolicy(max_attempts=2, backoff_schedule=(0,))

    @bus.handler("shop", "Sell", retry_policy=policy)
    async def sell(command: Command, ctx: HandlerContext) -> dict[str, Any]:
        if command.data.get("flaky") and ctx.attempt == 1:
            raise TransientCommandError("BUSY", "come back later")
        if command.data.get("broken"):
            raise PermanentCommandError("SOLD_OUT", "nothing left [of it]", {"shelf": 3})
        return {"sold": command.data.get("what")}


def work_off(dsn: str, command_id: UUID, *statuses: str) -> None:
    """Run a worker until a command is in one of these states."""

    async def work() -> None:
        async with CommandBus.connect(dsn) as bus:
            register(bus)
            async with working(bus, "shop"):
                await until_status(bus, "shop", command_id, *statuses)

    asyncio.run(work())


@contextmanager
def worker_beside(dsn: str) -> Iterator[None]:
    """A worker in a thread, for commands that wait for it."""
    stop = threading.Event()

    async def work() -> None:
        async with CommandBus.connect(dsn) as bus:
            register(bus)
            async with working(bus, "shop"):
                await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def sent(result: Result) -> UUID:
    assert result.exit_code == 0, result.output
    return UUID(result.stdout.strip())


# -- send


def test_send_prints_the_id_and_list_shows_the_command(run: Any) -> None:
    command_id = sent(run("send", "shop", "Sell", "--data", '{"what": "tea"}'))

    (found,) = json.loads(run("list", "--json").stdout)["commands"]

    assert found["command_id"] == str(command_id)
    assert (found["domain"], found["command_type"], found["status"]) == ("shop", "Sell", "PENDING")
    assert datetime.fromisoformat(found["created_at"]).utcoffset() is not None


def test_send_takes_everything_that_the_bus_takes(run: Any) -> None:
    command_id, correlation_id = uuid4(), uuid4()
    arguments = (
        "send", "shop", "Sell", "--id", str(command_id), "--correlation-id", str(correlation_id),
        "--max-attempts", "7", "--reply-to", "till.replies",
    )  # fmt: skip

    assert sent(run(*arguments)) == command_id
    again = run(*arguments)

    command = json.loads(run("show", str(command_id), "--json").stdout)["command"]
    assert command["correlation_id"] == str(correlation_id)
    assert (command["max_attempts"], command["reply_queue"]) == (7, "till.replies")
    assert again.exit_code == 1
    assert again.stderr.startswith("error: already sent in domain 'shop'")


@pytest.mark.parametrize("how", ["--data -", "--data-file -", "--data-file FILE"])
def test_the_payload_may_come_from_a_file_or_stdin(run: Any, tmp_path: Path, how: str) -> None:
    text = '{"what": "tea"}'
    (tmp_path / "FILE").write_text(text)
    arguments = how.replace("FILE", str(tmp_path / "FILE")).split()

    command_id = sent(run("send", "shop", "Sell", *arguments, stdin=text))

    shown = json.loads(run("show", str(command_id), "--payload", "--json").stdout)
    assert shown["payload"] == {"what": "tea"}


def test_a_payload_that_is_no_object_is_refused(run: Any) -> None:
    result = run("send", "shop", "Sell", "--data", "[1]")

    assert result.exit_code == 2
    assert "data must be a dict" in result.stderr


def test_send_waits_for_the_reply(run: Any, dsn: str) -> None:
    with worker_beside(dsn):
        plain = run("send", "shop", "Sell", "--data", '{"what": "tea"}', "--wait", "30")
        document = run("send", "shop", "Sell", "--wait", "30", "--json")

    first, outcome, *rest = plain.stdout.splitlines()
    assert UUID(first).version == 7
    assert outcome == "SUCCESS"
    assert json.loads("\n".join(rest)) == {"sold": "tea"}
    reply = json.loads(document.stdout)["reply"]
    assert (reply["outcome"], reply["data"]) == ("SUCCESS", {"sold": None})


def test_send_does_not_wait_for_what_an_operator_must_decide(run: Any, dsn: str) -> None:
    with worker_beside(dsn):
        result = run("send", "shop", "Sell", "--data", '{"broken": true}', "--wait", "30")

    assert result.exit_code == 1
    assert "error: the command is in troubleshooting (SOLD_OUT: nothing left" in result.stderr


def test_send_gives_up_waiting_in_time(run: Any) -> None:
    result = run("send", "shop", "Sell", "--wait", "0.2")

    assert result.exit_code == 1
    assert UUID(result.stdout.strip()).version == 7
    assert "no reply to" in result.stderr


def test_a_reply_that_is_no_success_fails_the_command_line(run: Any, dsn: str) -> None:
    command_id = uuid4()
    results: list[Result] = []
    arguments = ("send", "shop", "Sell", "--id", str(command_id), "--wait", "30")
    waiting = threading.Thread(target=lambda: results.append(run(*arguments)))

    async def cancel_it() -> None:
        async with CommandBus.connect(dsn) as bus:
            await until_status(bus, "shop", command_id, "PENDING")
            await bus.cancel("shop", command_id, "out of season")

    # CliRunner changes sys.stdout for all threads: nothing else may print meanwhile.
    waiting.start()
    asyncio.run(cancel_it())
    waiting.join()

    assert results[0].exit_code == 1
    assert "CANCELED CANCELED: out of season" in results[0].stdout


# -- show


def test_show_tells_the_life_of_a_command(run: Any, dsn: str) -> None:
    command_id = sent(run("send", "shop", "Sell", "--data", '{"flaky": true, "broken": true}'))
    work_off(dsn, command_id, "IN_TROUBLESHOOTING_QUEUE")

    text = run("show", str(command_id)).stdout
    document = json.loads(run("show", str(command_id), "--json").stdout)

    assert "Sell" in text
    assert "  last error   SOLD_OUT: nothing left [of it]\n" in text
    assert "BUSY: come back later; next try after 0 s" in text
    assert 'SOLD_OUT: nothing left [of it]; details {"shelf": 3}' in text
    steps = [step["event_type"] for step in document["events"]]
    assert steps == [
        "SENT", "RECEIVED", "FAILED", "RECEIVED", "FAILED", "MOVED_TO_TROUBLESHOOTING_QUEUE",
    ]  # fmt: skip
    assert document["events"][0]["seconds_since_previous"] is None
    assert document["events"][1]["seconds_since_previous"] >= 0
    assert document["events"][1]["actor"]
    assert "payload" not in document


def test_show_masks_secrets_unless_told_not_to(run: Any) -> None:
    data = '{"user": "me", "password": "hunter2"}'
    command_id = str(sent(run("send", "shop", "Sell", "--data", data)))

    masked = run("show", command_id, "--payload").stdout
    plain = run("show", command_id, "--payload", "--show-secrets").stdout

    assert '"password": "[REDACTED]"' in masked
    assert "hunter2" not in masked
    assert '"password": "hunter2"' in plain
    assert "hunter2" not in run("show", command_id).stdout


def test_show_says_who_holds_a_command_and_its_batch(run: Any, dsn: str) -> None:
    command_id = str(sent(run("send", "shop", "Sell")))
    batch_id = uuid4()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into commandbus.command_bus_batch (batch_id, domain) values (%s, 'shop')",
            (batch_id,),
        )
        connection.execute("update commandbus.command_bus_command set batch_id = %s", (batch_id,))
        connection.execute("select commandbus.receive_commands('shop', 30, 1, 'host:1:ab')")

    text = run("show", command_id).stdout

    assert "by host:1:ab until " in text
    assert str(batch_id) in text


def test_show_says_that_the_payload_of_a_finished_command_is_gone(run: Any, dsn: str) -> None:
    command_id = sent(run("send", "shop", "Sell"))
    work_off(dsn, command_id, "COMPLETED")

    assert "The payload is gone" in run("show", str(command_id), "--payload").stdout


def test_an_id_that_two_domains_know_needs_the_domain(run: Any) -> None:
    command_id = str(uuid4())
    for domain in ("shop", "bank"):
        sent(run("send", domain, "Sell", "--id", command_id))

    unclear = run("show", command_id)
    clear = run("show", command_id, "--domain", "bank", "--json")

    assert unclear.exit_code == 2
    assert "bank, shop; say which with --domain" in unclear.stderr
    assert json.loads(clear.stdout)["command"]["domain"] == "bank"


def test_an_unknown_id_is_an_error(run: Any) -> None:
    anywhere = run("show", str(uuid4()))
    in_domain = run("show", str(uuid4()), "--domain", "shop")

    assert (anywhere.exit_code, in_domain.exit_code) == (1, 1)
    assert "in this database" in anywhere.stderr
    assert "in domain 'shop'" in in_domain.stderr


# -- list


def test_list_filters_and_sums_up(run: Any, dsn: str) -> None:
    done = sent(run("send", "shop", "Sell"))
    work_off(dsn, done, "COMPLETED")
    sent(run("send", "shop", "Count"))
    sent(run("send", "bank", "Sell"))

    text = run("list", "--domain", "shop", "--summary").stdout
    filtered = json.loads(run("list", "--status", "completed", "--type", "Sell", "--json").stdout)
    newest = json.loads(run("list", "-n", "1", "--summary", "--json").stdout)

    assert text.splitlines()[0].split() == [
        "ID", "DOMAIN", "TYPE", "STATUS", "ATTEMPTS", "SENT", "LAST", "ERROR",
    ]  # fmt: skip
    assert "bank" not in text
    assert [command["command_id"] for command in filtered["commands"]] == [str(done)]
    assert newest["commands"][0]["domain"] == "bank"
    assert {"domain": "shop", "status": "COMPLETED", "count": 1} in newest["summary"]


def test_an_empty_list_says_so(run: Any) -> None:
    assert run("list").stdout == "No commands.\n"
    empty: dict[str, Any] = {"commands": [], "next_cursor": None, "searched_to": None}
    assert json.loads(run("list", "--json").stdout) == empty


def test_a_status_that_does_not_exist_is_refused(run: Any) -> None:
    result = run("list", "--status", "ready")

    assert result.exit_code == 2
    assert "use one of PENDING" in result.stderr


# -- tsq


@pytest.fixture
def parked(run: Any, dsn: str) -> str:
    """A command that waits for an operator."""
    command_id = sent(run("send", "shop", "Sell", "--data", '{"broken": true}'))
    work_off(dsn, command_id, "IN_TROUBLESHOOTING_QUEUE")
    return str(command_id)


def status_of(run: Any, command_id: str) -> str:
    document = json.loads(run("show", command_id, "--json").stdout)
    return str(document["command"]["status"])


def test_tsq_counts_says_how_many_commands_wait_in_each_domain(run: Any, parked: str) -> None:
    assert json.loads(run("tsq", "counts", "--json").stdout) == {"counts": {"shop": 1}}
    assert json.loads(run("tsq", "counts", "nowhere", "--json").stdout) == {"counts": {}}
    assert run("tsq", "counts", "shop").stdout.split() == ["DOMAIN", "PARKED", "shop", "1"]


def test_tsq_list_shows_what_waits_without_its_payload(run: Any, parked: str) -> None:
    text = run("tsq", "list").stdout
    (item,) = json.loads(run("tsq", "list", "--domain", "shop", "--json").stdout)["commands"]

    assert "SOLD_OUT: nothing left [of it]" in text
    assert (item["command_id"], item["reason"]) == (parked, "PERMANENT")
    assert "data" not in item


def test_tsq_list_says_that_nothing_waits(run: Any) -> None:
    assert run("tsq", "list").stdout == "Nothing waits for an operator.\n"


def test_tsq_retry_queues_it_again_once(run: Any, parked: str) -> None:
    first = run("tsq", "retry", parked, "--operator", "ann", "--keep-attempts")
    second = run("tsq", "retry", parked)

    assert first.stdout == f"{parked} is queued again\n"
    assert status_of(run, parked) == "PENDING"
    assert second.exit_code == 1
    last = json.loads(run("show", parked, "--json").stdout)["events"][-1]
    assert (last["event_type"], last["actor"]) == ("OPERATOR_RETRY", "ann")


def test_tsq_cancel_ends_it(run: Any, parked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "bob")

    assert run("tsq", "cancel", parked, "--reason", "not sold any more").exit_code == 0

    assert status_of(run, parked) == "CANCELED"
    last = json.loads(run("show", parked, "--json").stdout)["events"][-1]
    assert last["actor"] == "bob"


def test_tsq_complete_ends_it_with_a_result(
    run: Any, parked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("no such user")

    monkeypatch.setattr("getpass.getuser", nobody)

    result = run("tsq", "complete", parked, "--data", '{"by": "hand"}')

    assert result.stdout == f"{parked} is completed\n"
    assert status_of(run, parked) == "COMPLETED"


def test_tsq_complete_needs_no_result(run: Any, parked: str) -> None:
    assert run("tsq", "complete", parked).exit_code == 0


# -- sending once


def test_send_with_a_key_prints_who_holds_it(run: Any) -> None:
    key = ("--unique-key", "tea", "--unique-while", "2h")
    first = sent(run("send", "shop", "Sell", *key))
    assert sent(run("send", "shop", "Sell", *key, "--on-duplicate", "skip")) == first
    refused = run("send", "shop", "Sell", *key)
    assert refused.exit_code == 1
    assert f"held by command {first}" in refused.stderr
    waiting = ("--unique-key", "w", "--unique-while", "waiting")
    second = sent(run("send", "shop", "Sell", *waiting))
    replaced = run(
        "send", "shop", "Sell", *waiting, "--on-duplicate", "replace", "--max-wait", "5s"
    )
    assert sent(replaced) == second
    unread = run("send", "shop", "Sell", *waiting, "--on-duplicate", "skip", "--wait", "5")
    assert unread.exit_code == 2
    assert "holds the key" in unread.stderr


@pytest.mark.parametrize("arguments", [("--unique-while", "soon"), ("--on-duplicate", "never")])
def test_send_refuses_what_it_does_not_know_about_keys(run: Any, arguments: Any) -> None:
    result = run("send", "shop", "Sell", "--unique-key", "k", *arguments)
    assert result.exit_code == 2
    assert arguments[0].strip("-").replace("-", "") in result.stderr.replace("-", "").replace(
        "_", ""
    )
