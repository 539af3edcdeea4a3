"""Gatekeeper: looks after limits of execution, and says once a minute who waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import LiteralString

from commandbus.database.store import Store
from commandbus.gates.model import ExecutionLimit
from commandbus.gates.service import LIST
from commandbus.loops import Loop

#: How often a process asks for the chore, in seconds.
ASK_SECONDS = 10.0
#: It is given to one process, and not again before.
EVERY_SECONDS = 8.0
#: Seconds between two lines about one limit.
REPORT_SECONDS = 60.0

_CLAIM: LiteralString = (
    "select {schema}.claim_keeping('look after execution limits', make_interval(secs => %s))"
)
_DOMAINS: LiteralString = "select d from {schema}.ruled_domains() d"
_TEND: LiteralString = "select {schema}.tend_gates(%s)"


class Gatekeeper(Loop):
    """Makes due what waits for a limit that is no more, and frees what nobody has.

    In all domains: one may have no worker. The lines are about the domains of this process.
    """

    name = "gatekeeper"

    def __init__(self, store: Store, domains: Callable[[], Collection[str]]) -> None:
        super().__init__()
        self._gateway = store.gateway
        self._domains = domains
        self._reported_at = time.monotonic()

    async def step(self) -> float | None:
        """Do the chore if it is given to this process, and report."""
        ruled = [domain for (domain,) in await self._gateway.rows(_DOMAINS, ())]
        if ruled and await self._gateway.value(_CLAIM, (EVERY_SECONDS,)):
            for domain in ruled:
                while await self._gateway.value(_TEND, (domain,), domain=domain):
                    pass
        if time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = time.monotonic()
            for domain in sorted(set(ruled) & set(self._domains())):
                await self._report(domain)
        return ASK_SECONDS

    async def _report(self, domain: str) -> None:
        for limit in await self._gateway.rows(LIST, (domain,), into=ExecutionLimit):
            if limit.waiting:
                self._log.info(
                    "%d commands of %s wait for limit %s (%s); %d run, the oldest waits since %s",
                    limit.waiting, domain, limit.name, limit.rule, limit.running, limit.oldest,
                )  # fmt: skip
