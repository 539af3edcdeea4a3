"""Problem Details (RFC 9457): one form for every error, and one table from our errors to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from commandbus.errors import (
    BatchNotFoundError,
    BatchSizeExceededError,
    BulkOperationNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    DatabaseUnavailableError,
    DomainMovingError,
    DuplicateCommandError,
    GovernedTypeError,
    InvalidBatchRequestError,
    InvalidInputError,
    InvalidOperationError,
    LeaseLostError,
    PayloadLostError,
    PermissionDeniedError,
    RateLimitExceededError,
    ScheduleNotFoundError,
    SchemaVersionError,
    TicketNotFoundError,
    TokenNotFoundError,
)
from commandbus.privacy.redaction import redact_text

MEDIA_TYPE = "application/problem+json"
#: Seconds after which a client should try again, if nothing better is known.
RETRY_AFTER = 2
#: Errors that one response lists.
MAX_ERRORS = 100
#: `limit_type` of the limits of this service. A closed set, for metrics.
OWN_LIMITS = frozenset(
    f"{who}_{what}"
    for who in ("user", "token")
    for what in (
        "requests",
        "body_bytes",
        "commands",
        "concurrency",
        "waiting",
        "bodies",
        "console",
    )
) | {"address_requests", "auth_failures"}


class Kind(Enum):
    """One kind of problem. Its name is its code, which is stable: clients may decide by it."""

    INVALID_REQUEST = 400, "The request is not acceptable"
    UNAUTHENTICATED = 401, "No valid credentials"
    PERMISSION_DENIED = 403, "The caller lacks a scope"
    NOT_FOUND = 404, "There is no such thing"
    METHOD_NOT_ALLOWED = 405, "The path does not know this method"
    REQUEST_TIMEOUT = 408, "The request came too slowly"
    CONFLICT = 409, "The state does not allow it"
    PAYLOAD_TOO_LARGE = 413, "The body is too large"
    UNSUPPORTED_MEDIA_TYPE = 415, "The body is not JSON"
    RATE_LIMIT_EXCEEDED = 429, "A limit is reached"
    HEADERS_TOO_LARGE = 431, "The headers are too large"
    INTERNAL_ERROR = 500, "Something failed here"
    UNAVAILABLE = 503, "The service cannot answer now"
    # Of governed batches only, as their specification names them.
    INVALID_BATCH_REQUEST = 400, "The batch cannot be created as asked"
    BATCH_SIZE_EXCEEDED = 400, "The batch has too many items"

    def __init__(self, status: int, title: str) -> None:
        self.status = status
        self.title = title

    @property
    def uri(self) -> str:
        """The `type` of RFC 9457: a name, not an address."""
        return f"urn:commandbus:problem:{self.name.lower().replace('_', '-')}"

    @classmethod
    def of_status(cls, status: int) -> Kind:
        """The first kind with a status: the general one. INVALID_REQUEST for unknown ones."""
        return next((kind for kind in cls if kind.status == status), cls.INVALID_REQUEST)


@dataclass(eq=False)  # not frozen: context managers set the traceback of what they pass on
class Problem(Exception):  # noqa: N818  (it is what RFC 9457 calls it)
    """What went wrong, for the client. Raised by faces, or made from an error of ours."""

    kind: Kind
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Further members of the body.
    more: Mapping[str, Any] = field(default_factory=dict)

    def response(self, request_id: str) -> Response:
        """The response to send."""
        document = {
            "type": self.kind.uri,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "code": self.kind.name,
            **self.more,
            "request_id": request_id,
        }
        return Response(orjson.dumps(document), self.kind.status, dict(self.headers), MEDIA_TYPE)


def not_found(what: str = "there is nothing here that you may see") -> Problem:
    """It does not exist, or this caller may not see it; the response is the same."""
    return Problem(Kind.NOT_FOUND, what)


def unauthenticated(*, is_jwt: bool = False) -> Problem:
    """The same for every reason, so that nobody learns which tokens exist."""
    form = "a JSON Web Token" if is_jwt else "an API token (`commandbus token create` makes one)"
    return Problem(
        Kind.UNAUTHENTICATED,
        f"send `Authorization: Bearer …` with {form} that is neither expired nor revoked",
        {"WWW-Authenticate": 'Bearer realm="commandbus"'},
    )


def unavailable(detail: str, retry_after: int = RETRY_AFTER) -> Problem:
    """503, with the seconds after which to try again."""
    return Problem(Kind.UNAVAILABLE, detail, {"Retry-After": str(retry_after)})


# -- our errors

_NOT_FOUND = (
    TicketNotFoundError, CommandNotFoundError, BatchNotFoundError, BulkOperationNotFoundError,
    ScheduleNotFoundError, TokenNotFoundError,
)  # fmt: skip
_CONFLICT = (DuplicateCommandError, InvalidOperationError, LeaseLostError, PayloadLostError)


def problem_of(error: CommandBusError) -> Problem:
    """The one table from an error of the library to what a client is told."""
    match error:
        case RateLimitExceededError():
            names = ("scope", "current_value", "max_value", "retry_after", "contact_admin")
            more = {name: getattr(error, name) for name in names}
            more["limit_type"] = str(error.limit_type)
            headers = {"Retry-After": str(max(0, error.retry_after))}
            return Problem(Kind.RATE_LIMIT_EXCEEDED, str(error), headers, more)
        case BatchSizeExceededError():
            more = {"max_value": error.max_value, "contact_admin": error.contact_admin}
            return Problem(Kind.BATCH_SIZE_EXCEEDED, str(error), more=more)
        case InvalidBatchRequestError():
            return Problem(Kind.INVALID_BATCH_REQUEST, _shown(error), more=_item_errors(error))
        case InvalidInputError():
            return Problem(Kind.INVALID_REQUEST, _shown(error))
        case GovernedTypeError():
            more = {"scope": error.scope, "batch_types": list(error.batch_types)}
            return Problem(Kind.PERMISSION_DENIED, str(error), more=more)
        case PermissionDeniedError():
            more = {"scope": str(error.scope)} if error.scope else {}
            return Problem(Kind.PERMISSION_DENIED, str(error), more=more)
        case _ if isinstance(error, _NOT_FOUND):
            return Problem(Kind.NOT_FOUND, _shown(error))
        case _ if isinstance(error, _CONFLICT):
            return Problem(Kind.CONFLICT, _shown(error))
        case DomainMovingError():
            return unavailable(_shown(error))
        case DatabaseUnavailableError(shard=str(shard)):
            return unavailable(
                f"the database of shard {shard} does not answer; nothing is known to be changed, "
                "and what is on other shards goes on"
            )
        case DatabaseUnavailableError():
            return unavailable("the database does not answer; nothing is known to be changed")
        case SchemaVersionError():
            return unavailable("the database must be migrated first; tell its operator", 30)
        case _:
            # The text of PostgreSQL may contain values; the log has it under the request id.
            return Problem(Kind.INTERNAL_ERROR, "the request could not be carried out")


def _shown(error: CommandBusError) -> str:
    return redact_text(str(error), 1_000)


def _item_errors(error: InvalidBatchRequestError) -> dict[str, Any]:
    if not error.errors:
        return {}
    shown = [
        {
            "pointer": f"#/items/{item.index}" + _pointer(filter(None, item.field.split("."))),
            "index": item.index,
            "message": redact_text(item.message, 500),
        }
        for item in error.errors[:MAX_ERRORS]
    ]
    return {"errors": shown, "error_count": len(error.errors)}


# -- what is wrong with the form of a request


def problem_of_validation(
    error: RequestValidationError, kind: Kind = Kind.INVALID_REQUEST
) -> Problem:
    """Where it is wrong and why; never the value, which may be a secret."""
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        detail = "the body is not JSON; send one JSON document"
    else:
        many = f"{len(found)} things are" if len(found) > 1 else "one thing is"
        detail = f"{many} wrong with the request; see errors"
    return Problem(
        kind, detail, more={"errors": [_field_error(item) for item in found[:MAX_ERRORS]]}
    )


def _field_error(item: Mapping[str, Any]) -> dict[str, Any]:
    if item["type"] == "json_invalid":
        return {"pointer": "#", "message": "this is not JSON"}
    where, *path = item.get("loc") or ("body",)
    # Messages of pydantic name what was expected; those of value_error are written by us.
    message = redact_text(item["msg"], 300)
    if where == "body":
        return {"pointer": "#" + _pointer(path), "message": message}
    return {"in": where, "name": redact_text(str(path[0]) if path else "", 100), "message": message}


def _pointer(path: Iterable[object]) -> str:
    """A JSON Pointer (RFC 6901), with secrets in names of fields masked."""
    parts = [_name(str(part)) for part in path]
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def _name(text: str) -> str:
    # No field of ours has such a long name. A part of it could be half a secret, so none is shown.
    return "…" if len(text) > 1_000 else redact_text(text, 100)


def problem_of_http(error: HTTPException, root: str = "") -> Problem:
    """What the framework refused: no such path, no such method, a body that cannot be read.

    `root` is the path that the service is mounted below.
    """
    kind = Kind.of_status(error.status_code)
    details = {
        404: f"there is no such path; {redact_text(root)}/openapi.json lists what there is",
        405: "the path exists, but not with this method; see the header Allow",
        400: "the request cannot be read; send one JSON document",
    }
    detail = details.get(error.status_code, kind.title)
    return Problem(kind, detail, dict(error.headers or {}))
