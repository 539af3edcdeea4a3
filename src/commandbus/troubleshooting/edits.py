"""Edited payloads: what an operator changed, in a form that the audit may keep."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from commandbus.errors import InvalidPayloadError
from commandbus.privacy.redaction import (
    MASK,
    is_sensitive_key,
    redact_text,
    redact_value,
    secret_values,
)
from commandbus.troubleshooting.model import EditExample

#: Changes of one edit that the audit keeps; of further ones it keeps the number.
MAX_CHANGES = 20
#: Characters of a value, or of a path, that the audit keeps.
MAX_SHOWN = 120

_NOTHING = object()


def unmasked(edited: Any, old: Any, marked: Collection[str] = ()) -> Any:
    """The edited payload, with the real values where the operator left the masks.

    Operators edit what they were shown. A field that is still as it was shown keeps its real value,
    so an operator who must not see the secrets of a payload can fix it. A mask anywhere else is a
    mistake: the handler would get it as data.
    """
    restored = _restored(edited, old, redact_value(old, marked=marked))
    for path, value in _leaves(restored, "data"):
        if isinstance(value, str) and MASK in value and MASK not in json.dumps(old):
            raise InvalidPayloadError(
                f"{redact_text(path, MAX_SHOWN)} contains {MASK}, which stands for a value that "
                "was not shown; give the real value, or leave the field where it was"
            )
    return restored


def difference(old: Any, new: Any, marked: Collection[str] = ()) -> dict[str, Any]:
    """What changed, redacted and bounded: paths, and values that may be shown."""
    secrets = (*secret_values(old, marked), *secret_values(new, marked))

    def shown(value: Any, is_secret: bool) -> str:
        if is_secret:
            return MASK
        visible = redact_value(value, marked=marked, secrets=secrets)
        text = json.dumps(visible, ensure_ascii=False)
        return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"

    found: dict[str, Any] = {"changed": [], "added": [], "removed": []}
    count = 0
    for path, before, after, is_secret in _changes(old, new, "data", marked, is_secret=False):
        count += 1
        if count > MAX_CHANGES:
            continue
        place = {"path": redact_text(path, MAX_SHOWN, secrets=secrets)}
        if before is _NOTHING:
            found["added"].append({**place, "to": shown(after, is_secret)})
        elif after is _NOTHING:
            found["removed"].append({**place, "from": shown(before, is_secret)})
        else:
            values = {"from": shown(before, is_secret), "to": shown(after, is_secret)}
            found["changed"].append({**place, **values})
    if count > MAX_CHANGES:
        found["more"] = count - MAX_CHANGES
    return {name: value for name, value in found.items() if value}


def changed_paths(old: Any, new: Any) -> list[str]:
    """Where two payloads differ, redacted and bounded; no values."""
    found = [
        redact_text(path, MAX_SHOWN)
        for path, *_ in islice(_changes(old, new, "data", (), is_secret=False), MAX_CHANGES + 1)
    ]
    return found if len(found) <= MAX_CHANGES else [*found[:MAX_CHANGES], "…"]


def without_values(example: EditExample) -> EditExample:
    """The same without the values of payloads, for those who may not see them."""
    changes = {
        kind: [each["path"] if isinstance(each, dict) else each for each in listed]
        for kind, listed in example.changes.items()
        if isinstance(listed, list)
    }
    return replace(example, changes=changes)


def _restored(edited: Any, old: Any, shown: Any) -> Any:
    if edited == shown:
        return old
    if isinstance(edited, dict) and isinstance(old, dict) and isinstance(shown, dict):
        return {
            key: _restored(value, old[key], shown[key]) if key in old and key in shown else value
            for key, value in edited.items()
        }
    if isinstance(edited, list) and isinstance(old, list) and isinstance(shown, list):
        known = min(len(old), len(shown))
        return [
            _restored(value, old[n], shown[n]) if n < known else value
            for n, value in enumerate(edited)
        ]
    return edited


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def _changes(
    old: Any, new: Any, path: str, marked: Collection[str], *, is_secret: bool
) -> Iterator[tuple[str, Any, Any, bool]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _changes(
                old.get(key, _NOTHING),
                new.get(key, _NOTHING),
                f"{path}.{key}",
                marked,
                is_secret=is_secret or is_sensitive_key(key, marked),
            )
    elif isinstance(old, list) and isinstance(new, list):
        for number in range(max(len(old), len(new))):
            yield from _changes(
                old[number] if number < len(old) else _NOTHING,
                new[number] if number < len(new) else _NOTHING,
                f"{path}[{number}]",
                marked,
                is_secret=is_secret,
            )
    elif type(old) is not type(new) or old != new:  # true is not 1
        yield path, old, new, is_secret
