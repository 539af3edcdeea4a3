"""Problem Details (RFC 9457): one form for every error, and one table from our errors to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from commandbus.errors import (
    BatchNotFoundError,
    BatchSizeExceededError,
    BulkOperationNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    InvalidBatchRequestError,
    InvalidInputError,
    InvalidOperationError,
    LeaseLostError,
    PayloadLostError,
    PermissionDeniedError,
    RateLimitExceededError,
    SchemaVersionError,
    TicketNotFoundError,
)
from commandbus.http import catalogue as kinds
from commandbus.http.catalogue import Kind
from commandbus.privacy.redaction import redact_text

MEDIA_TYPE = "application/problem+json"
#: Seconds after which to come again, when nobody knows better.
RETRY_AFTER = 2
#: Errors that one answer lists.
MAX_ERRORS = 100

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(eq=False)  # not frozen: context managers set the traceback of what they pass on
class Problem(Exception):  # noqa: N818  (it is what RFC 9457 calls it)
    """What went wrong, for the client. Raised by faces, or made from an error of ours."""

    kind: Kind
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Further members of the body.
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self, request_id: str | None) -> bytes:
        """The JSON."""
        document: dict[str, Any] = {
            "type": self.kind.uri,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "code": self.kind.code,
            **self.more,
        }
        if request_id is not None:
            document["request_id"] = request_id
        return orjson.dumps(document)

    def response(self, request_id: str | None) -> Response:
        """The answer."""
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(self.body(request_id), self.kind.status, headers, MEDIA_TYPE)


def not_found(what: str = "there is nothing here that you may see") -> Problem:
    """It does not exist, or this caller may not see it; the response is the same."""
    return Problem(kinds.NOT_FOUND, what)


def unauthenticated(*, is_jwt: bool = False) -> Problem:
    """The same for every reason, so that nobody learns which tokens exist."""
    form = "a JSON Web Token" if is_jwt else "an API token (`commandbus token create` makes one)"
    return Problem(
        kinds.UNAUTHENTICATED,
        f"send `Authorization: Bearer …` with {form} that is neither expired nor revoked",
        {"WWW-Authenticate": 'Bearer realm="commandbus"'},
    )


def unavailable(detail: str, retry_after: int = RETRY_AFTER) -> Problem:
    """Come again later."""
    return Problem(kinds.UNAVAILABLE, detail, {"Retry-After": str(retry_after)})


def limited(error: RateLimitExceededError) -> Problem:
    """429, with the limit and when to come again."""
    return Problem(
        kinds.RATE_LIMIT_EXCEEDED,
        str(error),
        {"Retry-After": str(max(0, error.retry_after))},
        {
            "limit_type": str(error.limit_type),
            "scope": error.scope,
            "current_value": error.current_value,
            "max_value": error.max_value,
            "retry_after": error.retry_after,
            "contact_admin": error.contact_admin,
        },
    )


# -- our errors

_NOT_FOUND = (
    TicketNotFoundError, CommandNotFoundError, BatchNotFoundError, BulkOperationNotFoundError,
)  # fmt: skip
_CONFLICT = (DuplicateCommandError, InvalidOperationError, LeaseLostError, PayloadLostError)


def problem_of(error: CommandBusError) -> Problem:
    """The one table from an error of the library to what a client is told."""
    match error:
        case RateLimitExceededError():
            return limited(error)
        case BatchSizeExceededError():
            more = {"max_value": error.max_value, "contact_admin": error.contact_admin}
            return Problem(kinds.BATCH_SIZE_EXCEEDED, str(error), more=more)
        case InvalidBatchRequestError():
            return Problem(kinds.INVALID_BATCH_REQUEST, _shown(error), more=_item_errors(error))
        case InvalidInputError():
            return Problem(kinds.INVALID_REQUEST, _shown(error))
        case PermissionDeniedError():
            return Problem(kinds.PERMISSION_DENIED, str(error), more={"scope": str(error.scope)})
        case _ if isinstance(error, _NOT_FOUND):
            return Problem(kinds.NOT_FOUND, _shown(error))
        case _ if isinstance(error, _CONFLICT):
            return Problem(kinds.CONFLICT, _shown(error))
        case DatabaseUnavailableError():
            return unavailable("the database does not answer; nothing is known to be changed")
        case SchemaVersionError():
            return unavailable("the database must be migrated first; ask who runs the service", 30)
        case _:
            # The text of PostgreSQL may contain values; the log has it under the request id.
            return Problem(kinds.INTERNAL_ERROR, "the request could not be carried out")


def _shown(error: CommandBusError) -> str:
    return redact_text(str(error), 1_000)


def _item_errors(error: InvalidBatchRequestError) -> dict[str, Any]:
    if not error.errors:
        return {}
    shown = [
        {
            "pointer": "#/items/" + "/".join(
                [str(item.index), *(_escaped(part) for part in item.field.split(".") if part)]
            ),
            "index": item.index,
            "message": redact_text(item.message, 500),
        }
        for item in error.errors[:MAX_ERRORS]
    ]  # fmt: skip
    return {"errors": shown, "error_count": len(error.errors)}


# -- what is wrong with the form of a request


def problem_code(kind: Kind) -> Callable[[Endpoint], Endpoint]:
    """Say which code a route has for a body of the wrong form, if not INVALID_REQUEST."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.__problem_kind__ = kind  # type: ignore[attr-defined]
        return endpoint

    return mark


def problem_of_validation(error: RequestValidationError, request: Request) -> Problem:
    """Where it is wrong and why; never the value, which may be a secret."""
    endpoint = request.scope.get("endpoint")
    kind: Kind = getattr(endpoint, "__problem_kind__", kinds.INVALID_REQUEST)
    found = error.errors()
    errors = [_field_error(item) for item in found[:MAX_ERRORS]]
    if any(item.get("type") == "json_invalid" for item in found):
        return Problem(
            kind, "the body is not JSON; send one JSON document", more={"errors": errors}
        )
    many = f"{len(found)} things are" if len(found) > 1 else "one thing is"
    return Problem(kind, f"{many} wrong with the request; see errors", more={"errors": errors})


def _field_error(item: Mapping[str, Any]) -> dict[str, Any]:
    where, *path = item.get("loc") or ("body",)
    if where == "body":
        if item.get("type") == "json_invalid":
            return {"pointer": "#", "message": "this is not JSON"}
        return {
            "pointer": "#" + "".join(f"/{_escaped(str(part))}" for part in path),
            "message": _message(item),
        }
    name = str(path[0]) if path else ""
    return {"in": str(where), "name": redact_text(name, 100), "message": _message(item)}


def _message(item: Mapping[str, Any]) -> str:
    # Messages of pydantic name what was expected; those of value_error are written by us.
    return redact_text(str(item.get("msg", "not acceptable")), 300)


def _escaped(part: str) -> str:
    return redact_text(part, 100).replace("~", "~0").replace("/", "~1")


def problem_of_http(error: HTTPException) -> Problem:
    """What the framework refused: no such path, no such method, a body that cannot be read."""
    kind = kinds.BY_STATUS.get(error.status_code, kinds.INVALID_REQUEST)
    details = {
        404: "there is no such path; /openapi.json lists what there is",
        405: "the path exists, but not with this method; see the header Allow",
        400: "the request cannot be read; send one JSON document",
    }
    detail = details.get(error.status_code, kind.title)
    return Problem(kind, detail, dict(error.headers or {}))
