"""Whose data a handler works with, as many projects have it: a middleware, and a setting in SQL."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from django.db import connection

from commandbus.middleware import Call, CallOutcome, Middleware

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
outcomes: list[str] = []


class Tenant(Middleware):
    """Reads the tenant of a command, and sets it for the handler and for its statements."""

    async def handle(self, call: Call, proceed: Any) -> Any:
        token = tenant.set(call.command.data.get("tenant", "nobody"))
        try:
            return await proceed()
        finally:
            tenant.reset(token)

    def handle_in_thread(self, call: Call, proceed: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("select set_config('shop.tenant', %s, false)", [tenant.get()])
        return proceed()

    def on_outcome(self, call: Call, outcome: CallOutcome, error: BaseException | None) -> None:
        outcomes.append(f"{call.command.command_type} {outcome.name} {type(error).__name__}")
