"""Console: what all pages of one app share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from commandbus.access.model import Caller
from commandbus.errors import CommandBusError
from commandbus.http.auth.gate import path_below
from commandbus.http.console.bare import bare_page, is_page
from commandbus.http.console.cookies import is_https
from commandbus.http.console.door import ConsoleDoor
from commandbus.http.console.forms import CsrfTokens, Placeholders
from commandbus.http.console.live import Live
from commandbus.http.console.reference import Reference
from commandbus.http.console.registry import Registry, registry
from commandbus.http.console.rendering import assets
from commandbus.http.console.screen import Count, Screen
from commandbus.http.console.suggestions import Suggestions
from commandbus.http.context import info_of
from commandbus.http.peers import address_of
from commandbus.http.platform import Platform
from commandbus.http.problems import Problem
from commandbus.http.waiting import LongPolls
from commandbus.privacy.redaction import redact_text

_log = logging.getLogger("commandbus.http")

if TYPE_CHECKING:
    from commandbus.http.console.view import View

#: Seconds that the reads of a page may take in all.
READ_SECONDS = 2.0
#: Seconds for which the numbers in the navigation are kept, and how long a page waits for new ones.
COUNT_SECONDS = 5.0
COUNT_PATIENCE = 0.25
#: Numbers that are kept.
MAX_COUNTED = 2_000


class Console:
    """The screens, the live views and the keys of the console of one app."""

    def __init__(self, here: Platform, door: ConsoleDoor) -> None:
        self.here = here
        self.door = door
        self.registry: Registry = registry()
        self.live = Live()
        self.suggestions = Suggestions()
        self.read_seconds = READ_SECONDS
        self.placeholders = Placeholders()
        self.streams = LongPolls(here.budgets.console, here.settings)
        self._reference: Reference | None = None
        self._domains: tuple[str, ...] = ()
        self._domains_at = -COUNT_SECONDS
        self._counts: OrderedDict[Hashable, tuple[float, int | None]] = OrderedDict()
        self._counting: dict[Hashable, asyncio.Task[int | None]] = {}

    def csrf_tokens(self, request: Request, caller: Caller) -> CsrfTokens:
        """The tokens of the forms of one session; without one, of one user."""
        info = info_of(request.scope)
        session = None if info is None else info.session
        subject = f"user {caller.user_id}" if session is None else f"session {session.session_id}"
        return CsrfTokens(self.here.bus.tokens.key_for("console_csrf"), subject)

    def asset_url(self, here: Platform, name: str) -> str:
        """The address of a file of the console; its content is in the name."""
        return here.url(f"/console/assets/{assets()[name].hashed_name}")

    async def note(
        self, actor: str | None, request: Request, details: dict[str, str], *, is_refused: bool
    ) -> None:
        """Write into the audit what was done here, by whom, from where. A database that does not
        answer has nothing done either.
        """
        info = info_of(request.scope)
        session = None if info is None or info.session is None else info.session.session_id
        about = {**details, "address": address_of(request.scope)}
        with suppress(CommandBusError):
            await self.here.bus.tokens.sessions.note(
                actor=actor, session=session, details=about, is_refused=is_refused
            )

    def reference(self, app: FastAPI) -> Reference:
        """The reference of the API; it is made once."""
        if self._reference is None:
            self._reference = Reference(app.openapi())
        return self._reference

    def is_secure(self, request: Request) -> bool:
        """Whether the browser came by HTTPS, as far as the trusted proxy says."""
        return is_https(request)

    def page_of(self, scope: Scope, problem: Problem) -> Response | None:
        """A problem that no page of the console has shown, as one: what went wrong before or around
        it. It reads nothing, because who asks too much must not cost more.
        """
        request = Request(scope)
        if not self.door.leads(path_below(scope)) or not is_page(request):
            return None
        info = info_of(scope)
        try:
            return bare_page(request, self.here, problem, "" if info is None else info.request_id)
        except Exception as error:  # noqa: BLE001  (what cannot be shown is said without a page)
            _log.error("a problem cannot be shown: %s", redact_text(repr(error)))
            return None

    async def domains_for(self, view: View) -> tuple[str, ...]:
        """The domains that the caller reaches. One query in some seconds for all pages."""
        if view.caller.domains is not None:
            return tuple(sorted(view.caller.domains))
        if time.monotonic() - self._domains_at >= COUNT_SECONDS:
            self._domains_at = time.monotonic()
            with suppress(CommandBusError, TimeoutError):
                async with asyncio.timeout(1.0):
                    self._domains = tuple(await self.here.bus.upkeep.figures.domain_names())
        return self._domains

    async def counts_for(self, view: View) -> dict[str, int]:
        """The numbers in the navigation. Each is one query in some seconds, for one user or for all
        with the same rights; a page does not wait long for them.
        """
        wanted = [
            (screen, screen.count)
            for screen in self.registry.screens
            if screen.count is not None and view.may_open(screen)
        ]
        numbers = await asyncio.gather(
            *(self._count_of(screen, count, view) for screen, count in wanted)
        )
        return {
            screen.name: number
            for (screen, _), number in zip(wanted, numbers, strict=True)
            if number
        }

    async def _count_of(self, screen: Screen, count: Count, view: View) -> int | None:
        who = None if screen.is_count_shared else view.caller.user_id
        key = (screen.name, view.visibility, who)
        when, known = self._counts.get(key, (0.0, None))
        if when and time.monotonic() - when < COUNT_SECONDS:
            return known
        task = self._counting.get(key)
        if task is None:
            asked = view.shared(is_personal=not screen.is_count_shared)
            task = self._counting[key] = asyncio.create_task(self._count(key, count, asked))
            task.add_done_callback(lambda _: self._counting.pop(key, None))
        done, _ = await asyncio.wait({task}, timeout=COUNT_PATIENCE)
        return task.result() if done else known

    async def _count(self, key: Hashable, count: Count, view: View) -> int | None:
        number: int | None = None
        try:
            async with asyncio.timeout(1.0):
                number = await count(view)
        except Exception as error:  # noqa: BLE001  (a page without a number is better than none)
            _log.debug("no number in the navigation: %s", type(error).__name__)
        self._counts[key] = (time.monotonic(), number)
        self._counts.move_to_end(key)
        while len(self._counts) > MAX_COUNTED:
            self._counts.popitem(last=False)
        return number
