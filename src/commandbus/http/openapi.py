"""The OpenAPI document: FastAPI's own, with scopes, security and problems put in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from commandbus.http.auth.scopes import Requirements, Requires
from commandbus.http.problems import MEDIA_TYPE, Kind

SCHEME = "bearer"
#: Problems of any route, and those only of routes with a caller, or with a body.
_ALWAYS = (Kind.INVALID_REQUEST, Kind.HEADERS_TOO_LARGE, Kind.INTERNAL_ERROR, Kind.UNAVAILABLE)
_WITH_CALLER = (
    Kind.UNAUTHENTICATED, Kind.PERMISSION_DENIED, Kind.NOT_FOUND, Kind.RATE_LIMIT_EXCEEDED,
)  # fmt: skip
_WITH_BODY = (
    Kind.REQUEST_TIMEOUT, Kind.CONFLICT, Kind.PAYLOAD_TOO_LARGE, Kind.UNSUPPORTED_MEDIA_TYPE,
)  # fmt: skip
_CHANGING = frozenset({"POST", "PUT", "DELETE", "PATCH"})


def operation_of(route: APIRoute) -> str:
    """The operationId of a route."""
    return str(route.name)


def add_openapi(app: FastAPI, required: Requirements) -> None:
    """Complete the document of an app; it is made once, when it is first asked for."""
    plain = app.openapi

    def describe() -> dict[str, Any]:
        return app.openapi_schema or _complete(plain(), required)

    app.openapi = describe  # type: ignore[method-assign]


def _complete(document: dict[str, Any], required: Requirements) -> dict[str, Any]:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = PROBLEM
    components["securitySchemes"] = {
        SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "An API token (cb_…), or a JSON Web Token if the service is set up so.",
        }
    }
    for path, operations in document.get("paths", {}).items():
        for method, operation in operations.items():
            _complete_operation(operation, method.upper(), required.get((path, method.upper())))
    return document


def _complete_operation(operation: dict[str, Any], method: str, required: Requires | None) -> None:
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)
    if required is not None:
        operation["x-scope"] = required.scope.value
        if required.alternatives:
            operation["x-scope-alternatives"] = [each.value for each in required.alternatives]
        operation["security"] = [{SCHEME: []}]
    found = [*_ALWAYS, *(_WITH_CALLER if required is not None else ())]
    if method in _CHANGING:
        found += _WITH_BODY
    for kind in found:
        # A route that documents this status itself knows better.
        responses.setdefault(str(kind.status), problem_response(kind))


def problem_response(kind: Kind, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How a route documents a problem; `more` are further members of its example."""
    example = {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": "what happened, and what to do next",
        "code": kind.name,
        "request_id": "5f2b7c1e9d8a4f60b1c2d3e4f5a6b7c8",
        **(more or {}),
    }
    schema = {"$ref": "#/components/schemas/Problem"}
    content = {MEDIA_TYPE: {"schema": schema, "example": example}}
    return {"description": kind.title, "content": content} | _HEADERS.get(kind.status, {})


_RETRY_AFTER = {"schema": {"type": "integer"}, "description": "Seconds."}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"headers": {"WWW-Authenticate": {"schema": {"type": "string"}}}},
    429: {"headers": {"Retry-After": _RETRY_AFTER}},
    503: {"headers": {"Retry-After": _RETRY_AFTER}},
}


PROBLEM: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "Problem Details (RFC 9457). Decide by `code`.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": sorted(Kind.__members__)},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "What is wrong, and where; never the value.",
            "items": {
                "type": "object",
                "required": ["message"],
                "properties": {
                    "pointer": {"type": "string", "description": "Into the body (RFC 6901)."},
                    "index": {"type": "integer", "description": "Of the item, from 0."},
                    "in": {"type": "string", "description": "path, query or header."},
                    "name": {"type": "string"},
                    "message": {"type": "string"},
                },
            },
        },
        "error_count": {"type": "integer"},
        "limit_type": {"type": "string"},
        "scope": {"type": "string"},
        "current_value": {"type": "integer"},
        "max_value": {"type": "integer"},
        "retry_after": {"type": "integer"},
        "contact_admin": {"type": "boolean"},
    },
}
