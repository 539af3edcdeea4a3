"""One change for the payloads of many parked commands: written, looked at, then started."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from commandbus.access.edits import demanded, seen_by
from commandbus.access.model import Scope
from commandbus.errors import CommandBusError, InvalidInputError, InvalidPayloadError
from commandbus.http.console.forms import Fields
from commandbus.http.console.screen import Page
from commandbus.http.console.screens import troubleshooting
from commandbus.http.console.screens.decisions import (
    Chosen,
    asking,
    edit_in,
    fields_of,
    filter_in,
)
from commandbus.http.console.view import Show, View
from commandbus.http.schemas.base import DomainPath
from commandbus.troubleshooting import BulkFilter, BulkVerb

#: Commands whose difference is shown.
EXAMPLES = 5
HAPPENS = [
    "Each payload is changed as shown and sent again; its attempts count from zero.",
    "Those to which the change cannot be applied stay parked, and are listed with the reason.",
    "The audit has the paths that change. The old payloads stay in the archive.",
]


@troubleshooting.screen.page("/troubleshooting/{domain}/edit", scope=Scope.OPERATE)
async def edit(view: Show, chosen: Chosen) -> Page:
    """Write a change for all that match."""
    return await _writing(view, chosen)


@troubleshooting.screen.action(
    "/troubleshooting/{domain}/edit", name="troubleshooting.look_at_edit", scope=Scope.OPERATE
)
async def look_at_edit(view: Show, domain: DomainPath, form: Fields) -> Response | Page:
    """The page before the change, with the difference. Nothing has happened yet."""
    chosen, text = filter_in(form, domain), form.text("edit")
    try:
        change = demanded(view.caller, edit_in(text))
    except (InvalidInputError, InvalidPayloadError) as error:
        return await _writing(view, chosen, text, error)
    preview = await view.bus.bulk.preview_edit(chosen, change, examples=EXAMPLES)
    seen = seen_by(view.caller, preview, change, payload=view.may(Scope.READ_PAYLOAD))
    shown = {"text": text, "preview": seen}
    return await asking(
        view, BulkVerb.RETRY, chosen, edit=shown, happens=HAPPENS, fields={"edit": text}
    )


async def _writing(
    view: View, chosen: BulkFilter, text: str = "", wrong: CommandBusError | None = None
) -> Page:
    found = await view.bus.bulk.preview(chosen, samples=1, viewer=view.viewer)
    sample: Any = None
    if view.may(Scope.READ_PAYLOAD) and found.samples:
        sample = await view.bus.search.payload(chosen.domain, found.samples[0].command_id)
    return view.page(
        "troubleshooting/edit.html",
        "Edit and retry",
        status=200 if wrong is None else 400,
        chosen=chosen,
        fields=fields_of(chosen),
        total=found.total,
        sample=sample,
        text=text,
        wrong="" if wrong is None else str(wrong),
    )
