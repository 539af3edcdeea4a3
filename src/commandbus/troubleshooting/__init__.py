"""Troubleshooting: what failed for good, by cause, and what an operator does about it."""

from commandbus.troubleshooting.actions import Action, allowed_actions
from commandbus.troubleshooting.bulk import BulkOperations
from commandbus.troubleshooting.life import Attempt, CommandLife, LifeStep
from commandbus.troubleshooting.life_words import LifeFacts, life_sentence
from commandbus.troubleshooting.model import (
    BulkFilter,
    BulkItem,
    BulkMatch,
    BulkOperation,
    BulkOutcome,
    BulkPreview,
    BulkSample,
    BulkStatus,
    BulkVerb,
    EditExample,
    EditPreview,
    FailureGroup,
    GroupList,
)
from commandbus.troubleshooting.patch import JsonPatch, MergePatch
from commandbus.troubleshooting.queue import Troubleshooting
from commandbus.troubleshooting.sentences import bulk_sentence, group_sentence

__all__ = [
    "Action",
    "Attempt",
    "BulkFilter",
    "BulkItem",
    "BulkMatch",
    "BulkOperation",
    "BulkOperations",
    "BulkOutcome",
    "BulkPreview",
    "BulkSample",
    "BulkStatus",
    "BulkVerb",
    "CommandLife",
    "EditExample",
    "EditPreview",
    "FailureGroup",
    "GroupList",
    "JsonPatch",
    "LifeFacts",
    "LifeStep",
    "MergePatch",
    "Troubleshooting",
    "allowed_actions",
    "bulk_sentence",
    "group_sentence",
    "life_sentence",
]
