"""Replies: wait for one, or consume a queue of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from commandbus.errors import InvalidPayloadError, ReplyTimeoutError
from commandbus.loops import Backoff
from commandbus.models import Reply, ReplyError, ReplyOutcome
from commandbus.naming import inbox_channel
from commandbus.store.base import Listener, Store

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
