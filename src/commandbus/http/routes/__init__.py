"""The routes. Each function translates: a request into a verb of the bus, its value into JSON."""

from fastapi import APIRouter

from commandbus.http.routes import (
    audit,
    batches,
    bulk,
    commands,
    domains,
    exports,
    limits,
    operations,
    ordering,
    replies,
    schedules,
    tokens,
    troubleshooting,
    upkeep,
)

#: Under /api/v1. A new group of routes is one more line.
API_ROUTERS: tuple[APIRouter, ...] = (
    commands.router,
    batches.router,
    troubleshooting.router,
    bulk.router,
    schedules.router,
    limits.router,
    ordering.router,
    replies.router,
    audit.router,
    exports.router,
    domains.router,
    operations.router,
    upkeep.router,
    tokens.router,
)
