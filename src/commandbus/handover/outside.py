"""OutsideWorker: the other end of a handover, in Python. It needs a broker and the key, nothing more.

It may get a command more than once: brokers deliver twice, and a lease may lapse while it works. The
bus takes one result for each command; what a handler does elsewhere must bear a repetition, for
example by the command id.
"""  # noqa: E501

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from commandbus.errors import (
    Fail,
    HandlerError,
    PermanentCommandError,
)
from commandbus.handover.messages import (
    OutsideCommand,
    UntrustedMessageError,
    check_keys,
    open_message,
    read_command,
    sign,
)
from commandbus.loops import Backoff, Loop
from commandbus.names import check_domain, handover_queue, results_queue
from commandbus.outcomes import Discard, RetryAfter, Snooze
from commandbus.settings import check_number
from commandbus.transport import BrokerError, Transport, TransportMessage

#: A command whose lease ended longer ago, in seconds, is not begun: its result would be refused.
#: Not less, because the clocks of two machines differ.
CLOCK_SLACK_SECONDS = 60
#: How many commands that are done, or being done, are remembered.
KNOWN_COMMANDS = 10_000
#: First and longest wait between two looks into an empty queue, in seconds.
POLL_SECONDS = (0.05, 1.0)

Handler = Callable[[OutsideCommand], Awaitable[Any]]


class OutsideWorker(Loop):
    """Does the commands of a domain: `OutsideWorker("billing", handle, queue, keys=key).run()`.

    What the handler returns is the result. It raises TransientCommandError or any other error for
    another attempt, PermanentCommandError for troubleshooting, or Fail, Discard, Snooze,
    RetryAfter as handlers of a bus do.
    """

    name = "outside"

    def __init__(
        self, domain: str, handler: Handler, queue: Transport, *, keys: bytes | Sequence[bytes],
        concurrency: int = 10, lease_seconds: int = 300,
    ) -> None:  # fmt: skip
        super().__init__()
        check_number(concurrency, "concurrency", 1, 10_000, is_whole=True)
        check_number(lease_seconds, "lease_seconds", 1, 43_200, is_whole=True)
        self._domain = check_domain(domain)
        self._handler = handler
        self._queue = queue
        self._keys = check_keys(keys)
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._polls = Backoff(*POLL_SECONDS)
        self._running: set[asyncio.Task[None]] = set()
        #: Commands that are being done, and those that were done lately, by command and lease: a
        #: broker may deliver them again, also while they are being done.
        self._known: dict[tuple[UUID, int], bool] = {}
        #: Commands that were done, and those that were not begun because their lease was over.
        self.done = 0
        self.outdated = 0

    async def run(self, after: float = 0.0) -> None:
        """Do commands until stopped; what runs then may finish."""
        try:
            await super().run(after)
            if self._running:
                await asyncio.wait(self._running)
        finally:
            for each in self._running:
                each.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def step(self) -> float | None:
        """Begin as many as there is room for."""
        free = self._concurrency - len(self._running)
        if free < 1:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            return None
        place = handover_queue(self._domain)
        found = await self._queue.receive(place, quantity=free, lease_seconds=self._lease_seconds)
        if not found:
            return self._polls.next()
        self._polls.reset()
        for message in found:
            try:
                body = open_message(message.text, "command", self._domain, self._keys)
                command = read_command(body)
            except UntrustedMessageError as error:
                self._log.warning("a message of %s was set aside: %s", self._queue.name, error)
                await self._queue.set_aside(place, [message])
                continue
            doing = asyncio.create_task(self._do(command, message))
            self._running.add(doing)
            doing.add_done_callback(self._running.discard)
        return None

    async def report_progress(
        self, command: OutsideCommand, fraction: float, message: str | None = None
    ) -> None:
        """Say that it is still being done, and how far it is; the lease begins anew."""
        check_number(fraction, "fraction", 0, 1)
        await self._say(command, {"outcome": "alive", "progress": fraction, "message": message})

    async def _do(self, command: OutsideCommand, message: TransportMessage) -> None:
        key = (command.command_id, command.lease)
        if key in self._known:
            # A copy. Its broker need not bring another one: what is done says so itself, and what
            # is lost comes again under the next lease.
            await self._acknowledge(message)
            return
        if command.lease_ends_at + timedelta(seconds=CLOCK_SLACK_SECONDS) < datetime.now(UTC):
            self.outdated += 1
            self._log.warning(
                "command %s was not begun: its lease ended at %s; if that is not over, the clock "
                "of this machine is wrong", command.command_id, command.lease_ends_at.isoformat(),
            )  # fmt: skip
        else:
            self._known[key] = False
            try:
                said = await self._handle(command)
                await self._say(command, said)
            except BrokerError as error:
                # The command comes again, from the broker or under the next lease.
                self._log.warning("a result of command %s was lost: %s", command.command_id, error)
                return
            else:
                self._note_done(key)
            finally:
                if not self._known.get(key):
                    self._known.pop(key, None)
            self.done += 1
        await self._acknowledge(message)

    def _note_done(self, key: tuple[UUID, int]) -> None:
        del self._known[key]
        self._known[key] = True  # to the end: the oldest are forgotten first
        if len(self._known) > KNOWN_COMMANDS:
            oldest = next((each for each, is_done in self._known.items() if is_done), key)
            del self._known[oldest]

    async def _acknowledge(self, message: TransportMessage) -> None:
        try:
            await self._queue.acknowledge(handover_queue(self._domain), [message])
        except BrokerError as error:
            self._log.warning("a command may come again: %s", error)

    async def _handle(self, command: OutsideCommand) -> dict[str, Any]:
        try:
            return {"outcome": "completed", "result": await self._handler(command)}
        except Discard as error:
            return {"outcome": "discard", "message": error.reason}
        except Snooze as error:
            wait = {"outcome": "snooze", "delay_seconds": error.seconds}
            return wait if error.reason is None else {**wait, "message": error.reason}
        except RetryAfter as error:
            return {"outcome": "retry", "delay_seconds": error.seconds, "error": _error(error)}
        except Fail as error:
            return {"outcome": "fail", "error": _error(error)}
        except PermanentCommandError as error:
            return {"outcome": "park", "error": _error(error)}
        except Exception as error:  # noqa: BLE001  (a handler may raise anything)
            return {"outcome": "retry", "error": _error(error)}

    async def _say(self, command: OutsideCommand, said: dict[str, Any]) -> None:
        head = {
            "kind": "result", "domain": command.domain, "command_id": str(command.command_id),
            "lease": command.lease,
        }  # fmt: skip
        try:
            text = sign({**head, **said}, self._keys[0])
        except (TypeError, ValueError) as error:
            problem = PermanentCommandError("RESULT_INVALID", f"no JSON: {type(error).__name__}")
            text = sign({**head, "outcome": "park", "error": _error(problem)}, self._keys[0])
        await self._queue.publish(results_queue(self._domain), [text])


def _error(error: Exception) -> dict[str, Any]:
    if isinstance(error, HandlerError):
        return {"code": error.code, "message": error.message, "details": error.details}
    return {"code": type(error).__name__, "message": str(error), "details": None}
