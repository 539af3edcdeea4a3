"""An edit for many parked commands: applied to their payloads, and shown before that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString
from uuid import UUID

from commandbus.database.store import Store
from commandbus.errors import InvalidPayloadError
from commandbus.handlers.registry import HandlerRegistry
from commandbus.payload import encode_payload
from commandbus.privacy.redaction import redact_payload, redact_text
from commandbus.troubleshooting.edits import changed_paths, shown_difference
from commandbus.troubleshooting.model import EditExample, EditPreview
from commandbus.troubleshooting.patch import PayloadEdit, exact_payload, pointer, secret_paths
from commandbus.typed.codec import check_fits

#: Commands whose payloads are read at once.
EDIT_CHUNK = 100
#: Different failures that a preview lists.
MAX_FAILURES = 20
#: Characters of a reason that is kept with an item.
MAX_REASON = 200

_PAYLOADS: LiteralString = (
    "select p.command_id, p.command_type, p.msg_id, p.data"
    " from {schema}.parked_payloads(%s, cast(%s as uuid[])) p"
)


@dataclass(frozen=True, slots=True)
class Edited:
    """What an edit makes of one parked command; `failure` says why it cannot be applied."""

    command_id: UUID
    command_type: str
    msg_id: int | None
    #: The keys of its payload that are secret.
    marked: frozenset[str]
    before: Any = None
    after: Any = None
    failure: str | None = None
    #: Where it changes the payload; secret fields that it writes to, in any case.
    paths: tuple[str, ...] = ()


class Editor:
    """Applies an edit to the payloads of parked commands, with the checks of a single edit."""

    def __init__(self, store: Store, registry: HandlerRegistry, *, max_bytes: int) -> None:
        self._store = store
        self._registry = registry
        self._max_bytes = max_bytes

    async def edited(
        self, domain: str, ids: Sequence[UUID], edit: PayloadEdit
    ) -> dict[UUID, Edited]:
        """What becomes of those that are parked; no entry for others, or without a payload."""
        rows = await self._store.gateway.rows(_PAYLOADS, (domain, list(ids)), domain=domain)
        marked = {kind: await self._secret_keys(domain, kind) for kind in {row[1] for row in rows}}
        return {
            command_id: self._one(
                domain, Edited(command_id, kind, msg_id, marked[kind]), text, edit
            )
            for command_id, kind, msg_id, text in rows
            if text is not None
        }

    def _one(self, domain: str, command: Edited, text: str, edit: PayloadEdit) -> Edited:
        try:
            before = exact_payload(text)
            after = edit.apply(before, command.marked)
            encode_payload(after, max_bytes=self._max_bytes)
            entry = self._registry.find(domain, command.command_type)
            if entry is not None and entry.payload_type is not None:
                check_fits(entry.payload_type, after)
        except RecursionError:
            return replace(command, failure="data is nested too deeply to be edited")
        except InvalidPayloadError as error:
            return replace(command, failure=redact_text(str(error), MAX_REASON))
        # Whether a secret value changes is not told: it would tell whether a guess is right.
        paths = tuple(changed_paths(before, after, command.marked, edit.written()))
        return replace(command, before=before, after=after, paths=paths)

    async def preview(
        self, domain: str, total: int, ids: Sequence[UUID], edit: PayloadEdit, examples: int
    ) -> EditPreview:
        """What it would do to these commands, of `total`; the first `examples` are shown."""
        counts: Counter[str] = Counter()
        failures: Counter[str] = Counter()
        shown: list[EditExample] = []
        for start in range(0, len(ids), EDIT_CHUNK):
            chunk = ids[start : start + EDIT_CHUNK]
            edited = await self.edited(domain, chunk, edit)
            for command_id in chunk:
                example = _example_of(command_id, edited.get(command_id), edit)
                counts["failed" if example.failure else "changed" if example.changes else ""] += 1
                if example.failure is not None:
                    failures[example.failure] += 1
                if len(shown) < examples:
                    shown.append(example)
        return EditPreview(
            domain, total, len(ids), counts["changed"], counts[""], counts["failed"],
            dict(failures.most_common(MAX_FAILURES)), tuple(shown),
        )  # fmt: skip

    async def _secret_keys(self, domain: str, command_type: str) -> frozenset[str]:
        entry = self._registry.find(domain, command_type)
        known = await self._store.secret_keys(domain, command_type)
        return known if entry is None else known | entry.secret_keys


def _example_of(command_id: UUID, one: Edited | None, edit: PayloadEdit) -> EditExample:
    if one is None:
        return EditExample(command_id, {}, "the payload is no longer archived")
    if one.failure is not None:
        return EditExample(command_id, {}, one.failure)
    hidden = secret_paths(edit, one.marked)
    before = redact_payload(one.before, one.marked)
    written = {"written": [pointer(path) for path in edit.written()]}
    try:
        after = edit.apply(before, one.marked)
    except InvalidPayloadError:  # what it looks for is masked, or was cut
        return EditExample(command_id, written, None)
    found = shown_difference((one.before, one.after), before, after, one.marked)
    if hidden:
        found["secret"] = hidden
    # Without a place that can be shown it changes something all the same.
    return EditExample(command_id, found or (written if one.paths else {}), None)
