"""Check runs: results of the doctor, and of verifications of the audit, kept for who looks later.

A run over HTTP goes on in the background of the service, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, LiteralString

from commandbus.database import encoding
from commandbus.database.store import Store
from commandbus.errors import CommandBusError, InvalidOperationError
from commandbus.models import EVERYTHING, Viewer
from commandbus.names import check_names, check_operator, check_text
from commandbus.privacy.redaction import redact_text
from commandbus.upkeep.findings import Diagnosis, Finding
from commandbus.upkeep.known import Severity

#: Seconds between two signs of life of a run; after a minute without one it is taken for dead.
TOUCH_SECONDS = 10.0

_COLUMNS: LiteralString = (
    "select r.run_id, r.kind, r.domain, r.is_fix, r.actor, r.reason, r.started_at, r.finished_at,"
    " r.error, r.result, r.finished_at is null"
    " and r.touched_at > clock_timestamp() - interval '1 minute'"
    " from {schema}.command_bus_check_run r where "
)
_LAST: LiteralString = (
    _COLUMNS + "r.kind = %s and r.result is not null order by r.run_id desc limit 1"
)
_NEWEST: LiteralString = _COLUMNS + "r.kind = %s order by r.run_id desc limit 1"
_ONE: LiteralString = _COLUMNS + "r.run_id = %s"
# Only runs that looked at all of the places in question say that all is well there; any run can say
# that something is not.
_WELL_SINCE: LiteralString = (
    "with run as (select r.run_id, r.finished_at, r.domain, r.result,"
    " exists (select from jsonb_array_elements(r.result -> 'findings') f"
    " where (cast(%s as text[]) is null or f ->> 'domain' = any(cast(%s as text[])))) as is_bad"
    " from {schema}.command_bus_check_run r where r.kind = 'doctor' and r.result is not null)"
    " select min(r.finished_at) from run r where not r.is_bad"
    " and (r.domain is null or array[r.domain] = cast(%s as text[]))"
    " and r.run_id > coalesce((select max(b.run_id) from run b where b.is_bad), 0)"
)
_BEGIN: LiteralString = "select {schema}.begin_check(%s, %s, %s, %s, cast(%s as bigint))"
_TOUCH: LiteralString = "select {schema}.touch_check(%s)"
_FINISH: LiteralString = "select {schema}.finish_check(%s, cast(%s as jsonb), %s)"
_RECORD: LiteralString = "select {schema}.record_check(%s, %s, %s, %s, %s, cast(%s as jsonb))"

_log = logging.getLogger("commandbus.doctor")


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One run of the doctor (kind `doctor`), or one verification of the audit (kind `audit`)."""

    run_id: int
    kind: str
    #: None: all of them.
    domain: str | None
    is_fix: bool
    actor: str | None
    reason: str | None
    started_at: datetime
    finished_at: datetime | None
    #: Why there is no result.
    error: str | None
    #: Diagnosis or AuditVerification, as JSON.
    result: dict[str, Any] | None
    is_running: bool

    @property
    def findings(self) -> list[Finding]:
        """What was found, the worst first."""
        return [_finding_of(each) for each in (self.result or {}).get("findings", ())]

    @property
    def fixable(self) -> list[Finding]:
        """Those of them that a repair would look after."""
        return [each for each in self.findings if each.can_fix and each.domain is not None]

    @property
    def is_healthy(self) -> bool | None:
        """No finding is an error; None: there is no result."""
        if self.result is None:
            return None
        return all(each.severity is not Severity.ERROR for each in self.findings)

    def within(self, domains: Collection[str] | None, viewer: Viewer = EVERYTHING) -> CheckRun:
        """The same with what is found in these domains only; None: with everything.

        Ids may be of governed batches: who does not see those of all owners gets counts alone.
        """
        run = self
        if domains is not None and self.domain is not None and self.domain not in domains:
            run = replace(run, actor=None, reason=None, error=None)
        if self.result is None or (domains is None and viewer.owner is None):
            return run
        found, repairs = self.findings, list(self.result.get("repairs", ()))
        if domains is not None:
            found = [each for each in found if each.domain in domains]
            repairs = [each for each in repairs if each["domain"] in domains]
        if viewer.owner is not None:
            found = [replace(each, examples=()) for each in found]
            repairs = [{**each, "repaired": []} for each in repairs]
        kept = {"findings": [asdict(each) for each in found], "repairs": repairs}
        return replace(run, result={**kept, "since": self.result.get("since")})


@dataclass(frozen=True, slots=True)
class LastCheck:
    """What is known of the last run: the last result, and the run that came after it, if any."""

    last: CheckRun | None
    #: It goes on, or has ended without a result.
    newer: CheckRun | None

    @property
    def is_running(self) -> bool:
        """A run goes on."""
        return self.newer is not None and self.newer.is_running


#: Examines; and with `fix` repairs and examines again.
Examine = Callable[..., Awaitable[Diagnosis]]

#: Compares the audit with its seals, and keeps what it found.
Verify = Callable[..., Awaitable[object]]


class CheckRuns:
    """`bus.upkeep.runs`: what was found last, and new runs in the background of this process."""

    def __init__(self, store: Store, examine: Examine, verify: Verify) -> None:
        self._store = store
        self._examine = examine
        self._verify = verify
        self._tasks: set[asyncio.Task[None]] = set()

    async def last(self, kind: str = "doctor") -> LastCheck:
        """The last result, no matter who ran it. Never begins a run."""
        # In this order: a run that ends in between is the last result, not one without.
        newest = await self._store.gateway.row(_NEWEST, (kind,), into=CheckRun)
        last = await last_run(self._store, kind)
        is_newer = newest is not None and (last is None or newest.run_id > last.run_id)
        return LastCheck(last, newest if is_newer else None)

    async def well_since(self, domains: Collection[str] | None = None) -> datetime | None:
        """The first look that found nothing, with none since that found something; None: the last
        one found something. Of the last 50 runs: it may be longer.
        """
        places = None if domains is None else sorted(domains)
        since: datetime | None = await self._store.gateway.value(_WELL_SINCE, (places,) * 3)
        return since

    async def start(
        self, *, domain: str | None = None, full: bool = False, operator: str | None = None
    ) -> CheckRun:
        """Begin to examine in the background; raises InvalidOperationError while a run goes on.

        It holds back vacuum while it looks. With more than a million commands only what was changed
        in the last day is looked at, unless `full`.
        """
        check_names(domain)
        params = ("doctor", domain, check_operator(operator), None, None)
        run = await self._begin(params)
        await self._spawn(self._work(run, {"domain": domain, "full": full}))
        return run

    async def fix(
        self, run_id: int, reason: str, *, domain: str | None = None, operator: str | None = None
    ) -> CheckRun:
        """Repair in the background what a run has found; it must be the last one that has a result.

        So what is repaired is what somebody has seen, as far as it still is so.
        """
        check_names(domain)
        why = redact_text(check_text(reason, "reason", max_length=2_000))
        seen = (await self.last()).last
        if seen is None:
            raise InvalidOperationError("the doctor has not run yet; start a run, and look at it")
        domains = None if domain is None else [domain]
        if not seen.within(domains).fixable:
            raise InvalidOperationError("nothing that was found can be repaired; nothing was done")
        actor = check_operator(operator)
        run = await self._begin(("doctor", domain, actor, why, run_id))
        await self._spawn(self._work(run, {"domain": domain, "fix": True, "operator": actor}))
        return run

    async def verify(
        self, *, window: timedelta | None = None, operator: str | None = None
    ) -> CheckRun:
        """Compare the audit with its seals in the background, as `bus.upkeep.verify_audit` does;
        raises InvalidOperationError while that goes on. `window`: only rows of seals of this time.
        """
        run = await self._begin(("audit", None, check_operator(operator), None, None))
        await self._spawn(self._verifying(run, window))
        return run

    async def close(self) -> None:
        """Give up what runs here."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin(self, params: tuple[Any, ...]) -> CheckRun:
        number = await self._store.gateway.value(_BEGIN, params)
        run = await self._store.gateway.row(_ONE, (number,), into=CheckRun)
        if run is None:
            raise InvalidOperationError("the run was removed as soon as it had begun; try again")
        return run

    async def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step would leave the run without an end.
        await asyncio.sleep(0)

    async def _work(self, run: CheckRun, options: dict[str, Any]) -> None:
        signs = asyncio.create_task(self._show_life(run))
        result, error = None, "the service ended before the run did"
        try:
            result = encoding.dump(await self._examine(**options))
            error = ""
        except CommandBusError as raised:
            error = redact_text(str(raised))
            _log.warning("run %d of the doctor failed: %s", run.run_id, error)
        finally:
            signs.cancel()
            with suppress(CommandBusError):
                await self._store.gateway.rows(_FINISH, (run.run_id, result, error or None))

    async def _verifying(self, run: CheckRun, window: timedelta | None) -> None:
        signs = asyncio.create_task(self._show_life(run))
        error: str | None = "the service ended before the verification did"
        try:
            await self._verify(window=window)  # which keeps its result itself
            error = None
        except CommandBusError as raised:
            error = redact_text(str(raised))
            _log.warning("run %d, a verification of the audit, failed: %s", run.run_id, error)
        finally:
            signs.cancel()
            with suppress(CommandBusError):
                await self._store.gateway.rows(_FINISH, (run.run_id, None, error))

    async def _show_life(self, run: CheckRun) -> None:
        while True:
            await asyncio.sleep(TOUCH_SECONDS)
            with suppress(CommandBusError):
                await self._store.gateway.rows(_TOUCH, (run.run_id,))


async def last_run(store: Store, kind: str) -> CheckRun | None:
    """The last one that has a result."""
    return await store.gateway.row(_LAST, (kind,), into=CheckRun)


async def record_check(
    store: Store, kind: str, began: datetime, result: object, *,
    domain: str | None = None, actor: str | None = None, is_fix: bool = False,
) -> None:  # fmt: skip
    """Keep a result that was found in this process; who may not write here goes without."""
    params = (kind, domain, actor, is_fix, began, encoding.dump(result))
    with suppress(CommandBusError):
        await store.gateway.rows(_RECORD, params)


def _finding_of(found: dict[str, Any]) -> Finding:
    known = {spec.name: found[spec.name] for spec in fields(Finding)}
    known["severity"] = Severity(found["severity"])
    known["examples"] = tuple(found["examples"])
    return Finding(**known)
