"""A worker inside a test: in its thread, on its connection, in its transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db import connections, transaction

from commandbus.bus import CommandBus
from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.django.conf import configuration
from commandbus.django.handling import Attempt, Handling, InTest, at_once, in_thread_of_test
from commandbus.errors import HandlerError, HandlerNotFoundError, InvalidPayloadError
from commandbus.handler import HandlerEntry
from commandbus.wiring import finish
from commandbus.worker.outcomes import call_outcome, command_of, completed, failed, parked
from commandbus.worker.transactions import ThreadContext

#: Commands that are leased at once, and runs of one command before it is taken to go on for ever.
QUANTITY, MAX_RUNS = 100, 100
#: Long enough for somebody who looks around in a debugger.
LEASE_SECONDS = 3_600
WORKER = "drain"

#: What was run, by command: the payload of a completed command is not kept.
payloads: dict[UUID, dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Drained:
    """One attempt at a command, and how it ended: completed, retried, parked, failed, snoozed, …"""

    domain: str
    command_type: str
    command_id: UUID
    outcome: str
    result: Any = None
    error: BaseException | None = None


_NAMES = {
    OutcomeKind.COMPLETE: "completed", OutcomeKind.RETRY: "retried", OutcomeKind.PARK: "parked",
    OutcomeKind.FAIL: "failed", OutcomeKind.RELEASE: "released", OutcomeKind.SNOOZE: "snoozed",
    OutcomeKind.DISCARD: "discarded",
}  # fmt: skip


class Drainer:
    """Runs due commands to their end."""

    def __init__(self, bus: CommandBus, timeout: float) -> None:
        self._bus = bus
        self._ends_at = time.monotonic() + timeout
        self._timeout = timeout
        self._runs: dict[UUID, int] = {}
        self._alias = configuration().database
        self._in_test: InTest = in_thread_of_test

    def run(self, domains: Iterable[str]) -> list[Drained]:
        """Until nothing is left in any of the domains: handlers may send to each other."""
        wanted = list(dict.fromkeys(domains))
        if _runs_a_loop():  # one of a browser's driver, say: there can be no second one
            self._in_test = at_once
            return finish(self._run(wanted))
        return async_to_sync(self._run)(wanted)

    async def _run(self, wanted: list[str]) -> list[Drained]:
        done: list[Drained] = []
        in_test = self._in_test
        await in_test(self._ensure, wanted)
        async with Handling(self._bus._registry, in_test) as handling:
            while True:
                before = len(done)
                for domain in wanted:
                    leases = await in_test(self._receive, domain)
                    done += [await self._execute(lease, handling) for lease in leases]
                # Time is skipped last: what is due comes before what waits.
                if len(done) == before and not await in_test(self._skip_waits, wanted):
                    return done

    def _ensure(self, domains: Iterable[str]) -> None:
        for domain in domains:
            finish(self._bus._store.ensure_domain(domain))

    def _skip_waits(self, domains: Iterable[str]) -> bool:
        waited = [self._make_due(each) for each in domains]
        return any(waited)

    def _receive(self, domain: str) -> list[Lease]:
        registry = self._bus._registry
        return finish(
            self._bus._store.receive(
                domain, vt_seconds=LEASE_SECONDS, quantity=QUANTITY, worker=WORKER,
                limits=registry.limits(domain),
            )
        )  # fmt: skip

    def _make_due(self, domain: str) -> bool:
        """Skip the time that commands wait for; False if none does."""
        from commandbus.django.models import Command

        waiting = list(
            Command.objects.using(self._alias)
            .filter(domain=domain, status="PENDING", leased_by=None)
            .values_list("command_id", flat=True)[:10_000]
        )
        if waiting:
            with transaction.atomic(using=self._alias):
                finish(
                    self._bus._store.reschedule(
                        domain, waiting, deliver_at=None, delay_seconds=0, actor=WORKER
                    )
                )
        return bool(waiting)

    async def _execute(self, lease: Lease, handling: Handling) -> Drained:
        self._check(lease)
        result, error, attempt = None, None, Attempt()
        try:
            entry = self._bus._registry.get(lease.domain, lease.command_type)
            context = self._context(lease, attempt)
            payloads[lease.command_id] = context.command.data.copy()
        except HandlerNotFoundError as missing:
            outcome = parked(lease, "HANDLER_NOT_FOUND", str(missing))
        except InvalidPayloadError as invalid:
            outcome = parked(lease, "PAYLOAD_UNDECODABLE", str(invalid))
        else:
            outcome, result, error = await self._attempt(entry, context, attempt, handling)
        if outcome.kind is not OutcomeKind.COMPLETE:
            await self._in_test(self._settle, outcome)
        attempt.tell(call_outcome(outcome))
        name = _NAMES[outcome.kind]
        return Drained(lease.domain, lease.command_type, lease.command_id, name, result, error)

    async def _attempt(
        self, entry: HandlerEntry, context: ThreadContext, attempt: Attempt, handling: Handling
    ) -> tuple[Outcome, Any, BaseException | None]:
        savepoint = self._transaction(entry)
        try:
            await self._in_test(savepoint.__enter__)
            try:
                result = _raised(await handling.run(entry, context, attempt))
                outcome = self._completed(context, result)
                if outcome.kind is OutcomeKind.COMPLETE:
                    await self._in_test(self._settle, outcome)
            except BaseException as error:
                await self._in_test(savepoint.__exit__, type(error), error, error.__traceback__)
                raise
            await self._in_test(savepoint.__exit__, None, None, None)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (a handler raises it)
            return failed(context.lease, entry, error, self._bus._policy), None, error
        return outcome, result, None

    def _completed(self, context: ThreadContext, result: Any) -> Outcome:
        most = self._bus._settings.max_payload_bytes
        outcome = completed(context.lease, result, context.sends, max_bytes=most)
        if context.reply_meta is not None:
            outcome.meta = context.reply_meta  # nobody else has it yet
        return outcome

    @contextmanager
    def _transaction(self, entry: HandlerEntry) -> Iterator[None]:
        """A savepoint, and afterwards the hooks of `on_commit`, as after a commit.

        Of a handler that is not transactional what it wrote before an error stays, as outside of
        tests, unless it was the database that refused it.
        """
        wrapper = connections[self._alias]
        first = len(wrapper.run_on_commit)
        kept: Exception | None = None
        with transaction.atomic(using=self._alias):
            try:
                yield
            except Exception as error:
                is_broken = wrapper.needs_rollback or not _is_sound(wrapper)
                if entry.is_transactional or is_broken:
                    raise
                kept = error
        hooks = wrapper.run_on_commit[first:]
        del wrapper.run_on_commit[first:]
        for _, hook, *_ in hooks:
            hook()
        if kept is not None:
            raise kept

    def _settle(self, outcome: Outcome) -> None:
        with transaction.atomic(using=self._alias):
            finish(self._bus._store.settle(outcome.lease.domain, [outcome]))

    def _context(self, lease: Lease, attempt: Attempt) -> ThreadContext:
        async def extend(_: Lease, __: float) -> None:
            """A lease of a test lasts."""

        return ThreadContext(
            command_of(lease), lease, extend, self._bus._preparer.command, None, attempt,
            transact=cast("Any", _Here(self._alias)),
        )  # fmt: skip

    def _check(self, lease: Lease) -> None:
        count = self._runs[lease.command_id] = self._runs.get(lease.command_id, 0) + 1
        if count > MAX_RUNS or time.monotonic() > self._ends_at:
            why = f"was run {count} times" if count > MAX_RUNS else "is not the last"
            raise AssertionError(
                f"drain did not come to an end in {self._timeout:g} s: {lease.command_type} of "
                f"{lease.domain} {why}; does its handler send itself, or snooze, without end?"
            )


class _Here:
    """In place of the transaction of a handler thread: that of the test."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def __call__(self, handler: Any, ctx: ThreadContext) -> Any:
        ctx.join(connections[self._alias])
        try:
            return handler(ctx.command, ctx)
        finally:
            ctx.join(None)


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _raised(result: Any) -> Any:
    if isinstance(result, HandlerError):  # the same as if it had been raised
        raise result
    return result


def _is_sound(wrapper: Any) -> bool:
    """Whether the transaction takes more statements; the driver names its state."""
    return bool(wrapper.connection.info.transaction_status.name == "INTRANS")
