"""Live pages: one watcher for each distinct view, however many look at it, and none if nobody does.

A watcher calls the page's own function again and renders its regions. Those that changed go, whole,
to everybody who looks: a browser that missed something needs no history.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import orjson

from commandbus.errors import CommandBusError
from commandbus.http.problems import Problem, problem_of, unavailable
from commandbus.privacy.redaction import redact_text

#: Seconds between two looks at least: a live view costs one look a second at most.
MIN_SECONDS = 1.0
#: Seconds between two looks while the database does not answer.
FAILING_SECONDS = 3.0
#: Seconds after which a stream says something, so that both ends know that the other is there.
BEAT_SECONDS = 5.0
#: Milliseconds after which a browser connects again.
RETRY_MS = 2_000
#: Looks for pages without a stream that are kept, for all who ask for the same.
MAX_GLANCES = 500

_log = logging.getLogger("commandbus.http")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the data gave: the markup of each region."""

    regions: dict[str, str]
    is_final: bool = False


#: The numbers beside the screens in the navigation, by name.
Counts = Callable[[], Awaitable[dict[str, int]]]
#: Looks once.
Looker = Callable[[], Awaitable[Look]]
#: What one viewer is told beside the regions: when its session ends, for example.
Extras = Callable[[], Mapping[str, object]]


@dataclass(slots=True)
class _State:
    """What a watcher knows, and since which change each region is as it is."""

    version: int = 0
    regions: dict[str, tuple[int, str]] = field(default_factory=dict)
    seen_at: datetime | None = None
    problem: Problem | None = None
    is_final: bool = False


class Watcher:
    """Looks for all who look at one view."""

    def __init__(self, look: Looker, seconds: float) -> None:
        self._look = look
        self._seconds = max(MIN_SECONDS, seconds)
        self.viewers = 0
        self.state = _State()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Nobody looks any more."""
        if self._task is not None:
            self._task.cancel()

    async def changed(self, seconds: float) -> None:
        """Return at the next change, or after some seconds."""
        event = self._changed
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass

    async def _run(self) -> None:
        while not self.state.is_final:
            began = time.monotonic()
            pause = self._seconds
            try:
                self._take(await self._look())
            except Problem as problem:
                self._fail(problem)
                pause = FAILING_SECONDS
            except CommandBusError as error:
                self._fail(problem_of(error))
                pause = FAILING_SECONDS
            except Exception as error:  # noqa: BLE001  (a fault of one look must not end all others)
                if self.state.problem is None:  # once, not at every look
                    _log.error("a live view cannot be shown: %s", redact_text(_stack_of(error)))
                self._fail(unavailable("this view cannot be shown now"))
                pause = FAILING_SECONDS
            await asyncio.sleep(max(MIN_SECONDS / 2, pause - (time.monotonic() - began)))

    def _take(self, look: Look) -> None:
        state = self.state
        news = state.problem is not None or look.is_final
        state.seen_at, state.problem, state.is_final = datetime.now(UTC), None, look.is_final
        for name, markup in look.regions.items():
            if name not in state.regions or state.regions[name][1] != markup:
                state.regions[name] = (state.version + 1, markup)
                news = True
        if news:
            self._tell()

    def _fail(self, problem: Problem) -> None:
        before = self.state.problem
        self.state.problem = problem
        if before is None or before.detail != problem.detail:
            self._tell()

    def _tell(self) -> None:
        self.state.version += 1
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(frozen=True, slots=True)
class Seen:
    """A look, and when it was."""

    look: Look
    at: datetime


class Live:
    """The watchers of one process."""

    def __init__(self) -> None:
        self._watchers: dict[Hashable, Watcher] = {}
        self._glances: OrderedDict[Hashable, tuple[float, asyncio.Task[Seen]]] = OrderedDict()

    @property
    def watching(self) -> int:
        """How many views are looked at."""
        return len(self._watchers)

    async def follow(
        self,
        key: Hashable,
        look: Looker,
        *,
        seconds: float,
        longest: float,
        personalise: Callable[[str], str],
        is_closing: Callable[[], bool],
        counts: Counts | None = None,
        extras: Extras = dict,
    ) -> AsyncIterator[bytes]:
        """The events of one viewer, for at most `longest` seconds. `counts` gives the numbers of
        the navigation, which are kept elsewhere.
        """
        watcher = self._watchers.get(key)
        if watcher is None:
            watcher = self._watchers[key] = Watcher(look, seconds)
            watcher.start()
        watcher.viewers += 1
        try:
            numbers: dict[str, int] | None = None
            async for event in _events(watcher, longest, personalise, is_closing, extras):
                yield event
                if counts is not None and (found := await counts()) != numbers:
                    numbers = found
                    yield _event("counts", {"counts": found})
        finally:
            watcher.viewers -= 1
            if not watcher.viewers and self._watchers.get(key) is watcher:
                del self._watchers[key]
                watcher.stop()

    async def glance(self, key: Hashable, look: Looker, *, seconds: float) -> Seen:
        """What a page without a stream gets that asks now and then: what the watcher of its view
        saw last; if nobody watches, one look for all who ask within `seconds`.
        """
        watcher = self._watchers.get(key)
        if watcher is not None:
            state = watcher.state
            if state.problem is not None:
                raise state.problem.with_traceback(None)
            if state.seen_at is not None:
                regions = {name: markup for name, (_, markup) in state.regions.items()}
                return Seen(Look(regions, state.is_final), state.seen_at)
        began, task = self._glances.get(key, (0.0, None))
        now = time.monotonic()
        if task is None or now - began >= max(MIN_SECONDS, seconds):
            task = asyncio.create_task(_look_once(look))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._glances[key] = (now, task)
            self._glances.move_to_end(key)
            while len(self._glances) > MAX_GLANCES:
                self._glances.popitem(last=False)
        return await asyncio.shield(task)


async def _look_once(look: Looker) -> Seen:
    return Seen(await look(), datetime.now(UTC))


async def _events(
    watcher: Watcher,
    longest: float,
    personalise: Callable[[str], str],
    is_closing: Callable[[], bool],
    extras: Extras,
) -> AsyncIterator[bytes]:
    deadline = time.monotonic() + longest
    yield f"retry: {RETRY_MS}\n\n".encode()
    sent, state, had_problem = 0, watcher.state, False
    while True:
        version = state.version
        if version > sent:
            if state.problem is not None:
                had_problem = True
                yield _event("problem", _problem(state.problem))
            else:
                regions = {
                    name: personalise(markup)
                    for name, (changed, markup) in state.regions.items()
                    if changed > sent or had_problem
                }
                had_problem = False
                yield _event("regions", {"regions": regions, "as_of": _as_of(state), **extras()})
                sent = version
        elif state.problem is None:
            yield _event("beat", {"as_of": _as_of(state), **extras()})
        else:
            yield b": \n\n"
        if state.is_final:
            yield _event("end", {"as_of": _as_of(state)})
            return
        if time.monotonic() >= deadline or is_closing():
            return
        if state.version == version:
            await watcher.changed(min(BEAT_SECONDS, max(0.05, deadline - time.monotonic())))


def _stack_of(error: BaseException) -> str:
    places = traceback.extract_tb(error.__traceback__)[-8:]
    return "; ".join([f"{p.filename}:{p.lineno}" for p in places] + [repr(error)])


def _as_of(state: _State) -> str | None:
    return None if state.seen_at is None else state.seen_at.isoformat()


def _problem(problem: Problem) -> dict[str, str]:
    return {"title": problem.kind.title, "detail": problem.detail, "code": problem.kind.name}


def _event(kind: str, data: Mapping[str, object]) -> bytes:
    # JSON has no line breaks outside its texts, and writes those inside as two characters.
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
