"""Submissions of governed batches: one route for each path that batch types were given, and one for
all of them. The routes are made from the declarations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from commandbus.access.model import Caller
from commandbus.errors import (
    BatchSizeExceededError,
    InvalidBatchRequestError,
    InvalidInputError,
    PermissionDeniedError,
    RateLimitExceededError,
)
from commandbus.governance.model import LimitState, LimitType
from commandbus.governance.types import BatchType
from commandbus.http.context import info_of
from commandbus.http.openapi import problem_response
from commandbus.http.platform import POLL_HINT, Here, accepted, platform_of
from commandbus.http.problems import Kind, Problem, problem_of_validation
from commandbus.http.routes.tickets import Group
from commandbus.http.schemas.governed import Submitted
from commandbus.http.schemas.submissions import (
    AnySubmission,
    OperationSubmission,
    RequestKey,
    Submission,
    submission_form,
)
from commandbus.http.strict import StrictRoute

#: On a response to a request that created nothing, because its id was known.
REPLAYED = "Idempotent-Replayed"

_RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {
        "headers": {
            "Location": {"schema": {"type": "string"}, "description": "The status_url."},
            "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."},
            REPLAYED: {
                "schema": {"type": "string", "const": "true"},
                "description": "The request was known: nothing was created, nothing charged.",
            },
        }
    },
    400: problem_response(
        Kind.INVALID_BATCH_REQUEST,
        {
            "errors": [
                {"pointer": "#/items/1/name", "index": 1, "message": "stands twice in the request"}
            ],
            "error_count": 1,
        },
    ),
    429: problem_response(
        Kind.RATE_LIMIT_EXCEEDED,
        {
            "limit_type": "user_pending_batches",
            "scope": "user",
            "current_value": 3,
            "max_value": 3,
            "retry_after": 30,
            "contact_admin": True,
        },
    ),
}


class SubmissionRoute(StrictRoute):
    """Counts what becomes of each request; a wrong form has a code of its own."""

    refused = Kind.INVALID_BATCH_REQUEST

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the framework, and a count around it."""
        handler = super().get_route_handler()

        async def counted(request: Request) -> Response:
            try:
                response = await handler(request)
            except RequestValidationError as error:
                _count(request, "invalid")
                raise problem_of_validation(error, Kind.INVALID_BATCH_REQUEST) from None
            except Exception as error:
                _count(request, _result_of(error))
                raise
            _count(request, "replayed" if REPLAYED in response.headers else "accepted")
            return response

        return counted


def _count(request: Request, result: str) -> None:
    # A type that nobody declared, or a form that does not tell: one series for all of them.
    only = getattr(request.scope.get("endpoint"), "__batch_type__", "")
    batch_type = getattr(request.state, "batch_type", only)
    platform_of(request).metrics.submitted(batch_type, result)


def _result_of(error: Exception) -> str:
    match error:
        case BatchSizeExceededError():
            return "too_large"
        case InvalidInputError() | HTTPException() | Problem():
            return "invalid"
        case PermissionDeniedError():
            return "denied"
        case RateLimitExceededError():
            return "limited"
        case _:
            return "failed"


def add_submission(
    router: APIRouter,
    group: Group,
    path: str,
    types: Sequence[BatchType],
    *,
    form: type[Submission],
    caller: Any,
    name: str,
    text: str,
) -> None:
    """Add `POST path` for some batch types. `caller` says which scope it needs."""
    # Two names, because the parameters of the route have these names too.
    body, permitted = submission_form(form, types), caller

    async def submit(
        form: Submission,
        request: Request,
        response: Response,
        here: Here,
        idempotency_key: RequestKey = None,
        caller: Caller = permitted,
    ) -> Submitted:
        """Submit a batch."""
        request.state.batch_type = batch_type = _chosen(form, types)
        try:
            made = await here.bus.governance.submit(
                caller,
                batch_type,
                form.items,
                request_id=_request_id(form, idempotency_key),
                reason=form.reason,
            )
        except RateLimitExceededError as error:
            limit = LimitType(error.limit_type)
            values = (error.scope, error.current_value, error.max_value, error.retry_after)
            _show_limits(request, LimitState(limit, *values))
            raise
        _show_limits(request, *made.limits)
        view = group.view(here, made.ticket, Submitted, retry_after_seconds=POLL_HINT)
        accepted(response, view.status_url)
        if made.is_replay:
            response.headers[REPLAYED] = "true"
        return view

    submit.__annotations__["form"] = body  # known only now
    is_only = len(types) == 1 and form is not AnySubmission
    submit.__batch_type__ = types[0].name if is_only else ""  # type: ignore[attr-defined]
    router.add_api_route(
        path,
        submit,
        methods=["POST"],
        status_code=202,
        name=name,
        summary=inspect.cleandoc(text).partition("\n")[0].rstrip(".") or "Submit a batch",
        description=f"{text}\n\n{_DESCRIPTION}",
        responses=_RESPONSES,
        route_class_override=SubmissionRoute,
    )


_DESCRIPTION = (
    "All of it is created, or nothing. In this order: scope, form and size, repeat of request_id, "
    "limits, the items. A repeat with the same request_id and the same body gets the batch that is "
    "there; with another body it is refused."
)


def _chosen(form: Submission, types: Sequence[BatchType]) -> str:
    """The name of the batch type that a form means."""
    match form:
        case AnySubmission():
            return form.batch_type
        case OperationSubmission():
            by_operation = {each.operation: each.name for each in types}
            if form.operation not in by_operation:
                known = " or ".join(sorted(str(each) for each in by_operation))
                raise InvalidBatchRequestError(f"no such operation here; use {known}")
            return by_operation[form.operation]
        case _:
            return types[0].name


def _request_id(form: Submission, key: UUID | None) -> UUID | None:
    if form.request_id is not None and key not in {None, form.request_id}:
        raise InvalidBatchRequestError("request_id and Idempotency-Key differ; send one of them")
    return form.request_id or key


def _show_limits(request: Request, *limits: LimitState) -> None:
    """In the headers of the response, beside the limit that the gate has counted."""
    info = info_of(request.scope)
    if info is not None:
        shown = {state.limit_type: state for state in (*info.limits, *limits)}
        info.limits = tuple(shown.values())
