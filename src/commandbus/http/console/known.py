"""Sessions that are known for some seconds, so that open pages do not ask the database each."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from commandbus.access.sessions import ConsoleSession, ConsoleSessions
from commandbus.http.auth.tokens import remember

#: Seconds for which a session is renewed along with others after somebody has asked for it.
WANTED_SECONDS = 10.0
#: Sessions that one query renews.
MAX_RENEWED = 500
#: Seconds after which the database is told that a session is used.
USE_SECONDS = 60.0


@dataclass(slots=True)
class _Known:
    session: ConsoleSession
    #: When the database was asked, and when somebody asked here.
    asked_at: float
    wanted_at: float


class KnownSessions:
    """Sessions by the secret of their cookie. Those that somebody has asked for lately are renewed
    together: one query in some seconds for one process, however many pages are open.
    """

    def __init__(self, sessions: ConsoleSessions, seconds: float) -> None:
        self._sessions = sessions
        self._seconds = seconds
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._renewing: asyncio.Task[None] | None = None

    async def find(
        self, secret: str, *, is_used: bool, max_age: float | None = None
    ) -> ConsoleSession | None:
        """The session of a cookie, if it goes on, as it was at most `max_age` seconds ago."""
        now, age = time.monotonic(), self._seconds if max_age is None else max_age
        known = self._known.get(secret)
        # Streams ask often without using the session: that must not hide that a person does.
        is_due = is_used and known is not None and _is_unused(known.session)
        if known is None or is_due or max_age == 0.0:
            return await self._use(secret, now, is_used=is_used)
        known.wanted_at = now
        if now - known.asked_at < age:
            return known.session
        for _ in range(2):  # what was on its way already may be too old
            await self._renewed()
            if self._known.get(secret) is not known:
                break  # it has ended, or was changed
            if known.asked_at >= now - age:
                return known.session
        return await self._use(secret, now, is_used=is_used)

    async def _use(self, secret: str, now: float, *, is_used: bool) -> ConsoleSession | None:
        session = await self._sessions.use(secret, is_used=is_used)
        if session is None:
            self._known.pop(secret, None)
        else:
            remember(self._known, secret, _Known(session, now, now))
        return session

    async def _renewed(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew())
        await asyncio.shield(self._renewing)

    async def _renew(self) -> None:
        now = time.monotonic()
        wanted = {
            secret: each
            for secret, each in self._known.items()
            if now - each.wanted_at < WANTED_SECONDS
        }
        chosen = dict(sorted(wanted.items(), key=lambda each: each[1].asked_at)[:MAX_RENEWED])
        found = await self._sessions.find_many(
            [each.session.session_id for each in chosen.values()]
        )
        for secret, each in chosen.items():
            session = found.get(each.session.session_id)
            if session is not None:
                each.session, each.asked_at = session, now
            elif self._known.get(secret) is each:
                del self._known[secret]

    def forget(self, session_id: UUID) -> None:
        """Ask the database again: the session was changed."""
        for secret, known in list(self._known.items()):
            if known.session.session_id == session_id:
                del self._known[secret]


def _is_unused(session: ConsoleSession) -> bool:
    return (datetime.now(UTC) - session.last_seen_at).total_seconds() > USE_SECONDS
