"""Texts with their escapes undone: what repr, JSON, an address or HTML made of a text, and back."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

#: Times that escapes are undone: JSON in JSON in a log line.
PASSES = 3

_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"\\(?:x({_HEX}{{2}})|u({_HEX}{{4}})|U({_HEX}{{8}})|([0-7]{{3}})|(.))"
    rf"|%({_HEX}{{2}})|&\#(?:[xX]({_HEX}{{1,6}})|([0-9]{{1,7}}));|&(amp|lt|gt|quot|apos);",
    re.S,
)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class View:
    """A text with its escapes undone, and where each of its characters stands in the source."""

    def __init__(self, text: str, below: View | None = None) -> None:
        self.text = text
        self._below = below
        self._here: list[int] = [0]
        self._there: list[int] = [0]

    def decoded(self) -> View | None:
        """A view with the escapes of this one undone; None if it has none."""
        parts: list[str] = []
        view = View("", self)
        at = length = 0
        for found in _ESCAPE.finditer(self.text):
            parts += (self.text[at : found.start()], _character(found))
            length += found.start() - at
            view._here += (length, length + 1)
            view._there += (found.start(), found.end())
            length += 1
            at = found.end()
        if not parts:
            return None
        view.text = "".join((*parts, self.text[at:]))
        return view

    def source(self, at: int) -> int:
        """The place in the text that was given."""
        if self._below is None:
            return at
        number = bisect_right(self._here, at) - 1
        return self._below.source(self._there[number] + at - self._here[number])


def views(text: str) -> Iterator[View]:
    """A text, and the same with its escapes undone, once and again."""
    view: View | None = View(text)
    for _ in range(PASSES + 1):
        if view is None:
            return
        yield view
        view = view.decoded()


def _character(found: re.Match[str]) -> str:
    two, four, eight, octal, letter, percent, hexadecimal, decimal, name = found.groups()
    if letter is not None:
        return _LETTERS.get(letter, letter)
    if name is not None:
        return _NAMED[name.lower()]
    code = int(octal, 8) if octal else 0
    code = code or int(two or four or eight or percent or hexadecimal or "0", 16)
    code = code or int(decimal or "0")
    return chr(code) if code <= 0x10FFFF else "\N{REPLACEMENT CHARACTER}"
