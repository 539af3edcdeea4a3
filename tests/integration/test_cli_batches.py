"""`commandbus batch` against a real database."""

from __future__ import annotations

import asyncio
import gzip
import json
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner, Result

from commandbus import (
    BatchCommand,
    Command,
    CommandBus,
    HandlerContext,
    PermanentCommandError,
    RetryPolicy,
)
from commandbus.batches.model import progress_of
from commandbus.cli import batch_view, batch_watch
from commandbus.cli.batch_watch import hint_of, watch
from commandbus.cli.frame import Session
from commandbus.cli.main import app
from tests.waiting import until, working


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMMANDBUS_DSN", "COMMANDBUS_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(dsn: str) -> Any:
    """Run `commandbus batch` on the test's database."""

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, ["batch", *arguments, "--dsn", dsn], input=stdin)

    return invoke


def with_bus(dsn: str, work: Callable[[CommandBus], Awaitable[Any]]) -> Any:
    """Do something with a bus that has handlers."""

    async def connected() -> Any:
        async with CommandBus.connect(dsn) as bus:
            register(bus)
            return await work(bus)

    return asyncio.run(connected())


def register(bus: CommandBus) -> None:
    @bus.handler("shop", "Work")
    async def work(command: Command, ctx: HandlerContext) -> None:
        if command.data.get("broken"):
            raise PermanentCommandError("BROKEN", "not [today]")

    @bus.handler("shop", "GiveUp", retry_policy=RetryPolicy(when_exhausted="fail"))
    async def give_up(command: Command, ctx: HandlerContext) -> None:
        raise PermanentCommandError("NO_ACCOUNT", "unknown")


def work_off(dsn: str, batch_id: str) -> None:
    """Run a worker until nothing of a batch is left to do: it has ended, or the rest is parked."""

    async def work(bus: CommandBus) -> None:
        async def is_done() -> bool:
            batch = await bus.get_batch("shop", UUID(batch_id))
            return batch is not None and progress_of(batch).open == 0

        async with working(bus, "shop"):
            await until(is_done, "the end of the batch")

    with_bus(dsn, work)


def created(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return str(UUID(result.stdout.strip()))


def rows(count: int) -> str:
    return "".join(json.dumps({"n": n}) + "\n" for n in range(count))


def typed(*types: str, **data: Any) -> str:
    return "".join(json.dumps({"command_type": each, "data": data}) + "\n" for each in types)


def shown(run: Any, batch_id: str) -> dict[str, Any]:
    result = run("show", batch_id, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(rows(25))
    return path


# -- create


def test_create_prints_the_id_of_a_batch_with_all_rows(run: Any, file: Path) -> None:
    batch_id = created(
        run("create", "shop", str(file), "--type", "Work", "--name", "import", "--by", "ada",
            "--custom-data", '{"file": "a", "password": "hunter2"}')
    )  # fmt: skip

    document = shown(run, batch_id)
    text = run("show", batch_id, "--domain", "shop").stdout
    assert document["batch"]["status"] == "PENDING"
    assert (document["batch"]["name"], document["batch"]["total_count"]) == ("import", 25)
    assert document["batch"]["custom_data"] == {"file": "a", "password": "[REDACTED]"}
    assert document["progress"]["fraction"] == 0
    assert (document["errors"], document["load"], document["closing_commands"]) == ([], None, [])
    assert text.startswith(f"import  {batch_id}\n")
    assert "0 of 25 ended: 0 completed" in text
    assert "hunter2" not in text


def test_create_reads_stdin_and_csv(run: Any, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("n,what\n1,tea\n2,rice\n")

    document = json.loads(run("create", "shop", "-", "--json", stdin=typed("A", "B", "C")).stdout)
    batch_id = created(run("create", "shop", str(table), "--type", "Work"))

    assert document["commands"] == 3
    assert shown(run, document["batch_id"])["batch"]["total_count"] == 3
    assert shown(run, batch_id)["batch"]["total_count"] == 2


def test_create_names_the_lines_of_repeated_ids_and_creates_nothing(
    run: Any, tmp_path: Path
) -> None:
    command_id = uuid4()
    path = tmp_path / "rows.jsonl"
    row = json.dumps({"command_type": "Work", "command_id": str(command_id)})
    path.write_text(typed("Work") + f"{row}\n" * 7)

    result = run("create", "shop", str(path))

    assert result.exit_code == 1
    assert f"the id {command_id} is more than once in the file: line 2, line 3," in result.stderr
    assert "and 2 more; nothing was created\n" in result.stderr
    assert run("list", "shop").stdout == "No batches.\n"


# -- show


def test_show_counts_errors_by_code_with_an_example(
    run: Any, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = typed("Work", "GiveUp", "GiveUp") + typed("Work", "Work", "Work", broken=True)
    batch_id = created(run("create", "shop", "-", stdin=source))
    work_off(dsn, batch_id)

    document = shown(run, batch_id)
    text = run("show", batch_id).stdout

    assert [(each["code"], each["count"], each["status"]) for each in document["errors"]] == [
        ("BROKEN", 3, "IN_TROUBLESHOOTING_QUEUE"), ("NO_ACCOUNT", 2, "FAILED"),
    ]  # fmt: skip
    assert document["errors_are_complete"] is True
    assert "3 of 6 ended: 1 completed, 2 failed, 3 in troubleshooting" in text
    assert "not [today]" in text
    assert f"the rest waits for an operator: `commandbus batch retry {batch_id}`" in text
    monkeypatch.setattr(batch_view, "ERRORS_LOOKED_AT", 1)
    assert "The first 1 of each status were counted." in run("show", batch_id).stdout
    assert shown(run, batch_id)["errors_are_complete"] is False


def test_show_finds_the_command_of_every_closing(run: Any, dsn: str) -> None:
    async def create(bus: CommandBus) -> UUID:
        return await bus.create_batch(
            "shop", [BatchCommand("GiveUp", uuid4(), {})],
            on_complete_command=BatchCommand("Work", uuid4(), {}),
        )  # fmt: skip

    batch_id = str(with_bus(dsn, create))
    work_off(dsn, batch_id)
    assert run("retry", batch_id, "--by", "ada").exit_code == 0
    work_off(dsn, batch_id)

    closings = shown(run, batch_id)["closing_commands"]
    text = run("show", batch_id).stdout

    assert [each["command_type"] for each in closings] == ["Work", "Work"]
    assert closings[0]["command_id"] != closings[1]["command_id"]
    assert {each["correlation_id"] for each in closings} == {batch_id}
    assert f" {closings[1]['command_id']}\n" in text
    assert ", after " in text


def test_a_terminal_sees_bars_and_short_lines(
    run: Any, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_view, "is_fancy", lambda _: True)
    named = created(run("create", "shop", "-", "--name", "[tea]", stdin=typed("Work")))
    unnamed = created(run("create", "shop", "-", stdin=typed("Work")))

    assert "━" * 50 in run("show", named).stdout
    first, _, second, _ = run("list", "shop").stdout.splitlines()
    assert first.startswith(f"{unnamed}  PENDING  ")
    assert second.endswith("  [tea]")


@pytest.mark.parametrize(
    "arguments",
    [["show"], ["watch"], ["retry"], ["cancel", "-r", "x"], ["cancel", "-r", "x", "--yes"]],
)
def test_an_unknown_batch_is_one_line_that_says_what_to_do(run: Any, arguments: list[str]) -> None:
    verb, *options = arguments
    anywhere = run(verb, str(uuid4()), *options)
    in_domain = run(verb, str(uuid4()), *options, "--domain", "shop")

    for result, where in ((anywhere, "this database"), (in_domain, "domain 'shop'")):
        assert result.exit_code == 1
        assert f" in {where}; `commandbus batch list DOMAIN` lists what there is" in result.stderr
        assert result.stderr.count("\n") == 1


def test_the_id_of_a_command_is_no_batch(run: Any, dsn: str) -> None:
    command_id = uuid4()
    with_bus(dsn, lambda bus: bus.send("shop", "Work", command_id, {}))

    assert run("show", str(command_id)).exit_code == 1


# -- list


def test_list_filters_and_pages(run: Any, dsn: str) -> None:
    old = created(run("create", "shop", "-", stdin=typed("GiveUp", "Work")))
    work_off(dsn, old)
    new = created(run("create", "shop", "-", "--name", "new", stdin=typed("Work")))

    def listed(*options: str) -> list[str]:
        result = run("list", "shop", "--json", *options)
        return [each["batch_id"] for each in json.loads(result.stdout)["batches"]]

    header, first, second = run("list", "shop").stdout.splitlines()
    assert listed() == [new, old]
    cursor = json.loads(run("list", "shop", "--limit", "1", "--json").stdout)["next_cursor"]
    assert listed("--limit", "1", "--cursor", cursor) == [old]
    assert listed("--status", "completed_with_failures") == [old]
    assert header.split() == ["ID", "CREATED", "ENDED", "STATUS", "NOT", "WELL", "NAME"]
    assert first.split()[2:] == ["0/1", "PENDING", "-", "new"]
    assert second.split()[2:] == ["2/2", "COMPLETED_WITH_FAILURES", "1", "failed", "-"]


def test_a_status_that_does_not_exist_is_refused(run: Any) -> None:
    result = run("list", "shop", "--status", "ready")

    assert result.exit_code == 2
    assert "use one of PENDING, IN_PROGRESS, COMPLETED, COMPLETED_WITH_FAILURES" in result.stderr


# -- watch


@pytest.mark.parametrize(
    ("types", "code", "status", "counts"),
    [
        (("Work", "Work"), 0, "COMPLETED", "2 of 2 ended: 2 completed"),
        (("Work", "GiveUp"), 1, "COMPLETED_WITH_FAILURES", "2 of 2 ended: 1 completed, 1 failed"),
    ],
)
def test_the_exit_code_of_watch_says_how_the_batch_ended(
    run: Any, dsn: str, types: tuple[str, ...], code: int, status: str, counts: str
) -> None:
    batch_id = created(run("create", "shop", "-", stdin=typed(*types)))
    work_off(dsn, batch_id)

    plain = run("watch", batch_id)
    document = run("watch", batch_id, "--json")

    assert (plain.exit_code, document.exit_code) == (code, code)
    assert counts in plain.stdout
    assert plain.stdout.endswith(f"\n{status}\n")
    assert json.loads(document.stdout)["batch"]["status"] == status
    assert json.loads(document.stdout)["progress"]["fraction"] == 1


def test_watch_gives_up_in_time_and_the_batch_goes_on(run: Any) -> None:
    batch_id = created(run("create", "shop", "-", stdin=typed("Work")))

    result = run("watch", batch_id, "--timeout", "0.05")

    assert result.exit_code == 1
    assert "0 of 1 ended: 0 completed\n" in result.stdout
    assert "not ended within 0.05 s; it goes on, look at it with" in result.stderr
    assert f"`commandbus batch show {batch_id}`" in result.stderr


async def test_watch_follows_a_load_to_its_end(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_watch, "WATCH_SECONDS", 0.01)
    hints: list[str] = []

    def overheard(*seen: Any) -> str:
        hints.append(hint_of(*seen))
        return hints[-1]

    monkeypatch.setattr(batch_watch, "hint_of", overheard)
    register(bus)
    whole = [{"n": n} for n in range(25)]
    bad = [*whole[:20], 7, *whole[20:]]
    half = await bus.loads.load("shop", bad, command_type="Work", checkpoint_size=10)
    found = await bus.get_batch("shop", half.batch_id)
    assert found is not None

    watching = asyncio.create_task(watch(Session(bus, bus._store), found, quiet=True))
    await until(lambda: any("the load stopped (item 21: " in hint for hint in hints), "a hint")
    await bus.loads.resume("shop", half.batch_id, whole)
    async with working(bus, "shop"):
        ended = await asyncio.wait_for(watching, 30)

    assert (ended.status, ended.completed_count) == ("COMPLETED", 25)
    assert hints[-1] == ""


# -- cancel and retry


def test_cancel_asks_with_the_exact_count_what_a_worker_holds_left_out(run: Any, dsn: str) -> None:
    batch_id = created(run("create", "shop", "-", "--name", "tea", stdin=typed(*["Work"] * 5)))

    async def lease(bus: CommandBus) -> None:
        await bus._store.receive("shop", vt_seconds=60, quantity=2, worker="me", limits={})

    with_bus(dsn, lease)

    no = run("cancel", batch_id, "--reason", "late", stdin="n\n")
    nobody = run("cancel", batch_id, "--reason", "late")
    yes = run("cancel", batch_id, "--reason", "late", "--by", "ada", stdin="y\n")
    again = run("cancel", batch_id, "--reason", "late", "--yes")
    asked = run("cancel", batch_id, "--reason", "late")

    question = (
        f"Cancel 3 of the 5 commands of batch {batch_id} (tea); 2 are being worked on and go on?"
    )
    assert question in no.stderr
    assert (no.exit_code, nobody.exit_code) == (1, 2)
    assert no.stderr.endswith("error: nothing was canceled\n")
    assert nobody.stderr.endswith("\nerror: nobody answered; --yes cancels without asking\n")
    assert yes.exit_code == 0
    assert yes.stdout.startswith("3 commands are canceled.\n")
    assert "3 of 5 ended: 0 completed, 3 canceled" in yes.stdout
    assert f"`commandbus batch watch {batch_id}` follows it" in yes.stdout
    for result in (again, asked):
        assert result.exit_code == 1
        assert "has nothing to cancel: 2 commands are being worked on" in result.stderr


def test_cancel_can_end_a_batch_and_does_so_once(run: Any) -> None:
    batch_id = created(run("create", "shop", "-", stdin=typed("Work", "Work")))

    question = run("cancel", batch_id, "-r", "late", stdin="n\n").stderr
    first = run("cancel", batch_id, "--reason", "late", "--yes", "--json")
    second = run("cancel", batch_id, "--reason", "late", "--yes")
    asked = run("cancel", batch_id, "--reason", "late")

    assert f"Cancel 2 of the 2 commands of batch {batch_id}?" in question
    assert json.loads(first.stdout)["canceled"] == 2
    assert json.loads(first.stdout)["batch"]["status"] == "COMPLETED_WITH_FAILURES"
    for result in (second, asked):
        assert result.exit_code == 1
        assert "has ended (COMPLETED_WITH_FAILURES); there is nothing to cancel" in result.stderr


def test_a_cancel_that_ends_the_batch_says_so(run: Any) -> None:
    batch_id = created(run("create", "shop", "-", stdin=typed("Work")))

    text = run("cancel", batch_id, "--reason", "late", "--yes").stdout

    assert "  status    COMPLETED_WITH_FAILURES\n" in text
    assert "batch watch" not in text


def test_retry_sends_what_failed_or_is_parked_again(run: Any, dsn: str) -> None:
    source = typed("GiveUp", "Work") + typed("Work", broken=True)
    batch_id = created(run("create", "shop", "-", stdin=source))

    early = run("retry", batch_id)
    work_off(dsn, batch_id)
    plain = run("retry", batch_id)
    document = run("retry", batch_id, "--json")

    assert (early.exit_code, early.stdout.splitlines()[0]) == (0, "Nothing to send again.")
    assert plain.stdout.startswith("2 commands are queued again.\n")
    assert json.loads(document.stdout)["retried"] == 0
    assert json.loads(document.stdout)["batch"]["status"] == "IN_PROGRESS"


def test_retry_of_a_batch_that_ended_well_is_refused(run: Any, dsn: str) -> None:
    batch_id = created(run("create", "shop", "-", stdin=typed("Work")))
    work_off(dsn, batch_id)

    result = run("retry", batch_id)

    assert result.exit_code == 1
    assert "has ended (COMPLETED) and nothing of it failed" in result.stderr


# -- load and resume


def test_load_prints_the_result_and_show_knows_the_load(run: Any, file: Path) -> None:
    batch_id = str(uuid4())

    plain = run(
        "load", "shop", str(file), "--type", "Work", "--checkpoint-size", "10", "--batch-id",
        batch_id, "--name", "import", "--custom-data", '{"a": 1}', "--start", "as-it-loads",
    )  # fmt: skip
    document = run("load", "shop", "-", "--type", "Work", "--json", stdin=rows(3))

    assert plain.exit_code == 0
    assert "25 of 25 rows stored; " in plain.stdout
    assert [line.split() for line in plain.stdout.splitlines()[-4:]] == [
        ["status", "success"], ["batch_id", batch_id], ["checkpoints", "3"],
        ["tasks_committed", "25"],
    ]  # fmt: skip
    result = json.loads(document.stdout)
    assert (result["status"], result["tasks_committed"]) == ("success", 3)
    assert result["resume"] is None
    load = shown(run, batch_id)["load"]
    assert (load["start"], load["status"]) == ("as_it_loads", "sealed")
    assert load["row_format"]["command_type"] == "Work"
    assert f"sealed from {file}: 25 rows in 3 checkpoints\n" in run("show", batch_id).stdout
    assert shown(run, result["batch_id"])["load"]["source"] == "BytesIO"


def test_load_takes_ids_and_types_from_columns(run: Any, tmp_path: Path) -> None:
    command_id = uuid4()
    table = tmp_path / "rows.csv"
    table.write_text(f"what,id,kind\ntea,{command_id},Work\n")

    result = run(
        "load", "shop", str(table), "--type-column", "kind", "--id-column", "id", "--json"
    )  # fmt: skip

    assert json.loads(result.stdout)["status"] == "success"
    assert "error" not in result.stderr


def test_a_load_that_stops_prints_line_reason_and_the_command_that_goes_on(
    run: Any, dsn: str, file: Path
) -> None:
    whole = file.read_text()
    file.write_text(whole.replace('{"n": 20}', '{"n": '))

    stopped = run("load", "shop", str(file), "--type", "Work", "--checkpoint-size", "10")
    reason, _, command = stopped.stderr.strip().partition("; fix it, then: ")
    program, *arguments = shlex.split(command)
    batch_id = arguments[3]
    text = run("show", batch_id).stdout
    document = run("resume", "shop", batch_id, str(file), "--json")
    file.write_text(whole)
    arguments[arguments.index("--dsn") + 1] = dsn  # its password was masked
    resumed = CliRunner().invoke(app, arguments)

    assert stopped.exit_code == 1
    assert stopped.stderr.count("\n") == 1
    assert reason.startswith("error: line 21: not JSON: ")
    fields = dict(line.split() for line in stopped.stdout.splitlines()[-8:])
    assert fields == {
        "status": "partial_success", "batch_id": batch_id, "checkpoints": "2",
        "tasks_committed": "20", "failed_checkpoint": "3", "tasks_failed": "5", "line": "21",
        "recovery_possible": "yes",
    }  # fmt: skip
    assert f"failed from {file}: 20 rows in 2 checkpoints, 0 queued" in text
    assert f"`commandbus batch resume shop {batch_id} SOURCE`" in text
    assert document.exit_code == 1
    assert json.loads(document.stdout)["resume"] == command
    assert program == "commandbus"
    assert resumed.exit_code == 0, resumed.output
    assert "tasks_committed  25" in resumed.stdout


def stopped_load(run: Any, file: Path, bad: str = '{"n": 20}') -> str:
    batch_id = str(uuid4())
    file.write_text(file.read_text().replace(bad, "nonsense"))
    arguments = ("--type", "Work", "--checkpoint-size", "10", "--batch-id", batch_id)
    assert run("load", "shop", str(file), *arguments).exit_code == 1
    return batch_id


def test_a_load_that_stopped_is_sealed_with_what_it_has(run: Any, file: Path) -> None:
    batch_id = stopped_load(run, file)
    before = run("show", batch_id).stdout
    sealed = run("seal", batch_id, "--by", "ada")
    again = run("seal", batch_id, "--json")

    assert "allowed   resume, seal, cancel\n" in before
    assert f"`commandbus batch seal {batch_id}` keeps what is loaded" in before
    assert f"`commandbus batch cancel {batch_id}` does not" in before
    assert sealed.exit_code == 0, sealed.output
    assert "sealed    20 rows" in sealed.stdout
    document = json.loads(again.stdout)
    assert (document["load"]["status"], document["batch"]["total_count"]) == ("sealed", 20)
    assert shown(run, batch_id)["actions"] == ["cancel"]


def test_a_load_that_stopped_is_canceled_and_not_resumed(run: Any, file: Path) -> None:
    batch_id = stopped_load(run, file)
    asked = run("cancel", batch_id, "--reason", "wrong file", stdin="y\n")
    refused = run("resume", "shop", batch_id, str(file))
    sealed = run("seal", batch_id)

    assert "its load ends, and cannot be resumed?" in asked.stderr
    assert "20 commands are canceled. Its load is too." in asked.stdout
    assert (refused.exit_code, sealed.exit_code) == (1, 1)
    assert "was canceled after 20 rows (wrong file)" in refused.stderr
    assert "was canceled after 20 rows" in sealed.stderr
    assert shown(run, batch_id)["actions"] == []


def test_an_empty_load_is_not_shown_as_done_and_can_be_canceled(run: Any, file: Path) -> None:
    batch_id = stopped_load(run, file, bad='{"n": 0}')
    document = shown(run, batch_id)
    canceled = run("cancel", batch_id, "--reason", "wrong file", "--yes")

    assert document["progress"]["fraction"] == 0.0
    assert canceled.exit_code == 0, canceled.output
    assert "0 commands are canceled. Its load is too." in canceled.stdout
    assert shown(run, batch_id)["batch"]["status"] == "COMPLETED_WITH_FAILURES"
    assert shown(run, batch_id)["progress"]["fraction"] == 1.0


def test_tables_of_any_kind_and_compressed_files_are_loaded(run: Any, tmp_path: Path) -> None:
    table, packed = tmp_path / "rows.csv", tmp_path / "rows.json.gz"
    table.write_text("n\tm,k\n1\t2\n")
    packed.write_bytes(gzip.compress(b'[{"n": 1}, {"n": 2}]'))

    unsure = run("load", "shop", str(table), "--type", "Work")
    told = run("load", "shop", str(table), "--type", "Work", "--delimiter", "tab", "--json")
    made = run("create", "shop", str(table), "--type", "Work", "--delimiter", "\\t")
    loaded = run("load", "shop", str(packed), "--type", "Work", "--json")
    piped = run("load", "shop", "-", "--type", "Work", "--json", stdin=packed.read_bytes())
    untyped = run("load", "shop", str(tmp_path / "rows.csv.gz"))

    assert unsure.exit_code == 2
    assert "say which (delimiter, --delimiter)" in unsure.stderr
    assert json.loads(told.stdout)["tasks_committed"] == 1
    assert made.exit_code == 0, made.output
    assert json.loads(loaded.stdout)["tasks_committed"] == 2
    assert json.loads(piped.stdout)["tasks_committed"] == 2
    assert "a CSV file needs --type" in untyped.stderr


def test_an_id_that_is_twice_in_a_file_is_told_from_one_that_was_sent(
    run: Any, tmp_path: Path
) -> None:
    one, path = str(uuid4()), tmp_path / "rows.jsonl"
    row = json.dumps({"type": "Work", "command_id": one})
    path.write_text("\n".join([row, json.dumps({"type": "Work"}), "", row]))
    twice = run("create", "shop", str(path))
    path.write_text(row)
    first, second = run("create", "shop", str(path)), run("create", "shop", str(path))

    assert f"the id {one} is more than once in the file: line 1, line 4; nothing" in twice.stderr
    assert first.exit_code == 0
    assert f"command ids that were sent before: line 1 ({one})" in second.stderr


def test_resume_refuses_what_is_no_load(run: Any, file: Path) -> None:
    batch_id = created(run("create", "shop", "-", stdin=typed("Work")))

    other = run("resume", "shop", batch_id, str(file))
    unknown = run("resume", "shop", str(uuid4()), str(file))
    unreadable = run("load", "shop", "/no/such.jsonl", "--type", "Work")

    assert (other.exit_code, unknown.exit_code, unreadable.exit_code) == (1, 1, 2)
    assert "load into a new batch" in other.stderr
    assert "in domain 'shop'; `commandbus batch list DOMAIN`" in unknown.stderr
    assert "cannot read '/no/such.jsonl'" in unreadable.stderr
