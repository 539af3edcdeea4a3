"""Health and metrics. Health is public, so it says nothing that helps an attacker."""

from __future__ import annotations

import asyncio
import logging
import time

from fastapi import APIRouter, Response

from commandbus.errors import (
    CommandBusError,
    DatabaseUnavailableError,
    InvalidOperationError,
    SchemaTooNewError,
    SchemaVersionError,
)
from commandbus.http.auth.scopes import Reader
from commandbus.http.platform import Here, Platform
from commandbus.http.problems import Kind, Problem, unavailable
from commandbus.http.schemas.service import Health
from commandbus.monitoring.exposition import CONTENT_TYPE
from commandbus.privacy.redaction import redact_text

router = APIRouter(tags=["service"])
metrics_router = APIRouter(tags=["service"])

#: Seconds within which the database must respond to a health check.
PATIENCE = 3.0

_log = logging.getLogger("commandbus.http")


@router.get("/livez")
async def livez() -> Health:
    """Whether the process responds at all; the database is not asked."""
    return Health(status="ok", checks={})


@router.get("/readyz")
async def readyz(here: Here, response: Response) -> Health:
    """Whether this process is fit: the database responds, and nothing is used up.

    The database must be migrated, the pool must have a connection left, and the workers of the
    process a thread.
    """
    workers = "stuck" if here.bus.stuck_domains else "ok"
    database, pool = await asyncio.gather(
        here.shared("database", lambda: _database(here)), here.shared("pool", lambda: _pool(here))
    )
    return _health({"database": database, "pool": pool, "workers": workers}, response)


@router.get("/startupz")
async def startupz(here: Here, response: Response) -> Health:
    """Whether the start is over: the database is there, with the schema that this version needs."""
    database = await here.shared("database", lambda: _database(here))
    return _health({"database": database}, response)


def _health(checks: dict[str, str], response: Response) -> Health:
    is_well = all(text == "ok" for text in checks.values())
    if not is_well:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    return Health(status="ok" if is_well else "failing", checks=checks)


async def _database(here: Platform) -> str:
    try:
        async with asyncio.timeout(PATIENCE):
            await here.bus.check()
    except SchemaTooNewError:
        return "needs a newer commandbus"
    except SchemaVersionError:
        return "needs a migration"
    except (DatabaseUnavailableError, TimeoutError):
        return "does not answer"
    except CommandBusError as error:
        _log.warning("the database is not fit: %s", redact_text(str(error)))
        return "not fit"
    return "ok"


async def _pool(here: Platform) -> str:
    # For a moment all connections may be in use: a burst is no reason to send everybody elsewhere.
    until = time.monotonic() + PATIENCE
    while _is_exhausted(here):
        if time.monotonic() > until:
            return "exhausted"
        await asyncio.sleep(0.05)
    return "ok"


def _is_exhausted(here: Platform) -> bool:
    try:
        figures = here.bus.upkeep.figures.pool()
    except InvalidOperationError:
        return False  # a store without connections
    return figures["waiting"] > 0 and figures["available"] == 0


async def reads_all_domains(caller: Reader) -> None:
    """The condition for metrics, unless the settings make them public."""
    if caller.domains is not None:
        detail = "metrics show all domains; use a token that is not limited to some"
        raise Problem(Kind.PERMISSION_DENIED, detail)


@metrics_router.get("/metrics", response_class=Response)
async def metrics(here: Here) -> Response:
    """Metrics in Prometheus' text form; of all domains, so not for callers limited to some."""
    if not here.metrics.is_on:
        raise unavailable('metrics need prometheus-client: pip install "commandbus[metrics]"', 3600)
    await here.metrics.refresh(here.bus.upkeep.figures, here.settings.metrics_cache_seconds)
    return Response(here.metrics.text(), media_type=CONTENT_TYPE)
