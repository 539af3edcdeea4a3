"""The schema of the bus, and the models that look at it."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from commandbus.django.conf import table
from commandbus.django.migrating import BusSchema


class Migration(migrations.Migration):
    """Our numbered migrations up to the version that came with this file."""

    initial = True
    atomic = False
    dependencies: list[Any] = []
    operations = [
        BusSchema(20),
        migrations.CreateModel(
            name="AuditEvent",
            fields=[
                ("audit_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("domain", models.TextField()),
                ("command_id", models.UUIDField()),
                ("event_type", models.TextField()),
                ("ts", models.DateTimeField()),
                ("details_json", models.JSONField(null=True)),
                ("batch_id", models.UUIDField(null=True)),
                ("actor", models.TextField(null=True)),
            ],
            options={
                "db_table": table("command_bus_audit"),
                "ordering": ("-audit_id",),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("batch_id", models.UUIDField(primary_key=True, serialize=False)),
                ("domain", models.TextField()),
                ("name", models.TextField(null=True)),
                ("status", models.TextField()),
                ("total_count", models.IntegerField()),
                ("completed_count", models.IntegerField()),
                ("failed_count", models.IntegerField()),
                ("canceled_count", models.IntegerField()),
                ("in_troubleshooting_count", models.IntegerField()),
                ("created_at", models.DateTimeField()),
                ("completed_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name_plural": "batches",
                "db_table": table("command_bus_batch"),
                "ordering": ("-created_at",),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="Command",
            fields=[
                ("command_id", models.UUIDField(primary_key=True, serialize=False)),
                ("domain", models.TextField()),
                ("command_type", models.TextField()),
                ("status", models.TextField()),
                ("attempts", models.IntegerField()),
                ("max_attempts", models.IntegerField()),
                ("last_error_type", models.TextField(null=True)),
                ("last_error_code", models.TextField(null=True)),
                ("last_error_msg", models.TextField(null=True)),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
                ("leased_by", models.TextField(null=True)),
                ("correlation_id", models.UUIDField()),
                ("batch_id", models.UUIDField(null=True)),
            ],
            options={
                "db_table": table("command_bus_command"),
                "ordering": ("-created_at",),
                "permissions": (
                    ("operate", "May retry, cancel and complete commands"),
                    ("view_payload", "May see the payloads of commands"),
                ),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="FailureGroup",
            fields=[
                ("fingerprint", models.TextField(primary_key=True, serialize=False)),
                ("domain", models.TextField()),
                ("command_type", models.TextField()),
                ("error_class", models.TextField(null=True)),
                ("error_code", models.TextField(null=True)),
                ("message", models.TextField()),
                ("sample_command_id", models.UUIDField()),
                ("parked_count", models.IntegerField()),
                ("total_seen", models.BigIntegerField()),
                ("first_seen", models.DateTimeField()),
                ("last_seen", models.DateTimeField()),
            ],
            options={
                "db_table": table("command_bus_failure_group"),
                "ordering": ("-last_seen",),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="ParkedCommand",
            fields=[
                ("command_id", models.UUIDField(primary_key=True, serialize=False)),
                ("domain", models.TextField()),
                ("command_type", models.TextField()),
                ("reason", models.TextField()),
                ("parked_at", models.DateTimeField()),
                ("fingerprint", models.TextField()),
            ],
            options={
                "db_table": table("command_bus_troubleshooting"),
                "ordering": ("parked_at",),
                "managed": False,
            },
        ),
    ]
