"""Collector: takes the results of commands from a broker, and ends the leases they are about.

Who signs decides whether a message is believed; the lease decides whether it still matters. Only
leases that a handover holds can be ended so: who has the key cannot reach commands that
workers of the bus are working on. The commit comes first, the acknowledgement second: a collector
that ends in between finds the result again, and the lease is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from commandbus.database.model import Outcome
from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    Fail,
    InvalidInputError,
    InvalidPayloadError,
    PermanentCommandError,
    TransientCommandError,
)
from commandbus.handover.carrier import Carrier, leases_out
from commandbus.handover.messages import Result, UntrustedMessageError, open_message, read_result
from commandbus.keys import Key
from commandbus.loops import Backoff, Loop
from commandbus.names import results_queue
from commandbus.outcomes import MAX_REASON, Discard, RetryAfter, Snooze
from commandbus.privacy.redaction import redact_text
from commandbus.transport import Transport, TransportMessage
from commandbus.worker.consumer import Consumer, LeasedCommand
from commandbus.worker.outcomes import command_of, parked

#: Results that are taken in one commit, and how long the broker lends them for it.
GROUP = 100
LENT_SECONDS = 30
#: First and longest wait between two looks into an empty queue, in seconds.
POLL_SECONDS = (0.05, 1.0)


class Collector(Loop):
    """Takes the results of one domain until stopped."""

    name = "results"

    def __init__(
        self, consumer: Consumer, queue: Transport, keys: Sequence[Key], carrier: Carrier
    ) -> None:
        super().__init__()
        self._consumer = consumer
        self._queue = queue
        self._keys = keys
        self._carrier = carrier
        self._polls = Backoff(*POLL_SECONDS)
        #: Results whose lease was over, and messages that nobody with the key has made.
        self.late = 0
        self.untrusted = 0

    async def step(self) -> float | None:
        """Take one group."""
        place = results_queue(self._consumer.domain)
        messages = await self._queue.receive(place, quantity=GROUP, lease_seconds=LENT_SECONDS)
        self._carrier.note_answer()
        if not messages:
            return self._polls.next()
        self._polls.reset()
        results, strange = self._sorted(messages)
        await self._take(results)
        known = [message for message in messages if message not in strange]
        if known:
            await self._queue.acknowledge(place, known)
        if strange:
            await self._queue.set_aside(place, strange)
        return None

    def _sorted(
        self, messages: Sequence[TransportMessage]
    ) -> tuple[list[Result], list[TransportMessage]]:
        results, strange = [], []
        for message in messages:
            try:
                body = open_message(message.text, "result", self._consumer.domain, self._keys)
                results.append(read_result(body))
            except UntrustedMessageError as error:
                strange.append(message)
                self._log.warning(
                    "a message in the queue %s of %s was set aside there: %s (%d since the start)",
                    results_queue(self._consumer.domain), self._queue.name, error,
                    self.untrusted + len(strange),
                )  # fmt: skip
        self.untrusted += len(strange)
        return results, strange

    async def _take(self, results: Sequence[Result]) -> None:
        domain, consumer = self._consumer.domain, self._consumer
        named = {(result.command_id, result.lease): None for result in results}
        held = await leases_out(consumer.store, domain, [*named])
        leased: dict[tuple[UUID, int], LeasedCommand] = {}
        outcomes: dict[UUID, Outcome] = {}
        for lease in held:
            try:
                leased[lease.command_id, lease.lease_epoch] = LeasedCommand(
                    command_of(lease), lease, consumer
                )
            except InvalidPayloadError as error:
                outcomes[lease.command_id] = parked(lease, "PAYLOAD_UNDECODABLE", str(error))
        for result in results:
            found = leased.get((result.command_id, result.lease))
            if result.command_id in outcomes:
                continue  # the first one counts
            if found is None:
                self.late += 1
                self._log.info(
                    "a result of command %s, lease %d, came too late; nothing was changed",
                    result.command_id, result.lease,
                )  # fmt: skip
            elif result.outcome == "alive":
                await self._note_life(found, result)
            else:
                outcomes[result.command_id] = await self._outcome(found, result)
        if outcomes:
            await self._settle([*outcomes.values()])
        self._carrier.forget(
            [(each.command_id, each.lease) for each in results if each.outcome != "alive"]
        )

    async def _settle(self, outcomes: Sequence[Outcome]) -> None:
        """In one commit; one by one if the database refuses that, because of one of them."""
        store, domain = self._consumer.store, self._consumer.domain
        try:
            self.late += len(await store.settle(domain, outcomes))
        except DatabaseUnavailableError:
            raise  # all of them come again
        except CommandBusError as error:
            if len(outcomes) > 1:
                for outcome in outcomes:
                    await self._settle([outcome])
                return
            (outcome,) = outcomes
            said = f"the database refuses the result: {error}"
            try:
                await store.settle(domain, [parked(outcome.lease, "RESULT_INVALID", said)])
            except DatabaseUnavailableError:
                raise
            except CommandBusError as again:
                # Nothing of it was written. The lease lapses, and the command is given away again.
                self._log.error(
                    "the result of command %s could not be recorded: %s",
                    outcome.lease.command_id, redact_text(str(again)),
                )  # fmt: skip

    async def _note_life(self, leased: LeasedCommand, result: Result) -> None:
        consumer = self._consumer
        await consumer.store.extend(consumer.domain, [leased.lease], consumer.vt_seconds)
        if result.progress is not None:
            try:
                await consumer.record_progress(leased, float(result.progress), result.message)
            except DatabaseUnavailableError:
                raise
            except CommandBusError as error:
                self._log.warning(
                    "the progress of command %s was not recorded: %s",
                    result.command_id, redact_text(str(error)),
                )  # fmt: skip

    async def _outcome(self, leased: LeasedCommand, result: Result) -> Outcome:
        if result.outcome == "completed":
            try:
                return self._consumer.completion(leased, result.result)
            except InvalidPayloadError as error:
                return await self._consumer.failed(
                    leased, PermanentCommandError("RESULT_INVALID", str(error))
                )
        return await self._consumer.failed(leased, _error_of(result))


def _error_of(result: Result) -> Exception:
    """What a handler would have raised to say the same."""
    if result.problem is not None:
        return PermanentCommandError("RESULT_INVALID", f"the result from outside: {result.problem}")
    code = result.code or "OUTSIDE_FAILED"
    message = result.message or "the worker outside said no more"
    seconds = result.delay_seconds
    try:
        if result.outcome == "discard":
            return Discard(message[:MAX_REASON])
        if result.outcome == "snooze":
            return Snooze(0 if seconds is None else seconds, message[:MAX_REASON])
        if result.outcome == "retry" and seconds is not None:
            return RetryAfter(seconds, code, message, result.details)
    except InvalidInputError as error:
        return PermanentCommandError("RESULT_INVALID", f"the result from outside: {error}")
    kinds = {"park": PermanentCommandError, "fail": Fail}
    kind = kinds.get(result.outcome, TransientCommandError)
    return kind(code, message, result.details)
