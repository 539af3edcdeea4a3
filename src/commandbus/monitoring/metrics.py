"""Metrics: the counters of one process. An observation takes less than two microseconds.

Called by the event loop and by threads that send; read by the thread that serves them.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from commandbus.monitoring import catalogue
from commandbus.monitoring.catalogue import (
    MAX_CODES,
    MAX_DOMAINS,
    MAX_TYPES,
    OTHER,
    OUTCOMES,
    Family,
)
from commandbus.monitoring.exposition import exposition
from commandbus.monitoring.samples import Histogram, Labels, Snapshot, Value

#: What is read when somebody asks, and not counted: slots, pools.
Collector = Callable[[], Iterable[tuple[Family, Labels, Value]]]

#: Codes that may be a label; whatever looks otherwise may contain a value of somebody.
_CODE = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,99}\Z")


#: Outcomes that are the last of a command, or of its attempts.
_LAST = frozenset({"completed", "parked", "failed"})

#: What totals call the calls of handlers, beside the outcomes.
HANDLED = "handled"

#: A lease that ended: the command type, the outcome, the attempt, the code of its error.
Ended = tuple[str, str, int, str | None]


class TypeSeries:
    """What was counted of one command type."""

    __slots__ = (
        "attempts", "errors", "handle", "is_handled", "is_sent", "outcomes", "send", "sent", "wait",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_handled = False
        self.is_sent = False
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.errors: Counter[str] = Counter()
        self.handle = Histogram(catalogue.SECONDS)
        self.wait = Histogram(catalogue.SECONDS)
        self.attempts = Histogram(catalogue.ATTEMPTS)
        self.sent = 0
        self.send = Histogram(catalogue.SECONDS)

    def write(self, labels: Labels, into: Snapshot) -> None:
        """Add what is known of it."""
        if self.is_handled:
            for outcome, count in self.outcomes.items():
                into.add(catalogue.COMMANDS, (*labels, outcome), count)
            for code, count in self.errors.items():
                into.add(catalogue.ERRORS, (*labels, code), count)
            into.add(catalogue.HANDLE, labels, self.handle.sample())
            into.add(catalogue.WAIT, labels, self.wait.sample())
            into.add(catalogue.ATTEMPT, labels, self.attempts.sample())
        if self.is_sent:
            into.add(catalogue.SENT, labels, self.sent)
            into.add(catalogue.SEND, labels, self.send.sample())


class Times:
    """What was measured of the commands of one domain, and is not counted yet, by command type.

    To add something takes no lock, and from any thread: a list grows in one step. The end of the
    commands counts it, or the next reader.
    """

    __slots__ = ("handled", "waited")

    def __init__(self) -> None:
        self.handled: defaultdict[str, list[float]] = defaultdict(list)
        self.waited: defaultdict[str, list[float]] = defaultdict(list)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._types: dict[tuple[str, str], TypeSeries] = {}
        self._times: dict[str, Times] = {}
        self._domains: set[str] = set()
        self._codes: set[str] = set()
        self._settle: dict[str, Histogram] = {}
        self._lost: Counter[str] = Counter()
        self._collectors: list[Collector] = []

    # -- series

    def know(self, domain: str, command_types: Iterable[str]) -> None:
        """Types with handlers: they are there from the start, with zeros."""
        with self._lock:
            self._lost[self._domain(domain)] += 0
            for command_type in command_types:
                self._series(domain, command_type, is_own=True).is_handled = True

    def _domain(self, domain: str) -> str:
        if domain in self._domains:
            return domain
        if len(self._domains) >= MAX_DOMAINS:
            return OTHER
        self._domains.add(domain)
        return domain

    def _series(self, domain: str, command_type: str, *, is_own: bool) -> TypeSeries:
        """Those of a type; `is_own`: this program names it, and not only what it receives."""
        found = self._types.get((domain, command_type))
        if found is not None:
            return found
        key = (self._domain(domain), command_type)
        if not is_own or len(self._types) >= MAX_TYPES or key[0] == OTHER:
            key = (key[0], OTHER)
        return self._types.setdefault(key, TypeSeries())

    # -- workers

    def times(self, domain: str) -> Times:
        """Where workers of a domain write down what they measure of handlers."""
        with self._lock:
            return self._times.setdefault(domain, Times())

    def handled(self, domain: str, command_type: str, seconds: float) -> None:
        """A handler has ended, whatever it led to."""
        self.times(domain).handled[command_type].append(seconds)

    def waited(self, domain: str, command_type: str, seconds: float) -> None:
        """A handler is called for the first time for a command that was due so long ago."""
        self.times(domain).waited[command_type].append(max(0.0, seconds))

    def _count_times(self) -> None:
        for domain, times in self._times.items():
            for command_type, values in list(times.handled.items()):
                if values:
                    series = self._series(domain, command_type, is_own=True)
                    series.handle.observe_all(_taken(values))
            for command_type, values in list(times.waited.items()):
                if values:
                    series = self._series(domain, command_type, is_own=True)
                    series.wait.observe_all(_taken(values))

    def ended(
        self, domain: str, command_type: str, outcome: str, attempt: int, code: str | None = None
    ) -> None:
        """A lease has ended; `code`: that of the error, if the attempt has failed."""
        self.ended_together(domain, [(command_type, outcome, attempt, code)])

    def ended_together(self, domain: str, leases: Iterable[Ended]) -> None:
        """Leases have ended, with one commit."""
        counted = Counter(leases)  # nearly all are alike
        with self._lock:
            self._count_times()
            for (command_type, outcome, attempt, code), count in counted.items():
                series = self._series(domain, command_type, is_own=False)
                series.is_handled = True
                series.outcomes[outcome] += count
                if outcome in _LAST:
                    series.attempts.observe(attempt, count)
                if code is not None:
                    series.errors[self._code(code)] += count

    def settled(self, domain: str, seconds: float) -> None:
        """A group of outcomes was committed."""
        with self._lock:
            name = self._domain(domain)
            if name not in self._settle:
                self._settle[name] = Histogram(catalogue.SECONDS)
            self._settle[name].observe(seconds)

    def lease_lost(self, domain: str) -> None:
        """A lease of this worker is over, and it did not end it."""
        with self._lock:
            self._lost[self._domain(domain)] += 1

    def _code(self, code: str) -> str:
        if code in self._codes:
            return code
        if len(self._codes) >= MAX_CODES or not _CODE.match(code):
            return OTHER
        self._codes.add(code)
        return code

    # -- senders

    def sent(self, domain: str, command_types: Sequence[str], seconds: float | None) -> None:
        """A call has sent commands of these types; None: together with an outcome."""
        with self._lock:
            for command_type, count in Counter(command_types).items():
                series = self._series(domain, command_type, is_own=True)
                series.is_sent = True
                series.sent += count
                if seconds is not None:
                    series.send.observe(seconds)

    # -- reading

    def collect(self, collector: Collector) -> None:
        """Ask this one too, whenever somebody reads; from the reader's thread."""
        with self._lock:
            self._collectors = [*self._collectors, collector]

    def uncollect(self, collector: Collector) -> None:
        """Ask it no more."""
        with self._lock:
            self._collectors = [each for each in self._collectors if each != collector]

    def totals(self) -> dict[tuple[str, str, str], tuple[int, float]]:
        """Outcomes, and calls of handlers with their seconds, by domain and type; no zeros."""
        found: dict[tuple[str, str, str], tuple[int, float]] = {}
        with self._lock:
            self._count_times()
            for (domain, command_type), series in self._types.items():
                for outcome, count in series.outcomes.items():
                    if count:
                        found[domain, command_type, outcome] = count, 0.0
                if handled := sum(series.handle.counts):
                    found[domain, command_type, HANDLED] = handled, series.handle.total
        return found

    def snapshot(self) -> Snapshot:
        """All that there is, at this moment."""
        made = Snapshot()
        with self._lock:
            self._count_times()
            for labels, series in self._types.items():
                series.write(labels, made)
            for domain, histogram in self._settle.items():
                made.add(catalogue.SETTLE, (domain,), histogram.sample())
            for domain, count in self._lost.items():
                made.add(catalogue.LEASES_LOST, (domain,), count)
            collectors = self._collectors
        # Without the lock: a collector may wait for something that counts.
        for collector in collectors:
            for sample in collector():
                made.add(*sample)
        return made

    def text(self) -> bytes:
        """The same as Prometheus reads it."""
        return exposition(self.snapshot())


def _taken(values: list[float]) -> list[float]:
    """All that is in a list, which others may add to meanwhile, and it is empty."""
    taken = values[:]
    del values[: len(taken)]
    return taken
