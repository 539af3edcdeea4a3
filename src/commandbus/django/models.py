"""The tables of the bus, to look at: not managed by Django, and never written through it.

An id is unique in its domain, so `command_id` stands for the key, which Django wants to be one
column; those who act on a row must look at its domain too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from django.db import models

from commandbus.django.conf import table
from commandbus.models import BatchStatus, CommandStatus, ParkReason


def _choices(kind: type[StrEnum]) -> list[tuple[str, str]]:
    """All values there are: without them the admin would ask the table, and read all of it."""
    return [(each.value, each.value) for each in kind]


class Command(models.Model):
    """A command."""

    command_id = models.UUIDField(primary_key=True)
    domain = models.TextField()
    command_type = models.TextField()
    status = models.TextField(choices=_choices(CommandStatus))
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    last_error_type = models.TextField(null=True)
    last_error_code = models.TextField(null=True)
    last_error_msg = models.TextField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    leased_by = models.TextField(null=True)
    correlation_id = models.UUIDField()
    batch_id = models.UUIDField(null=True)

    class Meta:
        managed = False
        db_table = table("command_bus_command")
        ordering = ("-created_at",)
        permissions = (
            ("operate", "May retry, cancel and complete commands"),
            ("view_payload", "May see the payloads of commands"),
        )

    def __str__(self) -> str:
        return f"{self.domain} {self.command_type} {self.command_id}"


class ParkedCommand(models.Model):
    """A command that waits for an operator."""

    command_id = models.UUIDField(primary_key=True)
    domain = models.TextField()
    command_type = models.TextField()
    reason = models.TextField(choices=_choices(ParkReason))
    parked_at = models.DateTimeField()
    fingerprint = models.TextField()

    class Meta:
        managed = False
        db_table = table("command_bus_troubleshooting")
        ordering = ("parked_at",)

    def __str__(self) -> str:
        return f"{self.domain} {self.command_type} {self.command_id}"


class FailureGroup(models.Model):
    """What is parked for one cause."""

    fingerprint = models.TextField(primary_key=True)
    domain = models.TextField()
    command_type = models.TextField()
    error_class = models.TextField(null=True)
    error_code = models.TextField(null=True)
    message = models.TextField()
    sample_command_id = models.UUIDField()
    parked_count = models.IntegerField()
    total_seen = models.BigIntegerField()
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()

    class Meta:
        managed = False
        db_table = table("command_bus_failure_group")
        ordering = ("-last_seen",)

    def __str__(self) -> str:
        return f"{self.domain} {self.command_type} {self.error_code or ''}"


class Batch(models.Model):
    """A batch."""

    batch_id = models.UUIDField(primary_key=True)
    domain = models.TextField()
    name = models.TextField(null=True)
    status = models.TextField(choices=_choices(BatchStatus))
    total_count = models.IntegerField()
    completed_count = models.IntegerField()
    failed_count = models.IntegerField()
    canceled_count = models.IntegerField()
    in_troubleshooting_count = models.IntegerField()
    created_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)

    class Meta:
        managed = False
        db_table = table("command_bus_batch")
        ordering = ("-created_at",)
        verbose_name_plural = "batches"

    def __str__(self) -> str:
        return f"{self.domain} {self.name or self.batch_id}"


class AuditEvent(models.Model):
    """An event in the life of a command."""

    audit_id = models.BigIntegerField(primary_key=True)
    domain = models.TextField()
    command_id = models.UUIDField()
    event_type = models.TextField()
    ts = models.DateTimeField()
    details_json = models.JSONField(null=True)
    batch_id = models.UUIDField(null=True)
    actor = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = table("command_bus_audit")
        ordering = ("-audit_id",)

    def __str__(self) -> str:
        return f"{self.event_type} {self.command_id}"


#: Read-only for everybody.
def _refuse(*_: Any, **__: Any) -> None:
    raise TypeError("the tables of the bus are changed by its verbs only: commandbus.django.bus")


for _model in (Command, ParkedCommand, FailureGroup, Batch, AuditEvent):
    _model.save = _refuse
    _model.delete = _refuse
