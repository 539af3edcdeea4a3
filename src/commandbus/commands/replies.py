"""Replies: wait for one, or consume a queue of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from commandbus.database.store import Listener, Store
from commandbus.errors import InvalidOperationError, InvalidPayloadError, ReplyTimeoutError
from commandbus.loops import Backoff
from commandbus.models import Reply, ReplyError, ReplyOutcome
from commandbus.names import check_domain, inbox_channel, replies_queue
from commandbus.settings import check_number
from commandbus.store.serving import ServingStore

#: First and longest wait between two looks for a reply, in seconds.
POLL_SECONDS = (0.005, 0.5)

_log = logging.getLogger("commandbus.replies")


def parse_reply(body: str) -> Reply:
    """Read the body of document 004 §7.2."""
    try:
        raw: dict[str, Any] = orjson.loads(body)
        error = raw.get("error")
        return Reply(
            command_id=UUID(raw["command_id"]),
            correlation_id=UUID(raw["correlation_id"]),
            domain=raw["domain"],
            type=raw["type"],
            outcome=ReplyOutcome(raw["outcome"]),
            completed_at=datetime.fromisoformat(raw["completed_at"]),
            data=raw.get("data"),
            error=error and ReplyError(error.get("code"), error.get("message"), error.get("class")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidPayloadError(
            f"a message on the reply queue is no reply ({type(error).__name__})"
        ) from error


class Replies:
    """The receiving end of replies."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listener: Listener | None = None
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, domain: str, command_id: UUID, timeout_seconds: float) -> Reply:
        """Wait for the reply to a command that was sent with reply_to=INBOX."""
        woken = asyncio.Event()
        channel = inbox_channel(domain)
        listener = self.listener()
        listener.subscribe(channel, woken.set)
        polls = Backoff(*POLL_SECONDS)
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    body = await self._store.take_inbox_reply(domain, command_id)
                    if body is not None:
                        return parse_reply(body)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), polls.next())
                    woken.clear()
        except TimeoutError:
            raise ReplyTimeoutError(
                f"no reply to {command_id} within {timeout_seconds:g} s; the command goes on, "
                f"look at it with `commandbus show {command_id}`"
            ) from None
        finally:
            listener.unsubscribe(channel, woken.set)

    async def stream(
        self, queue: str, *, vt_seconds: int, batch_size: int, wait: bool
    ) -> AsyncGenerator[Reply]:
        """Yield replies; each counts as consumed when the next one is asked for.

        Acknowledged in groups. If the consumer fails, what it was given last (after a crash: the
        last group) comes again after `vt_seconds`: a consumer must be ready to see a reply twice,
        and knows it by its command_id. A message that is no reply is skipped and left in the
        queue, for a person to look at.
        """
        polls = Backoff(*POLL_SECONDS)
        while True:
            found = await self._store.read_replies(
                queue, vt_seconds=vt_seconds, quantity=batch_size
            )
            consumed: list[int] = []
            try:
                for item in found:
                    try:
                        reply = parse_reply(item.body)
                    except InvalidPayloadError as error:
                        _log.warning("message %d of %s is skipped: %s", item.msg_id, queue, error)
                        continue
                    yield reply
                    consumed.append(item.msg_id)
            finally:
                if consumed:
                    await self._store.delete_replies(queue, consumed)
            if found:
                polls.reset()
            elif not wait:
                return
            else:
                await asyncio.sleep(polls.next())

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            with suppress(asyncio.CancelledError):
                await self._listening
            self._listening = self._listener = None

    def listener(self) -> Listener:
        """The one listening connection of a bus, opened when it is first needed."""
        if self._listener is None:
            self._listener = self._store.listener()
            self._listening = asyncio.get_running_loop().create_task(self._listener.run())
        return self._listener


@dataclass(frozen=True, slots=True)
class HeldReply:
    """A reply that is the caller's for a while; (msg_id, receipt) acknowledges it."""

    msg_id: int
    receipt: int
    reply: Reply


class ReplyVerbs:
    """Part of CommandBus: replies for consumers in other processes, that acknowledge by name."""

    _store: Store

    async def lease_replies(
        self, domain: str, *, limit: int = 100, vt_seconds: int = 30
    ) -> list[HeldReply]:
        """Replies of a domain, nobody else's for `vt_seconds`; unacknowledged they come again."""
        check_number(vt_seconds, "vt_seconds", 1, 43_200, is_whole=True)
        check_number(limit, "limit", 1, 10_000, is_whole=True)
        queue = replies_queue(check_domain(domain))
        found = await self._serving.lease_replies(queue, vt_seconds=vt_seconds, quantity=limit)
        held: list[HeldReply] = []
        for item in found:
            try:
                held.append(HeldReply(item.msg_id, item.receipt, parse_reply(item.body)))
            except InvalidPayloadError as error:
                _log.warning("message %d of %s is skipped: %s", item.msg_id, queue, error)
        return held

    async def acknowledge_replies(self, domain: str, receipts: Mapping[int, int]) -> set[int]:
        """Done with these, by msg_id and receipt; returns those that were the caller's still.

        One whose lease lapsed and that somebody else has read since is left to them.
        """
        return await self._serving.acknowledge_replies(
            replies_queue(check_domain(domain)), receipts
        )

    @property
    def _serving(self) -> ServingStore:
        if not isinstance(self._store, ServingStore):
            raise InvalidOperationError(
                "the in-memory store gives no receipts; use `replies`, or the embedded server"
            )
        return self._store
