"""The secret values of a payload, found again in texts: as they are, and in derived forms.

A handler repeats what it was given in many ways: escaped by repr or JSON, quoted in an address,
in another case, in base64 or hex, cut short. Escapes are undone in the text, so that every
mixture of them is found; other forms are searched for beside the value itself. All of it takes
time that grows with the text and with the values, not with their product.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from commandbus.privacy.sensitive import is_sensitive_key
from commandbus.privacy.views import views

MASK = "[REDACTED]"
#: A value shorter than this is not searched for in texts: it would be found everywhere.
MIN_SECRET_LENGTH = 4
#: Values that are searched for in base64 and hex too, the longest ones.
MAX_ENCODED = 200
#: Characters of a longer value that are enough to know it: an echo may be cut.
_ENOUGH = 16
#: Values with the same beginning that are compared with one place; more, and the rest is masked.
_MAX_ALIKE = 200
#: Beginnings that are searched for one by one; with more, the text is read once for all of them.
_FEW = 256

_BASE64 = re.compile(r"[\w+/=-]{0,4096}", re.A)
_SCHEME = re.compile(r"(?:bearer|basic|digest|token|apikey)\s+(\S.*)", re.I | re.S)
_IN_ADDRESS = re.compile(r"://[^\s:/@]{0,200}:(\S{1,1000})@")

_Span = tuple[int, int]


def text_of(value: Any) -> str:
    """The text of anything, also of a value whose __str__ fails: errors of handlers may be so."""
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  (whatever a __str__ of somebody else's raises)
        return f"<{type(value).__name__} that has no text>"


def texts_in(value: Any, marked: Collection[str] = (), *, is_secret: bool) -> Iterator[str]:
    """The texts and numbers in a value that are secret, or stand under a key that is.

    At any depth, without recursion; what is met twice is looked at once.
    """
    seen: set[tuple[int, bool]] = set()
    waiting: list[tuple[Any, bool]] = [(value, is_secret)]
    while waiting:
        item, is_hidden = waiting.pop()
        if isinstance(item, Mapping | list | tuple):
            if (id(item), is_hidden) in seen:
                continue
            seen.add((id(item), is_hidden))
            if isinstance(item, Mapping):
                waiting.extend(
                    (below, is_hidden or is_sensitive_key(text_of(key), marked))
                    for key, below in item.items()
                )
            else:
                waiting.extend((below, is_hidden) for below in item)
        elif is_hidden and item is not None and not isinstance(item, bool):
            yield text_of(item)


class Secrets:
    """Values that must not be shown, and the marked keys of the payload that they are from."""

    def __init__(
        self,
        values: Iterable[str] = (),
        marked: Collection[str] = (),
        *,
        min_length: int = MIN_SECRET_LENGTH,
    ) -> None:
        found = {text for text in values if len(text) >= min_length}
        #: The longest first.
        self.values = tuple(sorted(found, key=lambda text: (-len(text), text)))
        self.marked = frozenset(marked)
        self._indexes: tuple[_Index, _Index] | None = None
        self._min_length = min_length

    def masked(self, text: str) -> str:
        """The text with every form of every value masked."""
        return masked_spans(text, self.spans(text))

    def spans(self, text: str) -> list[_Span]:
        """Where the values stand: sorted, none overlaps another."""
        if not self.values or len(text) < self._min_length:
            return []
        if self._indexes is None:
            self._indexes = _indexes_of(self.values)
        folded, exact = self._indexes
        found: list[_Span] = []
        for view in views(text):
            for start, end in folded.hits(_folded(view.text)):
                found.append((view.source(start), view.source(end)))
            for start, end in exact.hits(view.text):
                # The rest of it has bits of the value, and what else was encoded with it.
                source = (view.source(start), view.source(end))
                found.append(_widened(text, *source))
        return _merged(found)


#: No secrets.
NONE = Secrets()


def masked_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text with a mask in the place of each span; they are sorted."""
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts += (text[at:start], MASK)
        at = end
    return "".join((*parts, text[at:])) if parts else text


def secret_values(data: Any, marked: Collection[str] = ()) -> Secrets:
    """The values of a payload that must not be shown: to find them in an error text."""
    return Secrets(texts_in(data, marked, is_secret=False), marked)


# -- forms of a value


def _indexes_of(values: tuple[str, ...]) -> tuple[_Index, _Index]:
    folded, exact = _Index(), _Index()
    for number, value in enumerate(values):
        for form in _plain_forms(value):
            folded.put(_folded(form))
        if number < MAX_ENCODED:
            for part in (value, *_parts_of(value)):
                data = part.encode("utf-8", "surrogatepass")
                folded.put(_folded(part))
                folded.put(data.hex())
                for form in _base64_forms(data):
                    exact.put(form)
    return folded, exact


def _plain_forms(value: str) -> set[str]:
    found = {value}
    if value.isascii() and value.isalnum():
        return found
    if len(value.strip()) >= MIN_SECRET_LENGTH:
        found.add(value.strip())
    # Where the escapes of a text are undone, so are those that the value itself seems to have.
    found.update(view.text for view in views(value))
    if not value.isascii():
        found.add(value.upper())
        # Bytes that were written one by one; and the halves of a pair, as JSON writes them.
        found.add(value.encode("utf-8", "surrogatepass").decode("latin-1"))
        pairs = value.encode("utf-16-be", "surrogatepass")
        found.add("".join(chr(pairs[n] << 8 | pairs[n + 1]) for n in range(0, len(pairs), 2)))
    if " " in value:
        found |= {form.replace(" ", "+") for form in found}
    for quote in "'\"":
        if quote in value:
            found.add(value.replace(quote, quote * 2))
    if "\n" in value:
        found.update(line for line in value.splitlines() if len(line) >= _ENOUGH)
    return found


def _parts_of(value: str) -> Iterator[str]:
    """What of a value is secret by itself: the credentials after `Bearer`, a password in an
    address, what is in base64 after `Basic`.
    """
    found: list[str] = []
    if scheme := _SCHEME.fullmatch(value[:8_192]):
        found.append(scheme[1])
        try:
            found.append(base64.b64decode(scheme[1], validate=True).decode())
        except (binascii.Error, ValueError):
            pass
        else:
            found.append(found[-1].partition(":")[2])
    if address := _IN_ADDRESS.search(value[:8_192]):
        found.append(address[1])
    yield from (part for part in found if len(part) >= MIN_SECRET_LENGTH)


def _base64_forms(data: bytes) -> Iterator[str]:
    """The letters that stand for these bytes alone, wherever they begin in what was encoded."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data)
        first = (before * 8 + 5) // 6
        form = encoded[first : (before + len(data)) * 8 // 6].decode()
        if len(form) > MIN_SECRET_LENGTH:
            yield form
            if "+" in form or "/" in form:
                yield form.replace("+", "-").replace("/", "_")


# -- finding


class _Index:
    """Forms by their beginnings: a form is known by its first characters, or by all of a short."""

    def __init__(self) -> None:
        self._alike: dict[str, list[str]] = {}
        #: Long forms by their last characters.
        self._ends: dict[str, str] = {}
        #: The lengths of beginnings, by their first three characters.
        self._lengths: dict[tuple[str, ...], set[int]] = {}

    def put(self, form: str) -> None:
        if len(form) < 3:
            return
        beginning = form[:_ENOUGH]
        alike = self._alike.setdefault(beginning, [])
        if len(alike) <= _MAX_ALIKE and form not in alike:
            alike.append(form)
        self._lengths.setdefault(tuple(form[:3]), set()).add(len(beginning))
        if len(form) >= 2 * _ENOUGH:
            # The end alone: an echo may be cut in the middle.
            self._ends.setdefault(form[-_ENOUGH:], form)
            self.put(form[-_ENOUGH:])

    def hits(self, text: str) -> Iterator[_Span]:
        """Where forms stand in a text; none overlaps another."""
        done = 0
        for at in self._candidates(text):
            end = self._end_of(text, at) if at >= done else done
            if end > max(at, done):
                whole = self._ends.get(text[at : at + _ENOUGH], "")
                yield at - _common_before(text, at, whole), end
                done = end

    def _candidates(self, text: str) -> Iterable[int]:
        """The places where a form may begin, in order."""
        if len(self._alike) > _FEW:
            grams = zip(text, text[1:], text[2:], strict=False)
            return [at for at, gram in enumerate(grams) if gram in self._lengths]
        found: set[int] = set()
        for beginning in self._alike:
            at = text.find(beginning)
            while at >= 0:
                found.add(at)
                at = text.find(beginning, at + 1)
        return sorted(found)

    def _end_of(self, text: str, at: int) -> int:
        end = at
        for length in self._lengths.get(tuple(text[at : at + 3]), ()):
            alike = self._alike.get(text[at : at + length])
            if alike is None:
                continue
            if len(alike) > _MAX_ALIKE:
                return len(text)
            end = max(end, at + length, *(at + _common(text, at, form) for form in alike))
        return end


def _common(text: str, at: int, form: str) -> int:
    """How many characters of a form stand there, from its beginning."""
    if text.startswith(form, at):
        return len(form)
    low, high = 0, len(form)
    while high - low > 1:
        middle = (low + high) // 2
        if text.startswith(form[low:middle], at + low):
            low = middle
        else:
            high = middle
    return low


def _common_before(text: str, at: int, form: str) -> int:
    """How many characters before the end of a form, which stands there, are in the text too."""
    rest = form[:-_ENOUGH]
    before = text[max(0, at - len(rest)) : at]
    return _common(before[::-1], 0, rest[::-1]) if rest else 0


def _widened(text: str, start: int, end: int) -> _Span:
    before = text[max(0, start - 4_096) : start]
    behind = _BASE64.match(before[::-1])
    after = _BASE64.match(text, end)
    return start - (behind.end() if behind else 0), after.end() if after else end


def _merged(spans: list[_Span]) -> list[_Span]:
    merged: list[_Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _folded(text: str) -> str:
    """The text without case, every character in its place: only İ would become two."""
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")  # as texts are stored
    if text.isascii():
        return text.lower()
    lowered = text.replace("İ", "I").lower()
    return lowered.replace("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")
