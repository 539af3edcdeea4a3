"""Calling the function of a page or an action, with what the request brought."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from commandbus.http.console.screen import ActionRoute, PageRoute, Screen
from commandbus.http.console.view import View
from commandbus.http.problems import unavailable

#: Seconds that the database has to end a statement that was given up.
CANCEL_SECONDS = 6.0


def view_in(given: dict[str, Any]) -> View:
    """The view among the arguments of a function."""
    return next(each for each in given.values() if isinstance(each, View))


def framed(view: View, screen: Screen, route: PageRoute | ActionRoute) -> View:
    """The view of a page: which one it is, and how live."""
    live = route.live_seconds if isinstance(route, PageRoute) else None
    return replace(view, page_name=route.name, screen=screen, live_seconds=live)


def with_view(given: dict[str, Any], view: View) -> dict[str, Any]:
    """The arguments with this view in place of theirs."""
    return {key: view if isinstance(each, View) else each for key, each in given.items()}


async def loaded(route: PageRoute | ActionRoute, given: dict[str, Any], view: View) -> Any:
    """What the function of a page gives; it has little time, however much there is to read.

    A task of its own: what is given up is cancelled, in the database too, and cannot take the
    answer along.
    """
    seconds = view.console.read_seconds
    task = asyncio.ensure_future(route.handler(**with_view(given, view)))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
        raise unavailable(
            f"this took longer than {seconds:g} seconds and was given up; narrow the filter, "
            "or try again"
        )
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_SECONDS)
