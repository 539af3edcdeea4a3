"""What was left masked in an edit gets its real value back: by what it is, never by its place.

Operators edit what they were shown. In an object a value is known by its key. In an array nothing
says which element an edited one was, so only an element that is still exactly as it was shown, and
the only one that looks so, is known. Everything else that is masked is asked for: a guess would
give one person's secret to another.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from commandbus.errors import InvalidPayloadError
from commandbus.privacy.redaction import ShownKeys, redact_payload, redact_text
from commandbus.privacy.values import MASK, Secrets, secret_values

#: Characters of a path that an error shows.
MAX_SHOWN = 120


def unmasked(edited: Any, old: Any, marked: Collection[str] = ()) -> Any:
    """The edited payload, with the real values where the operator left what was shown.

    InvalidPayloadError names the place of a mask that stands for nothing, or for one of several.
    """
    secrets = secret_values(old, marked)
    shown = redact_payload(old, marked)
    return _Restoring(secrets, _stand_ins(shown, old, secrets)).of(edited, old, shown, "data")


class _Restoring:
    """One payload that is being restored."""

    def __init__(self, secrets: Secrets, stand_ins: set[str]) -> None:
        self._secrets = secrets
        #: What was shown instead of something else: masked, cut, or left out.
        self._stand_ins = stand_ins

    def of(self, edited: Any, old: Any, shown: Any, path: str) -> Any:
        if isinstance(edited, dict) and isinstance(old, dict) and isinstance(shown, dict):
            return self._object(edited, old, shown, path)
        if _canonical(edited) == _canonical(shown):
            return old
        if isinstance(edited, list) and isinstance(old, list) and isinstance(shown, list):
            return self._array(edited, old, shown, path)
        if _is_cut(edited) and _is_cut(shown) and shown != old:
            raise self._asked(path, "ends with …, where a longer value was cut")
        return self._new(edited, path)

    def _object(
        self, edited: dict[str, Any], old: dict[str, Any], shown: dict[str, Any], path: str
    ) -> dict[str, Any]:
        names = ShownKeys(self._secrets)
        keys = {names.of(key): key for key in old}
        restored: dict[str, Any] = {}
        for name, value in edited.items():
            place = f"{path}.{name}"
            key = keys.get(name, name)
            if key in restored:
                raise self._asked(place, "stands there twice, as it is and as it was shown")
            if name in keys and name in shown:
                restored[key] = self.of(value, old[key], shown[name], place)
            else:
                self._check(name, place)
                restored[key] = self._new(value, place)
        return restored

    def _array(self, edited: list[Any], old: list[Any], shown: list[Any], path: str) -> list[Any]:
        alike: dict[str, list[int]] = {}
        for number, item in enumerate(shown):
            alike.setdefault(_canonical(item), []).append(number)
        restored = []
        for number, item in enumerate(edited):
            place = f"{path}[{number}]"
            found = alike.get(_canonical(item), [])
            # Whether two that look alike have the same secret is not told either.
            if len(found) > 1 and self._has_stand_in(item):
                raise self._asked(place, "looks like several elements that were shown")
            restored.append(old[found[0]] if found else self._new(item, place))
        return restored

    def _has_stand_in(self, shown: Any) -> bool:
        return any(text in self._stand_ins for _, text in _texts(shown, ""))

    def _new(self, value: Any, path: str) -> Any:
        """A value that the operator gave: nothing in it may stand for something else."""
        for place, text in _texts(value, path):
            self._check(text, place)
        return value

    def _check(self, text: str, path: str) -> None:
        if MASK in text:
            raise self._asked(path, f"contains {MASK}, which stands for a value that was not shown")
        if text in self._stand_ins:
            raise self._asked(path, "was cut when it was shown")

    def _asked(self, path: str, why: str) -> InvalidPayloadError:
        place = redact_text(path, MAX_SHOWN, secrets=self._secrets)
        return InvalidPayloadError(
            f"{place} {why}; give the real value, or leave what it is in as it was shown (in an "
            "array: the whole element)"
        )


def _stand_ins(shown: Any, old: Any, secrets: Secrets) -> set[str]:
    """The texts that were shown in the place of something else."""
    found: set[str] = set()
    waiting = [(shown, old)]
    while waiting:
        seen, real = waiting.pop()
        if isinstance(seen, dict) and isinstance(real, dict):
            names = ShownKeys(secrets)
            for key, value in real.items():
                name = names.of(key)
                if name != key:
                    found.add(name)
                waiting.append((seen.get(name), value))
        elif isinstance(seen, list) and isinstance(real, list):
            waiting.extend(zip(seen, real, strict=False))
        elif isinstance(seen, str) and seen != real:
            found.add(seen)
    return found


def _canonical(value: Any) -> str:
    """Equal for what is equal as JSON: true is not 1, and the order of keys says nothing."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _is_cut(value: Any) -> bool:
    return isinstance(value, str) and value.endswith("…")


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text in a value, also those that are keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}.{key}", key
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{path}[{number}]")
    elif isinstance(value, str):
        yield path, value
