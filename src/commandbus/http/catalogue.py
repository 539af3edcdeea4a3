"""The catalogue of problems: every kind of error response, with its code, status and title."""

from __future__ import annotations

from enum import Enum


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
