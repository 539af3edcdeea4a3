"""What the filter of the audit finds, as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

from starlette.responses import Response

from commandbus.commands.export import ExportFormat
from commandbus.commands.people import PersonEvent
from commandbus.http.console.screens import audit
from commandbus.http.console.screens.audit import Criteria, search_of
from commandbus.http.console.screens.command_export import file_of
from commandbus.http.console.view import Show
from commandbus.http.schemas.commands import AuditEventView
from commandbus.models import AuditEvent
from commandbus.paging import EVERY_LIMIT, every


@audit.screen.page("/audit.{form}", name="audit.export")
async def export(view: Show, wanted: Criteria, form: ExportFormat) -> Response:
    """The newest that match, as the page lists them; the audit has who took them."""
    search = search_of(view, wanted)
    found = every(lambda cursor: search(limit=EVERY_LIMIT, cursor=cursor))
    columns = (
        list(AuditEventView.model_fields)
        if wanted.machine
        else [each.name for each in fields(PersonEvent)]
    )
    return await file_of(view, "audit", _rows(found), columns, form)


async def _rows(found: AsyncIterator[AuditEvent | PersonEvent]) -> AsyncIterator[dict[str, Any]]:
    async for each in found:
        if isinstance(each, AuditEvent):
            yield AuditEventView.of(each).model_dump(mode="json")
        else:
            yield {spec.name: _plain(getattr(each, spec.name)) for spec in fields(each)}


def _plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value if value is None or isinstance(value, int | str | dict) else str(value)
