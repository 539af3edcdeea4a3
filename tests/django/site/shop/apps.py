"""The app: names its connections, so that those of handlers can be counted."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self) -> None:
        connection_created.connect(_name, dispatch_uid="shop")


def _name(connection: Any, **_: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("set application_name = 'shop'")
