"""The page before a decision for many parked commands, and the decision."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID, uuid4, uuid5

from fastapi import Depends
from starlette.responses import Response

from commandbus.access.edits import demanded
from commandbus.access.model import Scope
from commandbus.errors import InvalidInputError, InvalidOperationError
from commandbus.http.console.formats import plural
from commandbus.http.console.forms import Fields, Form
from commandbus.http.console.queries import CodeFilter, IdFilter, TypeFilter
from commandbus.http.console.screen import Page
from commandbus.http.console.screens import troubleshooting
from commandbus.http.console.view import Show, View
from commandbus.http.problems import Kind, Problem
from commandbus.http.routes.troubleshooting import GroupQuery
from commandbus.http.schemas.base import DomainPath
from commandbus.troubleshooting import BulkFilter, BulkPreview, BulkVerb, JsonPatch, MergePatch
from commandbus.troubleshooting.patch import exact_payload
from commandbus.wording import span

#: Commands that the page shows, and that "Try 10 first" acts on: those that are parked longest.
SAMPLES = 3
FEW = 10
#: Seconds before the first item, in which a stop undoes all of it.
START_AFTER = 10
#: Rates that can be chosen; others can be typed.
RATES = (100, 10)

WORDS = {
    BulkVerb.RETRY: (
        ["Each is sent again with the payload that it has; its attempts count from zero."],
        ["Nobody gets a reply: a retry ends nothing. Until one is begun, it can be canceled."],
    ),
    BulkVerb.CANCEL: (
        ["Each ends as canceled. Who waits for a reply is told so, with your reason."],
        ["The handlers do not run. What has been canceled cannot be undone: its reply is out."],
    ),
    BulkVerb.COMPLETE: (
        ["Each ends as completed, as if its handler had done the work. Who waits is told so."],
        ["The handlers do not run. What has been completed cannot be undone: its reply is out."],
    ),
}  # fmt: skip


def _chosen(
    domain: DomainPath,
    group: GroupQuery = None,
    command_type: TypeFilter = None,
    error_code: CodeFilter = None,
    batch_id: IdFilter = None,
    failed_of: IdFilter = None,
) -> BulkFilter:
    return BulkFilter(
        domain, command_type=command_type, error_code=error_code, group=group, batch_id=batch_id,
        failed_of=failed_of,
    )  # fmt: skip


#: Which parked commands are meant, from the path and the query.
Chosen = Annotated[BulkFilter, Depends(_chosen)]


@troubleshooting.screen.page("/troubleshooting/{domain}/decide/{verb}", scope=Scope.OPERATE)
async def decide(view: Show, verb: BulkVerb, chosen: Chosen) -> Page:
    """The page before a decision."""
    return await asking(view, verb, chosen)


@troubleshooting.screen.action("/troubleshooting/{domain}/start/{verb}", scope=Scope.OPERATE)
async def start(view: Show, verb: BulkVerb, domain: DomainPath, form: Fields) -> Response | Page:
    """Freeze what matches, if it is still what was shown, and let workers act on it."""
    chosen = filter_in(form, domain)
    shown = form.number("expected_total")
    if shown is None:
        raise Problem(Kind.INVALID_REQUEST, "open the page before this one, and send it from there")
    everything = not chosen.conditions()
    if everything and form.text("typed") != domain:
        raise Problem(
            Kind.INVALID_REQUEST,
            f"this is everything parked in {domain}; type its name to go on. Nothing was started",
        )
    limit = form.number("only")
    edit = None if not form.text("edit") else demanded(view.caller, edit_in(form.text("edit")))
    operation = UUID(form.required("operation_id"))
    try:
        started = await view.bus.bulk.start(
            verb, chosen, edit=edit, reason=form.required("reason", "Reason"), rate=rate_in(form),
            operator=view.actor,
            # One page may start both: a few first and, after a look at them, all.
            operation_id=operation if limit is None else uuid5(operation, f"only {limit}"),
            everything=True, expected_total=shown if limit is None else min(limit, shown),
            limit=limit, start_after=START_AFTER,
            on_behalf=view.bus.governance.on_behalf_of(view.caller, domain),
        )  # fmt: skip
    except InvalidOperationError as error:
        return await _asked_again(view, verb, chosen, shown, form.text("edit"), error)
    return view.to(
        "bulk.operation",
        f"Started. Nothing happens for {START_AFTER} seconds: until then Stop undoes all of it.",
        operation_id=started.operation_id,
    )


async def _asked_again(
    view: View, verb: BulkVerb, chosen: BulkFilter, shown: int, edit: str, error: Exception
) -> Page:
    """What matches now, if that is why the decision was refused; nothing has been done."""
    page = await asking(view, verb, chosen, fields={"edit": edit} if edit else {})
    total = page.values["preview"].total
    if total == shown:
        raise error
    changed = f"Nothing was started: you confirmed {shown:,}, and now {total:,} match. Look again."
    details = {"action": "troubleshooting.start", "refused": changed}
    await view.console.note(view.actor, view.request, details, is_refused=True)
    return replace(page, status=409, values={**page.values, "changed": changed})


async def asking(view: View, verb: BulkVerb, chosen: BulkFilter, **more: Any) -> Page:
    """The page before a decision, with what matches now."""
    preview = await view.bus.bulk.preview(chosen, samples=SAMPLES, viewer=view.viewer)
    chosen = _whole_group(chosen, preview)
    count = plural(preview.total, "command")
    said = f"{verb.value.capitalize()} {count}"
    cli, request = _cli(verb, chosen, preview.total), _curl(view, verb, chosen, preview.total)
    if more.get("edit"):
        said = f"Edit and retry {count}"
        option = "--patch" if more["edit"]["text"].startswith("[") else "--merge-patch"
        cli = cli.replace(" tsq retry ", " tsq edit ", 1) + f" {option} @change.json"
        request = ""
    happens, stays = WORDS[verb]
    values = {
        "verb": said,
        "action": view.url("troubleshooting.start", domain=chosen.domain, verb=verb.value),
        "back": _back(view, chosen),
        "happens": [
            *(more.pop("happens", None) or happens),
            f"Workers of {chosen.domain} do it, after {START_AFTER} seconds in which Stop undoes "
            "all of it.",
        ],
        "stays": [
            *stays,
            "What is parked from now on is no part of it; what somebody else decides meanwhile is "
            "skipped.",
        ],
        "fields": {**fields_of(chosen), "expected_total": preview.total,
                   "operation_id": uuid4(), **more.pop("fields", {})},
        "typed": "" if chosen.conditions() else chosen.domain,
        "look": "primary" if verb is BulkVerb.RETRY else "danger sure",
        "rates": rates_for(preview.total),
        "few": FEW if preview.total > FEW else 0,
        "preview": preview,
        "domain": chosen.domain,
        "cli": cli,
        "curl": request,
        "edit": None,
        "changed": "",
        **more,
    }  # fmt: skip
    return view.page("troubleshooting/decide.html", said, **values)


def _whole_group(chosen: BulkFilter, preview: BulkPreview) -> BulkFilter:
    """With the whole fingerprint, if only its beginning was given."""
    if chosen.group is None or not preview.groups:
        return chosen
    return replace(chosen, group=preview.groups[0].fingerprint)


def _back(view: View, chosen: BulkFilter) -> str:
    if chosen.failed_of is not None:
        return view.url("bulk.operation", operation_id=chosen.failed_of)
    if chosen.group is not None:
        return view.url("troubleshooting.group", domain=chosen.domain, fingerprint=chosen.group)
    return view.url("troubleshooting", domain=chosen.domain)


def rates_for(total: int, now: float | None = None) -> list[tuple[str, str]]:
    """What can be chosen: the value, and the words with how long it takes. `now`: the rate that it
    has already.
    """
    paced = [
        (str(rate), f"{rate} per second: about {span(max(1.0, total / rate))}") for rate in RATES
    ]
    first = ("", "As fast as the workers can")
    if now is not None:
        first = ("same", f"{now:g} per second, as before: about {span(total / now)}")
    return [first, *paced, ("own", "Another rate, per second:")]


def rate_in(form: Form) -> float | None:
    """The rate that a form asks for; None: as fast as possible."""
    asked = form.text("rate")
    if asked == "own":
        found = form.decimal("own_rate")
        if found is None:
            raise Problem(Kind.INVALID_REQUEST, "fill in the rate, in commands per second")
        return found
    return form.decimal("rate")


def edit_in(text: str) -> MergePatch | JsonPatch:
    """The edit of a form: an object is a merge patch, an array is a JSON Patch."""
    try:
        found = exact_payload(text)
    except ValueError:
        raise InvalidInputError("the edit is no JSON; nothing was changed") from None
    return JsonPatch(found) if isinstance(found, list) else MergePatch(found)


# -- a filter as fields of a form, and back


def fields_of(chosen: BulkFilter) -> dict[str, str]:
    """The filter as hidden fields; the domain is in the path."""
    found = chosen.conditions()
    ids = found.pop("command_ids", None)
    return {**found, **({} if ids is None else {"command_ids": ",".join(ids)})}


def filter_in(form: Form, domain: str) -> BulkFilter:
    """The filter that a form carries; the bus checks its parts."""
    ids = form.text("command_ids")
    try:
        return BulkFilter(
            domain,
            command_type=form.text("command_type") or None,
            error_code=form.text("error_code") or None,
            group=form.text("group") or None,
            batch_id=_uuid(form, "batch_id"),
            failed_of=_uuid(form, "failed_of"),
            command_ids=tuple(UUID(each) for each in ids.split(",")) if ids else None,
        )
    except ValueError:
        raise Problem(Kind.INVALID_REQUEST, "the form has an id that is none") from None


def _uuid(form: Form, name: str) -> UUID | None:
    text = form.text(name)
    return UUID(text) if text else None


# -- the same elsewhere

_OPTIONS = {
    "group": "--group", "command_type": "--type", "error_code": "--code", "batch_id": "--batch",
    "failed_of": "--failed-of",
}  # fmt: skip


def _cli(verb: BulkVerb, chosen: BulkFilter, total: int) -> str:
    conditions = chosen.conditions()
    words = ["commandbus", "tsq", verb.value, "--domain", chosen.domain]
    words += [str(each) for each in conditions.get("command_ids", ())]
    for name, option in _OPTIONS.items():
        if name in conditions:
            words += [option, str(conditions[name])]
    if not conditions:
        words.append("--all")
    words += ["--expect", str(total), "--yes", "--reason", "why"]
    return shlex.join(words)


def _curl(view: View, verb: BulkVerb, chosen: BulkFilter, total: int) -> str:
    body: dict[str, Any] = {
        "verb": verb.value, "filter": {"domain": chosen.domain, **chosen.conditions()},
        "expected_total": total, "reason": "why",
    }  # fmt: skip
    if not chosen.conditions():
        body["everything"] = True
    return curl(view, "POST", "/api/v1/bulk-operations", body)


def curl(view: View, method: str, path: str, body: Any = None) -> str:
    """A request to copy. What comes from data is quoted: a copied line must do nothing else."""
    lines = [
        f"curl -X {method}",
        f'-H "Authorization: Bearer $TOKEN" "$COMMANDBUS_URL"{path_in(view, path)}',
    ]
    if body is not None:
        text = shlex.quote(json.dumps(body, ensure_ascii=False))
        lines[1:1] = ["-H 'Content-Type: application/json'", f"-d {text}"]
    return " \\\n  ".join(lines)


def path_in(view: View, path: str) -> str:
    """A path of the API, below the prefix."""
    return shlex.quote(view.here.url(path))
