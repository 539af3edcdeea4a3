"""The catalogue of problems: every kind of error answer, with its code, status and title."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem. `code` is stable: clients may decide by it."""

    code: str
    status: int
    title: str

    @property
    def uri(self) -> str:
        """The `type` of RFC 9457: a name, not an address."""
        return f"urn:commandbus:problem:{self.code.lower().replace('_', '-')}"


# These codes are part of the specification of governed batches.
INVALID_BATCH_REQUEST = Kind("INVALID_BATCH_REQUEST", 400, "The batch cannot be created as asked")
BATCH_SIZE_EXCEEDED = Kind("BATCH_SIZE_EXCEEDED", 400, "The batch has too many items")
PERMISSION_DENIED = Kind("PERMISSION_DENIED", 403, "The caller lacks a scope")
RATE_LIMIT_EXCEEDED = Kind("RATE_LIMIT_EXCEEDED", 429, "A limit is reached")
# All others.
INVALID_REQUEST = Kind("INVALID_REQUEST", 400, "The request is not acceptable")
UNAUTHENTICATED = Kind("UNAUTHENTICATED", 401, "No valid credentials")
NOT_FOUND = Kind("NOT_FOUND", 404, "There is no such thing")
METHOD_NOT_ALLOWED = Kind("METHOD_NOT_ALLOWED", 405, "The path does not know this method")
REQUEST_TIMEOUT = Kind("REQUEST_TIMEOUT", 408, "The request came too slowly")
CONFLICT = Kind("CONFLICT", 409, "The state does not allow it")
PAYLOAD_TOO_LARGE = Kind("PAYLOAD_TOO_LARGE", 413, "The body is too large")
UNSUPPORTED_MEDIA_TYPE = Kind("UNSUPPORTED_MEDIA_TYPE", 415, "The body is not JSON")
HEADERS_TOO_LARGE = Kind("HEADERS_TOO_LARGE", 431, "The headers are too large")
INTERNAL_ERROR = Kind("INTERNAL_ERROR", 500, "Something failed here")
UNAVAILABLE = Kind("UNAVAILABLE", 503, "The service cannot answer now")

KINDS: dict[str, Kind] = {
    kind.code: kind
    for kind in (
        INVALID_BATCH_REQUEST, BATCH_SIZE_EXCEEDED, PERMISSION_DENIED, RATE_LIMIT_EXCEEDED,
        INVALID_REQUEST, UNAUTHENTICATED, NOT_FOUND, METHOD_NOT_ALLOWED, REQUEST_TIMEOUT,
        CONFLICT, PAYLOAD_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, HEADERS_TOO_LARGE, INTERNAL_ERROR,
        UNAVAILABLE,
    )
}  # fmt: skip

#: The kind that stands for a status when nobody said which.
BY_STATUS: dict[int, Kind] = {
    400: INVALID_REQUEST, 401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: NOT_FOUND,
    405: METHOD_NOT_ALLOWED, 408: REQUEST_TIMEOUT, 409: CONFLICT, 413: PAYLOAD_TOO_LARGE,
    415: UNSUPPORTED_MEDIA_TYPE, 422: INVALID_REQUEST, 429: RATE_LIMIT_EXCEEDED,
    431: HEADERS_TOO_LARGE, 503: UNAVAILABLE,
}  # fmt: skip
