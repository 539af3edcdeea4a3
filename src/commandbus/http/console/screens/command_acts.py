"""What a person does with one command: the pages before it, and the act."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.errors import InvalidInputError, InvalidOperationError, InvalidPayloadError
from commandbus.http.console.formats import pretty_json
from commandbus.http.console.forms import Fields, Form
from commandbus.http.console.screen import Page
from commandbus.http.console.screens import command
from commandbus.http.console.screens.decisions import curl
from commandbus.http.console.view import Show, View
from commandbus.http.problems import Kind, Problem
from commandbus.http.schemas.base import DomainPath
from commandbus.troubleshooting import Action
from commandbus.troubleshooting.patch import exact_payload

#: What each does and does not: the verb, what happens, what does not.
ACTS: dict[Action, tuple[str, list[str], list[str]]] = {
    Action.RETRY: (
        "Retry",
        ["It is sent again with the payload that it has; its attempts count from zero."],
        ["Nobody gets a reply: a retry ends nothing. Until it is begun, it can be canceled."],
    ),
    Action.CANCEL: (
        "Cancel",
        ["It ends as canceled. Who waits for a reply is told so, with your reason."],
        ["Its handler does not run. There is no undo: the reply is out."],
    ),
    Action.COMPLETE: (
        "Complete",
        ["It ends as completed, as if its handler had done the work. Who waits is told so."],
        ["Its handler does not run. There is no undo: the reply is out."],
    ),
    Action.CANCEL_PENDING: (
        "Cancel",
        ["It ends as canceled before it has begun. Who waits is told so, with your reason."],
        ["If a worker has taken it meanwhile, nothing happens. There is no undo."],
    ),
}


@command.screen.page("/commands/{domain}/{command_id}/do/{action}", scope=Scope.OPERATE)
async def ask(view: Show, domain: DomainPath, command_id: UUID, action: Action) -> Page:
    """The page before an act."""
    if action not in ACTS:
        raise Problem(Kind.NOT_FOUND, "there is no such page")
    word, happens, stays = ACTS[action]
    found = await view.bus.search.require(domain, command_id, viewer=view.viewer)
    here = {"domain": domain, "command_id": command_id}
    kind = "cancel" if action is Action.CANCEL_PENDING else action.value
    place = "commands" if action is Action.CANCEL_PENDING else "troubleshooting"
    first = "commandbus" if action is Action.CANCEL_PENDING else "commandbus tsq"
    return view.page(
        "confirm.html",
        f"{word} {found.command_type}",
        verb=f"{word} 1 command",
        action=view.url("command.act", **here, action=action.value),
        back=view.url("command", **here),
        happens=[f"This is {found.command_type} {command_id} of {domain}.", *happens],
        stays=[*stays, "If somebody else was quicker, nothing happens, and you are told."],
        look="primary" if action is Action.RETRY else "danger sure",
        cli=f"{first} {kind} {command_id} --domain {domain} --reason why",
        curl=curl(view, "POST", f"/api/v1/{place}/{domain}/{command_id}/{kind}", {"reason": "why"}),
    )


@command.screen.action("/commands/{domain}/{command_id}/do/{action}", scope=Scope.OPERATE)
async def act(
    view: Show, domain: DomainPath, command_id: UUID, action: Action, form: Fields
) -> Response | Page:
    """Do it; of two people at once one wins, and the other is shown what happened."""
    reason = form.required("reason", "Reason")
    await view.bus.search.require(domain, command_id, viewer=view.viewer)
    queue, who = view.bus.troubleshooting, view.actor
    try:
        match action:
            case Action.RETRY:
                await queue.retry(domain, command_id, operator=who)
                await queue.note(domain, command_id, reason, operator=who)
            case Action.COMPLETE:
                await queue.complete(domain, command_id, operator=who)
                await queue.note(domain, command_id, reason, operator=who)
            case Action.CANCEL:
                await queue.cancel(domain, command_id, reason, operator=who)
            case Action.CANCEL_PENDING:
                await view.bus.cancel(domain, command_id, reason, operator=who)
            case _:
                raise Problem(Kind.NOT_FOUND, "there is no such page")
    except InvalidOperationError as error:
        return await _too_late(view, domain, command_id, form, error)
    said = {"retry": "It is sent again.", "complete": "It is completed."}
    return view.to(
        "command", said.get(action.value, "It is canceled."), domain=domain, command_id=command_id
    )


async def _too_late(
    view: View, domain: str, command_id: UUID, form: Form, error: Exception
) -> Page:
    """The new life of it, with why nothing was done; the audit has that too."""
    details = {"action": view.page_name, "refused": str(error), "reason": form.text("reason")}
    await view.console.note(view.actor, view.request, details, is_refused=True)
    return await command.life_page(view, domain, command_id, problem=str(error))


# -- edit, then retry


@command.screen.page("/commands/{domain}/{command_id}/edit", scope=Scope.OPERATE)
async def edit(view: Show, domain: DomainPath, command_id: UUID) -> Page:
    """A text field with the payload, secrets masked."""
    view.demand(Scope.READ_PAYLOAD, "the payload")
    return await _writing(view, domain, command_id)


@command.screen.action(
    "/commands/{domain}/{command_id}/edit", name="command.look_at_edit", scope=Scope.OPERATE
)
async def look_at_edit(
    view: Show, domain: DomainPath, command_id: UUID, form: Fields
) -> Response | Page:
    """The page before the edit, with the difference. Nothing has happened yet."""
    view.demand(Scope.READ_PAYLOAD, "the payload")
    text = form.text("payload")
    try:
        given = _payload_in(text)
    except (InvalidInputError, InvalidPayloadError) as error:
        return await _writing(view, domain, command_id, text, str(error))
    before = await _masked(view, domain, command_id)
    here = {"domain": domain, "command_id": command_id}
    return view.page(
        "command/edited.html",
        "Edit and retry",
        verb="Send 1 command with this payload",
        action=view.url("command.send_edit", **here),
        back=view.url("command", **here),
        fields={"payload": text},
        happens=[
            "It is sent again with the payload on the right side of the difference.",
            "Fields that are left masked keep their real values.",
        ],
        stays=[
            "The old payload stays in the archive; the audit has the difference, secrets masked.",
            "If it does not fit its type, or somebody else was quicker, nothing is sent.",
        ],
        look="primary",
        before=before,
        given=given,
        cli=f"commandbus tsq edit {command_id} --domain {domain} --data-file new.json --reason why",
    )


@command.screen.action("/commands/{domain}/{command_id}/send", scope=Scope.OPERATE)
async def send_edit(
    view: Show, domain: DomainPath, command_id: UUID, form: Fields
) -> Response | Page:
    """Send it again with another payload."""
    view.demand(Scope.READ_PAYLOAD, "the payload")
    reason, text = form.required("reason", "Reason"), form.text("payload")
    await view.bus.search.require(domain, command_id, viewer=view.viewer)
    queue = view.bus.troubleshooting
    try:
        is_sent = await queue.retry(
            domain, command_id, operator=view.actor, payload=_payload_in(text),
            on_behalf=view.bus.governance.on_behalf_of(view.caller, domain),
        )  # fmt: skip
    except InvalidPayloadError as error:
        return await _writing(view, domain, command_id, text, str(error))
    except InvalidOperationError as error:
        return await _too_late(view, domain, command_id, form, error)
    await queue.note(domain, command_id, reason, operator=view.actor)
    said = "It is sent again." if is_sent else "The edit waits until somebody else has approved it."
    return view.to("command", said, domain=domain, command_id=command_id)


async def _writing(
    view: View, domain: str, command_id: UUID, text: str = "", wrong: str = ""
) -> Page:
    shown = await _masked(view, domain, command_id)
    return view.page(
        "command/edit.html",
        "Edit and retry",
        status=400 if wrong else 200,
        domain=domain,
        command_id=command_id,
        text=text or pretty_json(shown),
        wrong=wrong,
    )


async def _masked(view: View, domain: str, command_id: UUID) -> Any:
    """The payload as it may be shown, of a command that is parked."""
    item = await view.bus.troubleshooting.get(domain, command_id, viewer=view.viewer)
    if item is None:
        await view.bus.search.require(domain, command_id, viewer=view.viewer)
        raise InvalidOperationError(
            f"command {command_id} does not wait for a decision any more; open it to see why"
        )
    return await view.bus.troubleshooting.masked(item)


def _payload_in(text: str) -> dict[str, Any]:
    try:
        found = exact_payload(text)
    except ValueError as error:
        raise InvalidInputError(f"this is no JSON ({error}); nothing was changed") from None
    if not isinstance(found, dict):
        raise InvalidInputError("a payload is a JSON object: {…}; nothing was changed")
    return found
