"""Payloads: what may go into a queue, and how it comes back.

Everything that jsonb would refuse, change or return in a shape that Python cannot decode is
refused here, with the path to the place, before a transaction is touched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

from commandbus.errors import InvalidPayloadError

#: Bytes of JSON that one payload may have.
MAX_PAYLOAD_BYTES = 256 * 1024
#: How deep objects and arrays may be nested.
MAX_PAYLOAD_DEPTH = 32
#: Integers beyond this are not the same in every JSON reader (2 to the 53rd, less one).
MAX_SAFE_INTEGER = 2**53 - 1


def encode_payload(data: Any, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Encode a command's payload, which must be a JSON object."""
    if not isinstance(data, Mapping):
        raise InvalidPayloadError(
            f"data must be a dict, not {type(data).__name__}; wrap the value, "
            'for example {"value": …}'
        )
    return encode_json(data, what="data", max_bytes=max_bytes)


def encode_json(value: Any, *, what: str, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Encode any JSON value, or raise InvalidPayloadError with the path to what is wrong."""
    is_plain = _is_plain(value, 1)
    if not is_plain:
        _check(value, what, 1)
    try:
        encoded = orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError) as error:  # what _check cannot foresee
        _check(value, what, 1)
        raise InvalidPayloadError(f"{what} cannot be encoded as JSON: {error}") from error
    if is_plain and b"\\u0000" in encoded:
        _check(value, what, 1)  # a NUL, or text that looks like one
    if len(encoded) > max_bytes:
        raise InvalidPayloadError(
            f"{what} has {len(encoded):,} bytes of JSON; at most {max_bytes:,} are allowed. "
            "Store the bulk elsewhere and send a reference"
        )
    return encoded


def decode_payload(text: str | None) -> dict[str, Any]:
    """Decode what a queue holds. Raises InvalidPayloadError for what no handler could be given."""
    if text is None:
        raise InvalidPayloadError("the message has no data")
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        data = _decode_slowly(text)
    if not isinstance(data, dict):
        raise InvalidPayloadError(f"data is not a JSON object but {type(data).__name__}")
    return data


def _decode_slowly(text: str) -> Any:
    # The standard decoder knows numbers that orjson does not; it fails in its own ways.
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidPayloadError("data is nested too deeply to be decoded") from None
    except ValueError as error:
        raise InvalidPayloadError(f"data cannot be decoded: {type(error).__name__}") from None


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a value is fine as far as types go, without working out paths."""
    kind = type(value)
    if kind is int:
        return bool(-MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER)
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        items = value.values()
        for key in value:
            if type(key) is not str:
                return False
    elif kind is list:
        items = value
    else:
        return kind is str or kind is bool or value is None
    if depth > MAX_PAYLOAD_DEPTH:
        return False
    for item in items:  # noqa: SIM110  (a generator is slower, and this is hot)
        # Text is what payloads hold most; orjson itself refuses what is not valid text.
        if type(item) is not str and not _is_plain(item, depth + 1):
            return False
    return True


def _check(value: Any, path: str, depth: int) -> None:
    # Ordered by how often each kind is met. bool is an int, and needs no check.
    kind = type(value)
    if kind is str:
        _check_text(value, path)
    elif kind is bool or value is None:
        return
    elif kind is int:
        if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            raise InvalidPayloadError(
                f"{path} is an integer beyond 2^53-1, which JSON readers round; send it as text"
            )
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidPayloadError(f"{path} is {value}, which JSON cannot hold; use null")
    elif isinstance(value, Mapping):
        _check_depth(path, depth)
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidPayloadError(
                    f"{path} has a key that is a {type(key).__name__}, not text; use str(key)"
                )
            _check_text(key, f"a key of {path}")
            _check(item, f"{path}.{key if len(key) <= 40 else key[:39] + '…'}", depth + 1)
    elif isinstance(value, list | tuple):
        _check_depth(path, depth)
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, str | int | float):
        raise InvalidPayloadError(
            f"{path} is a {kind.__name__}; convert it to a plain str, int or float first"
        )
    else:
        raise InvalidPayloadError(
            f"{path} is a {kind.__name__}, which is not JSON; convert it first "
            "(dates and decimals: str(value))"
        )


def _check_depth(path: str, depth: int) -> None:
    if depth > MAX_PAYLOAD_DEPTH:
        raise InvalidPayloadError(
            f"{path[:80]}… is nested more than {MAX_PAYLOAD_DEPTH} deep; flatten it"
        )


def _check_text(value: str, path: str) -> None:
    if "\x00" in value:
        raise InvalidPayloadError(f"{path} contains a NUL character, which PostgreSQL refuses")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidPayloadError(
                f"{path} contains half of a surrogate pair, which is not valid text"
            ) from None
