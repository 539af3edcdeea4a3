"""Middleware: code around handlers and around sends."""

from __future__ import annotations

from commandbus.middleware.base import Call, CallOutcome, Draft, Drafts, Middleware, OutcomeName

__all__ = ["Call", "CallOutcome", "Draft", "Drafts", "Middleware", "OutcomeName"]
