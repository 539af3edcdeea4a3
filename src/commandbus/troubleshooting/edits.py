"""Edited payloads: what an operator changed, in a form that the audit may keep."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from commandbus.privacy.redaction import redact_payload, redact_text, redact_value
from commandbus.privacy.sensitive import is_sensitive_key
from commandbus.privacy.values import MASK, Secrets, texts_in
from commandbus.troubleshooting.model import EditPreview

#: Changes of one edit that the audit keeps; of further ones it keeps the number.
MAX_CHANGES = 20
#: Characters of a value, or of a path, that the audit keeps.
MAX_SHOWN = 120

_NOTHING = object()


def difference(
    old: Any, new: Any, marked: Collection[str] = (), *, edited: Any = _NOTHING
) -> dict[str, Any]:
    """What changed, redacted and bounded: paths, and values that may be shown.

    `edited`: what an operator gave, before what was left masked got its real value. Secret fields
    are then compared with what was shown: each that was given is listed, also if it is the same.
    Otherwise the list would tell whether a guess is right, or whether two secrets are equal.
    """
    texts = (texts_in(each, marked, is_secret=False) for each in (old, new))
    secrets = Secrets(chain.from_iterable(texts), marked)
    return _listed(_all_changes(old, new, marked, edited), marked, secrets)


def shown_difference(
    real: tuple[Any, Any], old: Any, new: Any, marked: Collection[str]
) -> dict[str, Any]:
    """What an edit would change, for who may try many: `old` as it is shown, `new` made from that.

    Nothing here depends on what is masked. If the given values were searched for real secrets, a
    mask would tell that a guess is right; and so would a masked text that is said not to change.
    """
    paths = {path for path, *_ in _changes(*real, "data", marked, is_secret=False)}
    changes = (
        change
        for change in _changes(old, new, "data", marked, is_secret=False)
        if not change[3] and (change[0] in paths or MASK in str(change[1]))
    )
    return _listed(changes, marked, Secrets(texts_in(new, marked, is_secret=False), marked))


def _listed(
    changes: Iterable[tuple[str, Any, Any, bool]], marked: Collection[str], secrets: Secrets
) -> dict[str, Any]:
    def shown(value: Any, is_secret: bool) -> str:
        if is_secret:
            return MASK
        visible = redact_value(value, marked=marked, secrets=secrets)
        text = json.dumps(visible, ensure_ascii=False)
        return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"

    found: dict[str, Any] = {"changed": [], "added": [], "removed": []}
    count = 0
    for path, before, after, is_secret in changes:
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


def _all_changes(
    old: Any, new: Any, marked: Collection[str], edited: Any
) -> Iterator[tuple[str, Any, Any, bool]]:
    real = _changes(old, new, "data", marked, is_secret=False)
    if edited is _NOTHING:
        return real
    given = _changes(redact_payload(old, marked), edited, "data", marked, is_secret=False)
    return chain(
        (change for change in real if not change[3]), (change for change in given if change[3])
    )


def changed_paths(
    old: Any, new: Any, marked: Collection[str], written: Iterable[tuple[str, ...]] = ()
) -> list[str]:
    """Where two payloads differ, redacted and bounded; no values.

    Secret fields are named if they were `written` to, whether they differ or not, and only then.
    """
    real = _changes(old, new, "data", marked, is_secret=False)
    secret = (path for path in written if any(is_sensitive_key(part, marked) for part in path))
    paths = chain(
        (path for path, _, _, is_secret in real if not is_secret),
        (".".join(("data", *path)) for path in secret),
    )
    found = [redact_text(path, MAX_SHOWN) for path in islice(paths, MAX_CHANGES + 1)]
    found = list(dict.fromkeys(found))
    return found if len(found) <= MAX_CHANGES else [*found[:MAX_CHANGES], "…"]


def without_values(preview: EditPreview) -> EditPreview:
    """The same without the values of payloads."""
    examples = tuple(replace(each, changes=_paths_in(each.changes)) for each in preview.examples)
    return replace(preview, examples=examples)


def without_differences(preview: EditPreview, written: Iterable[str]) -> EditPreview:
    """The same for those who may not see payloads: what the edit writes to, and not whether that
    is another value than before. With it they could try values until one is the right one.
    """
    paths = {"written": list(written)}
    examples = (replace(each, changes={} if each.failure else paths) for each in preview.examples)
    return replace(
        preview,
        changed=preview.changed + preview.unchanged,
        unchanged=0,
        examples=tuple(examples),
    )


def _paths_in(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        kind: [each["path"] if isinstance(each, dict) else each for each in listed]
        for kind, listed in changes.items()
        if isinstance(listed, list)
    }


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
