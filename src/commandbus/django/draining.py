"""A worker inside a test: in its thread, on its connection, in its transaction."""

from __future__ import annotations

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
from commandbus.errors import HandlerError, HandlerNotFoundError, InvalidPayloadError
from commandbus.handler import HandlerEntry
from commandbus.middleware.base import Call
from commandbus.wiring import finish
from commandbus.worker.outcomes import command_of, completed, failed, parked
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


class _Run:
    """What a context asks of the run that it belongs to."""

    must_stop = False
    is_canceled = False
    call: Call | None = None

    def say(self, fraction: float, message: str | None) -> None:
        """Progress is for those who look on."""

    def wait_for(self, begin: Any) -> None:
        """What a handler in a thread asks the event loop for: here it happens at once."""
        finish(begin())


class Drainer:
    """Runs due commands to their end."""

    def __init__(self, bus: CommandBus, timeout: float) -> None:
        self._bus = bus
        self._ends_at = time.monotonic() + timeout
        self._timeout = timeout
        self._runs: dict[UUID, int] = {}
        self._alias = configuration().database

    def run(self, domains: Iterable[str]) -> list[Drained]:
        """Until nothing is left in any of the domains: handlers may send to each other."""
        done: list[Drained] = []
        wanted = list(dict.fromkeys(domains))
        for domain in wanted:
            finish(self._bus._store.ensure_domain(domain))
        while True:
            before = len(done)
            for domain in wanted:
                done += [self._execute(lease) for lease in self._receive(domain)]
            # Time is skipped last: what is due comes before what waits.
            if len(done) == before:
                waited = [self._make_due(each) for each in wanted]
                if not any(waited):
                    return done

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

    def _execute(self, lease: Lease) -> Drained:
        self._check(lease)
        result, error = None, None
        try:
            entry = self._bus._registry.get(lease.domain, lease.command_type)
            context = self._context(lease)
            payloads[lease.command_id] = context.command.data.copy()
        except HandlerNotFoundError as missing:
            outcome = parked(lease, "HANDLER_NOT_FOUND", str(missing))
        except InvalidPayloadError as invalid:
            outcome = parked(lease, "PAYLOAD_UNDECODABLE", str(invalid))
        else:
            outcome, result, error = self._attempt(lease, entry, context)
        if outcome.kind is not OutcomeKind.COMPLETE:
            self._settle(outcome)
        name = _NAMES[outcome.kind]
        return Drained(lease.domain, lease.command_type, lease.command_id, name, result, error)

    def _attempt(
        self, lease: Lease, entry: HandlerEntry, context: ThreadContext
    ) -> tuple[Outcome, Any, BaseException | None]:
        policy = self._bus._policy
        try:
            with self._transaction(entry):
                result = _raised(self._call(entry, context))
                outcome = completed(
                    lease, result, context.sends, max_bytes=self._bus._settings.max_payload_bytes
                )
                if outcome.kind is OutcomeKind.COMPLETE:
                    self._settle(outcome)
        except Exception as error:  # noqa: BLE001  (whatever a handler raises)
            return failed(lease, entry, error, policy), None, error
        return outcome, result, None

    def _call(self, entry: HandlerEntry, context: ThreadContext) -> Any:
        if entry.is_async:
            return async_to_sync(entry.handler)(context.command, context)
        return entry.handler(context.command, context)

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

    def _context(self, lease: Lease) -> ThreadContext:
        async def extend(_: Lease, __: float) -> None:
            """A lease of a test lasts."""

        return ThreadContext(
            command_of(lease), lease, extend, self._bus._preparer.command, None, _Run(),
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


def _raised(result: Any) -> Any:
    if isinstance(result, HandlerError):  # the same as if it had been raised
        raise result
    return result


def _is_sound(wrapper: Any) -> bool:
    """Whether the transaction takes more statements; the driver names its state."""
    return bool(wrapper.connection.info.transaction_status.name == "INTRANS")
