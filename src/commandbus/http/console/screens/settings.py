"""Settings: how the service and the bus behave, and what the database is. Secrets are masked."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

from commandbus.access.visibility import sees_access
from commandbus.http.console.formats import NOTHING
from commandbus.http.console.screen import Group, Page, Screen
from commandbus.http.console.view import Show
from commandbus.privacy.sensitive import is_sensitive_key
from commandbus.privacy.values import MASK

screen = Screen("settings", "Settings", order=150, group=Group.TRUST, icon="gear")


class Setting(NamedTuple):
    """One field, as it is shown."""

    name: str
    variable: str
    value: str
    is_default: bool


@screen.page("/settings", live=30.0)
async def show(view: Show) -> Page:
    """Version, database, migrations and settings."""
    standing = await view.bus.upkeep.standing.read()
    groups = [
        ("HTTP service", shown_settings(view.here.settings)),
        ("Bus and workers", shown_settings(view.bus.upkeep.standing.settings)),
    ]
    # How a deployment is run is for those who run it, not for everybody who reads a domain of it.
    is_shown = sees_access(view.caller)
    return view.page(
        "settings/index.html",
        "Settings",
        standing=standing,
        is_shown=is_shown,
        groups=groups if is_shown else [],
    )


def shown_settings(settings: Any) -> list[Setting]:
    """The fields of settings; whatever may be a secret is only said to be there."""
    found = []
    for spec in fields(settings):
        value = getattr(settings, spec.name)
        variable = f"{settings.PREFIX}{spec.name.upper()}"
        shown = _shown(spec.name, value, is_secret=not spec.repr)
        found.append(Setting(spec.name, variable, shown, value == spec.default))
    return found


def _shown(name: str, value: Any, *, is_secret: bool) -> str:
    if value in {None, ""}:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}"  # a number is no secret, whatever its name contains
    return MASK if is_secret or is_sensitive_key(name) else str(value)
