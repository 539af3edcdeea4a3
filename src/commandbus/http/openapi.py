"""The OpenAPI document: FastAPI's own, with scopes, security and problems put in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from commandbus.http import catalogue as kinds
from commandbus.http.auth.scopes import Requires
from commandbus.http.problems import MEDIA_TYPE

SCHEME = "bearer"
#: What any route may answer with, and what only those with a body, or with a caller, may.
_ALWAYS = (kinds.INVALID_REQUEST, kinds.HEADERS_TOO_LARGE, kinds.INTERNAL_ERROR, kinds.UNAVAILABLE)
_WITH_CALLER = (
    kinds.UNAUTHENTICATED, kinds.PERMISSION_DENIED, kinds.NOT_FOUND, kinds.RATE_LIMIT_EXCEEDED,
)  # fmt: skip
_WITH_BODY = (
    kinds.REQUEST_TIMEOUT, kinds.CONFLICT, kinds.PAYLOAD_TOO_LARGE, kinds.UNSUPPORTED_MEDIA_TYPE,
)  # fmt: skip
_CHANGING = frozenset({"POST", "PUT", "DELETE", "PATCH"})


def add_openapi(app: FastAPI, required: dict[tuple[str, str], Requires | None]) -> None:
    """Let the app describe itself so; made once, when it is first asked for."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                description=app.description,
                routes=app.routes,
            )
            _complete(document, required)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _complete(document: dict[str, Any], required: dict[tuple[str, str], Requires | None]) -> None:
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


def problem_response(kind: kinds.Kind, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How a route documents a problem; `more` are further members of its example."""
    headers = {}
    if kind.status in {429, 503}:
        headers["Retry-After"] = {"schema": {"type": "integer"}, "description": "Seconds."}
    if kind.status == 401:
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}}
    example = {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": "what happened, and what to do next",
        "code": kind.code,
        "request_id": "5f2b7c1e9d8a4f60b1c2d3e4f5a6b7c8",
        **(more or {}),
    }
    content: dict[str, Any] = {
        "description": kind.title,
        "content": {
            MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}
        },
    }
    return content | ({"headers": headers} if headers else {})


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
        "code": {"type": "string", "enum": sorted(kinds.KINDS)},
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
