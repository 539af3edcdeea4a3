"""Batches: how far one is, what is refused, and what the verbs ask of the store."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from commandbus import (
    BatchCommand,
    BatchMetadata,
    BatchNotFoundError,
    BatchStatus,
    CommandBus,
    CommandStatus,
    InvalidInputError,
    InvalidNameError,
    InvalidOperationError,
    InvalidSettingError,
    RetryPolicy,
    Settings,
)
from commandbus.batches import batch as batch_module
from commandbus.batches.actions import BatchActions, BatchWait, waits_for
from commandbus.batches.batch import Batches
from commandbus.batches.callbacks import Completions
from commandbus.batches.model import BatchOptions, progress_of
from commandbus.commands.preparing import Preparer
from commandbus.errors import InvalidCommandIdError
from commandbus.loads.model import LoadStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def a_batch(**changes: Any) -> BatchMetadata:
    values: dict[str, Any] = {
        "batch_id": uuid4(), "domain": "shop", "name": None, "custom_data": None,
        "status": "IN_PROGRESS", "total_count": 10, "completed_count": 3, "failed_count": 1,
        "canceled_count": 2, "in_troubleshooting_count": 1, "created_at": START,
        "started_at": START, "completed_at": None,
    }  # fmt: skip
    return BatchMetadata(**(values | changes))


def commands(count: int) -> list[BatchCommand]:
    return [BatchCommand("Work", uuid4(), {"n": n}) for n in range(count)]


async def called_back(batch: BatchMetadata) -> None:
    raise AssertionError(batch)


class Bench:
    """Batches between stubs that remember what they were told."""

    def __init__(self, **settings: Any) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.created: list[dict[str, Any]] = []
        self.transaction: str | None = None
        self.error: Exception | None = None
        self.cancels = [2, 3, 0, 9]
        self.retries = [4, 0]
        self.found: BatchMetadata | None = a_batch()
        self.rows_found: list[Any] = []
        self.gateway = self
        self.batches = Batches(
            cast("Any", self),
            Preparer(Settings(**settings), RetryPolicy()),
            Settings(**settings),
            cast("Any", self),
        )

    # the store

    async def create_batch(self, batch: Any, prepared: Any, *, conn: Any) -> str | None:
        self.created.append({"batch": batch, "commands": prepared, "conn": conn})
        if self.error is not None:
            raise self.error
        return self.transaction

    async def get_batch(self, domain: str, batch_id: UUID) -> BatchMetadata | None:
        self.told.append(("get", domain, batch_id))
        return self.found

    async def list_batches(self, domain: str, **options: Any) -> list[BatchMetadata]:
        self.told.append(("list", domain, options))
        return [a_batch()]

    async def list_batch_commands(self, domain: str, batch_id: UUID, **options: Any) -> list[Any]:
        self.told.append(("commands", domain, batch_id, options))
        return ["a command"]

    async def rows(self, text: str, params: Any, *, into: Any = tuple, **_: Any) -> list[Any]:
        self.told.append(("rows", params))
        return self.rows_found

    async def cancel_batch(self, domain: str, batch_id: UUID, **options: Any) -> int:
        self.told.append(("cancel", domain, batch_id, options))
        return self.cancels.pop(0)

    async def retry_batch(self, domain: str, batch_id: UUID, *, actor: str | None) -> int:
        return self.retries.pop(0)

    # the completions

    announced = Completions.announced

    def register(self, domain: str, batch_id: UUID, callback: Any) -> None:
        self.told.append(("register", domain, batch_id))

    def forget(self, domain: str, batch_id: UUID) -> None:
        self.told.append(("forget", domain, batch_id))

    def rearm(self, domain: str, batch_id: UUID) -> None:
        self.told.append(("rearm", domain, batch_id))

    def depends_on(self, domain: str, batch_id: UUID, transaction: str) -> None:
        self.told.append(("depends", domain, batch_id, transaction))

    async def wait(self, domain: str, batch_id: UUID, timeout_seconds: float | None) -> Any:
        self.told.append(("wait", domain, batch_id, timeout_seconds))
        return self.found


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- how far it is


def test_progress_is_what_has_ended_its_rate_and_the_time_that_is_left() -> None:
    progress = progress_of(a_batch(), START + timedelta(seconds=12))
    assert (progress.total, progress.ended, progress.in_troubleshooting) == (10, 6, 1)
    assert (progress.per_second, progress.seconds_left, progress.fraction) == (0.5, 6.0, 0.6)
    assert progress.open == 3
    assert progress_of(a_batch(), START + timedelta(seconds=0.5)).per_second == 12.0


def test_the_rate_of_a_batch_that_has_ended_is_that_of_its_run() -> None:
    ended = a_batch(completed_count=8, failed_count=0, completed_at=START + timedelta(seconds=5))
    progress = progress_of(ended, START + timedelta(days=1))
    assert (progress.ended, progress.per_second) == (10, 2.0)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"completed_count": 0, "failed_count": 0, "canceled_count": 0}, 12),
        ({"started_at": None}, 12),
        ({}, 0),
    ],
)
def test_there_is_no_rate_before_something_has_ended(changes: Any, seconds: int) -> None:
    progress = progress_of(a_batch(**changes), START + timedelta(seconds=seconds))
    assert (progress.per_second, progress.seconds_left) == (None, None)


def test_the_rate_goes_by_the_clock_when_no_time_is_given() -> None:
    progress = progress_of(a_batch(started_at=datetime.now(UTC) - timedelta(seconds=60)))
    assert progress.per_second == pytest.approx(0.1, rel=0.1)


def test_a_batch_of_nothing_is_done_when_it_has_ended() -> None:
    counts = {"completed_count": 0, "failed_count": 0, "canceled_count": 0}
    empty = a_batch(total_count=0, **counts)
    assert progress_of(empty).fraction == 0.0
    ended = a_batch(total_count=0, **counts, completed_at=empty.created_at)
    assert progress_of(ended).fraction == 1.0


def test_a_batch_whose_total_still_grows_is_not_done() -> None:
    growing = a_batch(total_count=2, completed_count=2, failed_count=0, canceled_count=0)
    assert progress_of(growing).fraction == 0.99


# -- creating


async def test_a_batch_is_created_with_all_that_was_said_of_it(bench: Bench) -> None:
    options = BatchOptions(
        name="n" * 255, custom_data={"a": 1}, created_by="ann", max_attempts=7,
        on_complete=called_back, on_complete_command=BatchCommand("Report", uuid4(), {}),
    )  # fmt: skip
    conn = object()
    batch_id = await bench.batches.create("shop", commands(2), conn=conn, **options)
    (created,) = bench.created
    batch = created["batch"]
    assert (batch.batch_id, batch.domain, batch.name) == (batch_id, "shop", "n" * 255)
    assert (batch.custom_data, batch.created_by, batch.notifies) == (b'{"a":1}', "ann", True)
    assert b"Report" in batch.on_complete
    assert [command.max_attempts for command in created["commands"]] == [7, 7]
    assert created["conn"] is conn
    assert bench.told == [("register", "shop", batch_id)]


async def test_what_was_not_said_of_a_batch_is_not_there(bench: Bench) -> None:
    await bench.batches.create("shop", commands(1))
    batch = bench.created[0]["batch"]
    assert (batch.name, batch.custom_data, batch.created_by) == (None, None, None)
    assert (batch.on_complete, batch.notifies) == (None, False)
    assert bench.told == []


async def test_a_callback_is_forgotten_when_its_batch_is_not_created(bench: Bench) -> None:
    bench.error = RuntimeError("no")
    with pytest.raises(RuntimeError, match="no"):
        await bench.batches.create("shop", commands(1), on_complete=called_back)
    assert [word for word, *_ in bench.told] == ["register", "forget"]


async def test_a_batch_in_a_transaction_of_the_caller_depends_on_it(bench: Bench) -> None:
    bench.transaction = "42"
    batch_id = await bench.batches.create("shop", commands(1))
    assert bench.told == [("depends", "shop", batch_id, "42")]


async def test_the_creation_is_logged_with_its_figures(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times = [10.0, 10.0123456]
    clock = SimpleNamespace(perf_counter=lambda: times.pop(0))
    monkeypatch.setattr(batch_module, "time", clock)
    with caplog.at_level(logging.INFO, "commandbus.batches"):
        batch_id = await bench.batches.create("shop", commands(3))
    (record,) = caplog.records
    assert record.getMessage() == f"batch {batch_id} of 3 commands created (inline) in 12.3 ms"
    fields = vars(record)
    assert (fields["db_insert_ms"], fields["total_ms"]) == (12.346, 12.346)
    assert (fields["queue_send_ms"], fields["status_update_ms"]) == (0, 0)


async def test_a_batch_has_at_least_one_command_and_not_more_than_allowed() -> None:
    bench = Bench(max_batch_size=3)
    for count in (0, 4):
        with pytest.raises(InvalidInputError, match=r"at least one|4 commands are more .*\(3\)"):
            await bench.batches.create("shop", commands(count))
    for count in (1, 3):
        await bench.batches.create("shop", commands(count))
    assert [len(created["commands"]) for created in bench.created] == [1, 3]


async def test_the_domain_of_a_batch_is_looked_at_first(bench: Bench) -> None:
    with pytest.raises(InvalidNameError):
        await bench.batches.create("No Domain", [])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"name": "n" * 256}, "name must be plain text of at most 255"),
        ({"name": ""}, "name must be a text"),
        ({"created_by": ""}, "created_by must be a text"),
        ({"custom_data": {"a": object()}}, "custom_data.a is a object"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    bench: Bench, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidInputError, match=what):
        await bench.batches.create("shop", commands(1), **options)
    assert bench.created == []


async def test_an_option_that_a_batch_does_not_have_is_refused(bench: Bench) -> None:
    with pytest.raises(TypeError, match="no option nmae"):
        await bench.batches.create("shop", commands(1), nmae="x")  # type: ignore[call-arg]
    assert bench.created == []


# -- the other verbs

Verb = Callable[[Batches, str, Any], Awaitable[Any]]
VERBS: dict[str, Verb] = {
    "get": lambda batches, domain, batch: batches.get(domain, batch),
    "require": lambda batches, domain, batch: batches.require(domain, batch),
    "actions": lambda batches, domain, batch: batches.actions(domain, batch),
    "commands": lambda batches, domain, batch: batches.page_commands(domain, batch),
    "cancel": lambda batches, domain, batch: batches.cancel(domain, batch, "why", operator=None),
    "retry": lambda batches, domain, batch: batches.retry(domain, batch, operator=None),
    "wait": lambda batches, domain, batch: batches.wait(domain, batch, timeout=1),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_checks_its_domain_and_its_batch(bench: Bench, verb: str) -> None:
    with pytest.raises(InvalidNameError):
        await VERBS[verb](bench.batches, "No Domain", uuid4())
    with pytest.raises(InvalidCommandIdError, match="batch_id"):
        await VERBS[verb](bench.batches, "shop", "no uuid")
    assert bench.told == []


async def test_a_batch_is_found_by_the_text_of_its_id_too(bench: Bench) -> None:
    batch_id = uuid4()
    assert await bench.batches.get("shop", str(batch_id)) is bench.found  # type: ignore[arg-type]
    assert bench.told == [("get", "shop", batch_id)]


async def test_a_page_of_batches_is_checked_and_goes_on_where_it_ended(bench: Bench) -> None:
    bench.rows_found = [a_batch(created_at=START + timedelta(days=n)) for n in (3, 2, 1)]
    page = await bench.batches.page("shop", status=BatchStatus.COMPLETED, limit=2)
    assert page.items == bench.rows_found[:2]
    # One more than asked for tells whether there is a next page.
    assert bench.told == [("rows", ("shop", "COMPLETED", "COMPLETED", None, None, None, 3))]
    last = page.items[-1]
    page = await bench.batches.page(
        "shop", status=BatchStatus.COMPLETED, limit=3, cursor=page.next_cursor
    )
    assert bench.told[-1][1][3:] == (last.created_at, last.created_at, last.batch_id, 4)
    assert page.next_cursor is None
    refused: list[dict[str, Any]] = [
        {"status": "DONE"}, {"limit": 0}, {"limit": 10_001}, {"cursor": "x"},
    ]  # fmt: skip
    for options in refused:
        with pytest.raises(InvalidSettingError, match=r"no batch status 'DONE'; use|limit|cursor"):
            await bench.batches.page("shop", **options)
    with pytest.raises(InvalidNameError):
        await bench.batches.page("No Domain")


async def test_a_page_of_commands_is_checked_and_needs_its_batch(bench: Bench) -> None:
    refused: list[dict[str, Any]] = [{"status": "DONE"}, {"limit": 0}, {"cursor": "x"}]
    for options in refused:
        with pytest.raises(InvalidSettingError, match=r"no status 'DONE'; use|limit|cursor"):
            await bench.batches.page_commands("shop", uuid4(), **options)
    assert (await bench.batches.page_commands("shop", uuid4())).items == []
    bench.found = None
    with pytest.raises(BatchNotFoundError):
        await bench.batches.page_commands("shop", uuid4())


async def test_the_listings_of_the_specification_are_checked_and_asked_for(bench: Bench) -> None:
    bus, batch_id = CommandBus(store=cast("Any", bench)), uuid4()
    assert len(await bus.list_batches("shop", status="COMPLETED", limit=5, offset=2)) == 1
    await bus.list_batches("shop")
    found: Any = await bus.list_batch_commands("shop", batch_id, status="FAILED", limit=5)
    assert found == ["a command"]
    assert bench.told == [
        ("list", "shop", {"status": "COMPLETED", "limit": 5, "offset": 2}),
        ("list", "shop", {"status": None, "limit": 100, "offset": 0}),
        ("commands", "shop", batch_id, {"status": "FAILED", "limit": 5, "offset": 0}),
    ]
    refused: list[dict[str, Any]] = [{"status": "DONE"}, {"limit": 0}, {"offset": -1}]
    for options in refused:
        with pytest.raises(InvalidSettingError, match=r"no batch status|limit|offset"):
            await bus.list_batches("shop", **options)
        with pytest.raises(InvalidSettingError, match=r"no status|limit|offset"):
            await bus.list_batch_commands("shop", batch_id, **options)
    with pytest.raises(InvalidNameError):
        await bus.list_batches("No Domain")
    with pytest.raises(InvalidCommandIdError, match="batch_id"):
        await bus.list_batch_commands("shop", "no uuid")  # type: ignore[arg-type]


# -- what can be done with it


async def test_what_no_worker_has_can_be_canceled_and_what_failed_retried(bench: Bench) -> None:
    actions = await bench.batches.actions("shop", uuid4())
    assert (actions.in_progress, actions.cancelable, actions.retryable) == (1, 2, 2)
    actions.require_cancelable()
    actions.require_retryable()
    options = {"status": CommandStatus.IN_PROGRESS, "limit": 10_000, "offset": 0}
    assert bench.told[-1][3] == options


def test_a_batch_with_nothing_to_cancel_or_to_retry_says_why() -> None:
    with pytest.raises(InvalidOperationError, match=r"3 commands are being worked on, and 1 wait"):
        BatchActions(a_batch(), in_progress=3).require_cancelable()
    well = a_batch(
        status="COMPLETED", total_count=3, failed_count=0, canceled_count=0,
        in_troubleshooting_count=0,
    )  # fmt: skip
    BatchActions(well, in_progress=0).require_retryable()
    ended = BatchActions(dataclasses.replace(well, completed_at=START), in_progress=0)
    assert (ended.cancelable, ended.retryable) == (0, 0)
    with pytest.raises(InvalidOperationError, match=r"has ended \(COMPLETED\)"):
        ended.require_cancelable()
    with pytest.raises(InvalidOperationError, match="nothing of it failed"):
        ended.require_retryable()


def test_a_batch_waits_for_its_load_or_for_an_operator() -> None:
    def load(status: LoadStatus) -> Any:
        return SimpleNamespace(
            is_open=status in {LoadStatus.LOADING, LoadStatus.FAILED},
            has_failed=status is LoadStatus.FAILED,
        )

    parked = a_batch(completed_count=6)
    assert waits_for(a_batch()) is None
    assert waits_for(parked) is BatchWait.OPERATOR
    assert waits_for(parked, load(LoadStatus.LOADING)) is BatchWait.LOAD
    assert waits_for(parked, load(LoadStatus.FAILED)) is BatchWait.FAILED_LOAD
    assert waits_for(parked, load(LoadStatus.SEALED)) is BatchWait.OPERATOR
    ended = dataclasses.replace(parked, completed_at=START)
    assert waits_for(ended, load(LoadStatus.FAILED)) is None


# -- cancel, retry, wait


async def test_a_batch_is_cancelled_in_parts_until_nothing_is_left(bench: Bench) -> None:
    batch_id = uuid4()
    count = await bench.batches.cancel("shop", batch_id, "token=abc", operator="ann")
    assert count == 5
    options = {"reason": "token=[REDACTED]", "actor": "ann"}
    assert bench.told == [("cancel", "shop", batch_id, options)] * 3


async def test_a_callback_is_armed_again_only_if_something_was_sent_again(bench: Bench) -> None:
    batch_id = uuid4()
    assert await bench.batches.retry("shop", batch_id, operator="ann") == 4
    assert bench.told == [("rearm", "shop", batch_id)]
    assert await bench.batches.retry("shop", batch_id, operator="ann") == 0
    assert len(bench.told) == 1


async def test_only_a_batch_that_is_there_is_waited_for(bench: Bench) -> None:
    assert bench.found is not None
    batch_id = bench.found.batch_id
    assert await bench.batches.wait("shop", batch_id, timeout=7) is bench.found
    assert bench.told[-1] == ("wait", "shop", batch_id, 7)
    bench.found = None
    with pytest.raises(BatchNotFoundError):
        await bench.batches.wait("shop", batch_id, timeout=7)
