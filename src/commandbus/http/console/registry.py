"""The screens: every module in `screens/` that has one, in the order of the navigation."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode

from commandbus.http.console import screens
from commandbus.http.console.screen import ActionRoute, PageRoute, Screen

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


@dataclass(frozen=True, slots=True, eq=False)  # one is the key of the routes that are made of it
class Registry:
    """All screens, and the address of every page and action by its name."""

    screens: tuple[Screen, ...]
    paths: dict[str, str]

    @classmethod
    def of(cls, found: Iterable[Screen]) -> Registry:
        """Of these screens; two pages with one name are an error."""
        ordered = tuple(sorted(found, key=lambda each: (each.order, each.name)))
        paths: dict[str, str] = {}
        for _, route in _routes(ordered):
            if route.name in paths:
                raise ValueError(f"two pages of the console are called {route.name!r}")
            paths[route.name] = route.path
        return cls(ordered, paths)

    def routes(self) -> list[tuple[Screen, PageRoute | ActionRoute]]:
        """Pages and actions, those without parameters first: they would match others too."""
        return sorted(_routes(self.screens), key=lambda each: len(_PARAMETER.findall(each[1].path)))

    def path(self, name: str, values: dict[str, Any]) -> str:
        """The path below /console of a page or an action; values that it does not name are its
        query, without those that are None or empty.
        """
        if name not in self.paths:
            raise LookupError(f"the console has no page called {name!r}")
        rest = dict(values)

        def put(match: re.Match[str]) -> str:
            return quote(str(rest.pop(match[1])), safe="")

        path = _PARAMETER.sub(put, self.paths[name])
        query = [(key, value) for key, value in rest.items() if value not in (None, "", [""])]
        return f"{path}?{urlencode(query, doseq=True)}" if query else path


def _routes(screens: Iterable[Screen]) -> Iterator[tuple[Screen, PageRoute | ActionRoute]]:
    for screen in screens:
        for page in screen.pages:
            yield screen, page
        for action in screen.actions:
            yield screen, action


@lru_cache
def registry() -> Registry:
    """The screens of this package."""
    modules = [
        importlib.import_module(f"{screens.__name__}.{each.name}")
        for each in pkgutil.iter_modules(screens.__path__)
    ]
    return Registry.of(module.screen for module in modules if hasattr(module, "screen"))
