"""Replies: wait for one, or consume a queue of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

import orjson

from commandbus.database.store import Listener, Store
from commandbus.errors import InvalidPayloadError, InvalidSettingError, ReplyTimeoutError
from commandbus.loops import Backoff
from commandbus.meta import decode_meta
from commandbus.models import Reply, ReplyError, ReplyOutcome
from commandbus.names import check_domain, check_reply_to, check_uuid, inbox_channel, replies_queue
from commandbus.settings import check_number, check_timeout

#: First and longest wait between two looks for a reply, in seconds.
POLL_SECONDS = (0.005, 0.5)

_log = logging.getLogger("commandbus.replies")

_LEASE_REPLIES: LiteralString = (
    "select msg_id, receipt, body from {schema}.lease_replies(%s, %s, %s)"
)
_ACKNOWLEDGE_REPLIES: LiteralString = (
    "select * from {schema}.acknowledge_replies(%s, cast(%s as bigint[]), cast(%s as bigint[]))"
)


@dataclass(frozen=True, slots=True)
class LeasedReply:
    """A reply that no other consumer gets for a while; (msg_id, receipt) acknowledges it."""

    msg_id: int
    receipt: int
    reply: Reply


def parse_reply(body: str) -> Reply:
    """Read the body of a reply as the specification prints it."""
    try:
        raw: dict[str, Any] = orjson.loads(body)
        error = raw.get("error")
        return Reply(
            command_id=UUID(raw["command_id"]),
            correlation_id=UUID(raw["correlation_id"]),
            domain=_text(raw["domain"]),
            type=_text(raw["type"]),
            outcome=ReplyOutcome(raw["outcome"]),
            completed_at=datetime.fromisoformat(raw["completed_at"]),
            data=raw.get("data"),
            error=error and ReplyError(error.get("code"), error.get("message"), error.get("class")),
            meta=decode_meta(raw.get("meta")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidPayloadError(
            f"a message on the reply queue is no reply ({type(error).__name__})"
        ) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


class Replies:
    """The receiving end of replies."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listener: Listener | None = None
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, domain: str, command_id: UUID, timeout_seconds: float) -> Reply:
        """Wait for the reply to a command that was sent with reply_to=INBOX."""
        check_domain(domain)
        check_uuid(command_id)
        check_timeout(timeout_seconds)
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

    def stream(
        self, domain: str | None, queue: str | None, vt_seconds: int, batch_size: int, *, wait: bool
    ) -> AsyncGenerator[Reply]:
        """The replies of a domain, or of the queue with this name."""
        if (domain is None) == (queue is None):
            raise InvalidSettingError("give either a domain or the name of a reply queue")
        check_number(vt_seconds, "vt_seconds", 1, 43_200, is_whole=True)
        check_number(batch_size, "batch_size", 1, 10_000, is_whole=True)
        name = check_reply_to(queue) if domain is None else replies_queue(check_domain(domain))
        return self._stream(name, vt_seconds, batch_size, wait=wait)

    async def _stream(
        self, queue: str, vt_seconds: int, batch_size: int, *, wait: bool
    ) -> AsyncGenerator[Reply]:
        """Yield replies; each counts as consumed when the next one is asked for.

        Acknowledged in groups. If the consumer fails, what it was given last (after a crash: the
        last group) comes again after `vt_seconds`: a consumer must be ready to see a reply twice,
        and knows it by its command_id. A message that is no reply is archived.
        """
        polls = Backoff(*POLL_SECONDS)
        while True:
            found = await self._store.read_replies(
                queue, vt_seconds=vt_seconds, quantity=batch_size
            )
            replies = await self._parse(queue, {item.msg_id: item.body for item in found})
            consumed: list[int] = []
            try:
                for msg_id, reply in replies.items():
                    yield reply
                    consumed.append(msg_id)
            finally:
                if consumed:
                    await self._store.delete_replies(queue, consumed)
            if found:
                polls.reset()
            elif not wait:
                return
            else:
                await asyncio.sleep(polls.next())

    async def lease(self, domain: str, *, limit: int, vt_seconds: int) -> list[LeasedReply]:
        """Replies of a domain; no other consumer gets them for `vt_seconds`. Needs PostgreSQL."""
        check_number(vt_seconds, "vt_seconds", 1, 43_200, is_whole=True)
        check_number(limit, "limit", 1, 10_000, is_whole=True)
        queue = replies_queue(check_domain(domain))
        rows = await self._store.gateway.rows(_LEASE_REPLIES, (queue, vt_seconds, limit))
        replies = await self._parse(queue, {msg_id: body for msg_id, _, body in rows})
        return [
            LeasedReply(msg_id, receipt, replies[msg_id])
            for msg_id, receipt, _ in rows
            if msg_id in replies
        ]

    async def _parse(self, queue: str, bodies: Mapping[int, str]) -> dict[int, Reply]:
        """The replies among these messages; the others are archived, or they would come again."""
        replies: dict[int, Reply] = {}
        for msg_id, body in bodies.items():
            with suppress(InvalidPayloadError):
                replies[msg_id] = parse_reply(body)
        refused = sorted(bodies.keys() - replies.keys())
        if refused:
            await self._store.archive_replies(queue, refused)
            _log.warning(
                "%d messages of %s are no replies and were moved to the archive of the queue: "
                "msg_id %s; find out who writes to the queue",
                len(refused), queue, ", ".join(map(str, refused[:5])),
            )  # fmt: skip
        return replies

    async def acknowledge(self, domain: str, receipts: Mapping[int, int]) -> set[int]:
        """Delete the replies whose receipt still holds; returns their numbers."""
        ordered = sorted(receipts.items())
        params = (
            replies_queue(check_domain(domain)),
            [msg_id for msg_id, _ in ordered],
            [receipt for _, receipt in ordered],
        )
        return {row[0] for row in await self._store.gateway.rows(_ACKNOWLEDGE_REPLIES, params)}

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
