"""A module of no app, which OPTIONS may name."""

from __future__ import annotations

from commandbus.django.task_api import task


@task
def arrives() -> str:
    """Is there."""
    return "late"
