"""Execution limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from commandbus.gates.model import ExecutionLimit, LimitedKey
from commandbus.http.schemas.base import Flag, Form, Reason, Whole, example
from commandbus.http.schemas.views import View, view_of

Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]


class PutLimit(Form):
    """A limit: max_running, rate, or both."""

    model_config = example(max_running=10, reason="the bank takes no more")

    per_key: Flag = Field(False, description="Each limit key of the type by itself.")
    max_running: Whole | None = Field(None, ge=0, le=1_000_000, description="Leased at once.")
    rate: Number | None = Field(None, ge=0, le=1_000_000, description="Starts in per_seconds.")
    per_seconds: Number = Field(1.0, ge=0.001, le=31_622_400)
    burst: Number | None = Field(
        None, ge=1, le=1_000_000, description="Starts at once after a pause."
    )
    reason: Reason | None = None


@view_of(
    ExecutionLimit,
    describe={
        "type": "null: all types of the domain together.",
        "per_key": "Each limit key is counted by itself; the figures are of all of them.",
        "tokens": "Starts that would be given at once; null: no rate, or one by key.",
        "waiting": "Commands that wait for this limit.",
    },
)
class ExecutionLimitView(View):
    """An execution limit, and what it is up to."""


@view_of(LimitedKey)
class LimitedKeyView(View):
    """One key of a limit by key."""
