"""The table of orders."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("number", models.TextField(unique=True)),
                ("paid", models.IntegerField(default=0)),
            ],
        )
    ]
