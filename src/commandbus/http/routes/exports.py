"""Everything that a search finds, as JSON lines or CSV, streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from commandbus.access.model import Scope
from commandbus.commands.export import ExportFormat, exported
from commandbus.http.auth.scopes import ShowPayload, Sight, requires
from commandbus.http.platform import Here, Platform
from commandbus.http.routes.audit import AuditCriteria
from commandbus.http.routes.commands import CommandCriteria
from commandbus.http.routes.troubleshooting import GroupQuery
from commandbus.http.schemas.base import DomainPath, TypeQuery
from commandbus.http.schemas.commands import AuditEventView, CommandView
from commandbus.http.schemas.troubleshooting import ParkedView
from commandbus.http.schemas.views import View
from commandbus.http.waiting import Stream

router = APIRouter(prefix="/exports", tags=["exports"])

FormatQuery = Annotated[
    ExportFormat, Query(alias="format", description="jsonl: one JSON document per line.")
]
_TEXT = {"schema": {"type": "string"}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {form.media_type: _TEXT for form in ExportFormat}}
}
_ROUTE: dict[str, Any] = {
    "dependencies": [requires(Scope.READ)],
    "status_code": 200,
    "response_class": Stream,
    "responses": _RESPONSES,
}


async def _stream(
    here: Platform, kind: type[View], items: AsyncIterator[View], form: ExportFormat
) -> Response:
    """The stream, begun: what is refused is refused before the first byte.

    What fails later breaks the connection, so that no client takes a part for the whole.
    """
    rows = (item.model_dump(mode="json") async for item in items)
    pieces = exported(rows, list(kind.model_fields), form)
    first = await anext(pieces, b"")

    async def rest() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    name = f'attachment; filename="export.{form}"'
    headers = {"Content-Disposition": name, "X-Accel-Buffering": "no"}
    return Stream(rest(), here.polls, media_type=form.media_type, headers=headers)


@router.get("/commands", **_ROUTE)
async def export_commands(
    here: Here, criteria: CommandCriteria, form: FormatQuery = ExportFormat.JSONL
) -> Response:
    """Export every command that a search finds, newest first."""
    found = here.bus.search.every_command(**criteria)
    return await _stream(here, CommandView, (CommandView.of(each) async for each in found), form)


@router.get("/audit", **_ROUTE)
async def export_audit(
    here: Here, criteria: AuditCriteria, form: FormatQuery = ExportFormat.JSONL
) -> Response:
    """Export every event of the audit that a search finds."""
    found = here.bus.search.every_event(**criteria)
    views = (AuditEventView.of(each) async for each in found)
    return await _stream(here, AuditEventView, views, form)


@router.get("/troubleshooting/{domain}", **_ROUTE)
async def export_troubleshooting(
    domain: DomainPath,
    here: Here,
    viewer: Sight,
    payload: ShowPayload,
    command_type: TypeQuery = None,
    group: GroupQuery = None,
    form: FormatQuery = ExportFormat.JSONL,
) -> Response:
    """Export every parked command of a domain, longest parked first."""
    found = here.bus.troubleshooting.every_masked(
        domain, command_type=command_type, group=group, viewer=viewer
    )
    views = (ParkedView.of(each, payload=each.data if payload else None) async for each in found)
    return await _stream(here, ParkedView, views, form)
