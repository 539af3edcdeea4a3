"""Submissions of governed batches: one route for each path that batch types were given, and one for
all of them. The routes are made from the declarations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from commandbus.access.model import Caller, Scope
from commandbus.errors import (
    BatchSizeExceededError,
    InvalidBatchRequestError,
    InvalidInputError,
    PermissionDeniedError,
    RateLimitExceededError,
)
from commandbus.governance.model import LimitState, LimitType
from commandbus.governance.types import BatchType
from commandbus.http import catalogue as kinds
from commandbus.http.auth.scopes import requires
from commandbus.http.context import info_of
from commandbus.http.openapi import problem_response
from commandbus.http.platform import POLL_HINT, Here, accepted, platform_of
from commandbus.http.problems import problem_code
from commandbus.http.routes.tickets import Group, links_of
from commandbus.http.schemas.governed import Submitted
from commandbus.http.schemas.submissions import (
    AnySubmission,
    OperationSubmission,
    RequestKey,
    Submission,
    submission_form,
)

#: On an answer that created nothing, because the request was known by its id.
REPLAYED = "Idempotent-Replayed"

Key = Annotated[
    RequestKey, Header(description="The same as request_id, for clients that have it: a UUID.")
]

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
        kinds.INVALID_BATCH_REQUEST,
        {
            "errors": [
                {"pointer": "#/items/1/name", "index": 1, "message": "stands twice in the request"}
            ],
            "error_count": 1,
        },
    ),
    429: problem_response(
        kinds.RATE_LIMIT_EXCEEDED,
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


class SubmissionRoute(APIRoute):
    """Counts what becomes of each request, also of one whose form is wrong."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the framework, and a count around it."""
        handler = super().get_route_handler()

        async def counted(request: Request) -> Response:
            try:
                response = await handler(request)
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
        case InvalidInputError() | RequestValidationError():
            return "invalid"
        case PermissionDeniedError():
            return "denied"
        case RateLimitExceededError():
            return "limited"
        case HTTPException() if error.status_code < 500:
            return "invalid"
        case _:
            return "failed"


def add_submission(
    router: APIRouter, path: str, types: Sequence[BatchType], group: Group, name: str
) -> None:
    """Add `POST path` for the types that share it, all of one permission."""
    is_alone = types[0].operation is None
    by_operation = {each.operation: each.name for each in types}

    def choose(form: Submission) -> str:
        if isinstance(form, OperationSubmission):
            chosen = by_operation.get(form.operation)
            if chosen is None:
                known = " or ".join(sorted(str(each) for each in by_operation))
                raise InvalidBatchRequestError(f"no such operation here; use {known}")
            return chosen
        return types[0].name

    form = Submission if is_alone else OperationSubmission
    _add(
        router,
        path,
        annotation=submission_form(form, types, "Submit_"),
        caller=requires(types[0].permission),
        choose=choose,
        group=group,
        name=name,
        only=types[0].name if len(types) == 1 else "",
        text="\n\n".join(dict.fromkeys(each.description for each in types if each.description)),
    )


def add_any_submission(
    router: APIRouter, path: str, types: Sequence[BatchType], group: Group
) -> None:
    """Add `POST path` for a batch of any type: which permission it needs, its type says."""
    others = sorted({each.permission for each in types} - {Scope.SEND})

    def choose(form: Submission) -> str:
        return form.batch_type if isinstance(form, AnySubmission) else ""

    _add(
        router,
        path,
        annotation=submission_form(AnySubmission, types, "SubmitAny_"),
        caller=requires(Scope.SEND, *others),
        choose=choose,
        group=group,
        name="submit_batch",
        text="Submit a batch of any type. The scope is that of its type.",
    )


def _add(
    router: APIRouter,
    path: str,
    *,
    annotation: Any,
    caller: Any,
    choose: Callable[[Submission], str],
    group: Group,
    name: str,
    text: str,
    only: str = "",
) -> None:
    permitted = caller

    @problem_code(kinds.INVALID_BATCH_REQUEST)
    async def submit(
        form: Submission,
        request: Request,
        response: Response,
        here: Here,
        idempotency_key: Key = None,
        caller: Caller = permitted,
    ) -> Submitted:
        """Submit a batch."""
        request.state.batch_type = batch_type = choose(form)
        try:
            made = await here.bus.governance.submit(
                caller,
                batch_type,
                form.items,
                request_id=_request_id(form, idempotency_key),
                reason=form.reason,
            )
        except RateLimitExceededError as error:
            _show_limits(request, [_state_of(error)])
            raise
        _show_limits(request, made.limits)
        links = links_of(request, made.ticket, group)
        accepted(response, links["self"])
        if made.is_replay:
            response.headers[REPLAYED] = "true"
        return Submitted.of(
            made.ticket, status_url=links["self"], retry_after_seconds=POLL_HINT, links=links
        )

    submit.__annotations__["form"] = annotation  # known only now
    submit.__batch_type__ = only  # type: ignore[attr-defined]
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


def _request_id(form: Submission, key: UUID | None) -> UUID | None:
    if form.request_id is not None and key not in {None, form.request_id}:
        raise InvalidBatchRequestError("request_id and Idempotency-Key differ; send one of them")
    return form.request_id or key


def _show_limits(request: Request, limits: Sequence[LimitState]) -> None:
    """In the headers of the answer, beside the one that was counted at the door."""
    info = info_of(request.scope)
    if info is not None:
        shown = {state.limit_type: state for state in (*info.limits, *limits)}
        info.limits = tuple(shown.values())


def _state_of(error: RateLimitExceededError) -> LimitState:
    return LimitState(
        LimitType(error.limit_type),
        error.scope,
        error.current_value,
        error.max_value,
        error.retry_after,
    )
