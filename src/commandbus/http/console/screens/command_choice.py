"""Commands that were chosen in the list: cancel those that no worker has begun."""

from __future__ import annotations

from uuid import UUID

from starlette.responses import Response

from commandbus.access.model import Scope
from commandbus.errors import CommandNotFoundError, InvalidOperationError
from commandbus.http.auth.scopes import refuse_domain
from commandbus.http.console.formats import plural
from commandbus.http.console.forms import Fields, Form
from commandbus.http.console.screen import Page
from commandbus.http.console.screens import commands
from commandbus.http.console.view import Show, View
from commandbus.http.problems import Kind, Problem
from commandbus.models import CommandMetadata, CommandStatus
from commandbus.troubleshooting import Action, allowed_actions

#: Rows that can be chosen at once: those of one page.
MAX_CHOSEN = 50


@commands.screen.action("/commands/chosen", scope=Scope.OPERATE)
async def choose(view: Show, form: Fields) -> Response | Page:
    """The page before: which of the chosen ones can be canceled, and which not."""
    chosen = _chosen_in(view, form)
    found = await _read(view, chosen)
    able = [each for each in found if _can_cancel(each)]
    parked = sum(each.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE for each in found)
    held = sum(not each.status.is_terminal for each in found) - len(able) - parked
    ended = len(found) - len(able) - parked - held
    count = plural(len(able), "command")
    stays = [
        f"{plural(number, 'command')} {words}"
        for number, words in (
            (held, "that workers hold: left alone."),
            (parked, "in troubleshooting: left there; decide in Troubleshooting."),
            (ended, "that ended already: they stay as they are."),
        )
        if number
    ]
    return view.page(
        "commands/chosen.html",
        f"Cancel {count}",
        verb=f"Cancel {count}",
        action=view.url("commands.cancel"),
        back=view.url("commands"),
        fields={"chosen": ",".join(f"{each.domain}/{each.command_id}" for each in able)},
        happens=[
            "Each ends as canceled before it has begun. Who waits is told so, with your reason."
        ],
        stays=[
            *stays,
            "What a worker takes meanwhile is left alone. What is canceled cannot be undone.",
        ],
        able=able,
    )


@commands.screen.action("/commands/cancel", scope=Scope.OPERATE)
async def cancel(view: Show, form: Fields) -> Response:
    """Cancel the chosen ones; what is not possible any more is counted."""
    reason = form.required("reason", "Reason")
    done = late = 0
    for domain, command_id in _chosen_in(view, form):
        try:
            await view.bus.cancel(domain, command_id, reason, operator=view.actor)
            done += 1
        except (InvalidOperationError, CommandNotFoundError):
            late += 1
    said = f"{plural(done, 'command')} canceled."
    if late:
        said += f" {plural(late, 'command')} could not be canceled any more: a worker was quicker."
    return view.to("commands", said)


def _chosen_in(view: View, form: Form) -> list[tuple[str, UUID]]:
    """Domain and id of each, of which the caller reaches every one."""
    texts = [each for field in form.many("chosen") for each in field.split(",") if each]
    if not 1 <= len(texts) <= MAX_CHOSEN:
        raise Problem(Kind.INVALID_REQUEST, f"choose from 1 to {MAX_CHOSEN} commands in the list")
    found = []
    for text in dict.fromkeys(texts):
        domain, _, number = text.partition("/")
        refuse_domain(view.caller, domain)
        try:
            found.append((domain, UUID(number)))
        except ValueError:
            raise Problem(Kind.INVALID_REQUEST, "the form has an id that is none") from None
    return found


async def _read(view: View, chosen: list[tuple[str, UUID]]) -> list[CommandMetadata]:
    found = []
    for domain, command_id in chosen:
        try:
            found.append(await view.bus.search.require(domain, command_id, viewer=view.viewer))
        except CommandNotFoundError:
            continue  # gone, or not for this caller's eyes
    return found


def _can_cancel(command: CommandMetadata) -> bool:
    actions = allowed_actions(command.status, is_leased=command.leased_by is not None)
    return Action.CANCEL_PENDING in actions
