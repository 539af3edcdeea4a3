"""What a JSON document would cost, found out from its bytes before any object is built.

Only operations that run at the speed of C, because this happens on the event loop: the worst
megabyte takes some tens of milliseconds, a usual body microseconds.
"""

from __future__ import annotations

import re

from commandbus.http.problems import Kind, Problem

#: Characters of a number.
MAX_NUMBER_LENGTH = 400

# A text with its quotes; one that does not end goes to the end, so that nothing is read twice.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.S)
_IN_NUMBERS = bytes(0x30 if chr(each) in "0123456789.eE+-" else 0x20 for each in range(256))
_LONG_NUMBER = b"0" * (MAX_NUMBER_LENGTH + 1)
#: All bytes that are no brackets.
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")


def check_cost(body: bytes, max_depth: int, max_values: int) -> None:
    """Refuse a body that has too many values, is too deep, or has absurd numbers.

    What is no JSON may pass: the parser refuses it.
    """
    # As if commas and brackets never were in texts. Nearly all bodies need no closer look.
    openings = body.count(b"[") + body.count(b"{")
    is_suspect = openings > max_depth or openings + body.count(b",") > max_values
    has_long = len(body) > MAX_NUMBER_LENGTH and _LONG_NUMBER in body.translate(_IN_NUMBERS)
    if not is_suspect and not has_long:
        return
    # The least number of quotes that begin or end a text. Each value has at most two texts: a name,
    # and itself.
    if body.count(b'"') - body.count(b'\\"') > 4 * max_values:
        raise _too_many(max_values)
    plain = _TEXT.sub(b"", body)
    _check_values(plain, max_values)
    _check_depth(plain.translate(_ALIKE, _NO_BRACKETS), max_depth)
    if has_long and _LONG_NUMBER in plain.translate(_IN_NUMBERS):
        raise _refused(
            f"a number has more than {MAX_NUMBER_LENGTH} characters; send it as a string"
        )


def _check_values(plain: bytes, max_values: int) -> None:
    # Each value but the first of its object or array comes after a comma.
    if plain.count(b",") + plain.count(b"[") + plain.count(b"{") > max_values:
        raise _too_many(max_values)


def _check_depth(brackets: bytes, max_depth: int) -> None:
    # Each round removes the innermost pairs, so as many are needed as the document is deep.
    for _ in range(max_depth):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise _refused(
            f"the body is nested more than {max_depth} deep, or its brackets do not match; "
            "flatten it"
        )


def _too_many(max_values: int) -> Problem:
    return _refused(f"the body has more than {max_values:,} values; send less at once")


def _refused(detail: str) -> Problem:
    return Problem(Kind.INVALID_REQUEST, detail)
