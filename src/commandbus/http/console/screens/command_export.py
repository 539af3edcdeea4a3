"""What the filter of the commands finds, as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response

from commandbus.commands.export import ExportFormat, exported
from commandbus.errors import InvalidSettingError
from commandbus.http.console.screens import commands
from commandbus.http.console.screens.commands import Criteria
from commandbus.http.console.screens.troubleshooting import place_of
from commandbus.http.console.view import Show, View
from commandbus.http.schemas.commands import CommandView
from commandbus.http.waiting import Stream

#: Rows of one export; the command line has no such limit.
MAX_EXPORTED = 100_000


@commands.screen.page("/commands.{form}", name="commands.export")
async def export(view: Show, criteria: Criteria, form: ExportFormat) -> Response:
    """The newest that match, at most MAX_EXPORTED; the audit has who took them."""
    place = place_of(view, criteria["domain"])
    if place == "":
        raise InvalidSettingError("choose a domain first")
    asked = {**criteria, "domain": place, "history": bool(criteria["history"])}
    found = view.bus.search.every_command(**asked, viewer=view.viewer)

    rows = (CommandView.of(each).model_dump(mode="json") async for each in found)
    return await file_of(view, "commands", rows, list(CommandView.model_fields), form)


async def file_of(
    view: View,
    name: str,
    rows: AsyncIterator[dict[str, Any]],
    columns: list[str],
    form: ExportFormat,
) -> Response:
    """The first MAX_EXPORTED rows as a file, streamed; the audit has who took them."""
    pieces = exported(_first(rows), columns, form)
    first = await anext(pieces, b"")

    async def stream() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    details = {"action": f"{name}.export", "query": view.request.url.query}
    await view.console.note(view.actor, view.request, details, is_refused=False)
    headers = {
        "Content-Disposition": f'attachment; filename="{name}.{form}"',
        "X-Accel-Buffering": "no",
        "Cache-Control": "no-store",
    }
    return Stream(stream(), view.here.polls, media_type=form.media_type, headers=headers)


async def _first(rows: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    count = 0
    async for each in rows:
        if count == MAX_EXPORTED:
            return
        count += 1
        yield each
