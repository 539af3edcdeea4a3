"""Actions: forms that are taken from the caller's own pages only, and written into the audit."""

from __future__ import annotations

import inspect
import shlex
from typing import Any, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from commandbus.access.model import Caller, Scope
from commandbus.errors import CommandBusError
from commandbus.http.auth.scopes import Requires
from commandbus.http.console import sign_in
from commandbus.http.console.answers import page_response
from commandbus.http.console.calling import framed, view_in, with_view
from commandbus.http.console.forms import Fields, Form
from commandbus.http.console.origins import check_origin
from commandbus.http.console.screen import ActionRoute, Page, Screen, signature_of
from commandbus.http.console.view import View, view_of
from commandbus.http.problems import Kind, Problem
from commandbus.privacy.redaction import redact_text


def add_action(router: APIRouter, screen: Screen, route: ActionRoute) -> None:
    """Add the route of an action."""

    async def act(form: Fields, **given: Any) -> Response:
        view = framed(view_in(given), screen, route)
        refused = await _refused(view, route, form)
        if refused is not None:
            return refused
        if wants_form:
            given = {**given, "form": form}
        try:
            found = await route.handler(**with_view(given, view))
        except (Problem, CommandBusError) as error:
            await _note(view, route, form, error)
            raise
        if isinstance(found, Page):  # a further step: nothing has happened yet
            return await page_response(view, found)
        await _note(view, route, form)
        return cast(Response, found)

    signature = signature_of(route.handler)
    wants_form = "form" in signature.parameters
    needed = [Depends(_Rights(route))]
    parameters = list(signature.parameters.values())
    if not wants_form:
        parameters.append(
            inspect.Parameter("form", inspect.Parameter.KEYWORD_ONLY, annotation=Fields)
        )
    cast(Any, act).__signature__ = signature.replace(parameters=parameters)
    act.__name__ = f"console.{route.name}"
    router.add_api_route(
        route.path, act, methods=["POST"], dependencies=needed, response_model=None,
        name=act.__name__,
    )  # fmt: skip


class _Rights(Requires):
    """What an action needs; who lacks it is in the audit too, as all who are refused."""

    def __init__(self, route: ActionRoute) -> None:
        super().__init__(route.scope, *route.alternatives)
        self._route = route

    async def __call__(self, request: Request) -> Caller:
        """The caller, if it may; Problem otherwise."""
        try:
            return await super().__call__(request)
        except (Problem, CommandBusError) as error:
            await _note(view_of(request), self._route, Form(()), error)
            raise


async def _refused(view: View, route: ActionRoute, form: Form) -> Response | None:
    """Refuse a form that is not the caller's own; ask an administrator for the token again."""
    try:
        _check_form(view, form)
    except Problem as problem:
        await _note(view, route, form, problem)
        raise
    if not await _is_of_administrators(view, route) or not await sign_in.needs_proof(view):
        return None
    wrong = await sign_in.prove(view, form)
    if wrong is None:
        return None
    if wrong:
        await _note(view, route, form, Problem(Kind.PERMISSION_DENIED, wrong))
    values = {
        "fields": [each for each in form.fields if each[0] not in {"csrf", "proof", "username"}],
        "action": quote(view.path),
        "wrong": wrong,
        "command": shlex.join(["commandbus", "open", "--print", "--operator", view.actor]),
    }
    return await page_response(view, Page("prove.html", values, "Your token again", 403))


async def _is_of_administrators(view: View, route: ActionRoute) -> bool:
    """Whether an action is one for which an administrator's session alone is not enough."""
    if view.session is None:
        return False
    return route.scope is Scope.ADMIN or (route.proof is not None and await route.proof(view))


def _check_form(view: View, form: Form) -> None:
    check_origin(view.request, view.here.settings.trusted_proxies)
    if not view.csrf_tokens.fits(view.path, form.text("csrf")):
        raise Problem(
            Kind.PERMISSION_DENIED,
            "this form is not one of your session, or the session has ended since; open the page "
            "again, and send it from there",
        )


async def _note(view: View, route: ActionRoute, form: Form, error: Exception | None = None) -> None:
    """Write what was done, or refused, into the audit; small things of the frame are not."""
    if not route.is_audited:
        return
    details = {"action": route.name, "path": view.path}
    if reason := form.text("reason"):
        details["reason"] = redact_text(reason, 500)
    if error is not None:
        details["refused"] = redact_text(error.detail if isinstance(error, Problem) else str(error))
    await view.console.note(view.actor, view.request, details, is_refused=error is not None)
