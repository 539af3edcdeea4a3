"""Troubleshooting: what failed for good, by cause, and what an operator does about it."""

from commandbus.troubleshooting.actions import Action, allowed_actions
from commandbus.troubleshooting.bulk import BulkOperations
from commandbus.troubleshooting.model import (
    BulkFilter,
    BulkItem,
    BulkMatch,
    BulkOperation,
    BulkOutcome,
    BulkPreview,
    BulkStatus,
    BulkVerb,
    EditExample,
    EditPreview,
    FailureGroup,
)
from commandbus.troubleshooting.patch import JsonPatch, MergePatch
from commandbus.troubleshooting.queue import Troubleshooting

__all__ = [
    "Action",
    "BulkFilter",
    "BulkItem",
    "BulkMatch",
    "BulkOperation",
    "BulkOperations",
    "BulkOutcome",
    "BulkPreview",
    "BulkStatus",
    "BulkVerb",
    "EditExample",
    "EditPreview",
    "FailureGroup",
    "JsonPatch",
    "MergePatch",
    "Troubleshooting",
    "allowed_actions",
]
