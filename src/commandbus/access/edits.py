"""Edits by callers who may not see payloads: they change values, and learn none by it."""

from __future__ import annotations

from commandbus.access.callers import demand
from commandbus.access.model import Caller, Scope
from commandbus.troubleshooting.edits import without_differences, without_values
from commandbus.troubleshooting.model import EditPreview
from commandbus.troubleshooting.patch import PayloadEdit, tests_values, written_paths


def demanded(caller: Caller, edit: PayloadEdit) -> PayloadEdit:
    """The edit, or PermissionDeniedError if its outcome would tell what the caller may not see."""
    if tests_values(edit):
        demand(caller, Scope.READ_PAYLOAD, "an edit that tests values")
    return edit


def seen_by(
    caller: Caller, preview: EditPreview, edit: PayloadEdit, *, payload: bool
) -> EditPreview:
    """A preview as a caller may see it; `payload`: with values, which was allowed already."""
    if not caller.may(Scope.READ_PAYLOAD):
        return without_differences(preview, written_paths(edit))
    return preview if payload else without_values(preview)
