"""Bodies are read strictly: what two readers could understand in two ways is refused.

An approver, a log and the code must see the same document. JSON leaves open which of two equal keys
counts, so a body with such keys is no document here; nor is one that is not plain UTF-8, or that
has numbers or texts which cannot be written down again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from fastapi import Request, Response
from fastapi.routing import APIRoute

from commandbus.http.problems import Kind, Problem

#: Half of a character beyond the first 65,536, as an escape.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class AmbiguousJsonError(ValueError):
    """JSON that could be understood in two ways, or not be written again. The text says why."""


def strict_json(body: bytes) -> Any:
    """The document of a body, read once, in a time that its length bounds.

    Raises AmbiguousJsonError, or json.JSONDecodeError if it is no JSON at all.
    """
    if body.startswith(b"\xef\xbb\xbf"):
        raise AmbiguousJsonError("it begins with a byte order mark; send it without")
    if b"\x00" in body:
        # No JSON in UTF-8 has such a byte, in UTF-16 and UTF-32 all have: the framework would guess
        # these encodings, and read what is refused here.
        raise AmbiguousJsonError("it is not UTF-8")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise AmbiguousJsonError("it is not UTF-8") from None
    try:
        document = json.loads(
            text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_number
        )
    except RecursionError:
        raise AmbiguousJsonError("it is nested too deep") from None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError | AmbiguousJsonError):
            raise
        raise AmbiguousJsonError("a number in it has too many digits") from None
    if _SURROGATE.search(text) is not None:
        _refuse_halves(document)
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise AmbiguousJsonError("an object in it has the same key twice")
    return found


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise AmbiguousJsonError("a number in it is too large")
    return number


def _no_number(name: str) -> float:
    raise AmbiguousJsonError(f"{name} is no JSON")


def _refuse_halves(document: Any) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise AmbiguousJsonError("a text in it has a lone surrogate") from None


class StrictRoute(APIRoute):
    """A route whose body is read by `strict_json`, before the framework would read it."""

    #: What a body that is refused is called.
    refused: ClassVar[Kind] = Kind.INVALID_REQUEST

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the framework, given the document."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            body = await request.body()
            if body:
                try:
                    request._json = strict_json(body)
                except AmbiguousJsonError as error:
                    raise Problem(self.refused, f"the body cannot be used: {error}") from None
                except json.JSONDecodeError:
                    pass  # the framework says where
            return await handler(request)

        return strict
