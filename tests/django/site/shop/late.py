"""A module that nothing imports until its first task comes."""

from __future__ import annotations

from commandbus.django.task_api import task


@task
def arrives() -> str:
    """Is there."""
    return "late"
