"""The app: its checks, its handlers, and what is done after `manage.py migrate`."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class CommandBusConfig(AppConfig):
    """`INSTALLED_APPS = [..., "commandbus.django"]`."""

    name = "commandbus.django"
    label = "commandbus"
    verbose_name = "Command bus"

    def ready(self) -> None:
        """Register the checks, and find the handlers of all apps."""
        from commandbus.django.checks import check_database, check_setting

        checks.register(check_setting, "commandbus")
        checks.register(check_database, checks.Tags.database)
        post_migrate.connect(_after_migrate, sender=self, dispatch_uid="commandbus.django")
        from commandbus.django.conf import given_problems
        from commandbus.django.discovery import has_tasks, import_handlers

        if has_tasks():
            with suppress(ImportError):  # Django 5.2 without django-tasks
                # What is imported has its checks looked at.
                importlib.import_module("commandbus.django.task_api")
        if not given_problems():  # they are errors of the checks
            import_handlers()


def _after_migrate(**details: Any) -> None:
    from commandbus.django.migrating import after_migrate

    after_migrate(details["using"])
